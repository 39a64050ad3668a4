#include "parsers/yaml_extent.h"

#include <algorithm>
#include <vector>

namespace convnet {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

size_t line_end(std::string_view text, size_t from) {
  return std::min(text.find('\n', from), text.size());
}

size_t trimmed(std::string_view text, size_t begin, size_t end) {
  while (end > begin && is_space(text[end - 1])) --end;
  return end;
}

}  // namespace

size_t skip_properties(std::string_view text, size_t begin, std::string_view* tag) {
  size_t i = begin;
  while (i < text.size() && (text[i] == '&' || text[i] == '!')) {
    const size_t start = i;
    while (i < text.size() && !is_space(text[i])) ++i;
    if (text[start] == '!') *tag = text.substr(start, i - start);
    while (i < text.size() && is_space(text[i])) ++i;
  }
  return i;
}

std::optional<size_t> quoted_end(std::string_view text, size_t begin) {
  const char quote = text[begin];
  for (size_t i = begin + 1; i < text.size(); ++i) {
    if (quote == '"' && text[i] == '\\') {
      ++i;
    } else if (text[i] == quote) {
      const bool doubled = quote == '\'' && i + 1 < text.size() && text[i + 1] == quote;
      if (!doubled) return i + 1;
      ++i;
    }
  }
  return std::nullopt;
}

size_t plain_end(std::string_view text, size_t begin, std::string_view value) {
  if (text.compare(begin, value.size(), value) == 0) return begin + value.size();
  size_t end = line_end(text, begin);
  const size_t comment = text.substr(begin, end - begin).find(" #");
  if (comment != std::string_view::npos) end = begin + comment;
  return trimmed(text, begin, end);
}

size_t alias_end(std::string_view text, size_t begin) {
  size_t i = begin;
  while (i < text.size() && !is_space(text[i]) && text[i] != ',' && text[i] != ']' &&
         text[i] != '}') {
    ++i;
  }
  return i;
}

size_t flow_end(std::string_view text, size_t from, char bracket) {
  for (size_t i = from; i < text.size(); ++i) {
    if (text[i] == bracket) return i + 1;
    if (text[i] == '#') i = line_end(text, i);
  }
  return std::min(from + 1, text.size());
}

std::optional<Unclosed> find_unclosed(std::string_view text, size_t begin) {
  std::vector<size_t> open;
  size_t indent = 0;  // of the line of the outermost open bracket
  // The first line since that bracket that looks like the block around it.
  Unclosed block_line{0, text.size()};
  for (size_t i = begin; i < text.size(); ++i) {
    const char c = text[i];
    const char before = i > begin ? text[i - 1] : '\n';
    const bool starts_word = is_space(before) || before == '[' || before == '{' || before == ',';
    if ((c == '"' || c == '\'') && starts_word) {
      const std::optional<size_t> end = quoted_end(text, i);
      if (!end) break;
      i = *end - 1;
    } else if (c == '#' && is_space(before)) {
      i = line_end(text, i) - 1;
    } else if (c == '[' || c == '{') {
      if (open.empty()) {
        const size_t line = i == 0 ? 0 : text.rfind('\n', i - 1) + 1;
        indent = std::min(text.find_first_not_of(' ', line), i) - line;
        block_line.at = text.size();
      }
      open.push_back(i);
    } else if ((c == ']' || c == '}') && !open.empty()) {
      const bool fits = text[open.back()] == (c == ']' ? '[' : '{');
      if (!fits) return block_line.at < i ? block_line : Unclosed{open.back(), i};
      open.pop_back();
    } else if (c == '\n' && !open.empty() && block_line.at == text.size()) {
      const size_t start = std::min(text.find_first_not_of(' ', i + 1), text.size());
      const std::string_view line = text.substr(start, line_end(text, start) - start);
      const bool item = line.substr(0, 2) == "- ";
      const bool key =
          line.find(": ") != std::string_view::npos || (!line.empty() && line.back() == ':');
      if (item || (key && start - i - 1 <= indent)) block_line = {open.back(), start};
    }
  }
  if (open.empty()) return std::nullopt;
  if (block_line.at < text.size()) return block_line;
  return Unclosed{open.back(), trimmed(text, begin, text.size())};
}

bool is_blank(std::string_view text) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = line_end(text, begin);
    size_t i = begin;
    while (i < end && is_space(text[i])) ++i;
    const std::string_view rest = text.substr(i, trimmed(text, i, end) - i);
    if (!rest.empty() && rest[0] != '#' && rest != "---" && rest != "...") return false;
    begin = end + 1;
  }
  return true;
}

}  // namespace convnet
