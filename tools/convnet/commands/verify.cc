// convnet verify: shows for a user's own model that the number of devices does not matter.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "framework/base/amounts.h"
#include "tools/convnet/arguments.h"
#include "tools/convnet/command.h"
#include "tools/convnet/compare_plans.h"
#include "tools/convnet/random/proof.h"
#include "tools/convnet/training.h"

namespace convnet::cli {
namespace {

class VerifyCommand : public Command {
 public:
  const char* name() const override { return "verify"; }
  const char* summary() const override {
    return "shows that a model computes the same on many devices as on one";
  }
  const char* details() const override {
    return R"(Compiles the model for N devices and for one, trains both for some steps on the
same batches, and compares every value and every parameter: bit for bit, or,
where the devices do not divide the canonical shards of the batch, within a
bound computed from the plan. Names the first layer that differs and ends with
exit code 1. Values that layers send in fewer bits (wire) are sent as they are:
what encoding changes is no mistake. The data need not be there: with
--synthetic, generated examples of the right shape do as well.

With --random N and no model file: N random small networks on random devices in
random modes, some in passes with updates after some of them, each compared with
itself on one device. Every second network keeps whole numbers, and is compared
on them first: no sum rounds, so any right plan gives the same bits. Each is then
compared in double, and, where the plan promises the same bits, in float on the
reference and the cpu backend. Placements that the compiler refuses are drawn
again and counted. A failure is made smaller for as long as it still fails, and
printed as a model file.)";
  }
  const char* examples() const override {
    return R"(convnet verify model-defs/lenet-fashion.yaml --devices 4
convnet verify model-defs/alexnet.yaml --devices 2 --steps 1 --set batch=32
convnet verify model-defs/lenet-fashion.yaml --devices 3 --isa reference
convnet verify --random 500 --seed 1)";
  }

  void declare(CommandLine& line) override {
    model_.declare(line, false);
    line.number("--random", "N", &random_, 1, 1000000, "prove it on so many random networks");
    line.number("--seed", "S", &seed_, 0, 4000000000, "seed of the first of them; 1 if not given");
    devices_.declare(
        line, "compare so many devices with one; 2, or the model file's number, if not given");
    line.number("--steps", "N", &steps_, 1, 1000000, "steps to compare; 3 if not given");
    backend_.declare(line);
    line.text("--data", "DIR", &data_, "where relative data paths of the model file are looked up");
    line.flag("--synthetic", &synthetic_, "generated examples instead of the model file's data");
    line.flag("--json", &json_, "print a JSON object");
    line.exclude("--data", "--synthetic");
  }

  int run(Output& output) override {
    if (random_.has_value() != model_.file.empty()) {
      return output.fail(Code::kUsage, "either a model file or --random N is needed");
    }
    if (random_.has_value()) return run_random(output);
    Result<int> devices = devices_.count();
    if (!devices.ok()) return output.fail(devices.status());
    Diagnostics diagnostics;
    std::unique_ptr<BoundModel> model = model_.load(diagnostics);
    if (model != nullptr) {
      check_data(*model, diagnostics);
      check_trainable(*model, diagnostics);
    }
    if (diagnostics.has_errors()) return output.fail(diagnostics);
    const int many = *devices > 0 ? *devices : std::max(2, model_devices(*model));
    std::optional<Plan> serial = plan(*model, 1, diagnostics);
    std::optional<Plan> parallel;
    if (serial.has_value()) parallel = plan(*model, many, diagnostics);
    if (!parallel.has_value()) return output.fail(diagnostics);
    output.warn(diagnostics);

    ComparisonOptions options;
    options.steps = static_cast<int64_t>(steps_.value_or(3));
    Result<SessionOptions> one = backend_.options(1), each = backend_.options(many);
    if (!one.ok()) return output.fail(one.status());
    if (!each.ok()) return output.fail(each.status());
    options.serial = *one;
    options.parallel = *each;
    Result<Examples> examples =
        synthetic_ ? synthetic_examples(*model, *serial)
                   : training_examples(*model, data_paths(folder_of(model_.file), data_), *serial,
                                       nullptr);
    if (!examples.ok()) return output.fail(examples.status());
    const LengthArgument whole;
    const RateSchedule schedule =
        rate_schedule(*model, whole.total(*model, examples->batches->examples()));
    options.rate = [&](int64_t step) { return schedule.rate_at(step); };

    Result<Comparison> result = compare_plans(*serial, *parallel, *examples->batches, options);
    if (!result.ok()) return output.fail(result.status());
    if (json_) print_json(output, *result, *parallel);
    if (result->mismatch.has_value()) {
      return output.fail(Code::kCheckFailed, describe(*result->mismatch, *parallel));
    }
    if (!json_) print_text(output, *result, *parallel);
    return 0;
  }

 private:
  int run_random(Output& output) const {
    ProofOptions options;
    options.graphs = static_cast<int64_t>(*random_);
    options.seed = seed_.value_or(1);
    options.processes = available_cores();
    int64_t noted = 0;
    options.progress = [&](int64_t done) {
      if (done - noted < 100) return;
      noted = done;
      output.note(fmt::format("{} of {} networks", with_commas(done), with_commas(options.graphs)));
    };
    const ProofResult result = prove(options);
    output.print(fmt::format("random graphs: {}\n", levels_text(result)));
    for (const ProofFailure& f : result.failures) {
      output.print(fmt::format("{}\n{}  convnet verify --random 1 --seed {}\n\n", f.difference,
                               f.model, f.seed));
    }
    if (result.failures.empty()) return 0;
    return output.fail(Code::kCheckFailed,
                       counted(static_cast<int64_t>(result.failures.size()), "network") +
                           " computed something else on many devices");
  }

  static std::optional<Plan> plan(const BoundModel& model, int devices, Diagnostics& diagnostics) {
    CompileOptions options;
    options.devices = devices;
    options.encode = false;  // on one device nothing is
    return compile_model(model, options, diagnostics);
  }

  void print_text(Output& output, const Comparison& result, const Plan& parallel) const {
    const auto devices = static_cast<int64_t>(parallel.devices.size());
    output.print(fmt::format("{}: {} and one compute the same in {}\n", printable(model_.file),
                             counted(devices, "device"), counted(result.steps, "step")));
    output.print(fmt::format("  {} compared bit for bit\n", counted(result.exact, "value")));
    if (result.bounded > 0) {
      output.print(fmt::format(
          "  {} compared within their bounds, because {} devices do not divide the {} "
          "canonical shards of the batch;\n  the largest difference is {:.2g} of its bound\n",
          counted(result.bounded, "value"), devices, parallel.shards.size() - 1, result.closest));
    }
    if (result.skipped > 0) {
      output.print(fmt::format("  {} not compared\n", counted(result.skipped, "value")));
    }
  }

  void print_json(Output& output, const Comparison& result, const Plan& parallel) const {
    nlohmann::ordered_json json = {{"schema", 1},
                                   {"file", model_.file},
                                   {"devices", parallel.devices.size()},
                                   {"steps", result.steps},
                                   {"same", !result.mismatch.has_value()},
                                   {"exact", result.exact},
                                   {"bounded", result.bounded},
                                   {"skipped", result.skipped}};
    if (result.mismatch.has_value()) {
      json["layer"] = result.mismatch->layer;
      json["line"] = result.mismatch->line;
      json["step"] = result.mismatch->step + 1;
      json["tensor"] = result.mismatch->tensor;
    }
    output.print(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  }

  ModelArgument model_;
  DevicesArgument devices_;
  BackendArgument backend_;
  std::optional<uint64_t> steps_, random_, seed_;
  std::string data_;
  bool synthetic_ = false, json_ = false;
};

}  // namespace

std::unique_ptr<Command> verify_command() { return std::make_unique<VerifyCommand>(); }

}  // namespace convnet::cli
