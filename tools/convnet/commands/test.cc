// convnet test: a trained model on its test data.
#include <fmt/format.h>

#include <filesystem>

#include <nlohmann/json.hpp>

#include "framework/runtime/tester.h"
#include "parsers/model_file.h"
#include "tools/convnet/arguments.h"
#include "tools/convnet/command.h"
#include "tools/convnet/several.h"
#include "tools/convnet/training.h"
#include "tools/convnet/weights.h"

namespace convnet::cli {
namespace {

class TestCommand : public Command {
 public:
  const char* name() const override { return "test"; }
  const char* summary() const override { return "runs a trained model over its test data"; }
  const char* details() const override {
    return R"(Runs every test example once and prints the mean loss and accuracy. The weights
are those of a checkpoint, or of the newest one of a run directory. If FILE is
itself a run directory, the model is the one it was trained with.)";
  }
  const char* examples() const override {
    return R"(convnet test model-defs/lenet-fashion.yaml --weights runs/lenet
convnet test runs/lenet
convnet test runs/lenet --data /data --json)";
  }

  void declare(CommandLine& line) override {
    model_.declare(line);
    line.text("--weights", "PATH", &weights_, "a checkpoint, or the directory of a run");
    devices_.declare(line, "test on so many devices; the model file's number if not given");
    backend_.declare(line);
    line.text("--data", "DIR", &data_, "where relative data paths of the model file are looked up");
    ranks_.declare(line);
    line.flag("--json", &json_, "print a JSON object");
  }

  int run(Output& output) override {
    return ranks_.run(output, [&](Ranks& ranks) { return run(output, ranks); });
  }

 private:
  int run(Output& output, Ranks& ranks) {
    Result<int> devices = devices_.count();
    if (!devices.ok()) return output.fail(devices.status());
    std::error_code error;
    bool of_run = std::filesystem::is_directory(model_.file, error);
    if (weights_.empty() && !of_run && ranks.rank() == 0) {
      return output.fail(Code::kUsage,
                         "name the weights: --weights runs/NAME (see convnet test --help)");
    }
    // Among several processes the first one reads, and the others are told.
    Result<Checkpoint> checkpoint = Checkpoint();
    std::vector<std::string> origin{"", of_run ? "run" : ""};
    if (ranks.rank() == 0) {
      Result<std::string> file = find_checkpoint(weights_.empty() ? model_.file : weights_, output);
      if (!file.ok()) return output.fail(file.status());
      checkpoint = read_checkpoint(*file);
      if (!checkpoint.ok()) return output.fail(checkpoint.status());
      origin[0] = *file;
    }
    if (Status shared = share(ranks, *checkpoint, origin); !shared.ok()) {
      return output.fail(shared);
    }
    of_run = !origin[1].empty();

    Diagnostics diagnostics;
    std::unique_ptr<BoundModel> model;
    std::string name = model_.file;
    if (of_run) {
      name = checkpoint->head.model_name;
      std::vector<std::string> sets = checkpoint->head.sets;
      sets.insert(sets.end(), model_.sets.begin(), model_.sets.end());
      model = load_model_text(name, checkpoint->head.model_text, sets, diagnostics);
    } else {
      model = model_.load(diagnostics);
    }
    if (model != nullptr) {
      check_data(*model, diagnostics);
      check_testable(*model, diagnostics);
    }
    std::optional<Plan> plan;
    if (!diagnostics.has_errors()) {
      CompileOptions options;
      options.phase = Plan::Phase::kTest;
      options.devices = *devices;
      plan = compile_model(*model, options, diagnostics);
    }
    if (diagnostics.has_errors()) return output.fail(diagnostics);
    output.warn(diagnostics);

    Result<Evaluation> evaluation = evaluate_plan(*model, *plan, *checkpoint, origin[0], ranks);
    if (!evaluation.ok()) return output.fail(evaluation.status());
    print(*evaluation, *plan, checkpoint->head.step, output);
    return 0;
  }

  Result<Evaluation> evaluate_plan(const BoundModel& model, const Plan& plan,
                                   const Checkpoint& checkpoint, const std::string& file,
                                   Ranks& ranks) {
    const DataPaths paths = data_paths(folder_of(model_.file), data_);
    const HostTensor* mean = checkpoint.find("data.mean");
    CONVNET_ASSIGN_OR_RETURN(Examples examples,
                             test_examples(model, paths, plan, nullptr, mean, ranks));
    CONVNET_ASSIGN_OR_RETURN(SessionOptions options,
                             backend_.options(static_cast<int>(plan.devices.size()), ranks));
    CONVNET_ASSIGN_OR_RETURN(std::unique_ptr<Session> session, Session::create(plan, options));
    CONVNET_RETURN_IF_ERROR(load_weights(checkpoint, file, *session));
    return evaluate(*session, *examples.batches);
  }

  void print(const Evaluation& evaluation, const Plan& plan, int64_t step, Output& output) const {
    if (!json_) {
      output.print(fmt::format("{} after {}: {} on {}\n", plan.model, counted(step, "step"),
                               evaluation.metrics.text(), counted(evaluation.examples, "example")));
      return;
    }
    nlohmann::ordered_json metrics;
    for (const auto& [metric, value] : evaluation.metrics.means()) metrics[metric] = value;
    nlohmann::ordered_json json = {{"schema", 1},
                                   {"model", plan.model},
                                   {"step", step},
                                   {"examples", evaluation.examples},
                                   {"loss", evaluation.metrics.loss()},
                                   {"metrics", metrics}};
    output.print(json.dump(2) + "\n");
  }

  ModelArgument model_;
  DevicesArgument devices_;
  BackendArgument backend_;
  RanksArgument ranks_;
  std::string weights_, data_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> test_command() { return std::make_unique<TestCommand>(); }

}  // namespace convnet::cli
