// Session: a plan made ready to run. It owns the devices' memory, binds every instruction to a
// kernel once, and runs steps: one executor thread per device, the calling thread waits. The
// devices allocate nothing in a step. Among several ranks each session owns its rank's devices, and
// all its functions are collective, but for plan(), observe() and describe().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "framework/backends/backend.h"
#include "framework/base/status.h"
#include "framework/comm/ranks.h"
#include "framework/plan/plan.h"
#include "framework/runtime/batch_source.h"

namespace convnet {

// Values of a logical tensor on the host: plain row-major, whatever the devices hold. Doubles carry
// f32 values exactly.
struct HostTensor {
  Shape shape;
  DType dtype = DType::kF32;
  std::vector<double> values;
};

// One metric tensor of a plan after a step, summed over all devices.
struct MetricValues {
  std::string layer;  // the loss layer
  double weight = 1;
  std::vector<int64_t> top;  // the k of each accuracy
  double loss_sum = 0;       // over examples
  double examples = 0;
  std::vector<double> correct;  // per entry of top
};

struct StepResult {
  std::vector<MetricValues> metrics;
  bool finite =
      true;  // false: a loss was NaN or infinite, and the step stopped before the backward pass
};

// A value or gradient that differs from a finite number: what finiteness checking reports.
struct NonFinite {
  std::string tensor;  // "conv3", "conv3.w"
  std::string layer;   // "conv3"
  int line = 0;
};

struct SessionOptions {
  // Makes the backend of a device (0 .. devices-1) of the plan.
  std::function<Result<std::unique_ptr<Backend>>(int device)> backend;
  // Optional: runs the instructions that the backend has no kernel for, on the same (host) memory.
  std::function<Result<std::unique_ptr<Backend>>(int device)> fallback;
  int threads = 1;             // team of each device, the executor thread included
  Ranks* ranks = &one_rank();  // outlives the session
};

class Session {
 public:
  // `state_of`: a session of the same model and number of devices whose parameters this one shares
  // (a test plan beside its training plan); it must outlive this one. Never two of them at work at
  // a time.
  static Result<std::unique_ptr<Session>> create(const Plan& plan, const SessionOptions& options,
                                                 Session* state_of = nullptr);
  virtual ~Session() = default;

  virtual const Plan& plan() const = 0;
  virtual Ranks& ranks() const = 0;

  // First values of all parameters and state from the plan's seed: bits depend on seed, name and
  // element index only.
  virtual void initialise() = 0;

  // Runs one step. `step` and `rate` are those of the schedule. Fails only if the world does. All
  // ranks get the same result.
  virtual Result<StepResult> run(const Batch& batch, int64_t step, double rate) = 0;

  // Runs the forward part again on the same batch, checking every result: the first parameter or
  // value that is not finite. Call after run() said finite = false; parameters are unchanged since.
  virtual Result<NonFinite> find_non_finite(const Batch& batch, int64_t step) = 0;

  // Parameters and state by tensor name, gathered from (or scattered to) the devices that hold
  // them. Only between steps. Rank 0 gets, and gives, the values; the others get none, and what
  // they give is not looked at.
  virtual Result<HostTensor> read(const std::string& tensor) const = 0;
  virtual Status write(const std::string& tensor, const HostTensor& value) = 0;

  // Called on a thread of `device`, one at a time, after each instruction (each bucket of
  // exchanges: for all of it), with its results; for verify and tests. In the order of each stream.
  // Null to stop. Only between steps.
  using Observer = std::function<void(int device, int instr, const std::vector<View>& out)>;
  virtual void observe(Observer observer) = 0;

  // "2 x cpu(avx512), 1 thread each; lrn.bwd on reference": backends, and what they could not do.
  virtual std::string describe() const = 0;
};

}  // namespace convnet
