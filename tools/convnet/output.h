// Output: where a command's words go. Results on stdout, errors on stderr; colours only for a
// terminal; a stdout that cannot be written is an error of its own.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "framework/base/diagnostics.h"
#include "framework/base/status.h"

namespace convnet::cli {

enum class Colour { kAuto, kAlways, kNever };

class Output {
 public:
  // kAuto: a terminal, and neither NO_COLOR (not empty) nor TERM=dumb.
  void set_colour(Colour colour) { colour_ = colour; }
  bool colour(int fd) const;

  void print(std::string_view text);  // to stdout
  void flush();                       // what was printed so far
  void note(std::string_view text);   // to stderr: "convnet: text"

  // "convnet: error: message" on stderr; returns the exit code.
  int fail(const Status& status);
  int fail(Code code, std::string_view message) { return fail(Status(code, std::string(message))); }
  // All diagnostics on stderr; returns the exit code of the first error.
  int fail(const Diagnostics& diagnostics);
  // Warnings alone: rendered on stderr.
  void warn(const Diagnostics& diagnostics);

  // As one of several processes: only the first prints results and notes, and errors are kept, for
  // one process to print by write_error().
  void join(bool first);
  const std::string& kept_error() const { return error_; }
  void write_error(std::string_view text);

  // Call at the end with the command's exit code: flushes stdout; the code to exit with.
  int finish(int code);

 private:
  void put_error(const std::string& text);

  Colour colour_ = Colour::kAuto;
  bool silent_ = false, keeps_errors_ = false;
  std::string error_;
  int write_error_ = 0;  // errno of the first failed write
};

// "1 layer", "2 layers"
std::string counted(int64_t number, std::string_view noun);

}  // namespace convnet::cli
