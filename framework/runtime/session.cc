#include "framework/runtime/session.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "framework/comm/box_runs.h"
#include "framework/comm/communicator.h"
#include "framework/runtime/device.h"
#include "framework/runtime/initialise.h"

namespace convnet {
namespace {

bool is_kept(const Tensor& tensor) {
  return tensor.kind == TensorKind::kParameter || tensor.kind == TensorKind::kState;
}

// Sum of the partial sums that are there, by the balanced tree over all of them (ops.def).
std::optional<double> tree_sum(std::span<const std::optional<double>> v) {
  if (v.empty()) return std::nullopt;
  if (v.size() == 1) return v[0];
  const auto left = tree_sum(v.first(v.size() / 2));
  const auto right = tree_sum(v.subspan(v.size() / 2));
  return left && right ? *left + *right : left ? left : right;
}

// A metric tensor, and where its complete values (or all partial sums of them, by k) are copied to.
struct Metric {
  std::string layer;
  double weight = 1;
  std::vector<int64_t> top;
  struct Source {
    int device = 0;
    size_t slot = 0;
    int k = 0;
  };
  std::vector<Source> sources;
  int of = 1;
  size_t length = 0;  // of each source
  // Not every rank has what it needs of them: their values are sent around after each step.
  bool sent = false;
  size_t first_value = 0;  // of the first source in what is sent around
};

// A tensor with an element that is not finite, and where it was found.
struct Suspect {
  int layer = std::numeric_limits<int>::max();
  int instr = 0, device = 0;
  int tensor = -1;  // -1: none
  bool before(const Suspect& other) const {
    return std::tuple(layer, instr, device) < std::tuple(other.layer, other.instr, other.device);
  }
};

class PlanSession : public Session {
 public:
  PlanSession(const Plan& plan, Ranks& ranks) : plan_(plan), ranks_(ranks) {}

  ~PlanSession() override {
    for (const auto& communicator : communicators_)
      if (communicator != nullptr) communicator->abort();
  }

  Status open(const SessionOptions& options, PlanSession* state_of) {
    options_threads_ = std::max(1, options.threads);
    CONVNET_RETURN_IF_ERROR(check(state_of));
    CONVNET_ASSIGN_OR_RETURN(communicators_, ranks_.communicators(plan_));
    devices_.resize(plan_.devices.size());
    for (size_t d = 0; d < plan_.devices.size(); ++d) {
      if (communicators_[d] == nullptr) continue;
      const Device* theirs = state_of != nullptr ? state_of->devices_[d].get() : nullptr;
      CONVNET_ASSIGN_OR_RETURN(devices_[d],
                               Device::create(plan_, static_cast<int>(d), options, theirs));
      here_.push_back(devices_[d].get());
    }
    for (size_t d = 0; d < devices_.size(); ++d)
      if (devices_[d] != nullptr)
        CONVNET_RETURN_IF_ERROR(devices_[d]->bind(*communicators_[d], options));
    return find_metrics();
  }

  const Plan& plan() const override { return plan_; }
  Ranks& ranks() const override { return ranks_; }

  void initialise() override {
    for (size_t t = 0; t < plan_.tensors.size(); ++t) {
      const Tensor& tensor = plan_.tensors[t];
      if (!is_kept(tensor)) continue;
      const auto init = Initialiser::create(tensor, plan_.seed);
      CHECK(init.ok());  // check() has made sure
      std::vector<View> filled;
      for_each_copy(static_cast<int>(t), [&](Device& device, const View& view) {
        const auto same = std::find_if(filled.begin(), filled.end(),
                                       [&](const View& f) { return f.stored == view.stored; });
        if (same != filled.end()) {
          std::memcpy(view.data, same->data,
                      static_cast<size_t>(view.stored.count() * dtype_size(view.dtype)));
          return;
        }
        const int64_t rows = Initialiser::rows(view);
        device.run_tasks(std::min<int64_t>(rows, 64), [&](int64_t task, int) {
          const int64_t tasks = std::min<int64_t>(rows, 64);
          init->fill(view, rows * task / tasks, rows * (task + 1) / tasks);
        });
        filled.push_back(view);
      });
    }
  }

  Result<StepResult> run(const Batch& batch, int64_t step, double rate) override {
    CONVNET_RETURN_IF_ERROR(run_devices(batch, step, rate, false));
    CONVNET_RETURN_IF_ERROR(share_metrics(step));
    StepResult result;
    bool stopped = false;
    for (Device* device : here_) stopped = stopped || device->state().stop.load();
    for (const Metric& metric : metrics_) {
      result.metrics.push_back(values_of(metric));
      result.finite = result.finite && std::isfinite(result.metrics.back().loss_sum);
    }
    result.finite = result.finite && !stopped;
    return result;
  }

  Result<NonFinite> find_non_finite(const Batch& batch, int64_t step) override {
    Suspect first;
    for (size_t t = 0; t < plan_.tensors.size() && first.tensor < 0; ++t) {
      if (!is_kept(plan_.tensors[t])) continue;
      bool finite = true;
      for_each_copy(static_cast<int>(t),
                    [&](Device&, const View& view) { finite = finite && all_finite(view); });
      if (!finite) first = {static_cast<int>(t), 0, 0, static_cast<int>(t)};
    }
    CONVNET_RETURN_IF_ERROR(agree(first));
    if (first.tensor >= 0) return found(first.tensor, first_user(first.tensor));
    CONVNET_RETURN_IF_ERROR(run_devices(batch, step, 0, true));
    // The first layer of the model, then the first instruction: what it made wrong has spread
    // since. Inputs come before all layers.
    for (size_t d = 0; d < devices_.size(); ++d) {
      if (devices_[d] == nullptr) continue;
      const int at = devices_[d]->bad_instr();
      if (at == -1) continue;
      const DevicePlan& program = devices_[d]->program();
      Suspect here;
      here.tensor = program.buffers[static_cast<size_t>(devices_[d]->bad_buffer())].tensor;
      here.layer = at == Device::kInputs ? -1 : program.instrs[static_cast<size_t>(at)].layer;
      here.instr = at;
      here.device = static_cast<int>(d);
      if (here.before(first)) first = here;
    }
    CONVNET_RETURN_IF_ERROR(agree(first));
    return first.tensor >= 0 ? found(first.tensor, first.layer) : NonFinite();
  }

  Result<HostTensor> read(const std::string& name) const override {
    CONVNET_ASSIGN_OR_RETURN(const int tensor, kept_tensor(name));
    const Tensor& t = plan_.tensors[static_cast<size_t>(tensor)];
    HostTensor host{t.shape, t.dtype, {}};
    const Box whole(t.shape);
    const bool here = ranks_.rank() == 0;
    if (here) host.values.resize(static_cast<size_t>(whole.count()));
    std::vector<Box> done;
    std::vector<bool> covered;
    // In order of devices, so those of rank 0 first. All ranks go through the same list.
    for (const Copy& copy : copies_of(tensor)) {
      const Box& box = copy.box;
      if (std::any_of(done.begin(), done.end(), [&](const Box& b) { return b.contains(box); }))
        continue;
      done.push_back(box);
      CONVNET_ASSIGN_OR_RETURN(const Piece piece,
                               bring(copy, t, "the parameters for a checkpoint"));
      if (!here) continue;
      if (!(box == whole)) covered.resize(host.values.size());
      copy_with_host(piece.view, whole, [&](int64_t place, int64_t index, int64_t n) {
        for (int64_t i = 0; i < n; ++i) {
          const auto to = static_cast<size_t>(index + i);
          host.values[to] =
              t.dtype == DType::kF32
                  ? static_cast<double>(static_cast<const float*>(piece.view.data)[place + i])
                  : static_cast<const double*>(piece.view.data)[place + i];
          if (!covered.empty()) covered[to] = true;
        }
      });
    }
    if (!here) return host;
    const bool all =
        std::any_of(done.begin(), done.end(), [&](const Box& b) { return b == whole; }) ||
        (!done.empty() && std::find(covered.begin(), covered.end(), false) == covered.end());
    if (!all && whole.count() > 0)
      return Status(Code::kUsage, "the devices hold only a part of '" + name + "'");
    return host;
  }

  Status write(const std::string& name, const HostTensor& value) override {
    CONVNET_ASSIGN_OR_RETURN(const int tensor, kept_tensor(name));
    const Tensor& t = plan_.tensors[static_cast<size_t>(tensor)];
    const Box whole(t.shape);
    std::string given;  // as the values lie in the tensor's type
    if (ranks_.rank() == 0) {
      if (!(value.shape == t.shape) || static_cast<int64_t>(value.values.size()) != whole.count())
        return Status(Code::kCheckpoint, "'" + name + "' is " + value.shape.str() +
                                             " when the model's is " + t.shape.str());
      given.resize(static_cast<size_t>(whole.count() * dtype_size(t.dtype)));
      for (size_t i = 0; i < value.values.size(); ++i) {
        if (t.dtype == DType::kF32) {
          reinterpret_cast<float*>(given.data())[i] = static_cast<float>(value.values[i]);
        } else {
          reinterpret_cast<double*>(given.data())[i] = value.values[i];
        }
      }
    }
    CONVNET_RETURN_IF_ERROR(ranks_.broadcast(given, "the parameters of a checkpoint"));
    const int64_t size = dtype_size(t.dtype);
    if (static_cast<int64_t>(given.size()) != whole.count() * size)
      return Status(Code::kPeer, "rank 0 sent " + std::to_string(given.size()) + " bytes of '" +
                                     name + "' when it has " +
                                     std::to_string(whole.count() * size));
    for_each_copy(tensor, [&](Device&, const View& view) {
      copy_with_host(view, whole, [&](int64_t place, int64_t index, int64_t n) {
        std::memcpy(static_cast<std::byte*>(view.data) + place * size, given.data() + index * size,
                    static_cast<size_t>(n * size));
      });
    });
    return Status();
  }

  void observe(Observer observer) override { observer_ = std::move(observer); }

  std::string describe() const override {
    std::map<std::string, int> backends;
    std::set<std::string> fallbacks;
    for (Device* device : here_) {
      ++backends[device->backend_name()];
      fallbacks.insert(device->fallback_ops().begin(), device->fallback_ops().end());
    }
    std::string text;
    for (const auto& [name, count] : backends)
      text += (text.empty() ? "" : " + ") + std::to_string(count) + " x " + name;
    text += ", " + std::to_string(options_threads_) +
            (options_threads_ == 1 ? " thread" : " threads") + (here_.size() > 1 ? " each" : "");
    if (ranks_.size() > 1)
      text += ", as rank 0 of " + std::to_string(ranks_.size()) + " with " +
              std::to_string(devices_.size()) + " devices";
    for (const std::string& op : fallbacks) text += (op == *fallbacks.begin() ? "; " : ", ") + op;
    return text;
  }

 private:
  Status check(const PlanSession* state_of) const {
    if (plan_.devices.empty()) return Status(Code::kUsage, "the plan has no devices");
    if (state_of != nullptr && state_of->devices_.size() != plan_.devices.size())
      return Status(Code::kUsage, "the plan has " + std::to_string(plan_.devices.size()) +
                                      " devices, the one it shares its parameters with " +
                                      std::to_string(state_of->devices_.size()));
    for (const Tensor& tensor : plan_.tensors) {
      if (!is_kept(tensor)) continue;
      CONVNET_RETURN_IF_ERROR([&] {
        auto init = Initialiser::create(tensor, plan_.seed);
        return init.ok() ? Status() : init.status();
      }());
      if (tensor.format != Format::kPlain || tensor.dtype == DType::kI32)
        return Status(Code::kUsage, "'" + tensor.name + "' is not stored plainly as real numbers");
    }
    // A device without a guard would wait for ever for those that theirs has stopped.
    std::optional<int64_t> guards;
    for (size_t d = 0; d < plan_.devices.size(); ++d) {
      const auto& instrs = plan_.devices[d].instrs;
      if (instrs.empty()) continue;
      const int64_t mine = std::count_if(instrs.begin(), instrs.end(),
                                         [](const Instr& i) { return i.op == Op::kGuard; });
      if (guards && *guards != mine)
        return Status(Code::kUsage, "device " + std::to_string(d) + " has " + std::to_string(mine) +
                                        " guards when others have " + std::to_string(*guards));
      guards = mine;
    }
    return Status();
  }

  // For each metric tensor the first device that holds it complete, of this rank if every rank has
  // one; else all its partial sums.
  Status find_metrics() {
    for (size_t t = 0; t < plan_.tensors.size(); ++t) {
      const Tensor& tensor = plan_.tensors[t];
      if (tensor.kind != TensorKind::kMetric) continue;
      struct Place {
        size_t device;
        int buffer;
      };
      std::map<int, Place> by_k;  // of partial sums
      std::optional<Place> complete, complete_here;
      std::set<int> ranks;  // that have a complete one
      for (size_t d = 0; d < plan_.devices.size(); ++d) {
        const auto& buffers = plan_.devices[d].buffers;
        for (size_t b = 0; b < buffers.size(); ++b) {
          if (buffers[b].tensor != static_cast<int>(t) ||
              !(buffers[b].part.box == Box(tensor.shape)))
            continue;
          const Place place{d, static_cast<int>(b)};
          if (buffers[b].part.of > 1) {
            by_k.emplace(buffers[b].part.k, place);
            continue;
          }
          ranks.insert(rank_of(d));
          if (!complete) complete = place;
          if (!complete_here && devices_[d] != nullptr) complete_here = place;
        }
      }
      if (!complete && by_k.empty()) continue;
      if (tensor.dtype != DType::kF64 || tensor.format != Format::kPlain ||
          tensor.shape.rank() != 1)
        return Status(Code::kUsage, "metric '" + tensor.name + "' is not a plain list of doubles");
      Metric metric;
      if (tensor.attrs.has("weight")) metric.weight = tensor.attrs.real("weight");
      if (tensor.attrs.has("top")) metric.top = tensor.attrs.list("top");
      if (tensor.shape[0] < 2 + static_cast<int64_t>(metric.top.size()))
        return Status(Code::kUsage, "metric '" + tensor.name + "' is " + tensor.shape.str() +
                                        " with " + std::to_string(metric.top.size()) +
                                        " accuracies");
      metric.sent = static_cast<int>(ranks.size()) < ranks_.size();
      if (complete) by_k = {{0, metric.sent ? *complete : *complete_here}};
      if (ranks_.size() == 1) metric.sent = false;
      metric.first_value = sent_values_.size();
      metric.length = static_cast<size_t>(tensor.shape[0]);
      for (const auto& [k, place] : by_k) {
        size_t slot = 0;
        if (Device* device = devices_[place.device].get(); device != nullptr) {
          slot = device->metrics().size();
          device->snapshot(place.buffer, slot);
        }
        if (metric.sent) sent_values_.resize(sent_values_.size() + metric.length);
        metric.sources.push_back({static_cast<int>(place.device), slot, k});
        metric.of = plan_.devices[place.device].buffers[static_cast<size_t>(place.buffer)].part.of;
      }
      const int layer = first_user(static_cast<int>(t));
      metric.layer = layer >= 0 ? plan_.layers[static_cast<size_t>(layer)].name : tensor.name;
      metrics_.push_back(std::move(metric));
    }
    return Status();
  }

  MetricValues values_of(const Metric& metric) const {
    const auto sum = [&](size_t i) {
      if (metric.sources.size() == 1) return value(metric, 0, i);
      std::vector<std::optional<double>> parts(static_cast<size_t>(metric.of));
      for (size_t s = 0; s < metric.sources.size(); ++s)
        parts[static_cast<size_t>(metric.sources[s].k)] = value(metric, s, i);
      return tree_sum(parts).value_or(0);
    };
    MetricValues values;
    values.layer = metric.layer;
    values.weight = metric.weight;
    values.top = metric.top;
    values.loss_sum = sum(0);
    values.examples = sum(1);
    for (size_t i = 0; i < metric.top.size(); ++i) values.correct.push_back(sum(2 + i));
    return values;
  }
  double value(const Metric& metric, size_t source, size_t i) const {
    const Metric::Source& s = metric.sources[source];
    if (metric.sent) return sent_values_[metric.first_value + source * metric.length + i];
    return devices_[static_cast<size_t>(s.device)]->metrics()[s.slot][i];
  }

  // Makes sent_values_ the same on all ranks: each source's values from the rank that has them.
  Status share_metrics(int64_t step) {
    if (sent_values_.empty()) return Status();
    for (const Metric& metric : metrics_) {
      if (!metric.sent) continue;
      for (size_t s = 0; s < metric.sources.size(); ++s) {
        const Device* device = devices_[static_cast<size_t>(metric.sources[s].device)].get();
        if (device == nullptr) continue;
        const auto& values = device->metrics()[metric.sources[s].slot];
        std::copy(values.begin(), values.end(),
                  sent_values_.begin() +
                      static_cast<std::ptrdiff_t>(metric.first_value + s * metric.length));
      }
    }
    const size_t bytes = sent_values_.size() * sizeof(double);
    CONVNET_ASSIGN_OR_RETURN(
        const auto all,
        ranks_.all_gather({reinterpret_cast<const char*>(sent_values_.data()), bytes},
                          "the metrics of step " + std::to_string(step + 1),
                          Ranks::Patience::kStep));
    for (const Metric& metric : metrics_) {
      if (!metric.sent) continue;
      for (size_t s = 0; s < metric.sources.size(); ++s) {
        const size_t at = metric.first_value + s * metric.length;
        const auto owner =
            static_cast<size_t>(rank_of(static_cast<size_t>(metric.sources[s].device)));
        std::memcpy(sent_values_.data() + at, all[owner].data() + at * sizeof(double),
                    metric.length * sizeof(double));
      }
    }
    return Status();
  }

  // The first of all ranks' suspects.
  Status agree(Suspect& suspect) const {
    CONVNET_ASSIGN_OR_RETURN(
        const auto all, ranks_.all_gather({reinterpret_cast<const char*>(&suspect), sizeof suspect},
                                          "what is not finite", Ranks::Patience::kStep));
    for (const std::string& bytes : all) {
      Suspect other;
      std::memcpy(&other, bytes.data(), sizeof other);
      if (other.tensor >= 0 && (suspect.tensor < 0 || other.before(suspect))) suspect = other;
    }
    return Status();
  }

  int rank_of(size_t device) const {
    return rank_of_device(static_cast<int>(device), ranks_.size(),
                          static_cast<int>(plan_.devices.size()));
  }

  Status run_devices(const Batch& batch, int64_t step, double rate, bool checked) {
    for (const Tensor& tensor : plan_.tensors) {
      if (tensor.kind != TensorKind::kInput) continue;
      const bool label = tensor.attrs.has("input") && tensor.attrs.word("input") == "label";
      const auto have = static_cast<int64_t>(label ? batch.label.size() : batch.data.size());
      Box whole(tensor.shape);  // a sub-batch is taken from the batch
      whole.set(0, 0, plan_.batch);
      const int64_t want = stored_count(tensor.format, whole);
      if (have != want)
        return Status(Code::kData, "a batch has " + std::to_string(have) + " numbers of '" +
                                       tensor.name + "' when the plan takes " +
                                       std::to_string(want));
    }
    Device::Work work;
    work.batch = &batch;
    work.observer = &observer_;
    work.checked = checked;
    for (Device* device : here_) {
      device->state().step = step;
      device->state().rate = rate;
      device->state().stop.store(false);
    }
    for (Device* device : here_) device->begin(work);
    for (Device* device : here_) device->wait();
    return ranks_.failure();
  }

  // A buffer that keeps (a box of) a tensor, on any rank.
  struct Copy {
    size_t device = 0;
    int buffer = 0;
    Box box;
  };
  std::vector<Copy> copies_of(int tensor) const {
    std::vector<Copy> copies;
    for (size_t d = 0; d < plan_.devices.size(); ++d) {
      const auto& buffers = plan_.devices[d].buffers;
      for (size_t b = 0; b < buffers.size(); ++b)
        if (buffers[b].tensor == tensor && buffers[b].region == Buffer::Region::kState &&
            !buffers[b].part.box.empty())
          copies.push_back({d, static_cast<int>(b), buffers[b].part.box});
    }
    return copies;
  }
  // Calls f(device, view) for those of this rank.
  template <typename F>
  void for_each_copy(int tensor, F&& f) const {
    for (const Copy& copy : copies_of(tensor))
      if (Device* device = devices_[copy.device].get(); device != nullptr)
        f(*device, device->view(copy.buffer));
  }

  // What a copy holds, brought to rank 0; elsewhere the view has no data. Memory of its own if it
  // came from another rank.
  struct Piece {
    View view;
    std::vector<std::byte> memory;
  };
  Result<Piece> bring(const Copy& copy, const Tensor& tensor, const std::string& what) const {
    const int owner = rank_of(copy.device);
    Piece piece;
    if (const Device* device = devices_[copy.device].get(); device != nullptr)
      piece.view = device->view(copy.buffer);
    const auto bytes = static_cast<size_t>(copy.box.count() * dtype_size(tensor.dtype));
    if (owner == ranks_.rank() && owner != 0) {
      CONVNET_RETURN_IF_ERROR(
          ranks_.send(0, {static_cast<const std::byte*>(piece.view.data), bytes}, what));
    } else if (owner != 0 && ranks_.rank() == 0) {
      piece.memory.resize(bytes);
      CONVNET_RETURN_IF_ERROR(ranks_.receive(owner, piece.memory, what));
      piece.view.data = piece.memory.data();
      piece.view.dtype = tensor.dtype;
      piece.view.stored = piece.view.box = copy.box;
    }
    return piece;
  }

  // Calls f(place in the device's buffer, place in the host's, number of elements).
  template <typename F>
  static void copy_with_host(const View& view, const Box& whole, F&& f) {
    const Box stored[] = {view.stored, whole};
    const BoxRuns runs(Format::kPlain, view.stored, stored);
    runs.for_each([&](const int64_t* offsets) { f(offsets[0], offsets[1], runs.run()); });
  }

  Result<int> kept_tensor(const std::string& name) const {
    for (size_t t = 0; t < plan_.tensors.size(); ++t)
      if (plan_.tensors[t].name == name && is_kept(plan_.tensors[t])) return static_cast<int>(t);
    return Status(Code::kUsage, "the plan has no parameter '" + name + "'");
  }

  // The layer of the first instruction that reads or writes the tensor; -1: none.
  int first_user(int tensor) const {
    for (const DevicePlan& program : plan_.devices)
      for (const Instr& instr : program.instrs)
        for (const auto* operands : {&instr.in, &instr.out})
          for (const Operand& operand : *operands)
            if (program.buffers[static_cast<size_t>(operand.buffer)].tensor == tensor)
              return instr.layer;
    return -1;
  }

  NonFinite found(int tensor, int layer) const {
    NonFinite result;
    result.tensor = plan_.tensors[static_cast<size_t>(tensor)].name;
    result.layer = result.tensor;
    if (layer >= 0) {
      result.layer = plan_.layers[static_cast<size_t>(layer)].name;
      result.line = plan_.layers[static_cast<size_t>(layer)].line;
    }
    return result;
  }

  const Plan plan_;
  Ranks& ranks_;
  int options_threads_ = 1;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<std::unique_ptr<Device>> devices_;  // null: on another rank
  std::vector<Device*> here_;
  std::vector<Metric> metrics_;
  std::vector<double> sent_values_;
  Observer observer_;
};

}  // namespace

Result<std::unique_ptr<Session>> Session::create(const Plan& plan, const SessionOptions& options,
                                                 Session* state_of) {
  auto session = std::make_unique<PlanSession>(plan, *options.ranks);
  auto* shared = dynamic_cast<PlanSession*>(state_of);
  CHECK(state_of == nullptr || shared != nullptr);
  CONVNET_RETURN_IF_ERROR(session->open(options, shared));
  return std::unique_ptr<Session>(std::move(session));
}

}  // namespace convnet
