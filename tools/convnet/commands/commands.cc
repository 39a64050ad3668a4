// The list of commands.
#include "tools/convnet/command.h"

namespace convnet::cli {

std::vector<std::unique_ptr<Command>> all_commands() {
  std::vector<std::unique_ptr<Command>> commands;
  commands.push_back(check_command());
  commands.push_back(plan_command());
  commands.push_back(train_command());
  commands.push_back(test_command());
  commands.push_back(verify_command());
  commands.push_back(layers_command());
  commands.push_back(checkpoint_command());
  commands.push_back(devices_command());
  commands.push_back(version_command());
  return commands;
}

}  // namespace convnet::cli
