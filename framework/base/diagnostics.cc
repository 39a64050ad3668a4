#include "framework/base/diagnostics.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "framework/base/utf8.h"

namespace convnet {
namespace {

constexpr size_t kGutter = 5;    // columns of the line number
constexpr size_t kWidest = 112;  // columns of source text in an excerpt; 120 with the gutter
constexpr size_t kTabStop = 8;
constexpr size_t kContext = 1024;  // bytes looked at on each side of the place
constexpr char kCut[] = "...";

// One character of the excerpt as it is shown.
struct Cell {
  std::string text;
  size_t width;
  size_t byte;  // in the line
};

std::vector<Cell> cells_of(std::string_view line, size_t begin, size_t end) {
  std::vector<Cell> cells;
  size_t column = 0;
  for (size_t i = begin; i < end;) {
    const Utf8Char character = decode_utf8(line, i);
    Cell cell{"", 0, i};
    if (character.valid && character.code == '\t') {
      cell.text.assign(kTabStop - column % kTabStop, ' ');
      cell.width = cell.text.size();
    } else {
      append_printable(line, i, character, &cell.text);
      const bool shown = character.valid && !is_control(character.code);
      cell.width = shown ? static_cast<size_t>(display_width(character.code)) : cell.text.size();
    }
    column += cell.width;
    cells.push_back(std::move(cell));
    i += static_cast<size_t>(character.bytes);
  }
  return cells;
}

// The nearest start of a character at or before `offset`.
size_t character_start(std::string_view line, size_t offset) {
  for (int i = 0; i < 3 && offset > 0 && offset < line.size(); ++i) {
    if ((static_cast<unsigned char>(line[offset]) & 0xc0) != 0x80) break;
    --offset;
  }
  return offset;
}

struct Excerpt {
  std::string text;   // the line, cut around the place
  size_t before = 0;  // columns before the underlined ones
  size_t under = 1;   // underlined columns, at least 1
};

Excerpt excerpt_of(std::string_view line, size_t first, size_t last) {
  const size_t window_begin = character_start(line, first > kContext ? first - kContext : 0);
  const size_t window_end = character_start(line, std::min(line.size(), first + kContext));
  const std::vector<Cell> cells = cells_of(line, window_begin, window_end);

  size_t total = 0, start = 0, stop = 0;  // columns
  for (const Cell& cell : cells) {
    if (cell.byte < first) start += cell.width;
    if (cell.byte < last) stop += cell.width;
    total += cell.width;
  }
  const bool cut_left_anyway = window_begin > 0, cut_right_anyway = window_end < line.size();
  Excerpt out;
  if (total <= kWidest && !cut_left_anyway && !cut_right_anyway) {
    for (const Cell& cell : cells) out.text += cell.text;
    out.before = start;
    out.under = std::max<size_t>(1, stop > start ? stop - start : 1);
    return out;
  }

  // Show [left, left + room) of the columns, with the underlined ones in the middle.
  const size_t room = kWidest - 2 * (sizeof(kCut) - 1);
  const size_t shown = std::min(room, std::max<size_t>(1, stop > start ? stop - start : 1));
  const size_t margin = (room - shown) / 2;
  size_t left = start > margin ? start - margin : 0;
  if (!cut_right_anyway && left + room > total) left = total > room ? total - room : 0;
  if (!cut_left_anyway && start + shown <= room) left = 0;
  size_t column = 0, kept = 0;
  std::string kept_text;
  bool cut_left = cut_left_anyway, cut_right = cut_right_anyway;
  size_t hidden = 0;
  for (const Cell& cell : cells) {
    if (column < left) {
      cut_left = true;
      hidden += cell.width;
    } else if (kept + cell.width > room) {
      cut_right = true;
      break;
    } else {
      kept_text += cell.text;
      kept += cell.width;
    }
    column += cell.width;
  }
  if (cut_left) out.text += kCut;
  out.text += kept_text;
  if (cut_right) out.text += kCut;
  out.before = (cut_left ? sizeof(kCut) - 1 : 0) + (start > hidden ? start - hidden : 0);
  out.under = std::min(shown, room);
  return out;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const Utf8Char character = decode_utf8(text, i);
    append_printable(text, i, character, &out);
    i += static_cast<size_t>(character.bytes);
  }
  return out;
}

struct Colours {
  const char *error, *warning, *note, *help, *bold, *caret, *off;
};
constexpr Colours kPlain = {"", "", "", "", "", "", ""};
constexpr Colours kAnsi = {"\x1b[1;31m", "\x1b[1;35m", "\x1b[1;36m", "\x1b[1;32m",
                           "\x1b[1m",    "\x1b[1;32m", "\x1b[0m"};

// "file:line:column: error: message" and the underlined excerpt.
void append_entry(const Span& span, const char* kind, const char* kind_colour,
                  const std::string& message, const Colours& colours, std::string* out) {
  int line = 0, column = 0;
  if (span.source) {
    span.source->position(span.begin, &line, &column);
    *out += colours.bold + escaped(span.source->name()) + ':' + std::to_string(line) + ':' +
            std::to_string(column) + ": " + colours.off;
  }
  *out += std::string(kind_colour) + kind + ": " + colours.off + colours.bold + escaped(message) +
          colours.off + '\n';
  if (!span.source) return;

  const std::string_view text = span.source->line(line);
  const size_t first = static_cast<size_t>(column - 1);
  const size_t length = span.end > span.begin ? span.end - span.begin : 0;
  const size_t last = std::min(text.size(), first + length);
  const Excerpt excerpt = excerpt_of(text, first, last);
  const std::string number = std::to_string(line);
  out->append(number.size() < kGutter ? kGutter - number.size() : 0, ' ');
  *out += number + (excerpt.text.empty() ? " |" : " | " + excerpt.text) + '\n';
  out->append(std::max(kGutter, number.size()), ' ');
  *out += " | " + std::string(excerpt.before, ' ') + colours.caret + '^' +
          std::string(excerpt.under - 1, '~') + colours.off + '\n';
}

nlohmann::ordered_json place_json(const Span& span) {
  nlohmann::ordered_json json;
  if (!span.source) {
    json["file"] = nullptr;
    json["line"] = 0;
    json["column"] = 0;
    json["end_column"] = 0;
    return json;
  }
  int line = 0, column = 0;
  span.source->position(span.begin, &line, &column);
  const int line_end = static_cast<int>(span.source->line(line).size()) + 1;
  const size_t length = span.end > span.begin ? span.end - span.begin : 0;
  json["file"] = span.source->name();
  json["line"] = line;
  json["column"] = column;
  json["end_column"] = length > static_cast<size_t>(line_end - column)
                           ? line_end
                           : column + static_cast<int>(length);
  return json;
}

// Entries in the order of their places: those without a place, then source by source as they
// appear.
std::vector<const Diagnostic*> by_place(const std::vector<Diagnostic>& all) {
  std::vector<const SourceText*> sources = {nullptr};
  std::vector<std::pair<size_t, const Diagnostic*>> ranked;
  for (const Diagnostic& entry : all) {
    const auto found = std::find(sources.begin(), sources.end(), entry.span.source.get());
    ranked.emplace_back(static_cast<size_t>(found - sources.begin()), &entry);
    if (found == sources.end()) sources.push_back(entry.span.source.get());
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) {
    if (a.first != b.first) return a.first < b.first;
    return a.second->span.begin < b.second->span.begin;
  });
  std::vector<const Diagnostic*> out;
  for (const auto& [rank, entry] : ranked) out.push_back(entry);
  return out;
}

}  // namespace

Diagnostic& Diagnostics::error(Span span, std::string message) {
  ++errors_;
  all_.push_back({});
  all_.back().span = std::move(span);
  all_.back().message = std::move(message);
  return all_.back();
}

Diagnostic& Diagnostics::warning(Span span, std::string message) {
  Diagnostic& entry = error(std::move(span), std::move(message));
  --errors_;
  entry.severity = Diagnostic::Severity::kWarning;
  return entry;
}

Code Diagnostics::code() const {
  for (const Diagnostic& entry : all_) {
    if (entry.severity == Diagnostic::Severity::kError) return entry.code;
  }
  return Code::kOk;
}

std::string Diagnostics::render(bool colour, int limit) const {
  const Colours& colours = colour ? kAnsi : kPlain;
  std::string out;
  int shown = 0;
  for (const Diagnostic* entry : by_place(all_)) {
    const bool is_error = entry->severity == Diagnostic::Severity::kError;
    if (is_error && shown == limit) continue;
    if (is_error) ++shown;
    if (!out.empty()) out += '\n';
    append_entry(entry->span, is_error ? "error" : "warning",
                 is_error ? colours.error : colours.warning, entry->message, colours, &out);
    for (const Diagnostic::Note& note : entry->notes) {
      append_entry(note.span, "note", colours.note, note.message, colours, &out);
    }
    if (!entry->help.empty()) {
      out += std::string(colours.help) + "help: " + colours.off + escaped(entry->help) + '\n';
    }
  }
  if (errors_ > 1) {
    out += '\n';
    if (errors_ > shown) out += std::to_string(errors_ - shown) + " more errors are not shown\n";
    out += std::to_string(errors_) + " errors\n";
  }
  return out;
}

std::string Diagnostics::render_json() const {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Diagnostic* entry : by_place(all_)) {
    nlohmann::ordered_json json;
    json["severity"] = entry->severity == Diagnostic::Severity::kError ? "error" : "warning";
    json.update(place_json(entry->span));
    json["message"] = entry->message;
    json["notes"] = nlohmann::ordered_json::array();
    for (const Diagnostic::Note& note : entry->notes) {
      nlohmann::ordered_json note_json = place_json(note.span);
      note_json["message"] = note.message;
      json["notes"].push_back(std::move(note_json));
    }
    json["help"] = entry->help;
    list.push_back(std::move(json));
  }
  return list.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string printable(std::string_view text, size_t limit) {
  std::string out;
  size_t whole = 0;  // whole characters that leave room for the dots
  for (size_t i = 0; i < text.size();) {
    const Utf8Char character = decode_utf8(text, i);
    append_printable(text, i, character, &out);
    i += static_cast<size_t>(character.bytes);
    if (out.size() + sizeof(kCut) - 1 <= limit) whole = out.size();
    if (out.size() > limit) return out.substr(0, whole) + kCut;
  }
  return out;
}

}  // namespace convnet
