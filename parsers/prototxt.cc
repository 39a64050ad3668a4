#include "parsers/prototxt.h"

#include <fmt/format.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/base/utf8.h"
#include "parsers/limits.h"

namespace convnet {
namespace {

using google::protobuf::io::ArrayInputStream;
using google::protobuf::io::ErrorCollector;
using google::protobuf::io::Tokenizer;
using Kind = SourceNode::Kind;

constexpr int kMostErrors = 20;

// The tokenizer counts a tab as up to eight columns; with spaces instead its columns are bytes.
std::string without_tabs(std::string text) {
  std::replace(text.begin(), text.end(), '\t', ' ');
  return text;
}

class Reader : public ErrorCollector {
 public:
  Reader(std::shared_ptr<const SourceText> source, Diagnostics& diagnostics)
      : source_(std::move(source)),
        text_(source_->text()),
        spaced_(without_tabs(source_->text())),
        diagnostics_(diagnostics),
        stream_(spaced_.data(), static_cast<int>(spaced_.size())),
        tokens_(&stream_, this) {
    tokens_.set_comment_style(Tokenizer::SH_COMMENT_STYLE);
    tokens_.set_allow_f_after_float(true);
  }

  std::optional<SourceNode> read() {
    SourceNode root;
    root.kind = Kind::kMap;
    root.repeats = true;
    root.span = {source_, 0, 0};
    next();
    while (!at_end() && !stopped_) {
      if (at("}") || at(">")) {
        error(token_span(), fmt::format("'{}' closes nothing", token().text));
        next();
        continue;
      }
      read_field(root, 1);
    }
    if (errors_ > 0) return std::nullopt;
    return root;
  }

  void AddError(int line, int column, const std::string& message) override {
    const size_t at = offset(line, column);
    if (message.find("Unexpected end of string") != std::string::npos ||
        message.find("String literals cannot cross line boundaries") != std::string::npos) {
      // Reported where the string ends; what matters is where it begins.
      unclosed_string_ = true;
      return;
    }
    const auto byte = at < text_.size() ? static_cast<unsigned char>(text_[at]) : 0;
    if (byte >= 0x80) {
      // Reported for each byte of the character.
      const Utf8Char character = decode_utf8(text_, at);
      if (!character.valid) return;
      const size_t end = at + static_cast<size_t>(character.bytes);
      error({source_, at, end},
            fmt::format("'{}' may only stand in strings", text_.substr(at, end - at)));
      return;
    }
    error({source_, at, std::min(at + 1, text_.size())},
          "not valid protobuf text: " + lower_first(message));
  }

 private:
  static std::string lower_first(std::string message) {
    if (!message.empty() && message[0] >= 'A' && message[0] <= 'Z') {
      message[0] = static_cast<char>(message[0] - 'A' + 'a');
    }
    if (!message.empty() && message.back() == '.') message.pop_back();
    return message;
  }

  // ---- tokens

  const Tokenizer::Token& token() { return tokens_.current(); }
  bool at_end() { return token().type == Tokenizer::TYPE_END; }
  bool at(const char* symbol) {
    return token().type == Tokenizer::TYPE_SYMBOL && token().text == symbol;
  }

  size_t offset(int line, int column) const {
    const std::string_view whole = source_->line(line + 1);
    if (whole.data() == nullptr) return text_.size();
    const size_t start = static_cast<size_t>(whole.data() - text_.data());
    return std::min(start + static_cast<size_t>(column), text_.size());
  }

  Span token_span() {
    if (at_end()) return {source_, end_of_text(), end_of_text()};
    const size_t begin = offset(token().line, token().column);
    return {source_, begin, begin + token().text.size()};
  }

  size_t end_of_text() const {
    const size_t last = text_.find_last_not_of(" \t\r\n");
    return last == std::string_view::npos ? 0 : last + 1;
  }

  void next() {
    previous_end_ = token().type == Tokenizer::TYPE_START ? 0 : token_span().end;
    tokens_.Next();
    if (unclosed_string_) {
      unclosed_string_ = false;
      Span span = token_span();
      span.end = span.begin + 1;
      error(span, "this string is not closed on its line");
    }
  }

  void error(const Span& span, const std::string& message, const std::string& help = "") {
    // The tokenizer goes on after its error with what it could not read.
    if (stopped_ || (errors_ > 0 && span.begin == last_error_)) return;
    last_error_ = span.begin;
    diagnostics_.error(span, message).help = help;
    if (++errors_ >= kMostErrors) stopped_ = true;
  }

  std::string token_words() {
    return at_end() ? "the end of the file" : "'" + printable(token().text, 60) + "'";
  }

  // After an error: on to the next line, over whole messages, not past the end of this one.
  void recover(int line) {
    int open = 0;
    while (!at_end() && !stopped_) {
      if (open == 0 && (token().line > line || at("}") || at(">"))) return;
      if (at("{") || at("<")) ++open;
      if ((at("}") || at(">")) && open > 0) --open;
      next();
    }
  }

  // ---- grammar

  bool deep(int depth, const Span& span) {
    if (depth <= kDeepestNesting) return false;
    error(span, fmt::format("nested more than {} levels deep", kDeepestNesting));
    stopped_ = true;
    return true;
  }

  bool spend(const Span& span) {
    if (++nodes_ <= kMostNodes) return true;
    error(span, fmt::format("too many nodes, at most {}", kMostNodes));
    stopped_ = true;
    return false;
  }

  void read_field(SourceNode& map, int depth) {
    const int line = token().line;
    if (at("[")) {
      error(token_span(), "extensions and Any are not supported");
      recover(line);
      return;
    }
    if (token().type != Tokenizer::TYPE_IDENTIFIER) {
      error(token_span(), "expected the name of a field, not " + token_words());
      next();
      recover(line);
      return;
    }
    SourceNode::Entry entry{token().text, token_span(), {}};
    next();
    const bool message = at("{") || at("<");
    if (at(":")) {
      next();
    } else if (at("=")) {
      error(token_span(),
            fmt::format("expected ':' after '{}', not '='", printable(entry.key, 60)));
      next();
    } else if (!message) {
      const bool value_follows = token().line == line && !at_end() &&
                                 (token().type != Tokenizer::TYPE_SYMBOL || at("-") || at("["));
      error({source_, entry.key_span.end, entry.key_span.end},
            fmt::format("expected ':' or '{{' after '{}'", printable(entry.key, 60)));
      if (!value_follows) {
        recover(line);
        return;
      }
    }
    if (!read_value(entry.value, depth, line)) {
      if (!stopped_) recover(line);
      return;
    }
    map.entries.push_back(std::move(entry));
    // Fields may be separated as in other notations.
    if (at(";") || at(",")) next();
  }

  bool read_value(SourceNode& value, int depth, int line) {
    if (!spend(token_span())) return false;
    if (at("{") || at("<")) return read_message(value, depth + 1);
    if (at("[")) return read_list(value, depth + 1, line);
    return read_scalar(value);
  }

  bool read_message(SourceNode& value, int depth) {
    const Span opened = token_span();
    if (deep(depth, opened)) return false;
    const char* close = at("{") ? "}" : ">";
    value.kind = Kind::kMap;
    value.repeats = true;
    next();
    while (!at(close)) {
      if (stopped_) return false;
      if (at_end()) {
        missing(close, opened);
        stopped_ = true;  // the messages around this one lack theirs too
        return false;
      }
      if (at("}") || at(">")) {
        missing(close, opened);
        break;
      }
      read_field(value, depth);
    }
    value.span = {source_, opened.begin, token_span().end};
    next();
    return true;
  }

  void missing(const char* close, const Span& opened) {
    if (stopped_) return;
    Diagnostic& entry = diagnostics_.error(
        token_span(), fmt::format("'{}' is missing before {}", close, token_words()));
    entry.notes.push_back({opened, "it is opened here"});
    if (++errors_ >= kMostErrors) stopped_ = true;
  }

  bool read_list(SourceNode& value, int depth, int line) {
    const Span opened = token_span();
    if (deep(depth, opened)) return false;
    value.kind = Kind::kList;
    next();
    while (!at("]")) {
      if (stopped_) return false;
      if (at_end() || at("}") || at(">") || at(":")) {
        missing("]", opened);
        return false;
      }
      SourceNode item;
      if (!read_value(item, depth, line)) return false;
      value.items.push_back(std::move(item));
      if (at(",")) {
        next();
      } else if (!at("]")) {
        missing("]", opened);
        return false;
      }
    }
    value.span = {source_, opened.begin, token_span().end};
    next();
    return true;
  }

  bool read_scalar(SourceNode& value) {
    value.kind = Kind::kScalar;
    const Span first = token_span();
    if (token().type == Tokenizer::TYPE_STRING) {
      value.quoted = true;
      while (token().type == Tokenizer::TYPE_STRING) {  // neighbours are one string
        const Span span = token_span();
        Tokenizer::ParseStringAppend(std::string(text_.substr(span.begin, span.end - span.begin)),
                                     &value.text);
        next();
      }
    } else {
      if (at("-")) {
        value.text = "-";
        next();
      }
      switch (token().type) {
        case Tokenizer::TYPE_INTEGER:
        case Tokenizer::TYPE_IDENTIFIER:
          value.text += token().text;
          break;
        case Tokenizer::TYPE_FLOAT:
          value.text += token().text;
          if (value.text.back() == 'f' || value.text.back() == 'F') value.text.pop_back();
          break;
        default:
          error(token_span(), "expected a value, not " + token_words());
          return false;
      }
      next();
    }
    value.span = {source_, first.begin, previous_end_};
    return true;
  }

  const std::shared_ptr<const SourceText> source_;
  const std::string_view text_;
  const std::string spaced_;
  Diagnostics& diagnostics_;
  ArrayInputStream stream_;
  Tokenizer tokens_;
  size_t previous_end_ = 0;  // of the token before the current one
  size_t nodes_ = 0;
  int errors_ = 0;
  size_t last_error_ = 0;  // its place
  bool stopped_ = false;
  bool unclosed_string_ = false;
};

}  // namespace

std::optional<SourceNode> parse_prototxt(std::shared_ptr<const SourceText> source,
                                         Diagnostics& diagnostics) {
  return Reader(std::move(source), diagnostics).read();
}

}  // namespace convnet
