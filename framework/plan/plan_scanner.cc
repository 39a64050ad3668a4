#include "framework/plan/plan_scanner.h"

#include <charconv>

#include "framework/base/diagnostics.h"

namespace convnet {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_' || c == '.' ||
         c == '/' || c == '-' || c == '@';
}

int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

bool PlanScanner::fail(std::string message) {
  if (!error_) {
    error_ = std::to_string(line_) + ":" + std::to_string(token_ - line_start_ + 1) + ": " +
             std::move(message);
  }
  return false;
}

bool PlanScanner::fail_here(std::string message) {
  skip_spaces();
  token_ = at_;
  return fail(std::move(message));
}

void PlanScanner::skip_spaces() {
  while (!end_of_line_at(at_) && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\r'))
    ++at_;
  if (!end_of_line_at(at_) && text_[at_] == '#')
    while (!end_of_line_at(at_)) ++at_;
}

bool PlanScanner::next_line() {
  if (!ok()) return false;
  while (true) {
    if (line_ > 0) {
      while (!end_of_line_at(at_)) ++at_;
      if (at_ >= text_.size()) return false;
      ++at_;
    }
    ++line_;
    line_start_ = token_ = at_;
    if (!at_line_end()) return true;
    if (at_ >= text_.size()) return false;
  }
}

bool PlanScanner::at_line_end() {
  skip_spaces();
  return end_of_line_at(at_);
}

bool PlanScanner::end_line() {
  if (!ok()) return false;
  return at_line_end() || fail_here("the line should end here");
}

char PlanScanner::peek() { return at_line_end() ? '\0' : text_[at_]; }

bool PlanScanner::take(std::string_view symbol) {
  if (!ok()) return false;
  skip_spaces();
  if (text_.substr(at_, symbol.size()) != symbol) return false;
  token_ = at_;
  at_ += symbol.size();
  return true;
}

bool PlanScanner::expect(std::string_view symbol, std::string_view where) {
  if (!ok()) return false;
  return take(symbol) || fail_here("expected '" + std::string(symbol) + "' " + std::string(where));
}

bool PlanScanner::keyword(std::string_view word) {
  if (!ok()) return false;
  if (bare_word() == word) return true;
  return fail("expected '" + std::string(word) + "'");
}

std::string_view PlanScanner::bare_word() {
  skip_spaces();
  token_ = at_;
  while (!end_of_line_at(at_) && is_name_char(text_[at_])) ++at_;
  return text_.substr(token_, at_ - token_);
}

std::optional<std::string> PlanScanner::name(std::string_view what) {
  if (!ok()) return std::nullopt;
  if (peek() == '"') return quoted();
  const std::string_view word = bare_word();
  if (word.empty()) {
    fail("expected " + std::string(what));
    return std::nullopt;
  }
  return std::string(word);
}

std::optional<std::string> PlanScanner::quoted() {
  token_ = at_++;
  std::string s;
  for (; !end_of_line_at(at_); ++at_) {
    const char c = text_[at_];
    if (c == '"') {
      ++at_;
      return s;
    }
    if (c != '\\') {
      s += c;
      continue;
    }
    if (end_of_line_at(++at_)) break;
    const char escape = text_[at_];
    if (escape == '"' || escape == '\\') {
      s += escape;
    } else if (escape == 'n') {
      s += '\n';
    } else if (escape == 't') {
      s += '\t';
    } else if (escape == 'x' && !end_of_line_at(at_ + 1) && !end_of_line_at(at_ + 2) &&
               hex_digit(text_[at_ + 1]) >= 0 && hex_digit(text_[at_ + 2]) >= 0) {
      s += static_cast<char>(hex_digit(text_[at_ + 1]) * 16 + hex_digit(text_[at_ + 2]));
      at_ += 2;
    } else {
      token_ = at_ - 1;
      fail("an escape is one of \\\" \\\\ \\n \\t \\xHH");
      return std::nullopt;
    }
  }
  fail("the quote is not closed on its line");
  return std::nullopt;
}

std::string_view PlanScanner::number_text() {
  skip_spaces();
  token_ = at_;
  size_t i = at_;
  while (!end_of_line_at(i) && (is_name_char(text_[i]) || text_[i] == '+')) ++i;
  return text_.substr(at_, i - at_);
}

template <typename T>
bool PlanScanner::integer(T* value, std::string_view what) {
  if (!ok()) return false;
  const std::string_view s = number_text();
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), *value);
  if (error == std::errc::result_out_of_range)
    return fail(std::string(what) + " is out of range: " + std::string(s.substr(0, 40)));
  if (error != std::errc()) return fail("expected " + std::string(what) + ", a whole number");
  at_ += static_cast<size_t>(end - s.data());
  return true;
}
template bool PlanScanner::integer(int*, std::string_view);
template bool PlanScanner::integer(int64_t*, std::string_view);
template bool PlanScanner::integer(uint64_t*, std::string_view);

bool PlanScanner::list(std::vector<int64_t>* values, std::string_view what) {
  if (!expect("[", "before a list")) return false;
  if (take("]")) return true;
  do {
    int64_t value = 0;
    if (!integer(&value, what)) return false;
    values->push_back(value);
  } while (take(","));
  return expect("]", "at the end of a list");
}

std::optional<Shape> PlanScanner::shape() {
  std::vector<int64_t> extents;
  if (!list(&extents, "an extent")) return std::nullopt;
  Shape shape;
  if (extents.size() > static_cast<size_t>(kMaxRank)) {
    fail("a shape has at most " + std::to_string(kMaxRank) + " extents, this one " +
         std::to_string(extents.size()));
    return std::nullopt;
  }
  for (int64_t extent : extents) {
    if (extent < 0) {
      fail("an extent is at least 0, this one " + std::to_string(extent));
      return std::nullopt;
    }
    shape.append(extent);
  }
  return shape;
}

std::optional<Box> PlanScanner::box() {
  if (!expect("[", "before a box")) return std::nullopt;
  Box box;
  if (take("]")) return box;
  do {
    int64_t lo = 0, hi = 0;
    if (!integer(&lo, "the begin of a range") || !expect(":", "inside a range") ||
        !integer(&hi, "the end of a range"))
      return std::nullopt;
    if (lo < 0 || hi < lo) {
      fail("the range " + std::to_string(lo) + ":" + std::to_string(hi) +
           " must have 0 <= begin <= end");
      return std::nullopt;
    }
    if (box.rank() == kMaxRank) {
      fail("a box has at most " + std::to_string(kMaxRank) + " ranges");
      return std::nullopt;
    }
    box.append(lo, hi);
  } while (take(","));
  if (!expect("]", "at the end of a box")) return std::nullopt;
  return box;
}

std::optional<Attrs::Value> PlanScanner::value() {
  const char first = peek();
  if (first == '[') {
    std::vector<int64_t> values;
    if (!list(&values, "a list's entry")) return std::nullopt;
    return Attrs::Value(std::move(values));
  }
  if (first == '"') {
    auto s = quoted();
    if (!s) return std::nullopt;
    return Attrs::Value(*std::move(s));
  }
  const std::string_view s = number_text();
  const bool special = s == "inf" || s == "-inf" || s == "nan" || s == "-nan";
  if (!special && !is_digit(first) && first != '-') {
    auto word = name("a value: a number, a word or a list");
    if (!word) return std::nullopt;
    return Attrs::Value(*std::move(word));
  }
  const char* const begin = s.data();
  const char* const end = begin + s.size();
  int64_t i = 0;
  if (const auto r = std::from_chars(begin, end, i); r.ec == std::errc() && r.ptr == end) {
    at_ += s.size();
    return Attrs::Value(i);
  }
  double real = 0;
  const auto r = std::from_chars(begin, end, real);
  if (r.ec != std::errc() || r.ptr != end || (s.find_first_of(".en") == s.npos)) {
    fail("not a number: " + std::string(s.substr(0, 40)));
    return std::nullopt;
  }
  at_ += s.size();
  return Attrs::Value(real);
}

bool PlanScanner::attrs(Attrs* attrs) {
  while (ok() && !at_line_end() && peek() != '@' && peek() != '|') {
    const auto attr_name = name("an attribute's name");
    if (!attr_name) return false;
    if (attrs->has(*attr_name))
      return fail("attribute '" + printable(*attr_name) + "' is given twice");
    if (!expect("=", "after an attribute's name")) return false;
    auto v = value();
    if (!v) return false;
    attrs->set(*attr_name, *std::move(v));
  }
  return ok();
}

}  // namespace convnet
