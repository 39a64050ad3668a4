// The words of a plan's text: one line at a time, with places for messages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "framework/base/shape.h"
#include "framework/base/status.h"
#include "framework/plan/attrs.h"

namespace convnet {

// Reads from the current position. A function that fails records the first error, with line and
// column, and returns false or nothing; everything after it fails too. Spaces before what is read
// are skipped, comments count as the end of the line.
class PlanScanner {
 public:
  explicit PlanScanner(std::string_view text) : text_(text) {}

  bool ok() const { return !error_.has_value(); }
  // kUsage, "line:column: message". Requires !ok().
  Status status() const { return Status(Code::kUsage, *error_); }

  // Moves to the first word of the next line that has one; false at the end of the text.
  bool next_line();
  // The rest of the line must be empty.
  bool end_line();
  bool at_line_end();

  // The character that comes next, '\0' at the end of the line.
  char peek();
  // Takes this character (or these) if they come next.
  bool take(std::string_view symbol);
  bool expect(std::string_view symbol, std::string_view where);
  // A fixed word, like "phase".
  bool keyword(std::string_view word);

  // A name, plain or in quotes. `what` is what the message says is missing: "a tensor's name".
  std::optional<std::string> name(std::string_view what);
  // A name without quotes, to be looked up in a list of words; empty if there is none.
  std::string_view bare_word();
  template <typename T>
  bool integer(T* value, std::string_view what);
  // "[0:64,0:3]".
  std::optional<Box> box();
  // "[64,3]".
  std::optional<Shape> shape();
  bool list(std::vector<int64_t>* values, std::string_view what);
  // Everything of the form name=value up to what is none.
  bool attrs(Attrs* attrs);

  // Records an error at the start of what was read last (or comes next, for fail_here); false.
  bool fail(std::string message);
  bool fail_here(std::string message);

 private:
  void skip_spaces();
  bool end_of_line_at(size_t i) const { return i >= text_.size() || text_[i] == '\n'; }
  std::optional<std::string> quoted();
  std::optional<Attrs::Value> value();
  std::string_view number_text();

  std::string_view text_;
  size_t at_ = 0;          // next character
  size_t token_ = 0;       // start of what was read last
  size_t line_start_ = 0;  // of the current line
  int line_ = 0;           // its number; 0: none begun
  std::optional<std::string> error_;
};

}  // namespace convnet
