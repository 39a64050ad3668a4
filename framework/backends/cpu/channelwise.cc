// Pooling, normalisation and dropout: operations on one channel, row or block at a time.
#include <cmath>

#include "framework/backends/cpu/bind.h"
#include "framework/base/random.h"
#include "framework/plan/rows.h"

namespace convnet::cpu {
namespace {

constexpr int64_t kLrnPixels = 8;  // as in kernels/normalise.cc

// Calls f(block, channel) for all of them.
template <typename F>
void for_each_plane(ThreadTeam& team, const Tensor4& t, F&& f) {
  const int64_t channels = t.channels;
  team.run(t.blocks * channels, [&](int64_t task, int) { f(task / channels, task % channels); });
}

// `view`'s rows and columns, with `out`'s examples and channels.
Tensor4 plane_of(const View& view, const View& out) {
  Box box = view.box;
  for (const int dim : {0, 1}) box.set(dim, out.box.lo(dim), out.box.hi(dim));
  return tensor_of(view, box);
}

}  // namespace

KernelResult bind_pool(const Context& context, const Binding& binding) {
  const Attrs& attrs = binding.instr.attrs;
  const Op op = binding.instr.op;
  const bool forward = op == Op::kPoolMaxFwd || op == Op::kPoolAvgFwd;
  const View& out = binding.out[0];
  if (out.box.empty()) return make_kernel([] {});
  const View& y = forward ? out : binding.in.back();
  const View* x = op == Op::kPoolAvgBwd ? nullptr : &binding.in[0];
  PoolProblem p{};
  p.y = plane_of(y, out);
  if (x != nullptr) p.x = plane_of(*x, out);
  if (!forward) p.dx = tensor_of(out, out.box);
  for (const int axis : {0, 1}) {
    const auto a = static_cast<size_t>(axis);
    const int dim = 2 + axis;
    p.kernel[axis] = attrs.list("kernel")[a];
    p.stride[axis] = attrs.list("stride")[a];
    p.pad[axis] = attrs.list("pad")[a];
    p.image[axis] = (x != nullptr ? *x : out).shape[dim];
    p.y_first[axis] = y.box.lo(dim);
    if (x != nullptr) p.x_first[axis] = x->box.lo(dim);
    if (!forward) p.dx_first[axis] = out.box.lo(dim);
  }
  const auto kernel = op == Op::kPoolMaxFwd   ? context.kernels.pool_max_fwd
                      : op == Op::kPoolMaxBwd ? context.kernels.pool_max_bwd
                      : op == Op::kPoolAvgFwd ? context.kernels.pool_avg_fwd
                                              : context.kernels.pool_avg_bwd;
  return make_kernel([p, kernel, &team = binding.team] {
    for_each_plane(team, p.y, [&](int64_t block, int64_t channel) { kernel(p, block, channel); });
  });
}

KernelResult bind_lrn(const Context& context, const Binding& binding) {
  const Attrs& attrs = binding.instr.attrs;
  const bool forward = binding.instr.op == Op::kLrnFwd;
  const View& out = binding.out[0];
  if (out.box.empty()) return make_kernel([] {});
  // All with the result's examples, rows and columns, and channels of their own.
  const auto operand = [&](const View& view, Tensor4* t, int64_t* first) {
    Box box = out.box;
    box.set(1, view.box.lo(1), view.box.hi(1));
    *t = tensor_of(view, box);
    *first = view.box.lo(1);
  };
  LrnProblem p{};
  p.size = attrs.integer("size");
  p.channels = out.shape[1];
  p.out_first = out.box.lo(1);
  const double alpha = attrs.real("alpha"), beta = attrs.real("beta");
  const auto size = static_cast<double>(p.size);
  p.k = static_cast<float>(attrs.real("k"));
  p.beta = static_cast<float>(beta);
  p.sqrt_power = beta == 0.75;
  operand(binding.in[0], &p.x, &p.x_first);
  ThreadTeam& team = binding.team;
  const int64_t rows = out.box.extent(2), tasks = ceil_div(out.box.extent(0), kLanes) * rows;
  if (forward) {
    p.factor = static_cast<float>(alpha / size);
    int64_t first = 0;
    operand(out, &p.y, &first);
    operand(binding.out[1], &p.scale, &first);
    return make_kernel([p, rows, tasks, lrn = context.kernels.lrn_fwd, &team] {
      team.run(tasks, [&](int64_t task, int) { lrn(p, task / rows, task % rows); });
    });
  }
  p.factor = static_cast<float>(2 * alpha * beta / size);
  operand(binding.in[1], &p.y, &p.y_first);
  operand(binding.in[2], &p.scale, &p.scale_first);
  operand(binding.in[3], &p.dy, &p.dy_first);
  operand(out, &p.dx, &p.out_first);
  CONVNET_RETURN_IF_ERROR(
      context.scratch->reserve(team.threads(), p.channels * kLrnPixels * kLanes));
  return make_kernel(
      [p, rows, tasks, lrn = context.kernels.lrn_bwd, scratch = context.scratch, &team] {
        team.run(tasks, [&](int64_t task, int thread) {
          lrn(p, task / rows, task % rows, scratch->of(thread));
        });
      });
}

KernelResult bind_dropout(const Context& context, const Binding& binding) {
  const View& out = binding.out[0];
  if (out.box.empty()) return make_kernel([] {});
  const double rate = binding.instr.attrs.real("rate");
  const auto purpose = static_cast<uint64_t>(binding.instr.attrs.integer("key"));
  DropoutProblem p{};
  p.x = tensor_of(binding.in[0], out.box);
  p.y = tensor_of(out, out.box);
  for (int i = 0; i < 3; ++i) p.first[i] = out.box.lo(i + 1);
  const RowMap map(out.rows);
  std::vector<int64_t> examples;
  for (int64_t n = out.box.lo(0); n < out.box.hi(0); n += kLanes)
    examples.push_back(map.example(n));
  p.examples = examples.data();  // moves with the list
  p.channels = out.shape[1];
  p.rows = out.shape[2];
  p.columns = out.shape[3];
  // uniform = bits / 2^24 >= rate exactly if bits >= the next integer above rate * 2^24.
  p.threshold = static_cast<uint32_t>(std::ceil(rate * 0x1p24));
  p.kept = static_cast<float>(1 - rate);
  return make_kernel([p, purpose, examples = std::move(examples), dropout = context.kernels.dropout,
                      &state = binding.state, &team = binding.team] {
    const auto key = random_key(state.seed, purpose, static_cast<uint64_t>(state.step));
    for_each_plane(team, p.y,
                   [&](int64_t block, int64_t channel) { dropout(p, key.data(), block, channel); });
  });
}

}  // namespace convnet::cpu
