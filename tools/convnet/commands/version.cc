// convnet version: which program this is.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "git_hash.h"
#include "tools/convnet/command.h"

namespace convnet::cli {
namespace {

class VersionCommand : public Command {
 public:
  const char* name() const override { return "version"; }
  const char* summary() const override { return "version, compiler and features of this program"; }
  const char* details() const override { return ""; }
  const char* examples() const override {
    return R"(convnet version
convnet version --json)";
  }

  void declare(CommandLine& line) override { line.flag("--json", &json_, "print a JSON object"); }

  int run(Output& output) override {
    const std::string hash = CONVNET_GIT_HASH;
    if (json_) {
      nlohmann::ordered_json json = {{"schema", 1},
                                     {"version", CONVNET_VERSION},
                                     {"commit", hash},
                                     {"compiler", "g++ " __VERSION__},
                                     {"build", CONVNET_BUILD_TYPE},
                                     {"backends", {"cpu", "reference"}},
                                     {"instruction_sets", {"avx2", "avx512"}},
                                     {"communicators", {"local"}}};
      output.print(json.dump(2) + "\n");
      return 0;
    }
    output.print(fmt::format("convnet {}{}\n", CONVNET_VERSION,
                             hash.empty() ? "" : " (commit " + hash + ")"));
    output.print(fmt::format("compiler       g++ {}, {}\n", __VERSION__, CONVNET_BUILD_TYPE));
    output.print("backends       cpu (avx2, avx512), reference\n");
    output.print("communicators  local\n");
    return 0;
  }

 private:
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> version_command() { return std::make_unique<VersionCommand>(); }

}  // namespace convnet::cli
