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
};

class PlanSession : public Session {
 public:
  explicit PlanSession(const Plan& plan) : plan_(plan) {}

  ~PlanSession() override {
    for (const auto& communicator : communicators_) communicator->abort();
  }

  Status open(const SessionOptions& options, PlanSession* state_of) {
    options_threads_ = std::max(1, options.threads);
    CONVNET_RETURN_IF_ERROR(check(state_of));
    for (size_t d = 0; d < plan_.devices.size(); ++d) {
      const Device* theirs = state_of != nullptr ? state_of->devices_[d].get() : nullptr;
      CONVNET_ASSIGN_OR_RETURN(auto device,
                               Device::create(plan_, static_cast<int>(d), options, theirs));
      devices_.push_back(std::move(device));
    }
    communicators_ = local_communicators(plan_);
    for (size_t d = 0; d < devices_.size(); ++d)
      CONVNET_RETURN_IF_ERROR(devices_[d]->bind(*communicators_[d], options));
    return find_metrics();
  }

  const Plan& plan() const override { return plan_; }

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
    StepResult result;
    bool stopped = false;
    for (const auto& device : devices_) stopped = stopped || device->state().stop.load();
    for (const Metric& metric : metrics_) {
      result.metrics.push_back(values_of(metric));
      result.finite = result.finite && std::isfinite(result.metrics.back().loss_sum);
    }
    result.finite = result.finite && !stopped;
    return result;
  }

  Result<NonFinite> find_non_finite(const Batch& batch, int64_t step) override {
    for (size_t t = 0; t < plan_.tensors.size(); ++t) {
      if (!is_kept(plan_.tensors[t])) continue;
      bool finite = true;
      for_each_copy(static_cast<int>(t),
                    [&](Device&, const View& view) { finite = finite && all_finite(view); });
      if (!finite) return found(static_cast<int>(t), first_user(static_cast<int>(t)));
    }
    CONVNET_RETURN_IF_ERROR(run_devices(batch, step, 0, true));
    // The first layer of the model, then the first instruction: what it made wrong has spread
    // since.
    std::tuple best{std::numeric_limits<int>::max(), 0, 0};
    NonFinite result;
    for (size_t d = 0; d < devices_.size(); ++d) {
      const int at = devices_[d]->bad_instr();
      if (at == -1) continue;
      const DevicePlan& program = devices_[d]->program();
      const int tensor = program.buffers[static_cast<size_t>(devices_[d]->bad_buffer())].tensor;
      if (at == Device::kInputs) return found(tensor, -1);
      const int layer = program.instrs[static_cast<size_t>(at)].layer;
      const std::tuple here{layer, at, static_cast<int>(d)};
      if (here >= best) continue;
      best = here;
      result = found(tensor, layer);
    }
    return result;
  }

  Result<HostTensor> read(const std::string& name) const override {
    CONVNET_ASSIGN_OR_RETURN(const int tensor, kept_tensor(name));
    const Tensor& t = plan_.tensors[static_cast<size_t>(tensor)];
    HostTensor host{t.shape, t.dtype, {}};
    const Box whole(t.shape);
    host.values.resize(static_cast<size_t>(whole.count()));
    std::vector<Box> done;
    std::vector<bool> covered;
    for_each_copy(tensor, [&](Device&, const View& view) {
      if (std::any_of(done.begin(), done.end(),
                      [&](const Box& b) { return b.contains(view.stored); }))
        return;
      done.push_back(view.stored);
      if (!(view.stored == whole)) covered.resize(host.values.size());
      copy_with_host(view, whole, [&](int64_t place, int64_t index, int64_t n) {
        for (int64_t i = 0; i < n; ++i) {
          const auto to = static_cast<size_t>(index + i);
          host.values[to] =
              view.dtype == DType::kF32
                  ? static_cast<double>(static_cast<const float*>(view.data)[place + i])
                  : static_cast<const double*>(view.data)[place + i];
          if (!covered.empty()) covered[to] = true;
        }
      });
    });
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
    if (!(value.shape == t.shape) || static_cast<int64_t>(value.values.size()) != whole.count())
      return Status(Code::kCheckpoint, "'" + name + "' is " + value.shape.str() +
                                           " when the model's is " + t.shape.str());
    for_each_copy(tensor, [&](Device&, const View& view) {
      copy_with_host(view, whole, [&](int64_t place, int64_t index, int64_t n) {
        for (int64_t i = 0; i < n; ++i) {
          const double v = value.values[static_cast<size_t>(index + i)];
          if (view.dtype == DType::kF32) {
            static_cast<float*>(view.data)[place + i] = static_cast<float>(v);
          } else {
            static_cast<double*>(view.data)[place + i] = v;
          }
        }
      });
    });
    return Status();
  }

  void observe(Observer observer) override { observer_ = std::move(observer); }

  std::string describe() const override {
    std::map<std::string, int> backends;
    std::set<std::string> fallbacks;
    for (const auto& device : devices_) {
      ++backends[device->backend_name()];
      fallbacks.insert(device->fallback_ops().begin(), device->fallback_ops().end());
    }
    std::string text;
    for (const auto& [name, count] : backends)
      text += (text.empty() ? "" : " + ") + std::to_string(count) + " x " + name;
    text += ", " + std::to_string(options_threads_) +
            (options_threads_ == 1 ? " thread" : " threads") + (devices_.size() > 1 ? " each" : "");
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

  // For each metric tensor the first device that holds it complete; else all its partial sums.
  Status find_metrics() {
    for (size_t t = 0; t < plan_.tensors.size(); ++t) {
      const Tensor& tensor = plan_.tensors[t];
      if (tensor.kind != TensorKind::kMetric) continue;
      struct Place {
        size_t device;
        int buffer;
      };
      std::map<int, Place> by_k;  // of partial sums
      std::optional<Place> complete;
      for (size_t d = 0; d < plan_.devices.size(); ++d) {
        const auto& buffers = plan_.devices[d].buffers;
        for (size_t b = 0; b < buffers.size(); ++b) {
          if (buffers[b].tensor != static_cast<int>(t) ||
              !(buffers[b].part.box == Box(tensor.shape)))
            continue;
          const Place place{d, static_cast<int>(b)};
          if (buffers[b].part.of > 1) {
            by_k.emplace(buffers[b].part.k, place);
          } else if (!complete) {
            complete = place;
          }
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
      if (complete) by_k = {{0, *complete}};
      for (const auto& [k, place] : by_k) {
        const size_t slot = devices_[place.device]->metrics().size();
        devices_[place.device]->snapshot(place.buffer, slot);
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
      if (metric.sources.size() == 1) return source(metric.sources[0])[i];
      std::vector<std::optional<double>> parts(static_cast<size_t>(metric.of));
      for (const auto& s : metric.sources) parts[static_cast<size_t>(s.k)] = source(s)[i];
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
  const std::vector<double>& source(const Metric::Source& s) const {
    return devices_[static_cast<size_t>(s.device)]->metrics()[s.slot];
  }

  Status run_devices(const Batch& batch, int64_t step, double rate, bool checked) {
    for (const Tensor& tensor : plan_.tensors) {
      if (tensor.kind != TensorKind::kInput) continue;
      const bool label = tensor.attrs.has("input") && tensor.attrs.word("input") == "label";
      const auto have = static_cast<int64_t>(label ? batch.label.size() : batch.data.size());
      const int64_t want = stored_count(tensor.format, Box(tensor.shape));
      if (have != want)
        return Status(Code::kData, "a batch has " + std::to_string(have) + " numbers of '" +
                                       tensor.name + "' when the plan takes " +
                                       std::to_string(want));
    }
    Device::Work work;
    work.batch = &batch;
    work.observer = &observer_;
    work.checked = checked;
    for (const auto& device : devices_) {
      device->state().step = step;
      device->state().rate = rate;
      device->state().stop.store(false);
    }
    for (const auto& device : devices_) device->begin(work);
    for (const auto& device : devices_) device->wait();
    return Status();
  }

  // Calls f(device, view) for every buffer that keeps (a box of) the tensor.
  template <typename F>
  void for_each_copy(int tensor, F&& f) const {
    for (const auto& device : devices_) {
      const auto& buffers = device->program().buffers;
      for (size_t b = 0; b < buffers.size(); ++b)
        if (buffers[b].tensor == tensor && buffers[b].region == Buffer::Region::kState &&
            !buffers[b].part.box.empty())
          f(*device, device->view(static_cast<int>(b)));
    }
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
  int options_threads_ = 1;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<Metric> metrics_;
  Observer observer_;
};

}  // namespace

Result<std::unique_ptr<Session>> Session::create(const Plan& plan, const SessionOptions& options,
                                                 Session* state_of) {
  auto session = std::make_unique<PlanSession>(plan);
  auto* shared = dynamic_cast<PlanSession*>(state_of);
  CHECK(state_of == nullptr || shared != nullptr);
  CONVNET_RETURN_IF_ERROR(session->open(options, shared));
  return std::unique_ptr<Session>(std::move(session));
}

}  // namespace convnet
