// convnet layers: the layers of the language and their attributes, from the schema.
#include <fmt/format.h>

#include "framework/model/reference.h"
#include "tools/convnet/command.h"

namespace convnet::cli {
namespace {

class LayersCommand : public Command {
 public:
  const char* name() const override { return "layers"; }
  const char* summary() const override { return "what layers there are, and their attributes"; }
  const char* details() const override {
    return R"(Without TYPE, all types with a line each, and the attributes that every layer
has. With TYPE, the attributes of that layer with types, defaults, ranges and
meaning. model-defs/README.md is made of the same text; --reference prints it.)";
  }
  const char* examples() const override {
    return R"(convnet layers
convnet layers conv
convnet layers conv --json)";
  }

  void declare(CommandLine& line) override {
    line.argument("TYPE", &type_, false, "a type of layer");
    line.flag("--json", &json_, "print a JSON object");
    line.flag("--reference", &reference_, "print the whole language reference, in Markdown");
    line.exclude("--json", "--reference");
    line.exclude("TYPE", "--reference");
  }

  int run(Output& output) override {
    if (reference_) {
      output.print(language_reference());
    } else if (type_.empty()) {
      output.print(json_ ? layers_json() + "\n" : describe_layers());
    } else {
      const std::string text = describe_layer(type_);
      if (text.empty()) {
        const std::string near = nearest(type_, layer_types());
        return output.fail(Code::kUsage,
                           fmt::format("no layer type '{}'{}", printable(type_, 100),
                                       near.empty() ? ": convnet layers lists them"
                                                    : "; did you mean '" + near + "'?"));
      }
      output.print(json_ ? layer_json(type_) + "\n" : text);
    }
    return 0;
  }

 private:
  std::string type_;
  bool json_ = false, reference_ = false;
};

}  // namespace

std::unique_ptr<Command> layers_command() { return std::make_unique<LayersCommand>(); }

}  // namespace convnet::cli
