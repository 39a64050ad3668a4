#include "tools/convnet/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "framework/base/amounts.h"

namespace convnet::cli {

bool Output::colour(int fd) const {
  if (colour_ != Colour::kAuto) return colour_ == Colour::kAlways;
  const char* no_colour = std::getenv("NO_COLOR");
  if (no_colour != nullptr && *no_colour != '\0') return false;
  const char* term = std::getenv("TERM");
  if (term == nullptr || std::strcmp(term, "dumb") == 0) return false;
  return isatty(fd) == 1;
}

void Output::print(std::string_view text) {
  if (write_error_ != 0 || silent_) return;
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) {
    write_error_ = errno != 0 ? errno : EIO;
  }
}

void Output::flush() {
  errno = 0;
  if (std::fflush(stdout) != 0 && write_error_ == 0) write_error_ = errno != 0 ? errno : EIO;
}

void Output::note(std::string_view text) {
  if (silent_) return;
  std::fflush(stdout);
  std::string line = "convnet: " + std::string(text) + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

int Output::fail(const Status& status) {
  std::fflush(stdout);
  const bool coloured = colour(STDERR_FILENO);
  std::string text = "convnet: ";
  text += coloured ? "\x1b[1;31merror:\x1b[0m " : "error: ";
  // A message may have a second line, with help; nothing in it may reach the terminal as a command.
  std::string_view rest = status.message();
  while (true) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    text += printable(rest.substr(0, end), 4000) + "\n";
    if (end == rest.size()) break;
    rest.remove_prefix(end + 1);
  }
  put_error(text);
  return static_cast<int>(status.code());
}

int Output::fail(const Diagnostics& diagnostics) {
  // A file that cannot be read has no place to point at.
  if (diagnostics.all().size() == 1 && diagnostics.all()[0].span.source == nullptr) {
    return fail(Status(diagnostics.code(), diagnostics.all()[0].message));
  }
  put_error(diagnostics.render(colour(STDERR_FILENO)));
  return static_cast<int>(diagnostics.code());
}

void Output::warn(const Diagnostics& diagnostics) {
  if (diagnostics.all().empty() || silent_) return;
  std::fflush(stdout);
  std::string text = diagnostics.render(colour(STDERR_FILENO));
  std::fwrite(text.data(), 1, text.size(), stderr);
}

void Output::join(bool first) {
  silent_ = !first;
  keeps_errors_ = true;
}

void Output::put_error(const std::string& text) {
  if (keeps_errors_) {
    error_ += text;
  } else {
    write_error(text);
  }
}

void Output::write_error(std::string_view text) {
  std::fflush(stdout);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

int Output::finish(int code) {
  flush();
  if (write_error_ == 0) return code;
  // The reader went away (convnet ... | head): nothing to complain about.
  if (write_error_ == EPIPE) return code != 0 ? code : 128 + SIGPIPE;
  int io = fail(Code::kIo, fmt::format("cannot write to stdout: {}", std::strerror(write_error_)));
  return code != 0 ? code : io;
}

std::string counted(int64_t number, std::string_view noun) {
  return fmt::format("{} {}{}", with_commas(number), noun, number == 1 ? "" : "s");
}

}  // namespace convnet::cli
