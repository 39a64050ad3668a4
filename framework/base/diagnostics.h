// Diagnostics: the mistakes in what a user wrote, all of them, each with its place.
//
//   model.yaml:12:5: error: unknown attribute 'stirde' for conv
//      12 |     stirde: 2
//         |     ^~~~~~
//   help: did you mean 'stride'?
//
// Style: lower-case first letter, no final period, both numbers and the name. A mistake is reported
// once; what depends on it stays silent. At most one help line, and only if it is surely right.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "framework/base/source.h"
#include "framework/base/status.h"

namespace convnet {

struct Diagnostic {
  enum class Severity { kError, kWarning };
  struct Note {
    Span span;
    std::string message;
  };
  Severity severity = Severity::kError;
  Span span;
  std::string message;
  std::vector<Note> notes;   // second places
  std::string help;          // imperative, without "help: "
  Code code = Code::kModel;  // what the program exits with if this is the first error
};

class Diagnostics {
 public:
  // Returns the new entry, so that notes and help can be added to it; valid until the next call.
  Diagnostic& error(Span span, std::string message);
  Diagnostic& warning(Span span, std::string message);

  bool has_errors() const { return errors_ > 0; }
  int errors() const { return errors_; }
  const std::vector<Diagnostic>& all() const { return all_; }
  // The first error's code; kOk without errors.
  Code code() const;

  // All entries as text, in the order of their places in the source (entries without a place
  // first); at most `limit` errors, then a line that counts the rest. `colour`: ANSI codes.
  std::string render(bool colour = false, int limit = 100) const;
  // The same as a JSON array of {severity, file, line, column, end_column, message, notes, help}; a
  // note is {file, line, column, end_column, message}. Without a place, file is null and the
  // numbers are 0. end_column is one past the last byte that is underlined.
  std::string render_json() const;

 private:
  std::vector<Diagnostic> all_;
  int errors_ = 0;
};

// The candidate nearest to `word`, ignoring case, if it is near enough to be what was meant: an
// edit distance (with transpositions) of at most 2 or a third of the length, 1 in words of up to
// four letters; or else one of the two begins with the other. Empty if there is none.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// Text safe to print on a terminal: control characters and invalid UTF-8 escaped (\x1b), cut to
// `limit` bytes with "...".
std::string printable(std::string_view text, size_t limit = 200);

}  // namespace convnet
