#include "framework/runtime/device.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "framework/plan/rows.h"

namespace convnet {
namespace {

constexpr int64_t kAlignment = 64;

std::string size_text(int64_t bytes) {
  if (bytes < 10 * 1024 * 1024) return std::to_string(bytes) + " bytes";
  return std::to_string(bytes / (1024 * 1024)) + " MiB";
}

bool is_update(Op op) { return op == Op::kUpdateSgd; }

template <typename T>
bool finite_run(const T* p, int64_t n) {
  // Subtracting a number from itself gives 0 or NaN; the sum of many shows whether one was not
  // finite.
  T sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += p[i] - p[i];
  return sum == 0;
}

}  // namespace

std::string place_of(const Plan& plan, int layer) {
  if (layer < 0 || static_cast<size_t>(layer) >= plan.layers.size()) return "the plan";
  const Layer& l = plan.layers[static_cast<size_t>(layer)];
  return "'" + l.name + "' (" + plan.source + ":" + std::to_string(l.line) + ")";
}

bool all_finite(const View& view) {
  if (view.dtype == DType::kI32 || view.box.empty()) return true;
  const Box stored[] = {view.stored};
  bool finite = true;
  const auto scan = [&](const Box& box, int64_t lanes) {
    const BoxRuns runs(view.format, box, stored);
    runs.for_each([&](const int64_t* offsets) {
      for (int64_t at = 0; finite && at < runs.run(); at += lanes == kLanes ? runs.run() : kLanes) {
        const int64_t n = lanes == kLanes ? runs.run() : lanes;
        finite = view.dtype == DType::kF32
                     ? finite_run(static_cast<const float*>(view.data) + offsets[0] + at, n)
                     : finite_run(static_cast<const double*>(view.data) + offsets[0] + at, n);
      }
    });
  };
  if (view.format == Format::kPlain || view.box.hi(0) % kLanes == 0) {
    scan(view.box, kLanes);
    return finite;
  }
  // The last block is not full: its padding is not looked at.
  Box whole = view.box, last = view.box;
  const int64_t cut = view.box.hi(0) / kLanes * kLanes;
  whole.set(0, view.box.lo(0), std::max(view.box.lo(0), cut));
  last.set(0, std::max(view.box.lo(0), cut), view.box.hi(0));
  scan(whole, kLanes);
  scan(last, view.box.hi(0) - cut);
  return finite;
}

Device::Device(const Plan& plan, int number, int threads)
    : plan_(plan),
      number_(number),
      program_(plan.devices[static_cast<size_t>(number)]),
      team_(threads),
      comm_team_(1) {
  state_.seed = plan.seed;
}

Device::~Device() {
  executor_.reset();
  comm_executor_.reset();
  steps_.clear();
  for (const Allocation& a : owned_) backend_->free_memory(a.memory, a.bytes);
}

Result<std::unique_ptr<Device>> Device::create(const Plan& plan, int number,
                                               const SessionOptions& options,
                                               const Device* state_of) {
  std::unique_ptr<Device> device(new Device(plan, number, std::max(1, options.threads)));
  CONVNET_ASSIGN_OR_RETURN(device->backend_, options.backend(number));
  CONVNET_RETURN_IF_ERROR(device->place_buffers(state_of));
  CONVNET_ASSIGN_OR_RETURN(device->executor_, Executor::start());
  return device;
}

Result<void*> Device::allocate(int64_t bytes, const std::string& what) {
  const int64_t rounded = std::max(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  auto memory = backend_->allocate(rounded);
  if (!memory.ok())
    return memory.status().with_context("device " + std::to_string(number_) + " needs " +
                                        size_text(bytes) + " for " + what);
  owned_.push_back({*memory, rounded});
  return memory;
}

Status Device::place_buffers(const Device* state_of) {
  void* arena = nullptr;
  if (program_.arena_bytes > 0) {
    CONVNET_ASSIGN_OR_RETURN(arena, allocate(program_.arena_bytes, "values and gradients"));
  }
  for (size_t b = 0; b < program_.buffers.size(); ++b) {
    const Buffer& buffer = program_.buffers[b];
    const Tensor& tensor = plan_.tensors[static_cast<size_t>(buffer.tensor)];
    const int64_t bytes = stored_count(tensor.format, buffer.part.box) * dtype_size(tensor.dtype);
    void* address = nullptr;
    switch (buffer.region) {
      case Buffer::Region::kArena:
        CHECK(buffer.offset >= 0 && buffer.offset % kAlignment == 0 &&
              buffer.offset + bytes <= program_.arena_bytes);
        address = static_cast<std::byte*>(arena) + buffer.offset;
        break;
      case Buffer::Region::kInput: {
        CONVNET_ASSIGN_OR_RETURN(address, allocate(bytes, "'" + buffer.name + "'"));
        break;
      }
      case Buffer::Region::kState: {
        if (state_of == nullptr) {
          CONVNET_ASSIGN_OR_RETURN(address, allocate(bytes, "'" + buffer.name + "'"));
          break;
        }
        const auto& theirs = state_of->program_.buffers;
        const auto same = std::find_if(theirs.begin(), theirs.end(), [&](const Buffer& other) {
          const Tensor& t = state_of->plan_.tensors[static_cast<size_t>(other.tensor)];
          return other.region == Buffer::Region::kState && t.name == tensor.name &&
                 t.dtype == tensor.dtype && t.format == tensor.format && other.part == buffer.part;
        });
        if (same == theirs.end())
          return Status(Code::kUsage, "device " + std::to_string(number_) + " has no " +
                                          buffer.part.box.str() + " of '" + tensor.name +
                                          "' in the plan that it is shared with");
        address = state_of->address_[static_cast<size_t>(same - theirs.begin())];
        break;
      }
    }
    address_.push_back(address);
    if (buffer.region == Buffer::Region::kInput)
      CONVNET_RETURN_IF_ERROR(add_input(static_cast<int>(b)));
  }
  return Status();
}

Status Device::add_input(int buffer) {
  const Buffer& b = program_.buffers[static_cast<size_t>(buffer)];
  const Tensor& tensor = plan_.tensors[static_cast<size_t>(b.tensor)];
  if (tensor.format != Format::kBlocked ||
      !blocks_aligned(tensor.format, b.part.box, tensor.shape[0]))
    return Status(Code::kUsage, "input '" + tensor.name + "' on device " + std::to_string(number_) +
                                    ", " + b.part.box.str() +
                                    ", is not stored in whole blocks of 16");
  Input input;
  input.buffer = buffer;
  input.label = tensor.attrs.has("input") && tensor.attrs.word("input") == "label";
  Box batch(tensor.shape);
  batch.set(0, 0, plan_.batch);
  // In the batch's numbers the memory of a segment of rows begins elsewhere.
  for (const auto& s : row_map(tensor).segments(b.part.box.lo(0), b.part.box.hi(0))) {
    Box box = b.part.box, held = b.part.box;
    box.set(0, s.example, s.example + s.count);
    held.set(0, held.lo(0) + s.example - s.row, held.hi(0) + s.example - s.row);
    const Box stored[] = {held, batch};
    input.runs.emplace_back(tensor.format, box, stored);
  }
  inputs_.push_back(std::move(input));
  return Status();
}

View Device::view(int buffer) const {
  const Buffer& b = program_.buffers[static_cast<size_t>(buffer)];
  return view(Operand{buffer, b.part.box});
}

View Device::view(const Operand& operand) const {
  const Buffer& b = program_.buffers[static_cast<size_t>(operand.buffer)];
  const Tensor& tensor = plan_.tensors[static_cast<size_t>(b.tensor)];
  View view;
  view.data = address_[static_cast<size_t>(operand.buffer)];
  view.dtype = tensor.dtype;
  view.format = tensor.format;
  view.shape = tensor.shape;
  view.stored = b.part.box;
  view.box = operand.box;
  view.part_k = b.part.k;
  view.rows = rows_of(tensor);
  return view;
}

Status Device::bind(Communicator& communicator, const SessionOptions& options) {
  communicator_ = &communicator;
  int events = 0;
  for (const Instr& instr : program_.instrs) {
    std::vector<View> in, out;
    for (const Operand& operand : instr.in) in.push_back(view(operand));
    for (const Operand& operand : instr.out) out.push_back(view(operand));
    Step step;
    step.out = out;
    auto kernel = bind_kernel(instr, std::move(in), std::move(out), communicator, options);
    if (!kernel.ok())
      return kernel.status().with_context(std::string(op_info(instr.op).text) + " of " +
                                          place_of(plan_, instr.layer) + " on device " +
                                          std::to_string(number_));
    step.kernel = *std::move(kernel);
    step.guard = instr.op == Op::kGuard;
    step.update = is_update(instr.op);
    step.exchange = instr.op == Op::kExchange;
    step.stream = instr.stream;
    step.wait = instr.wait;
    step.signal = instr.signal;
    step.results_from = first_result(steps_.size());
    events = std::max(events, instr.signal + 1);
    steps_.push_back(std::move(step));
  }
  events_.resize(events);
  const bool has_comm =
      std::ranges::any_of(steps_, [](const Step& step) { return step.stream == Stream::kComm; });
  if (has_comm) {
    CONVNET_ASSIGN_OR_RETURN(comm_executor_, Executor::start());
  }
  return Status();
}

// The last exchange of a bucket carries out all of it.
size_t Device::first_result(size_t i) const {
  const auto bucket = [&](size_t k) {
    const Instr& instr = program_.instrs[k];
    if (instr.op != Op::kExchange) return -1;
    return plan_.exchanges[static_cast<size_t>(instr.attrs.integer("id"))].bucket;
  };
  const int mine = bucket(i);
  if (mine < 0) return i;
  if (i + 1 < program_.instrs.size() && bucket(i + 1) == mine) return i + 1;
  while (i > 0 && bucket(i - 1) == mine) --i;
  return i;
}

Result<std::unique_ptr<Kernel>> Device::bind_kernel(const Instr& instr, std::vector<View> in,
                                                    std::vector<View> out,
                                                    Communicator& communicator,
                                                    const SessionOptions& options) {
  if (instr.op == Op::kExchange) {
    View nothing;
    nothing.box.append(0, 0);
    return communicator.bind(static_cast<int>(instr.attrs.integer("id")),
                             in.empty() ? nothing : in[0], out.empty() ? nothing : out[0]);
  }
  ThreadTeam& team = instr.stream == Stream::kComm ? comm_team_ : team_;
  const Binding binding{instr, std::move(in), std::move(out), state_, team};
  auto kernel = backend_->bind(binding);
  if (kernel.ok() || !options.fallback) return kernel;
  const Status refused = kernel.status();
  if (refused.code() != Code::kLimit && refused.code() != Code::kUsage) return refused;
  if (!fallback_) {
    CONVNET_ASSIGN_OR_RETURN(fallback_, options.fallback(number_));
  }
  auto second = fallback_->bind(binding);
  if (!second.ok()) return refused;
  fallback_ops_.insert(std::string(op_info(instr.op).text) + " on " + fallback_->name());
  return second;
}

void Device::snapshot(int buffer, size_t slot) {
  const Buffer& b = program_.buffers[static_cast<size_t>(buffer)];
  if (metrics_.size() <= slot) metrics_.resize(slot + 1);
  metrics_[slot].assign(static_cast<size_t>(b.part.box.count()), 0);
  int last = -1;
  for (size_t i = 0; i < program_.instrs.size(); ++i)
    for (const Operand& operand : program_.instrs[i].out)
      if (operand.buffer == buffer) last = static_cast<int>(i);
  if (last < 0) return;
  steps_[static_cast<size_t>(last)].snapshots.push_back(static_cast<int>(snapshots_.size()));
  snapshots_.push_back({buffer, slot});
}

void Device::begin(const Work& work) {
  work_ = work;
  executor_->begin([](void* self) { static_cast<Device*>(self)->step(); }, this);
}

void Device::wait() {
  executor_->wait();
  if (comm_runs_) comm_executor_->wait();
}

void Device::run_tasks(int64_t tasks, const std::function<void(int64_t, int)>& job) {
  struct Call {
    Device* device;
    int64_t tasks;
    const std::function<void(int64_t, int)>* job;
  } call{this, tasks, &job};
  executor_->begin(
      [](void* argument) {
        const Call& c = *static_cast<Call*>(argument);
        c.device->team_.run(c.tasks, *c.job);
      },
      &call);
  executor_->wait();
}

void Device::fill(const Batch& batch) {
  for (const Input& input : inputs_) {
    const Buffer& buffer = program_.buffers[static_cast<size_t>(input.buffer)];
    const DType dtype = plan_.tensors[static_cast<size_t>(buffer.tensor)].dtype;
    void* to = address(input.buffer);
    for (const BoxRuns& runs : input.runs) {
      const int64_t n = runs.run();
      runs.for_each([&](const int64_t* offsets) {
        if (input.label) {
          std::memcpy(static_cast<int32_t*>(to) + offsets[0], batch.label.data() + offsets[1],
                      static_cast<size_t>(n) * sizeof(int32_t));
        } else if (dtype == DType::kF32) {
          std::memcpy(static_cast<float*>(to) + offsets[0], batch.data.data() + offsets[1],
                      static_cast<size_t>(n) * sizeof(float));
        } else {
          const float* from = batch.data.data() + offsets[1];
          std::copy(from, from + n, static_cast<double*>(to) + offsets[0]);
        }
      });
    }
  }
}

bool Device::note_if_bad(int instr, int buffer, const View& view) {
  if (all_finite(view)) return false;
  bad_instr_ = instr;
  bad_buffer_ = buffer;
  return true;
}

void Device::step() {
  fill(*work_.batch);
  for (auto& values : metrics_) std::fill(values.begin(), values.end(), 0.0);
  bad_instr_ = bad_buffer_ = -1;
  events_.begin_step();
  // What is looked for when results are checked is the first in the order of the plan.
  comm_runs_ = comm_executor_ != nullptr && !work_.checked;
  if (!comm_runs_) return run_in_order();
  comm_executor_->begin([](void* self) { static_cast<Device*>(self)->run_stream(Stream::kComm); },
                        this);
  run_stream(Stream::kCompute);
}

void Device::run_in_order() {
  bool found = false;
  if (work_.checked)
    for (const Input& input : inputs_)
      found = found || note_if_bad(kInputs, input.buffer, view(input.buffer));
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (work_.checked && steps_[i].update) continue;  // parameters stay as they are
    if (!run_step(i)) return;
    if (!work_.checked) continue;
    for (size_t k = steps_[i].results_from; k <= i; ++k)
      for (size_t o = 0; o < steps_[k].out.size() && !found; ++o)
        found =
            note_if_bad(static_cast<int>(k), program_.instrs[k].out[o].buffer, steps_[k].out[o]);
  }
}

void Device::run_stream(Stream stream) {
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    if (step.stream != stream) continue;
    if (step.wait >= 0) events_.wait(step.wait);
    if (events_.ended_before(static_cast<int>(i))) return;
    if (!run_step(i)) {
      // Behind a guard nothing of the other stream runs: it waits for it. An exchange that was
      // given up takes everything with it.
      events_.end_step(step.guard ? static_cast<int>(i) : -1);
      return;
    }
    if (step.signal >= 0) events_.signal(step.signal);
  }
}

// False: the step ends here.
bool Device::run_step(size_t i) {
  Step& step = steps_[i];
  step.kernel->run();
  if (step.exchange && communicator_->aborted()) return false;
  for (size_t k = step.results_from; k <= i; ++k) {
    for (int s : steps_[k].snapshots) {
      const Snapshot& snapshot = snapshots_[static_cast<size_t>(s)];
      const auto* from = static_cast<const double*>(address(snapshot.buffer));
      std::copy(from, from + metrics_[snapshot.slot].size(), metrics_[snapshot.slot].begin());
    }
    if (work_.observer != nullptr && *work_.observer) {
      const std::lock_guard lock(observing_);
      (*work_.observer)(number_, static_cast<int>(k), steps_[k].out);
    }
  }
  // A guard stops all devices at the same instruction, because all see the same metrics.
  return !step.guard || !state_.stop.load(std::memory_order_relaxed);
}

}  // namespace convnet
