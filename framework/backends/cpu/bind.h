// How instructions become kernels of the cpu backend: what the binding functions share. The
// preconditions of every instruction have been checked by the reference backend's bind before one
// of these is called.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "framework/backends/backend.h"
#include "framework/backends/cpu/kernels.h"
#include "framework/backends/cpu/memory.h"

namespace convnet::cpu {

struct Context {
  const CpuKernels& kernels;
  bool wide;  // a Vec is one register, not two
  std::shared_ptr<Scratch> scratch;
};

using KernelResult = Result<std::unique_ptr<Kernel>>;

// One for each operation; fc goes with conv.
KernelResult bind_mac(const Context& context, const Binding& binding);     // conv.cc
KernelResult bind_weight(const Context& context, const Binding& binding);  // weight.cc
KernelResult bind_bias_gradient(const Context& context, const Binding& binding);
KernelResult bind_pool(const Context& context, const Binding& binding);  // channelwise.cc
KernelResult bind_lrn(const Context& context, const Binding& binding);
KernelResult bind_dropout(const Context& context, const Binding& binding);
KernelResult bind_softmax(const Context& context, const Binding& binding);  // softmax.cc
KernelResult bind_softmax_stats(const Context& context, const Binding& binding);
KernelResult bind_softmax_norm(const Context& context, const Binding& binding);
KernelResult bind_softmax_metrics(const Context& context, const Binding& binding);
KernelResult bind_activation(const Context& context, const Binding& binding);  // elementwise.cc
KernelResult bind_bias(const Context& context, const Binding& binding);
KernelResult bind_add(const Context& context, const Binding& binding);
KernelResult bind_concat(const Context& context, const Binding& binding);
KernelResult bind_rows_join(const Context& context, const Binding& binding);
KernelResult bind_sum(const Context& context, const Binding& binding);
KernelResult bind_update(const Context& context, const Binding& binding);

// A kernel that runs a function object.
template <typename F>
std::unique_ptr<Kernel> make_kernel(F f) {
  class FunctionKernel final : public Kernel {
   public:
    explicit FunctionKernel(F body) : body_(std::move(body)) {}
    void run() override { body_(); }

   private:
    F body_;
  };
  return std::make_unique<FunctionKernel>(std::move(f));
}

// geometry.cc

int32_t act_of(const Instr& instr);

// The part `box` of a blocked view of rank 4; it lies inside what the view stores.
Tensor4 tensor_of(const View& view, const Box& box);
// `view`'s box, with the examples of `out`'s.
Tensor4 tensor_of(const View& view, const View& out);

// One axis of a convolution.
struct ConvAxis {
  int64_t kernel, stride, pad, dilation;
};

// The classes of output rows (columns) [out_lo, out_hi), reading rows [in_lo, in_hi): forward,
// where output p's tap r reads row p * stride - pad + r * dilation; and backward, where "output" is
// a row of dx and reads those rows of dy whose taps lie on it.
std::vector<AxisClass> forward_classes(const ConvAxis& axis, int64_t out_lo, int64_t out_hi,
                                       int64_t in_lo, int64_t in_hi);
std::vector<AxisClass> backward_classes(const ConvAxis& axis, int64_t out_lo, int64_t out_hi,
                                        int64_t in_lo, int64_t in_hi);

// A canonical shard, counted from the first index summed, and how many finished sums to its left
// are added once it is done (the tree of ops.def). Empty shards are left out.
struct Shard {
  int64_t lo, hi, merges;
};
// Those of `cuts` that lie in [lo, hi), which becomes [0, hi - lo).
std::vector<Shard> shards_of(const std::vector<int64_t>& cuts, int64_t lo, int64_t hi);
// How many sums there are at the same time, at most.
template <typename S>
int64_t tree_levels(const std::vector<S>& shards) {
  int64_t depth = 0, levels = 1;
  for (const S& shard : shards) {
    levels = std::max(levels, depth + 1);
    depth += 1 - shard.merges;
  }
  return levels;
}

// Task i of n of [0, count): balanced, in order.
inline int64_t part_begin(int64_t i, int64_t n, int64_t count) { return i * count / n; }

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

}  // namespace convnet::cpu
