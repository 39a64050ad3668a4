// Backend: what executes instructions on one kind of device. A backend owns device memory and turns
// each instruction of a plan, once, into a Kernel with its operands resolved to addresses; running
// a step then only calls kernels. Preconditions are checked when a kernel is bound, never when it
// runs.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "framework/base/shape.h"
#include "framework/base/status.h"
#include "framework/base/thread_team.h"
#include "framework/plan/plan.h"

namespace convnet {

// An operand with its memory: `box` is the part that the instruction reads or writes, `stored` the
// box that the buffer holds (box is inside it); strides follow from `stored` and `format`.
struct View {
  void* data = nullptr;  // first stored element of the buffer, aligned to 64 bytes
  DType dtype = DType::kF32;
  Format format = Format::kPlain;
  Shape shape;  // of the logical tensor
  Box stored;
  Box box;
  int part_k = 0;                  // which partial sum it is
  std::vector<int64_t> rows = {};  // the tensor's attribute of that name; empty: all of the batch
};

// What changes from step to step. Lives in the session; kernels keep a pointer to it.
struct StepState {
  int64_t step = 0;  // 0-based number of the training step
  double rate = 0;   // learning rate of the step
  uint64_t seed = 0;
  // Set by `guard` when the loss is not finite: devices stop before the backward pass.
  std::atomic<bool> stop{false};
};

// One bound instruction. run() neither allocates nor fails.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void run() = 0;
};

// What a kernel is made from. The references outlive it.
struct Binding {
  const Instr& instr;
  std::vector<View> in, out;
  StepState& state;
  ThreadTeam& team;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;  // "cpu(avx512)"

  // Device memory, 64-byte aligned, zeroed. Freed with free_memory.
  virtual Result<void*> allocate(int64_t bytes) = 0;
  virtual void free_memory(void* memory, int64_t bytes) = 0;

  // The kernel for an instruction other than exchange; kLimit or kUsage with the reason if this
  // backend has none (the session then asks the backend's fallback, and says so).
  virtual Result<std::unique_ptr<Kernel>> bind(const Binding& binding) = 0;
};

}  // namespace convnet
