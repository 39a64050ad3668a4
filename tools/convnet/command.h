// Command: one subcommand of convnet. Each is a file of its own that declares its options against
// CommandLine and does its work in run(); commands.cc lists them. Parsing, help, suggestions and
// the errors of usage are cli.cc's, which alone knows the library that reads command lines.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/convnet/output.h"

namespace convnet::cli {

// What a command declares. Values are set before run(), all names and documents are literals that
// live for ever. A value that is not given keeps what it holds.
class CommandLine {
 public:
  virtual ~CommandLine() = default;
  // A word without a dash: "FILE". Required ones first.
  virtual void argument(const char* name, std::string* value, bool required, const char* doc) = 0;
  virtual void flag(const char* name, bool* value, const char* doc) = 0;
  // "--out", "DIR". May not be empty.
  virtual void text(const char* name, const char* value_name, std::string* value,
                    const char* doc) = 0;
  // May be given several times.
  virtual void texts(const char* name, const char* value_name, std::vector<std::string>* values,
                     const char* doc) = 0;
  // A decimal number from lo to hi.
  virtual void number(const char* name, const char* value_name, std::optional<uint64_t>* value,
                      uint64_t lo, uint64_t hi, const char* doc) = 0;
  virtual void choice(const char* name, std::string* value, std::vector<std::string> choices,
                      const char* doc) = 0;
  // These two options must not be given together.
  virtual void exclude(const char* one, const char* other) = 0;
};

class Command {
 public:
  virtual ~Command() = default;
  virtual const char* name() const = 0;
  virtual const char* summary() const = 0;   // one line
  virtual const char* details() const = 0;   // a paragraph or more, lines of at most 80 characters
  virtual const char* examples() const = 0;  // one or more lines that can be typed
  virtual void declare(CommandLine& line) = 0;
  virtual int run(Output& output) = 0;  // returns the exit code
};

// All commands, in the order of --help.
std::vector<std::unique_ptr<Command>> all_commands();

std::unique_ptr<Command> check_command();
std::unique_ptr<Command> plan_command();
std::unique_ptr<Command> train_command();
std::unique_ptr<Command> test_command();
std::unique_ptr<Command> verify_command();
std::unique_ptr<Command> layers_command();
std::unique_ptr<Command> checkpoint_command();
std::unique_ptr<Command> devices_command();
std::unique_ptr<Command> version_command();

// The whole program after its start: parses, dispatches, returns the exit code.
int run_command_line(int argc, const char* const* argv);

}  // namespace convnet::cli
