#include "tools/convnet/random/integer_backend.h"

#include <cfenv>
#include <cmath>
#include <utility>

#include "framework/backends/reference/access.h"
#include "framework/backends/reference/reference.h"

namespace convnet::cli {
namespace {

bool is_forward_loss(Op op) {
  return op == Op::kSoftmaxLossFwd || op == Op::kSoftmaxStats || op == Op::kSoftmaxNorm ||
         op == Op::kSoftmaxMetrics;
}

// Runs another kernel, and notes whether it rounded.
class WatchedKernel final : public Kernel {
 public:
  WatchedKernel(std::unique_ptr<Kernel> kernel, std::atomic<bool>& rounded)
      : kernel_(std::move(kernel)), rounded_(rounded) {}

  void run() override {
    std::feclearexcept(FE_INEXACT);
    kernel_->run();
    if (std::fetestexcept(FE_INEXACT) != 0) rounded_ = true;
  }

 private:
  std::unique_ptr<Kernel> kernel_;
  std::atomic<bool>& rounded_;
};

// The forward pass of a loss: its metrics are those of the softmax, its probabilities are not.
class LossKernel final : public Kernel {
 public:
  LossKernel(std::unique_ptr<Kernel> kernel, const View& scores, const View& prob)
      : kernel_(std::move(kernel)), scores_(scores), prob_(prob) {}

  void run() override {
    kernel_->run();
    prob_.for_each([&](auto... at) { prob_(at...) = std::fmod(scores_(at...), 3.0); });
  }

 private:
  std::unique_ptr<Kernel> kernel_;
  reference::Access<double> scores_, prob_;
};

// With an instruction of its own, which differs from the plan's in an attribute.
class OwnInstruction final : public Kernel {
 public:
  explicit OwnInstruction(Instr instr) : instr_(std::move(instr)) {}

  Status bind(Backend& backend, const Binding& binding) {
    CONVNET_ASSIGN_OR_RETURN(kernel_, backend.bind(Binding{instr_, binding.in, binding.out,
                                                           binding.state, binding.team}));
    return Status();
  }
  void run() override { kernel_->run(); }

 private:
  Instr instr_;
  std::unique_ptr<Kernel> kernel_;
};

class IntegerBackend final : public Backend {
 public:
  IntegerBackend(int64_t batch, std::atomic<bool>& rounded) : batch_(batch), rounded_(rounded) {}

  std::string name() const override { return "reference(integers)"; }
  Result<void*> allocate(int64_t bytes) override { return reference_->allocate(bytes); }
  void free_memory(void* memory, int64_t bytes) override { reference_->free_memory(memory, bytes); }

  Result<std::unique_ptr<Kernel>> bind(const Binding& binding) override {
    const Op op = binding.instr.op;
    std::unique_ptr<Kernel> kernel;
    if (op == Op::kSoftmaxLossBwd) {
      Instr instr = binding.instr;
      const double scale = instr.attrs.real("scale");
      instr.attrs.set("scale", std::round(scale * static_cast<double>(batch_)));
      auto own = std::make_unique<OwnInstruction>(std::move(instr));
      CONVNET_RETURN_IF_ERROR(own->bind(*reference_, binding));
      kernel = std::move(own);
    } else {
      CONVNET_ASSIGN_OR_RETURN(kernel, reference_->bind(binding));
    }
    if (op == Op::kSoftmaxLossFwd || op == Op::kSoftmaxNorm)
      kernel = std::make_unique<LossKernel>(std::move(kernel), binding.in[0], binding.out[0]);
    if (!is_forward_loss(op)) kernel = std::make_unique<WatchedKernel>(std::move(kernel), rounded_);
    return kernel;
  }

 private:
  std::unique_ptr<Backend> reference_ = make_reference_backend();
  const int64_t batch_;
  std::atomic<bool>& rounded_;
};

}  // namespace

std::unique_ptr<Backend> make_integer_backend(int64_t batch, std::atomic<bool>& rounded) {
  return std::make_unique<IntegerBackend>(batch, rounded);
}

}  // namespace convnet::cli
