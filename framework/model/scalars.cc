#include "framework/model/scalars.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>

#include <charconv>
#include <cmath>
#include <limits>

#include "framework/base/check.h"
#include "framework/base/diagnostics.h"
#include "framework/base/utf8.h"
#include "layers/options.pb.h"

namespace convnet {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FieldOptions;

constexpr size_t kLongestString = 4096;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

size_t digits(std::string_view text, size_t begin) {
  size_t i = begin;
  while (i < text.size() && is_digit(text[i])) ++i;
  return i - begin;
}

// [+-] digits [. digits] [e [+-] digits], with a digit before or after the point.
bool is_number(std::string_view text) {
  size_t i = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  const size_t whole = digits(text, i);
  i += whole;
  size_t fraction = 0;
  if (i < text.size() && text[i] == '.') {
    fraction = digits(text, i + 1);
    i += 1 + fraction;
  }
  if (whole + fraction == 0) return false;
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    if (i < text.size() && (text[i] == '-' || text[i] == '+')) ++i;
    const size_t exponent = digits(text, i);
    if (exponent == 0) return false;
    i += exponent;
  }
  return i == text.size();
}

bool is_integer(std::string_view text) {
  const size_t sign = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  return text.size() > sign && sign + digits(text, sign) == text.size();
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

// YAML's and protobuf's spellings of what is not a finite number.
bool is_not_finite(std::string_view text) {
  std::string word = lower(text);
  if (!word.empty() && (word[0] == '-' || word[0] == '+')) word.erase(0, 1);
  if (!word.empty() && word[0] == '.') word.erase(0, 1);
  return word == "nan" || word == "inf" || word == "infinity";
}

// "0777": octal in YAML 1.1 and protobuf text, decimal in YAML 1.2.
bool is_ambiguous(std::string_view text) {
  const size_t sign = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  return text.size() > sign + 1 && text[sign] == '0' && is_digit(text[sign + 1]);
}

std::string without_leading_zeros(std::string_view text) {
  const std::string sign = text[0] == '-' ? "-" : "";
  size_t i = text[0] == '-' || text[0] == '+' ? 1 : 0;
  while (i + 1 < text.size() && text[i] == '0' && is_digit(text[i + 1])) ++i;
  return sign + std::string(text.substr(i));
}

// Why a value that can be represented is not legal; empty if it is.
std::string range_error(double value, const FieldOptions& options) {
  const bool low = options.HasExtension(schema::min), high = options.HasExtension(schema::max);
  const double smallest = options.GetExtension(schema::min);
  const double largest = options.GetExtension(schema::max);
  if (low && high && smallest == largest && value != smallest) {
    return fmt::format("must be {}", smallest);
  }
  if (low && value < smallest) return fmt::format("must be at least {}", smallest);
  if (high && value > largest) return fmt::format("out of range, must be at most {}", largest);
  const double above = options.GetExtension(schema::above);
  if (options.HasExtension(schema::above) && value <= above) {
    return fmt::format("must be greater than {}", above);
  }
  const double below = options.GetExtension(schema::below);
  if (options.HasExtension(schema::below) && value >= below) {
    return fmt::format("must be less than {}", below);
  }
  return "";
}

class Reader {
 public:
  Reader(const SourceNode& node, const FieldDescriptor& field, const std::string& name)
      : text_(node.text), quoted_(node.quoted), field_(field), name_(name) {}

  std::variant<Scalar, ScalarError> integer() const {
    if (quoted_) return in_quotes();
    if (!is_integer(text_)) return error("must be " + type_words(field_));
    if (is_ambiguous(text_)) return ambiguous();
    const bool negative = text_[0] == '-';
    const std::string_view magnitude = without_sign();
    uint64_t value = 0;
    const auto parsed =
        std::from_chars(magnitude.data(), magnitude.data() + magnitude.size(), value);
    const bool fits = parsed.ec == std::errc();
    const double approximate = fits ? static_cast<double>(value) : HUGE_VAL;
    const std::string wrong = range_error(negative ? -approximate : approximate, field_.options());
    if (!wrong.empty()) return error(wrong);
    const uint64_t largest = field_.cpp_type() == FieldDescriptor::CPPTYPE_UINT32
                                 ? std::numeric_limits<uint32_t>::max()
                                 : std::numeric_limits<uint64_t>::max();
    if (negative && value != 0) return error("must be at least 0");
    if (!fits || value > largest)
      return error(fmt::format("out of range, must be at most {}", largest));
    return Scalar(value);
  }

  std::variant<Scalar, ScalarError> real() const {
    if (is_not_finite(text_) && !quoted_) return error("must be finite");
    if (quoted_) return in_quotes();
    if (!is_number(text_)) return error("must be " + type_words(field_));
    if (is_ambiguous(text_)) return ambiguous();
    const std::string_view magnitude = without_sign();
    double value = 0;
    const auto parsed =
        std::from_chars(magnitude.data(), magnitude.data() + magnitude.size(), value);
    const bool is_float = field_.cpp_type() == FieldDescriptor::CPPTYPE_FLOAT;
    const bool overflow = parsed.ec == std::errc() && is_float &&
                          value > static_cast<double>(std::numeric_limits<float>::max());
    if (parsed.ec != std::errc() || overflow) {
      return error(fmt::format("out of range of {} bit numbers", is_float ? 32 : 64));
    }
    if (is_float && value != 0 && static_cast<float>(value) == 0.0f) {
      return error("out of range of 32 bit numbers");
    }
    if (text_[0] == '-') value = -value;
    const std::string wrong = range_error(value, field_.options());
    if (!wrong.empty()) return error(wrong);
    return Scalar(value);
  }

  std::variant<Scalar, ScalarError> boolean() const {
    if (quoted_) return in_quotes();
    if (text_ == "true") return Scalar(true);
    if (text_ == "false") return Scalar(false);
    const std::string word = lower(text_);
    std::string help;
    if (word == "yes" || word == "on" || word == "true" || word == "1") help = "write true";
    if (word == "no" || word == "off" || word == "false" || word == "0") help = "write false";
    return error("must be true or false", help);
  }

  std::variant<Scalar, ScalarError> enumerator() const {
    if (quoted_) return in_quotes();
    const EnumDescriptor& type = *field_.enum_type();
    if (const auto* value = type.FindValueByName(text_)) return Scalar(value->number());
    const std::string near = nearest(text_, enum_names(type));
    return error("must be " + type_words(field_),
                 near.empty() ? "" : "did you mean '" + near + "'?");
  }

  std::variant<Scalar, ScalarError> string(bool protobuf_text) const {
    if (protobuf_text && !quoted_) {
      return error("must be in quotes in protobuf text", "write \"" + printable(text_) + '"');
    }
    if (text_.size() > kLongestString) {
      return ScalarError{
          fmt::format("{} has {} bytes, must have at most {}", name_, text_.size(), kLongestString),
          ""};
    }
    for (size_t i = 0; i < text_.size();) {
      const Utf8Char character = decode_utf8(text_, i);
      if (!character.valid) return error("which is not text in UTF-8");
      if (is_control(character.code)) return error("which has a control character");
      i += static_cast<size_t>(character.bytes);
    }
    if (text_.empty()) return ScalarError{name_ + " is empty", ""};
    return Scalar(text_);
  }

 private:
  ScalarError error(const std::string& wrong, std::string help = "") const {
    std::string shown = printable(text_, 60);
    // Numbers speak for themselves; words are quoted.
    if (quoted_ || !(is_number(text_) || is_not_finite(text_))) shown = '\'' + shown + '\'';
    return {name_ + " is " + shown + ", " + wrong, std::move(help)};
  }
  ScalarError in_quotes() const {
    return {fmt::format("{} is the string \"{}\", must be {}", name_, printable(text_, 60),
                        type_words(field_)),
            "remove the quotes"};
  }
  ScalarError ambiguous() const {
    return error("ambiguous (octal or decimal)", "write " + without_leading_zeros(text_));
  }
  std::string_view without_sign() const {
    const bool sign = text_[0] == '-' || text_[0] == '+';
    return std::string_view(text_).substr(sign ? 1 : 0);
  }

  const std::string& text_;
  const bool quoted_;
  const FieldDescriptor& field_;
  const std::string& name_;
};

}  // namespace

std::variant<Scalar, ScalarError> read_scalar(const SourceNode& node, const FieldDescriptor& field,
                                              const std::string& name, bool protobuf_text) {
  CHECK(node.kind == SourceNode::Kind::kScalar);
  const Reader reader(node, field, name);
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_UINT64:
      return reader.integer();
    case FieldDescriptor::CPPTYPE_FLOAT:
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reader.real();
    case FieldDescriptor::CPPTYPE_BOOL:
      return reader.boolean();
    case FieldDescriptor::CPPTYPE_ENUM:
      return reader.enumerator();
    case FieldDescriptor::CPPTYPE_STRING:
      return reader.string(protobuf_text);
    default:
      break;
  }
  CHECK_MSG(false, "the schema has a field of a type that model files cannot write");
}

std::vector<std::string> enum_names(const EnumDescriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.value_count(); ++i) names.push_back(type.value(i)->name());
  return names;
}

std::string join_words(const std::vector<std::string>& words, const std::string& conjunction) {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) out += i + 1 == words.size() ? ' ' + conjunction + ' ' : ", ";
    out += words[i];
  }
  return out;
}

std::string type_words(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_UINT64:
      return "an integer";
    case FieldDescriptor::CPPTYPE_FLOAT:
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return "a number";
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case FieldDescriptor::CPPTYPE_ENUM:
      return join_words(enum_names(*field.enum_type()), "or");
    case FieldDescriptor::CPPTYPE_STRING:
      return "a string";
    default:
      return "a map";
  }
}

std::string range_words(const FieldDescriptor& field) {
  const FieldOptions& options = field.options();
  const bool low = options.HasExtension(schema::min), high = options.HasExtension(schema::max);
  const double smallest = options.GetExtension(schema::min);
  const double largest = options.GetExtension(schema::max);
  if (low && high && smallest == largest) return fmt::format("{}", smallest);
  if (low && high) return fmt::format("{} to {}", smallest, largest);
  std::vector<std::string> parts;
  if (low) parts.push_back(fmt::format("at least {}", smallest));
  if (options.HasExtension(schema::above)) {
    parts.push_back(fmt::format("above {}", options.GetExtension(schema::above)));
  }
  if (high) parts.push_back(fmt::format("at most {}", largest));
  if (options.HasExtension(schema::below)) {
    parts.push_back(fmt::format("below {}", options.GetExtension(schema::below)));
  }
  return join_words(parts, "and");
}

}  // namespace convnet
