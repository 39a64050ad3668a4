// Device: one device of a session. Its memory, its instructions bound to kernels, and a thread for
// each stream that its plan has.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "framework/backends/backend.h"
#include "framework/base/status.h"
#include "framework/comm/box_runs.h"
#include "framework/comm/communicator.h"
#include "framework/plan/plan.h"
#include "framework/runtime/batch_source.h"
#include "framework/runtime/events.h"
#include "framework/runtime/executor.h"
#include "framework/runtime/session.h"

namespace convnet {

class Device {
 public:
  // Allocates the memory of device `number` of `plan`, which outlives it. Buffers that are kept
  // from step to step are those of `state_of`, if given, found by tensor and box.
  static Result<std::unique_ptr<Device>> create(const Plan& plan, int number,
                                                const SessionOptions& options,
                                                const Device* state_of);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Binds all instructions. The communicator outlives the device.
  Status bind(Communicator& communicator, const SessionOptions& options);

  // Makes `slot` of metrics() a copy of a metric tensor, taken right after the last instruction
  // that writes `buffer`: later its memory may serve something else.
  void snapshot(int buffer, size_t slot);

  // What a step does, and where it ends.
  struct Work {
    const Batch* batch = nullptr;
    const Session::Observer* observer = nullptr;  // may be null
    // Change no parameter, and note the first result that is not finite.
    bool checked = false;
  };
  void begin(const Work& work);  // on the device's threads
  void wait();

  // Runs job(task, thread) for tasks 0 .. tasks-1 on the device's team, and waits.
  void run_tasks(int64_t tasks, const std::function<void(int64_t, int)>& job);

  const DevicePlan& program() const { return program_; }
  StepState& state() { return state_; }
  void* address(int buffer) const { return address_[static_cast<size_t>(buffer)]; }
  View view(const Operand& operand) const;
  View view(int buffer) const;  // all that it holds
  const std::vector<std::vector<double>>& metrics() const { return metrics_; }
  // After checked work: the instruction, -1 (nothing found) or kInputs; and the buffer.
  static constexpr int kInputs = -2;
  int bad_instr() const { return bad_instr_; }
  int bad_buffer() const { return bad_buffer_; }

  std::string backend_name() const { return backend_->name(); }
  const std::set<std::string>& fallback_ops() const {
    return fallback_ops_;
  }  // "lrn.fwd on reference"

 private:
  struct Step {
    std::unique_ptr<Kernel> kernel;
    std::vector<View> out;
    std::vector<int> snapshots;  // indices in snapshots_
    bool guard = false;
    bool update = false;  // of a parameter
    bool exchange = false;
    Stream stream = Stream::kCompute;
    int wait = -1, signal = -1;  // events
    size_t results_from = 0;     // instructions from here to this one have results now: its bucket
  };
  struct Snapshot {
    int buffer = 0;
    size_t slot = 0;
  };
  struct Input {
    int buffer = 0;
    bool label = false;
    std::vector<BoxRuns> runs;  // device, batch; one for each segment of examples
  };
  struct Allocation {
    void* memory = nullptr;
    int64_t bytes = 0;
  };

  Device(const Plan& plan, int number, int threads);
  Result<void*> allocate(int64_t bytes, const std::string& what);
  Status place_buffers(const Device* state_of);
  Status add_input(int buffer);
  Result<std::unique_ptr<Kernel>> bind_kernel(const Instr& instr, std::vector<View> in,
                                              std::vector<View> out, Communicator& communicator,
                                              const SessionOptions& options);
  size_t first_result(size_t i) const;
  void fill(const Batch& batch);
  void step();
  void run_in_order();
  void run_stream(Stream stream);
  bool run_step(size_t i);
  bool note_if_bad(int instr, int buffer, const View& view);

  const Plan& plan_;
  const int number_;
  const DevicePlan& program_;
  StepState state_;
  std::unique_ptr<Backend> backend_, fallback_;
  Communicator* communicator_ = nullptr;
  std::vector<Allocation> owned_;
  std::vector<void*> address_;  // of each buffer
  std::vector<Input> inputs_;
  std::vector<Snapshot> snapshots_;
  std::vector<std::vector<double>> metrics_;
  std::set<std::string> fallback_ops_;
  ThreadTeam team_, comm_team_;  // of the streams; that of communication is its thread alone
  std::vector<Step> steps_;
  Events events_;
  std::mutex observing_;
  Work work_;
  int bad_instr_ = -1;
  int bad_buffer_ = -1;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Executor> comm_executor_;  // null: the plan has no such stream
  bool comm_runs_ = false;                   // in this step
};

// True if every element of the view's box is a finite number; padding lanes do not count.
bool all_finite(const View& view);

// "'conv3' (model.yaml:14)"
std::string place_of(const Plan& plan, int layer);

}  // namespace convnet
