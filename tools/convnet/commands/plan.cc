// convnet plan: what each device does, in order, and what it costs.
#include <fmt/format.h>

#include <algorithm>

#include "framework/plan/dot.h"
#include "framework/plan/summary.h"
#include "tools/convnet/arguments.h"
#include "tools/convnet/command.h"

namespace convnet::cli {
namespace {

// Each line with "# " before it, which the plan's text form takes for a comment.
std::string commented(const std::string& text) {
  std::string result;
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find('\n', at), text.size());
    result += end == at ? "#\n" : "# " + text.substr(at, end - at) + "\n";
    at = end + 1;
  }
  return result;
}

class PlanCommand : public Command {
 public:
  const char* name() const override { return "plan"; }
  const char* summary() const override { return "what each device does, and what it costs"; }
  const char* details() const override {
    return R"(Compiles the model for N devices and prints the plan: every buffer, instruction
and exchange of each device, in order, after a summary of bytes, arithmetic and
communication. The text reads back as the same plan; framework/plan/FORMAT.md
explains it. Nothing is run.)";
  }
  const char* examples() const override {
    return R"(convnet plan model-defs/lenet-fashion.yaml --devices 2
convnet plan model-defs/alexnet.yaml --devices 4 --set batch=512 --summary
convnet plan model-defs/alexnet-owt-4.yaml --dot | dot -Tsvg > placed.svg
convnet plan model.yaml --dump-after shard)";
  }

  void declare(CommandLine& line) override {
    model_.declare(line);
    devices_.declare(line, "plan for so many devices; the model file's number if not given");
    line.choice("--phase", &phase_, {"train", "test"}, "which plan; train if not given");
    line.flag("--summary", &summary_, "print the summary only");
    line.flag("--text", &text_, "print the plan only");
    line.flag("--json", &json_, "print the summary as a JSON object");
    line.flag("--dot", &dot_, "print a drawing of who holds what and what crosses, for Graphviz");
    line.choice("--dump-after", &pass_, pass_names(), "print what this pass of the compiler made");
    for (const char* one : {"--summary", "--text", "--json", "--dot", "--dump-after"}) {
      for (const char* other : {"--summary", "--text", "--json", "--dot", "--dump-after"}) {
        if (std::string(one) < other) line.exclude(one, other);
      }
    }
  }

  int run(Output& output) override {
    Result<int> devices = devices_.count();
    if (!devices.ok()) return output.fail(devices.status());
    Diagnostics diagnostics;
    std::unique_ptr<BoundModel> model = model_.load(diagnostics);
    if (model == nullptr) return output.fail(diagnostics);

    CompileOptions options;
    options.devices = *devices;
    options.phase = phase_ == "test" ? Plan::Phase::kTest : Plan::Phase::kTrain;
    if (!pass_.empty()) {
      // At once, so that it is there to look at even if a later pass aborts.
      options.after_pass = [&](const std::string& pass, const std::string& text) {
        if (pass != pass_) return;
        output.print(text);
        output.flush();
      };
    }
    const std::optional<Plan> plan = compile_model(*model, options, diagnostics);
    if (!plan.has_value()) return output.fail(diagnostics);
    output.warn(diagnostics);

    if (!pass_.empty()) return 0;
    if (dot_) {
      output.print(print_dot(*plan));
    } else if (json_) {
      output.print(summary_json(summarise(*plan)) + "\n");
    } else if (summary_) {
      output.print(print_summary(summarise(*plan)));
    } else if (text_) {
      output.print(print_plan(*plan));
    } else {
      output.print(commented(print_summary(summarise(*plan))) + print_plan(*plan));
    }
    return 0;
  }

 private:
  ModelArgument model_;
  DevicesArgument devices_;
  std::string phase_ = "train", pass_;
  bool summary_ = false, text_ = false, json_ = false, dot_ = false;
};

}  // namespace

std::unique_ptr<Command> plan_command() { return std::make_unique<PlanCommand>(); }

}  // namespace convnet::cli
