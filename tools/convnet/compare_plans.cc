#include "tools/convnet/compare_plans.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "framework/base/check.h"
#include "tools/convnet/recorded.h"
#include "tools/convnet/rounding_bounds.h"

namespace convnet::cli {
namespace {

// What the instructions of one device showed in one step. Written by its executor thread only.
struct Findings {
  int64_t exact = 0, bounded = 0, skipped = 0;
  double closest = 0;
  int instr = -1;  // of the mismatch
  std::optional<Mismatch> mismatch;
};

// One result against the serial run's; fills `mismatch` if it differs.
void compare(const View& view, const Recorded& serial, double bound, Findings& findings,
             Mismatch& mismatch) {
  const int64_t size = dtype_size(view.dtype);
  const char* data = static_cast<const char*>(view.data);
  for_each_element(view, [&](const std::vector<int64_t>& index, int64_t stored, int64_t logical) {
    const char* mine = data + stored * size;
    const char* other = serial.at(logical);
    bool same = std::memcmp(mine, other, static_cast<size_t>(size)) == 0;
    if (bound > 0) {
      const double difference = std::abs(load(view.dtype, mine) - load(view.dtype, other));
      same = difference <= bound;
      if (same) findings.closest = std::max(findings.closest, difference / bound);
    }
    if (same) return;
    if (mismatch.different++ == 0) {
      mismatch.index = index;
      mismatch.serial = load(view.dtype, other);
      mismatch.parallel = load(view.dtype, mine);
      mismatch.bound = bound;
    }
  });
  mismatch.of = view.box.count();
  (bound > 0 ? findings.bounded : findings.exact) += mismatch.of;
}

void name_layer(const Plan& plan, int layer, Mismatch& mismatch) {
  if (layer < 0) return;
  mismatch.layer = plan.layers[static_cast<size_t>(layer)].name;
  mismatch.line = plan.layers[static_cast<size_t>(layer)].line;
}

bool adds_in_rank_order(const Plan& plan) {
  return std::any_of(plan.exchanges.begin(), plan.exchanges.end(), [](const Exchange& exchange) {
    return exchange.order == Exchange::Order::kRank;
  });
}

// Compares parameters and state as the sessions hand them out between steps.
Result<std::optional<Mismatch>> compare_kept(const Plan& plan, const Session& serial,
                                             const Session& parallel, const RoundingBounds* bounds,
                                             Comparison& comparison) {
  for (size_t t = 0; t < plan.tensors.size(); ++t) {
    const Tensor& tensor = plan.tensors[t];
    if (tensor.kind != TensorKind::kParameter && tensor.kind != TensorKind::kState) continue;
    CONVNET_ASSIGN_OR_RETURN(HostTensor one, serial.read(tensor.name));
    CONVNET_ASSIGN_OR_RETURN(HostTensor many, parallel.read(tensor.name));
    CHECK(one.values.size() == many.values.size());
    const double bound = bounds == nullptr ? 0 : bounds->of(static_cast<int>(t));
    Mismatch mismatch;
    for (size_t i = 0; i < one.values.size(); ++i) {
      const double a = one.values[i], b = many.values[i];
      const bool same = bound > 0 ? std::abs(a - b) <= bound
                                  : std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
      if (same) continue;
      if (mismatch.different++ == 0) {
        int64_t rest = static_cast<int64_t>(i);
        for (int d = tensor.shape.rank() - 1; d >= 0; --d) {
          mismatch.index.insert(mismatch.index.begin(), rest % tensor.shape[d]);
          rest /= tensor.shape[d];
        }
        mismatch.serial = one.values[i];
        mismatch.parallel = many.values[i];
        mismatch.bound = bound;
      }
    }
    mismatch.of = static_cast<int64_t>(one.values.size());
    (bound > 0 ? comparison.bounded : comparison.exact) += mismatch.of;
    if (mismatch.different == 0) continue;
    mismatch.tensor = tensor.name;
    mismatch.where = tensor.kind == TensorKind::kParameter ? "parameter" : "state";
    for (const Instr& instr : plan.devices[0].instrs) {
      for (const Operand& out : instr.out) {
        if (&tensor_of(plan, 0, out) == &tensor) name_layer(plan, instr.layer, mismatch);
      }
    }
    return std::optional<Mismatch>(mismatch);
  }
  return std::optional<Mismatch>();
}

// Losses and accuracies. Losses are positive, so the terms' magnitudes sum to the loss.
std::optional<Mismatch> compare_metrics(const Plan& plan, const StepResult& serial,
                                        const StepResult& parallel, bool bounded) {
  const double terms = static_cast<double>(plan.shards.size() + plan.devices.size());
  for (size_t m = 0; m < serial.metrics.size(); ++m) {
    const MetricValues& one = serial.metrics[m];
    const MetricValues& many = parallel.metrics[m];
    const double bound =
        bounded ? 2 * terms * unit_roundoff(DType::kF64) * std::abs(one.loss_sum) : 0;
    if (parallel.finite && one.examples == many.examples && one.correct == many.correct &&
        std::abs(one.loss_sum - many.loss_sum) <= bound) {
      continue;
    }
    Mismatch mismatch;
    mismatch.layer = one.layer;
    mismatch.where = "loss and accuracy";
    mismatch.tensor = "loss sum";
    mismatch.serial = one.loss_sum;
    mismatch.parallel = many.loss_sum;
    mismatch.bound = bound;
    mismatch.different = mismatch.of = 1;
    return mismatch;
  }
  return std::nullopt;
}

// The two runs, side by side.
class SideBySide {
 public:
  SideBySide(const Plan& serial_plan, const Plan& parallel_plan, Session& serial, Session& parallel)
      : serial_plan_(serial_plan),
        parallel_plan_(parallel_plan),
        serial_(serial),
        parallel_(parallel),
        bounded_(adds_in_rank_order(parallel_plan)) {}

  // Runs a step on both; a mismatch, if any, is in `comparison`.
  Status step(const Batch& batch, int64_t number, double rate, Comparison& comparison) {
    Records records;
    CONVNET_ASSIGN_OR_RETURN(const StepResult one, record_serial(batch, number, rate, records));
    std::unique_ptr<RoundingBounds> bounds;
    if (bounded_) bounds = std::make_unique<RoundingBounds>(parallel_plan_, records, rate);

    std::vector<Findings> findings(parallel_plan_.devices.size());
    observe_parallel(records, bounds.get(), findings);
    CONVNET_ASSIGN_OR_RETURN(const StepResult many, parallel_.run(batch, number, rate));
    parallel_.observe(nullptr);

    ++comparison.steps;
    comparison.mismatch = collect(findings, comparison);
    if (!comparison.mismatch.has_value() && many.finite) {
      CONVNET_ASSIGN_OR_RETURN(comparison.mismatch, compare_kept(parallel_plan_, serial_, parallel_,
                                                                 bounds.get(), comparison));
    }
    if (!comparison.mismatch.has_value()) {
      comparison.mismatch = compare_metrics(parallel_plan_, one, many, bounded_);
    }
    if (comparison.mismatch.has_value()) {
      comparison.mismatch->step = number;
      return Status();
    }
    return bounded_ ? share_parameters() : Status();
  }

 private:
  Result<StepResult> record_serial(const Batch& batch, int64_t number, double rate,
                                   Records& records) {
    serial_.observe([&](int device, int instr, const std::vector<View>& out) {
      const Instr& i = serial_plan_.devices[0].instrs[static_cast<size_t>(instr)];
      for (size_t r = 0; r < out.size(); ++r) {
        record(out[r], records[tensor_of(serial_plan_, device, i.out[r]).name]);
      }
    });
    CONVNET_ASSIGN_OR_RETURN(StepResult result, serial_.run(batch, number, rate));
    serial_.observe(nullptr);
    if (!result.finite) {
      return Status(Code::kNotFinite,
                    fmt::format("the loss of the serial run is not finite in step {}", number + 1));
    }
    // Bounds of sums need the inputs that were multiplied.
    for (const Tensor& tensor : serial_plan_.tensors) {
      if (!bounded_ || tensor.kind != TensorKind::kInput || tensor.attrs.word("input") != "data") {
        continue;
      }
      View view;
      view.data = const_cast<float*>(batch.data.data());
      view.format = Format::kBlocked;
      view.shape = tensor.shape;
      view.stored = view.box = Box(tensor.shape);
      record(view, records[tensor.name]);
    }
    return result;
  }

  void observe_parallel(const Records& records, const RoundingBounds* bounds,
                        std::vector<Findings>& findings) {
    parallel_.observe(
        [this, &records, bounds, &findings](int device, int instr, const std::vector<View>& out) {
          const DevicePlan& program = parallel_plan_.devices[static_cast<size_t>(device)];
          const Instr& i = program.instrs[static_cast<size_t>(instr)];
          Findings& mine = findings[static_cast<size_t>(device)];
          for (size_t r = 0; r < out.size(); ++r) {
            const Tensor& tensor = tensor_of(parallel_plan_, device, i.out[r]);
            // Partial sums have no counterpart; the sum that an exchange makes of them has.
            if (part_of(parallel_plan_, device, i.out[r]).of != 1) continue;
            const auto found = records.find(tensor.name);
            const auto index = static_cast<int>(&tensor - parallel_plan_.tensors.data());
            const double bound = bounds == nullptr ? 0 : bounds->of(index);
            if (found == records.end() || std::isinf(bound)) {
              mine.skipped += out[r].box.count();
              continue;
            }
            Mismatch mismatch;
            compare(out[r], found->second, bound, mine, mismatch);
            if (mismatch.different == 0 || mine.mismatch.has_value()) continue;
            mismatch.tensor = tensor.name;
            mismatch.where = fmt::format("{} on device {}", op_info(i.op).text, device);
            name_layer(parallel_plan_, i.layer, mismatch);
            mine.instr = instr;
            mine.mismatch = std::move(mismatch);
          }
        });
  }

  // Adds up what the devices found; the mismatch that comes first in the plan.
  static std::optional<Mismatch> collect(const std::vector<Findings>& findings,
                                         Comparison& comparison) {
    const Findings* first = nullptr;
    for (const Findings& device : findings) {
      comparison.exact += device.exact;
      comparison.bounded += device.bounded;
      comparison.skipped += device.skipped;
      comparison.closest = std::max(comparison.closest, device.closest);
      if (device.mismatch.has_value() && (first == nullptr || device.instr < first->instr)) {
        first = &device;
      }
    }
    return first == nullptr ? std::nullopt : first->mismatch;
  }

  // Gives the parallel run the serial one's parameters and state.
  Status share_parameters() {
    for (const Tensor& tensor : parallel_plan_.tensors) {
      if (tensor.kind != TensorKind::kParameter && tensor.kind != TensorKind::kState) continue;
      CONVNET_ASSIGN_OR_RETURN(const HostTensor value, serial_.read(tensor.name));
      CONVNET_RETURN_IF_ERROR(parallel_.write(tensor.name, value));
    }
    return Status();
  }

  const Plan& serial_plan_;
  const Plan& parallel_plan_;
  Session& serial_;
  Session& parallel_;
  const bool bounded_;
};

}  // namespace

Result<Comparison> compare_plans(const Plan& serial_plan, const Plan& parallel_plan,
                                 BatchSource& source, const ComparisonOptions& options) {
  CHECK(serial_plan.devices.size() == 1);
  CONVNET_ASSIGN_OR_RETURN(std::unique_ptr<Session> serial,
                           Session::create(serial_plan, options.serial));
  CONVNET_ASSIGN_OR_RETURN(std::unique_ptr<Session> parallel,
                           Session::create(parallel_plan, options.parallel));
  serial->initialise();
  parallel->initialise();

  SideBySide runs(serial_plan, parallel_plan, *serial, *parallel);
  Comparison comparison;
  for (int64_t step = 0; step < options.steps && !comparison.mismatch.has_value(); ++step) {
    CONVNET_ASSIGN_OR_RETURN(const Batch* batch, source.get(step));
    CONVNET_RETURN_IF_ERROR(runs.step(*batch, step, options.rate(step), comparison));
  }
  return comparison;
}

std::string describe(const Mismatch& mismatch, const Plan& parallel) {
  std::string place =
      mismatch.line > 0 ? fmt::format(" ({}:{})", parallel.source, mismatch.line) : "";
  std::string element =
      mismatch.index.empty() ? "" : fmt::format("[{}]", fmt::join(mismatch.index, ", "));
  std::string text = fmt::format(
      "layer '{}'{} differs in step {}: {}{} is {:.9g} on 1 device and {:.9g} on {} ({}; {} of {} "
      "values differ",
      mismatch.layer, place, mismatch.step + 1, mismatch.tensor, element, mismatch.serial,
      mismatch.parallel, parallel.devices.size(), mismatch.where, mismatch.different, mismatch.of);
  if (mismatch.bound > 0) text += fmt::format(" by more than {:.3g}", mismatch.bound);
  return text + ")";
}

}  // namespace convnet::cli
