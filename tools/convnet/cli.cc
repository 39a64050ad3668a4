// The command line: finds the command, reads its options, prints help and the errors of usage. The
// one file that includes CLI11, which splits the words into options and values.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <deque>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "framework/base/diagnostics.h"
#include "framework/comm/ranks.h"
#include "tools/convnet/command.h"

namespace convnet::cli {
namespace {

constexpr const char* kExitCodes =
    "  0  done                        6  input/output of the system\n"
    "  1  a check or test failed      7  the run directory is in use\n"
    "  2  usage                       8  a limit of size, memory or number\n"
    "  3  model file                  9  loss or parameters are not finite\n"
    "  4  data set                   10  a device or peer was lost\n"
    "  5  weights or checkpoint   128+n  signal n, after a checkpoint\n";

std::string in_quotes(std::string_view text) { return "'" + printable(text, 100) + "'"; }

std::string suggestion(std::string_view word, const std::vector<std::string>& candidates) {
  std::string near = nearest(word, candidates);
  return near.empty() ? "" : "; did you mean '" + near + "'?";
}

// Options of one command: what it declared, and CLI11's idea of them.
class DeclaredOptions : public CommandLine {
 public:
  explicit DeclaredOptions(Command& command) : command_(command), app_("", command.name()) {
    app_.set_help_flag();
    app_.allow_extras();
    command.declare(*this);
    choice("--color", &color_, {"auto", "always", "never"}, "colours; auto: if it is a terminal");
    flag("--help", &help_, "this text");
  }

  void argument(const char* name, std::string* value, bool required, const char* doc) override {
    Option& option = add(name, "", doc);
    option.positional = true;
    option.required = required;
    option.set = text_setter(name, value);
  }

  void flag(const char* name, bool* value, const char* doc) override {
    Option& option = options_.emplace_back();
    option.name = name;
    option.doc = doc;
    option.cli = app_.add_flag(std::string(name) == "--help" ? "-h,--help" : name);
    option.set = [value](const std::string&) {
      *value = true;
      return Status();
    };
  }

  void text(const char* name, const char* value_name, std::string* value,
            const char* doc) override {
    add(name, value_name, doc).set = text_setter(name, value);
  }

  void texts(const char* name, const char* value_name, std::vector<std::string>* values,
             const char* doc) override {
    Option& option = add(name, value_name, doc);
    option.repeats = true;
    option.set = [values](const std::string& word) {
      values->push_back(word);
      return Status();
    };
  }

  void number(const char* name, const char* value_name, std::optional<uint64_t>* value, uint64_t lo,
              uint64_t hi, const char* doc) override {
    add(name, value_name, doc).set = [=](const std::string& word) {
      uint64_t parsed = 0;
      auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), parsed);
      if (error != std::errc() || end != word.data() + word.size() || parsed < lo || parsed > hi) {
        return Status(Code::kUsage,
                      hi == std::numeric_limits<uint64_t>::max()
                          ? fmt::format("{} takes a whole number of at least {} in 64 bits, not {}",
                                        name, lo, in_quotes(word))
                          : fmt::format("{} takes a whole number from {} to {}, not {}", name, lo,
                                        hi, in_quotes(word)));
      }
      *value = parsed;
      return Status();
    };
  }

  void choice(const char* name, std::string* value, std::vector<std::string> choices,
              const char* doc) override {
    Option& option = add(name, "", doc);
    option.value_name = fmt::format("{}", fmt::join(choices, "|"));
    option.set = [=](const std::string& word) {
      if (std::find(choices.begin(), choices.end(), word) == choices.end()) {
        return Status(Code::kUsage,
                      fmt::format("{} takes {}, not {}{}", name, fmt::join(choices, ", "),
                                  in_quotes(word), suggestion(word, choices)));
      }
      *value = word;
      return Status();
    };
  }

  void exclude(const char* one, const char* other) override { excluded_.emplace_back(one, other); }

  Status parse(std::vector<std::string> words) {
    std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
    try {
      app_.parse(words);
    } catch (const CLI::ArgumentMismatch& e) {
      std::string what = e.what();
      return Status(Code::kUsage, what.substr(0, what.find(':')) + " needs a value");
    } catch (const CLI::ParseError& e) {
      return Status(Code::kUsage, e.what());
    }
    // Help is given whatever else is wrong.
    for (const Option& option : options_) {
      if (option.name == "--help" && option.cli->count() > 0) {
        help_ = true;
        return Status();
      }
    }
    CONVNET_RETURN_IF_ERROR(check_extras());
    for (const Option& option : options_) {
      if (option.cli->count() > 1 && !option.repeats) {
        return Status(Code::kUsage, option.name + " is given twice");
      }
      for (const std::string& word : option.cli->results()) {
        CONVNET_RETURN_IF_ERROR(option.set(word));
      }
      if (option.required && option.cli->count() == 0) {
        return Status(Code::kUsage, option.name + " is missing");
      }
    }
    for (const auto& [one, other] : excluded_) {
      if (given(one) && given(other)) {
        return Status(Code::kUsage, fmt::format("{} and {} exclude each other", one, other));
      }
    }
    return Status();
  }

  bool help_wanted() const { return help_; }
  Colour colour() const {
    return color_ == "always"  ? Colour::kAlways
           : color_ == "never" ? Colour::kNever
                               : Colour::kAuto;
  }

  std::string help() const {
    std::string text = fmt::format("convnet {}: {}\n\nusage: convnet {}", command_.name(),
                                   command_.summary(), command_.name());
    for (const Option& option : options_) {
      if (option.positional) text += option.required ? " " + option.name : " [" + option.name + "]";
    }
    text += " [options]\n";
    if (*command_.details() != '\0') text += fmt::format("\n{}\n", command_.details());
    size_t width = 0;
    for (const Option& option : options_) width = std::max(width, option.left().size());
    width = std::min<size_t>(width, 24);
    text += "\n";
    for (const Option& option : options_) text += help_line(option.left(), option.doc, width);
    text += fmt::format("\nexamples:\n{}", indented(command_.examples()));
    return text;
  }

  static std::string help_line(const std::string& left, const std::string& doc, size_t width) {
    constexpr size_t kColumns = 80;
    const std::string gap = "\n" + std::string(width + 4, ' ');
    std::string text = "  " + left;
    text += left.size() > width ? gap : std::string(width + 2 - left.size(), ' ');
    size_t column = width + 4;
    size_t at = 0;
    while (at < doc.size()) {
      size_t end = std::min(doc.find(' ', at), doc.size());
      if (column + (end - at) > kColumns && column > width + 4) {
        text.pop_back();
        text += gap;
        column = width + 4;
      }
      text += doc.substr(at, end - at) + " ";
      column += end - at + 1;
      at = end + 1;
    }
    text.pop_back();
    return text + "\n";
  }

  static std::string indented(std::string_view lines) {
    std::string text;
    while (!lines.empty()) {
      size_t end = std::min(lines.find('\n'), lines.size());
      text += "  " + std::string(lines.substr(0, end)) + "\n";
      lines.remove_prefix(std::min(end + 1, lines.size()));
    }
    return text;
  }

 private:
  struct Option {
    std::string name, value_name, doc;
    bool positional = false, required = false, repeats = false;
    CLI::Option* cli = nullptr;
    std::function<Status(const std::string&)> set;
    std::string left() const { return value_name.empty() ? name : name + " " + value_name; }
  };

  Option& add(const char* name, const char* value_name, const char* doc) {
    Option& option = options_.emplace_back();
    option.name = name;
    option.value_name = value_name;
    option.doc = doc;
    option.cli = app_.add_option(name, words_.emplace_back())->allow_extra_args(false);
    option.cli->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    return option;
  }

  static std::function<Status(const std::string&)> text_setter(const char* name,
                                                               std::string* value) {
    return [=](const std::string& word) {
      if (word.empty()) return Status(Code::kUsage, std::string(name) + " is empty");
      *value = word;
      return Status();
    };
  }

  bool given(const std::string& name) const {
    return std::any_of(options_.begin(), options_.end(), [&](const Option& option) {
      return option.name == name && option.cli->count() > 0;
    });
  }

  Status check_extras() const {
    std::vector<std::string> extras = app_.remaining();
    if (extras.empty()) return Status();
    std::vector<std::string> names;
    for (const Option& option : options_) {
      if (!option.positional) names.push_back(option.name);
    }
    // An unknown option explains the words that follow it.
    for (const std::string& word : extras) {
      if (word.size() > 1 && word[0] == '-') {
        std::string name = word.substr(0, word.find('='));
        return Status(Code::kUsage,
                      fmt::format("unknown option {}{}", in_quotes(name), suggestion(name, names)));
      }
    }
    return Status(Code::kUsage, "unexpected argument " + in_quotes(extras[0]));
  }

  Command& command_;
  CLI::App app_;
  std::deque<std::vector<std::string>> words_;  // CLI11 writes here; addresses are kept
  std::deque<Option> options_;
  std::vector<std::pair<std::string, std::string>> excluded_;
  std::string color_ = "auto";
  bool help_ = false;
};

std::string usage(const std::vector<std::unique_ptr<Command>>& commands) {
  std::string text =
      "convnet: trains convolutional networks described by a model file\n\n"
      "usage: convnet COMMAND [options]\n\n";
  for (const auto& command : commands) {
    text += DeclaredOptions::help_line(command->name(), command->summary(), 10);
  }
  return text + "\nconvnet COMMAND --help explains a command and gives examples\n";
}

}  // namespace

int run_command_line(int argc, const char* const* argv) {
  Output output;
  // Of several processes that mpirun has started, the first says what all would say.
  if (const auto launch = launched(); launch.has_value() && launch->rank > 0) output.join(false);
  std::vector<std::unique_ptr<Command>> commands = all_commands();
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  if (words.empty()) {
    output.write_error(usage(commands));
    return static_cast<int>(Code::kUsage);
  }
  std::string word = words[0];
  words.erase(words.begin());
  if (word == "--version") word = "version";
  if (word == "help" && !words.empty()) {
    word = words[0];
    words = {"--help"};
  } else if (word == "help" || word == "--help" || word == "-h") {
    output.print(usage(commands) + "\nexit codes:\n" + kExitCodes);
    return output.finish(0);
  }

  std::vector<std::string> names;
  Command* command = nullptr;
  for (const auto& candidate : commands) {
    names.emplace_back(candidate->name());
    if (names.back() == word) command = candidate.get();
  }
  if (command == nullptr) {
    bool option = word.size() > 1 && word[0] == '-';
    return output.fail(
        Code::kUsage,
        fmt::format("unknown {} {}{}", option ? "option" : "command", in_quotes(word),
                    option ? "; a command comes first: convnet --help" : suggestion(word, names)));
  }

  DeclaredOptions options(*command);
  if (Status status = options.parse(std::move(words)); !status.ok()) {
    return output.fail(
        Code::kUsage, fmt::format("{} (see convnet {} --help)", status.message(), command->name()));
  }
  if (options.help_wanted()) {
    output.print(options.help());
    return output.finish(0);
  }
  output.set_colour(options.colour());
  return output.finish(command->run(output));
}

}  // namespace convnet::cli
