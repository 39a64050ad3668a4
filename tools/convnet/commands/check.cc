// convnet check: all mistakes of a model file, without running anything.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "data/source.h"
#include "tools/convnet/arguments.h"
#include "tools/convnet/command.h"

namespace convnet::cli {
namespace {

class CheckCommand : public Command {
 public:
  const char* name() const override { return "check"; }
  const char* summary() const override { return "reports all mistakes in a model file"; }
  const char* details() const override {
    return R"(Reads the model file, checks every value, every shape and every split over
devices, compiles it for training and for testing, and verifies both plans.
Nothing is run, no data is read.)";
  }
  const char* examples() const override {
    return R"(convnet check model-defs/lenet-fashion.yaml
convnet check model.yaml --devices 8 --set batch=256
convnet check model.yaml --json)";
  }

  void declare(CommandLine& line) override {
    model_.declare(line);
    devices_.declare(line, "check for so many devices; the model file's number if not given");
    line.flag("--json", &json_, "print the mistakes as a JSON object");
  }

  int run(Output& output) override {
    Result<int> devices = devices_.count();
    if (!devices.ok()) return output.fail(devices.status());
    Diagnostics diagnostics;
    std::optional<Plan> plan;
    if (std::unique_ptr<BoundModel> model = model_.load(diagnostics)) {
      check_data(*model, diagnostics);
      CompileOptions options;
      options.devices = *devices;
      plan = compile_model(*model, options, diagnostics);
      if (plan.has_value()) {
        // The same warnings again are of no use; mistakes that only a test meets are.
        Diagnostics of_test;
        options.phase = Plan::Phase::kTest;
        if (!compile_model(*model, options, of_test)) diagnostics = of_test;
      }
      if (diagnostics.has_errors()) plan.reset();
    }
    if (json_) {
      print_json(output, diagnostics, plan);
      return static_cast<int>(diagnostics.code());
    }
    if (!plan.has_value()) return output.fail(diagnostics);
    output.warn(diagnostics);
    output.print(fmt::format("{}: no mistakes; {}, {}, batch {}, {}\n", printable(model_.file),
                             counted(static_cast<int64_t>(plan->layers.size()), "layer"),
                             counted(parameters(*plan), "parameter"), plan->batch,
                             counted(static_cast<int64_t>(plan->devices.size()), "device")));
    return 0;
  }

 private:
  void print_json(Output& output, const Diagnostics& diagnostics, const std::optional<Plan>& plan) {
    nlohmann::ordered_json json = {
        {"schema", 1},
        {"file", model_.file},
        {"ok", plan.has_value()},
        {"diagnostics", nlohmann::ordered_json::parse(diagnostics.render_json())}};
    if (plan.has_value()) {
      json["model"] = plan->model;
      json["layers"] = plan->layers.size();
      json["parameters"] = parameters(*plan);
      json["batch"] = plan->batch;
      json["devices"] = plan->devices.size();
    }
    output.print(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  }

  ModelArgument model_;
  DevicesArgument devices_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> check_command() { return std::make_unique<CheckCommand>(); }

}  // namespace convnet::cli
