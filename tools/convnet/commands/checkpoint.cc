// convnet checkpoint: what a checkpoint holds.
#include <fmt/format.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "framework/base/amounts.h"
#include "framework/runtime/checkpoint.h"
#include "tools/convnet/command.h"
#include "tools/convnet/weights.h"

namespace convnet::cli {
namespace {

class CheckpointCommand : public Command {
 public:
  const char* name() const override { return "checkpoint"; }
  const char* summary() const override { return "lists and verifies what a checkpoint holds"; }
  const char* details() const override {
    return R"(Reads all of a checkpoint, verifies every checksum, and lists its steps, its
model and its tensors. Of a run directory, the newest checkpoint that is whole.)";
  }
  const char* examples() const override {
    return R"(convnet checkpoint runs/lenet
convnet checkpoint runs/lenet/checkpoints/step-00000200.safetensors --json
convnet checkpoint runs/lenet --model > model.yaml)";
  }

  void declare(CommandLine& line) override {
    line.argument("PATH", &path_, true, "a checkpoint, or the directory of a run");
    line.flag("--model", &model_, "print the model file that the checkpoint was trained with");
    line.flag("--json", &json_, "print a JSON object");
    line.exclude("--model", "--json");
  }

  int run(Output& output) override {
    Result<std::string> file = find_checkpoint(path_, output);
    if (!file.ok()) return output.fail(file.status());
    Result<CheckpointInfo> info = inspect_checkpoint(*file);
    if (!info.ok()) return output.fail(info.status());
    if (model_) {
      output.print(info->head.model_text);
    } else if (json_) {
      print_json(output, *file, *info);
    } else {
      print_text(output, *file, *info);
    }
    return 0;
  }

 private:
  static int64_t elements(const CheckpointInfo& info) {
    int64_t sum = 0;
    for (const CheckpointInfo::Tensor& tensor : info.tensors) sum += tensor.shape.count();
    return sum;
  }

  static void print_text(Output& output, const std::string& file, const CheckpointInfo& info) {
    output.print(fmt::format("{}: {} after {}, {}, all checksums right\n", printable(file),
                             printable(info.head.model_name), counted(info.head.step, "step"),
                             bytes_text(info.bytes)));
    output.print(
        fmt::format("written by {}, format {}\n", printable(info.head.program), info.format));
    for (const std::string& set : info.head.sets) output.print("--set " + printable(set) + "\n");
    size_t names = 4, shapes = 5;
    for (const CheckpointInfo::Tensor& tensor : info.tensors) {
      names = std::max(names, tensor.name.size());
      shapes = std::max(shapes, tensor.shape.str().size());
    }
    output.print(fmt::format("\n{:<{}}  type  {:<{}}  checksum\n", "name", names, "shape", shapes));
    for (const CheckpointInfo::Tensor& tensor : info.tensors) {
      output.print(fmt::format("{:<{}}  {:<4}  {:<{}}  {}\n", printable(tensor.name), names,
                               dtype_name(tensor.dtype), tensor.shape.str(), shapes,
                               tensor.checksum));
    }
    output.print(fmt::format("{}, {}\n",
                             counted(static_cast<int64_t>(info.tensors.size()), "tensor"),
                             counted(elements(info), "value")));
  }

  static void print_json(Output& output, const std::string& file, const CheckpointInfo& info) {
    nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
    for (const CheckpointInfo::Tensor& tensor : info.tensors) {
      nlohmann::ordered_json shape = nlohmann::ordered_json::array();
      for (int i = 0; i < tensor.shape.rank(); ++i) shape.push_back(tensor.shape[i]);
      tensors.push_back({{"name", tensor.name},
                         {"type", dtype_name(tensor.dtype)},
                         {"shape", shape},
                         {"checksum", tensor.checksum}});
    }
    nlohmann::ordered_json json = {{"schema", 1},
                                   {"file", file},
                                   {"model", info.head.model_name},
                                   {"step", info.head.step},
                                   {"format", info.format},
                                   {"bytes", info.bytes},
                                   {"program", info.head.program},
                                   {"sets", info.head.sets},
                                   {"options", info.head.options},
                                   {"data", info.head.data_fingerprint},
                                   {"tensors", tensors}};
    output.print(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  }

  std::string path_;
  bool model_ = false, json_ = false;
};

}  // namespace

std::unique_ptr<Command> checkpoint_command() { return std::make_unique<CheckpointCommand>(); }

}  // namespace convnet::cli
