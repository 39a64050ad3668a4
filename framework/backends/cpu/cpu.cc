#include "framework/backends/cpu/cpu.h"

#include <chrono>
#include <string>

#include "framework/backends/cpu/bind.h"
#include "framework/backends/reference/reference.h"
#include "framework/base/check.h"

namespace convnet {
namespace {

const cpu::CpuKernels& kernels_of(CpuIsa isa) {
  return isa == CpuIsa::kAvx512 ? cpu::kernels_avx512() : cpu::kernels_avx2();
}

using Bind = cpu::KernelResult (*)(const cpu::Context&, const Binding&);

struct Entry {
  Op op;
  Bind bind;
};

constexpr Entry kEntries[] = {
    {Op::kConvFwd, cpu::bind_mac},
    {Op::kConvBwdData, cpu::bind_mac},
    {Op::kConvBwdWeight, cpu::bind_weight},
    {Op::kFcFwd, cpu::bind_mac},
    {Op::kFcBwdData, cpu::bind_mac},
    {Op::kFcBwdWeight, cpu::bind_weight},
    {Op::kPoolMaxFwd, cpu::bind_pool},
    {Op::kPoolMaxBwd, cpu::bind_pool},
    {Op::kPoolAvgFwd, cpu::bind_pool},
    {Op::kPoolAvgBwd, cpu::bind_pool},
    {Op::kActFwd, cpu::bind_activation},
    {Op::kActBwd, cpu::bind_activation},
    {Op::kLrnFwd, cpu::bind_lrn},
    {Op::kLrnBwd, cpu::bind_lrn},
    {Op::kDropoutFwd, cpu::bind_dropout},
    {Op::kDropoutBwd, cpu::bind_dropout},
    {Op::kConcatFwd, cpu::bind_concat},
    {Op::kConcatBwd, cpu::bind_concat},
    {Op::kAdd, cpu::bind_add},
    {Op::kBiasFwd, cpu::bind_bias},
    {Op::kBiasBwd, cpu::bind_bias_gradient},
    {Op::kSoftmaxStats, cpu::bind_softmax_stats},
    {Op::kSoftmaxNorm, cpu::bind_softmax_norm},
    {Op::kSoftmaxMetrics, cpu::bind_softmax_metrics},
    {Op::kSoftmaxLossFwd, cpu::bind_softmax},
    {Op::kSoftmaxLossBwd, cpu::bind_softmax},
    {Op::kSum, cpu::bind_sum},
    {Op::kRowsJoin, cpu::bind_rows_join},
    {Op::kUpdateSgd, cpu::bind_update},
};

// Kernels work on whole blocks of sixteen examples: an operand's box begins with a block, and ends
// with one or with the last example there is.
bool whole_blocks(const View& view) {
  if (view.format != Format::kBlocked || view.box.empty()) return true;
  const int64_t hi = view.box.hi(0);
  return view.box.lo(0) % kLanes == 0 && (hi % kLanes == 0 || hi == view.shape[0]);
}

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(CpuIsa isa)
      : isa_(isa),
        context_{kernels_of(isa), isa == CpuIsa::kAvx512, std::make_shared<cpu::Scratch>()} {}

  std::string name() const override { return std::string("cpu(") + cpu_isa_name(isa_) + ")"; }

  Result<void*> allocate(int64_t bytes) override { return cpu::map_memory(bytes); }

  void free_memory(void* memory, int64_t bytes) override { cpu::unmap_memory(memory, bytes); }

  Result<std::unique_ptr<Kernel>> bind(const Binding& binding) override {
    // The reference backend's bind checks the preconditions, for both backends alike.
    Result<std::unique_ptr<Kernel>> checked = reference_->bind(binding);
    if (!checked.ok()) return checked;
    // A few numbers: there is nothing to gain.
    const bool of_metrics = binding.instr.op == Op::kSum && binding.out[0].dtype == DType::kF64;
    if (binding.instr.op == Op::kGuard || of_metrics) return checked;
    const std::string op(op_info(binding.instr.op).text);
    for (const std::vector<View>* views : {&binding.in, &binding.out})
      for (const View& view : *views) {
        if (view.dtype == DType::kF64 && view.shape.rank() != 1)
          return Status(Code::kLimit, op + ": the cpu backend has no kernels for f64");
        if (!whole_blocks(view))
          return Status(Code::kLimit, op + ": the cpu backend works on whole blocks of " +
                                          std::to_string(kLanes) + " examples, not on " +
                                          view.box.str());
      }
    for (const Entry& entry : kEntries)
      if (entry.op == binding.instr.op) {
        Result<std::unique_ptr<Kernel>> kernel = entry.bind(context_, binding);
        if (!kernel.ok()) return kernel.status().with_context(op);
        return kernel;
      }
    return Status(Code::kUsage, "the cpu backend has no kernel for " + op);
  }

 private:
  CpuIsa isa_;
  cpu::Context context_;
  std::unique_ptr<Backend> reference_ = make_reference_backend();
};

}  // namespace

const char* cpu_isa_name(CpuIsa isa) { return isa == CpuIsa::kAvx512 ? "avx512" : "avx2"; }

// __builtin_cpu_supports asks the operating system too: it knows whether registers are saved.
bool cpu_supports(CpuIsa isa) {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (isa == CpuIsa::kAvx2) return avx2;
  return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
}

CpuIsa best_cpu_isa() {
  if (cpu_supports(CpuIsa::kAvx512)) return CpuIsa::kAvx512;
  CHECK_MSG(cpu_supports(CpuIsa::kAvx2), "this processor lacks AVX2 with FMA");
  return CpuIsa::kAvx2;
}

std::unique_ptr<Backend> make_cpu_backend(CpuIsa isa) {
  CHECK_MSG(cpu_supports(isa), std::string("this machine lacks ") + cpu_isa_name(isa));
  return std::make_unique<CpuBackend>(isa);
}

double measure_cpu_peak(CpuIsa isa, double seconds) {
  CHECK_MSG(cpu_supports(isa), std::string("this machine lacks ") + cpu_isa_name(isa));
  using Clock = std::chrono::steady_clock;
  const auto peak = kernels_of(isa).peak;
  volatile float sink = 0;
  double best = 0;
  const auto begin = Clock::now();
  do {
    float sum = 0;
    const auto from = Clock::now();
    const int64_t operations = peak(200000, &sum);
    const std::chrono::duration<double> took = Clock::now() - from;
    sink = sum;
    best = std::max(best, static_cast<double>(operations) / took.count() * 1e-9);
  } while (std::chrono::duration<double>(Clock::now() - begin).count() < seconds);
  static_cast<void>(sink);
  return best;
}

}  // namespace convnet
