#include "framework/backends/reference/reference.h"

#include <cstdlib>
#include <cstring>

#include "framework/backends/reference/kernels.h"

namespace convnet {
namespace {

using Factory = reference::KernelResult (*)(const Binding&);

struct Entry {
  Op op;
  Factory f32, f64;
};

#define ENTRY(op, name) \
  { Op::op, reference::name<float>, reference::name<double> }
constexpr Entry kEntries[] = {
    ENTRY(kConvFwd, conv_fwd),
    ENTRY(kConvBwdData, conv_bwd_data),
    ENTRY(kConvBwdWeight, conv_bwd_weight),
    ENTRY(kFcFwd, fc_fwd),
    ENTRY(kFcBwdData, fc_bwd_data),
    ENTRY(kFcBwdWeight, fc_bwd_weight),
    ENTRY(kPoolMaxFwd, pool_max_fwd),
    ENTRY(kPoolMaxBwd, pool_max_bwd),
    ENTRY(kPoolAvgFwd, pool_avg_fwd),
    ENTRY(kPoolAvgBwd, pool_avg_bwd),
    ENTRY(kActFwd, act_fwd),
    ENTRY(kActBwd, act_bwd),
    ENTRY(kLrnFwd, lrn_fwd),
    ENTRY(kLrnBwd, lrn_bwd),
    ENTRY(kDropoutFwd, dropout),
    ENTRY(kDropoutBwd, dropout),
    ENTRY(kConcatFwd, concat_fwd),
    ENTRY(kConcatBwd, concat_bwd),
    ENTRY(kAdd, add),
    ENTRY(kBiasFwd, bias_fwd),
    ENTRY(kBiasBwd, bias_bwd),
    ENTRY(kSoftmaxStats, softmax_stats),
    ENTRY(kSoftmaxNorm, softmax_norm),
    ENTRY(kSoftmaxMetrics, softmax_metrics),
    ENTRY(kSoftmaxLossFwd, softmax_loss_fwd),
    ENTRY(kSoftmaxLossBwd, softmax_loss_bwd),
    ENTRY(kSum, sum),
    ENTRY(kRowsJoin, rows_join),
    ENTRY(kUpdateSgd, update_sgd),
    ENTRY(kGuard, guard),
};
#undef ENTRY

class ReferenceBackend final : public Backend {
 public:
  std::string name() const override { return "reference"; }

  Result<void*> allocate(int64_t bytes) override {
    const auto rounded = (static_cast<uint64_t>(bytes) + 63) / 64 * 64;
    void* memory = std::aligned_alloc(64, rounded == 0 ? 64 : rounded);
    if (memory == nullptr)
      return Status(Code::kLimit, "cannot allocate " + std::to_string(bytes) + " bytes");
    std::memset(memory, 0, rounded);
    return memory;
  }

  void free_memory(void* memory, int64_t) override { std::free(memory); }

  Result<std::unique_ptr<Kernel>> bind(const Binding& binding) override {
    // Metrics are f64 whatever they are made from.
    const bool of_operands = binding.out.empty() || binding.instr.op == Op::kSoftmaxMetrics;
    const std::vector<View>& first = of_operands ? binding.in : binding.out;
    const DType dtype = first.empty() ? DType::kF32 : first[0].dtype;
    for (const Entry& entry : kEntries)
      if (entry.op == binding.instr.op)
        return (dtype == DType::kF64 ? entry.f64 : entry.f32)(binding);
    return Status(Code::kUsage, "the reference backend has no kernel for " +
                                    std::string(op_info(binding.instr.op).text));
  }
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace convnet
