#include "parsers/yaml.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "parsers/limits.h"
#include "parsers/yaml_extent.h"

namespace convnet {
namespace {

using Kind = SourceNode::Kind;

// Leaves yaml-cpp from inside an event; the error has been reported.
struct Stop {};

constexpr std::string_view kCoreTag = "tag:yaml.org,2002:";
// Brackets that may be open at once in the raw text. yaml-cpp reads a whole flow collection ahead
// before its first event, so hopeless nesting must be seen before it is called.
constexpr int kMostOpenBrackets = 1000;
constexpr int kMostErrors = 1000;

class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(std::shared_ptr<const SourceText> source, size_t begin, Diagnostics& diagnostics)
      : source_(std::move(source)),
        text_(source_->text()),
        begin_(begin),
        diagnostics_(diagnostics) {}

  int documents() const { return documents_; }
  SourceNode& root() { return root_; }
  size_t offset(const YAML::Mark& mark) const {
    return mark.pos < 0 ? text_.size()
                        : std::min(begin_ + static_cast<size_t>(mark.pos), text_.size());
  }

  Span span(size_t begin, size_t end) const { return {source_, begin, end}; }

  // Reports a bracket that is not closed, if there is one.
  bool report_unclosed() {
    const std::optional<Unclosed> found = find_unclosed(text_, begin_);
    if (!found) return false;
    const bool list = text_[found->bracket] == '[';
    Diagnostic& error = diagnostics_.error(span(found->at, std::min(found->at + 1, text_.size())),
                                           fmt::format("'{}' is missing: the {} is not closed",
                                                       list ? ']' : '}', list ? "list" : "map"));
    error.notes.push_back({span(found->bracket, found->bracket + 1), "it is opened here"});
    return true;
  }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ == 1) return;
    const size_t at = offset(mark);
    diagnostics_.error(span(at, at), "a second document begins here, must be one document");
    throw Stop();
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const size_t at = offset(mark);
    if (expects_key()) {
      diagnostics_.error(span(at, at), "a key is missing before ':'");
      throw Stop();
    }
    // The mark of a value that is not there is that of whatever comes next.
    SourceNode node;
    const bool after_key = !frames_.empty() && frames_.back().node.kind == Kind::kMap;
    if (after_key) {
      node.span = frames_.back().node.entries.back().key_span;
    } else {
      const size_t before = text_.find_last_not_of(" \t\r\n", at == 0 ? 0 : at - 1);
      const bool dash = before != std::string_view::npos && text_[before] == '-';
      node.span = dash ? span(before, before + 1) : span(at, at);
    }
    spend(1, 0, node.span);
    remember(anchor, node, 1, 0, 0);
    add(std::move(node), after_key ? frames_.back().last_end : at, 0);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t id) override {
    const size_t at = offset(mark);
    const Span place = span(at, alias_end(text_, at));
    if (expects_key()) refuse_key(place);
    for (const Frame& frame : frames_) {
      if (frame.anchor != id) continue;
      Diagnostic& error = diagnostics_.error(place, "this alias refers to itself");
      error.notes.push_back(
          {span(frame.begin, alias_end(text_, frame.begin)), "its anchor is around it"});
      throw Stop();
    }
    const auto found = anchors_.find(id);
    if (found == anchors_.end()) {
      diagnostics_.error(place, "this alias has no anchor above it");
      throw Stop();
    }
    const Anchored& anchored = found->second;
    check_depth(static_cast<int>(frames_.size()) + anchored.height, place);
    spend(anchored.nodes, anchored.bytes, place);
    SourceNode copy = anchored.node;
    add(std::move(copy), place.end, anchored.height);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    std::string_view written_tag;
    const size_t before = offset(mark);
    const size_t at = skip_properties(text_, before, &written_tag);
    SourceNode node;
    node.kind = Kind::kScalar;
    node.text = value;
    node.quoted = tag == "!";
    const std::string core = core_tag(tag, written_tag);
    if (core == "str") node.quoted = true;
    if (core == "seq" || core == "map") refuse_tag(written_tag);
    if (core == "null") node.kind = Kind::kNull;
    size_t end = at;
    if (at < text_.size() && (text_[at] == '"' || text_[at] == '\'')) {
      const std::optional<size_t> close = quoted_end(text_, at);
      if (!close) {
        diagnostics_.error(span(at, at + 1), fmt::format("{} is missing: this string is not closed",
                                                         text_[at] == '"' ? "'\"'" : "\"'\""));
        throw Stop();
      }
      end = *close;
    } else {
      end = plain_end(text_, at, value);
    }
    node.span = span(at, end);
    const size_t nodes = expects_key() ? 0 : 1;
    spend(nodes, value.size(), node.span);
    remember(anchor, node, nodes, value.size(), 0);
    if (expects_key()) {
      begin_entry(std::move(node));
      return;
    }
    add(std::move(node), end, 0);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value style) override {
    open(Kind::kList, "seq", mark, tag, anchor, style);
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value style) override {
    open(Kind::kMap, "map", mark, tag, anchor, style);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override { close(); }

 private:
  struct Anchored {
    SourceNode node;
    size_t nodes, bytes;
    int height;  // levels of collections
  };

  // A collection that is not finished.
  struct Frame {
    SourceNode node;
    YAML::anchor_t anchor = 0;
    bool flow = false;
    size_t begin = 0;         // with its anchor and tag
    size_t bracket = 0;       // of a flow collection
    size_t last_end = 0;      // where its last item or key ends
    bool has_key = false;     // a map: the last entry waits for its value
    bool drop_value = false;  // a repeated key's
    size_t nodes = 0, bytes = 0;
    int height = 1;
    std::unordered_map<std::string, size_t> keys;  // to their entries, of a map with many
  };

  bool expects_key() const {
    return !frames_.empty() && frames_.back().node.kind == Kind::kMap && !frames_.back().has_key;
  }

  void refuse_key(const Span& place) {
    // yaml-cpp takes a collection that is not closed for a key.
    const char bracket = place.begin < text_.size() ? text_[place.begin] : ' ';
    if ((bracket == '[' || bracket == '{') && report_unclosed()) throw Stop();
    diagnostics_.error(place, "a key must be a plain name");
    throw Stop();
  }

  void refuse_tag(std::string_view written) {
    const size_t at = written.empty() ? 0 : static_cast<size_t>(written.data() - text_.data());
    diagnostics_.error(span(at, at + written.size()),
                       fmt::format("tag '{}' is not supported here", printable(written, 60)));
    throw Stop();
  }

  // "str" of the core tag !!str; empty for a node without tag. Other tags are errors.
  std::string core_tag(const std::string& tag, std::string_view written) {
    if (tag.empty() || tag == "!" || tag == "?") return "";
    if (tag.compare(0, kCoreTag.size(), kCoreTag) != 0) refuse_tag(written);
    const std::string name = tag.substr(kCoreTag.size());
    for (const char* known : {"str", "int", "float", "bool", "null", "seq", "map"}) {
      if (name == known) return name;
    }
    refuse_tag(written);
    return "";
  }

  void check_depth(int depth, const Span& place) {
    if (depth <= kDeepestNesting) return;
    diagnostics_.error(place, fmt::format("nested more than {} levels deep", kDeepestNesting));
    throw Stop();
  }

  // Counts what the tree takes, aliases and the copies kept for them included.
  void spend(size_t nodes, size_t bytes, const Span& place) {
    nodes_ += nodes;
    bytes_ += bytes;
    if (!frames_.empty()) {
      frames_.back().nodes += nodes;
      frames_.back().bytes += bytes;
    }
    if (nodes_ <= kMostNodes && bytes_ <= kMostExpandedBytes) return;
    diagnostics_.error(
        place,
        nodes_ > kMostNodes
            ? fmt::format("too many nodes, aliases expanded: at most {}", kMostNodes)
            : fmt::format("too much text, aliases expanded: at most {} bytes", kMostExpandedBytes));
    throw Stop();
  }

  void remember(YAML::anchor_t anchor, const SourceNode& node, size_t nodes, size_t bytes,
                int height) {
    if (anchor == 0) return;
    nodes_ += nodes;
    bytes_ += bytes;
    spend(0, 0, node.span);
    anchors_[anchor] = {node, nodes, bytes, height};
  }

  void open(Kind kind, const char* own_tag, const YAML::Mark& mark, const std::string& tag,
            YAML::anchor_t anchor, YAML::EmitterStyle::value style) {
    const size_t before = offset(mark);
    std::string_view written_tag;
    const size_t at = skip_properties(text_, before, &written_tag);
    const std::string core = core_tag(tag, written_tag);
    if (!core.empty() && core != own_tag) refuse_tag(written_tag);
    if (expects_key()) refuse_key(span(at, at + 1));
    check_depth(static_cast<int>(frames_.size()) + 1, span(at, at + 1));
    Frame frame;
    frame.node.kind = kind;
    frame.node.span = span(at, at);
    frame.anchor = anchor;
    frame.flow = style == YAML::EmitterStyle::Flow;
    frame.begin = before;
    frame.bracket = at;
    frame.last_end = frame.flow ? std::min(at + 1, text_.size()) : at;
    frame.nodes = 1;
    frames_.push_back(std::move(frame));
    nodes_ += 1;
    spend(0, 0, frames_.back().node.span);
  }

  void close() {
    Frame frame = std::move(frames_.back());
    frames_.pop_back();
    size_t end = frame.last_end;
    if (frame.flow) end = flow_end(text_, end, frame.node.kind == Kind::kList ? ']' : '}');
    frame.node.span.end = std::max(end, frame.node.span.begin);
    if (!frames_.empty()) {
      frames_.back().nodes += frame.nodes;
      frames_.back().bytes += frame.bytes;
    }
    remember(frame.anchor, frame.node, frame.nodes, frame.bytes, frame.height);
    add(std::move(frame.node), end, frame.height);
  }

  void begin_entry(SourceNode key) {
    Frame& map = frames_.back();
    if (key.text == "<<" && !key.quoted) {
      diagnostics_.error(key.span, "merge keys (<<) are not supported").help =
          "put what layers of a type share under 'defaults'";
      throw Stop();
    }
    map.last_end = key.span.end;
    map.has_key = true;
    const std::optional<size_t> first = find_key(map, key.text);
    map.drop_value = first.has_value();
    if (first) {
      Diagnostic& error =
          diagnostics_.error(key.span, fmt::format("duplicate key '{}'", printable(key.text, 60)));
      error.notes.push_back({map.node.entries[*first].key_span, "first given here"});
      if (diagnostics_.errors() >= kMostErrors) throw Stop();
    }
    map.node.entries.push_back({std::move(key.text), std::move(key.span), {}});
  }

  // The entry of a key that the map has already; otherwise the key's entry will be the next.
  static std::optional<size_t> find_key(Frame& map, const std::string& key) {
    const std::vector<SourceNode::Entry>& entries = map.node.entries;
    constexpr size_t kMany = 16;
    if (entries.size() < kMany) {
      for (size_t i = 0; i < entries.size(); ++i) {
        if (entries[i].key == key) return i;
      }
      return std::nullopt;
    }
    for (size_t i = map.keys.size(); i < entries.size(); ++i) map.keys.emplace(entries[i].key, i);
    const auto found = map.keys.find(key);
    if (found == map.keys.end()) return std::nullopt;
    return found->second;
  }

  // A finished node goes into what it stands in. `height`: its levels of collections.
  void add(SourceNode node, size_t end, int height) {
    if (frames_.empty()) {
      root_ = std::move(node);
      return;
    }
    Frame& frame = frames_.back();
    frame.last_end = std::max(frame.last_end, end);
    frame.height = std::max(frame.height, height + 1);
    if (frame.node.kind == Kind::kList) {
      frame.node.items.push_back(std::move(node));
      return;
    }
    frame.has_key = false;
    if (frame.drop_value) {
      frame.node.entries.pop_back();
    } else {
      frame.node.entries.back().value = std::move(node);
    }
  }

  const std::shared_ptr<const SourceText> source_;
  const std::string_view text_;
  const size_t begin_;
  Diagnostics& diagnostics_;
  int documents_ = 0;
  SourceNode root_;
  std::vector<Frame> frames_;
  std::unordered_map<YAML::anchor_t, Anchored> anchors_;
  size_t nodes_ = 0, bytes_ = 0;
};

// Reports brackets that no model nests so deep.
bool few_open_brackets(const std::shared_ptr<const SourceText>& source, size_t begin,
                       Diagnostics& diagnostics) {
  const std::string& text = source->text();
  int open = 0;
  size_t deepest = begin;  // the bracket that passes the legal depth
  for (size_t i = begin; i < text.size(); ++i) {
    if (text[i] == '[' || text[i] == '{') {
      if (++open == kDeepestNesting + 1) deepest = i;
      if (open <= kMostOpenBrackets) continue;
      diagnostics.error({source, deepest, deepest + 1},
                        fmt::format("nested more than {} levels deep", kDeepestNesting));
      return false;
    }
    if ((text[i] == ']' || text[i] == '}') && open > 0) --open;
  }
  return true;
}

// The first tab in the indentation of the line that `offset` is in.
std::optional<size_t> indentation_tab(std::string_view text, size_t offset) {
  size_t i = offset == 0 ? 0 : text.rfind('\n', std::min(offset, text.size()) - 1) + 1;
  while (i < text.size() && text[i] == ' ') ++i;
  if (i < text.size() && text[i] == '\t') return i;
  return std::nullopt;
}

// What yaml-cpp says, in words about the text.
std::string syntax_words(const std::string& message) {
  using namespace YAML::ErrorMsg;
  static const std::pair<const char*, const char*> kWords[] = {
      {END_OF_SEQ, "the indentation does not fit the list above"},
      {END_OF_MAP, "the indentation does not fit the lines above"},
      {MAP_VALUE, "':' is out of place; check the indentation of this line and of the one above"},
      {MAP_KEY, "a key is out of place; check the indentation of this line and of the one above"},
      {BLOCK_ENTRY, "'-' is out of place; check the indentation of this line and of the one above"},
      {FLOW_END, "a bracket is closed that was not opened"},
      {UNKNOWN_ANCHOR, "this alias has no anchor above it"},
      {UNKNOWN_TOKEN, "a value cannot begin like this without quotes"},
      {EOF_IN_SCALAR, "a string is not closed"},
      {BAD_FILE, "nested too deep"},
  };
  for (const auto& [theirs, ours] : kWords) {
    if (message == theirs) return ours;
  }
  return "not valid YAML: " + message;
}

void report_syntax(const YAML::Exception& exception, TreeBuilder& builder, std::string_view text,
                   Diagnostics& diagnostics) {
  const size_t at = builder.offset(exception.mark);
  if (const std::optional<size_t> tab = indentation_tab(text, at)) {
    diagnostics.error(builder.span(*tab, *tab + 1), "indentation must be spaces, not tabs");
    return;
  }
  size_t end = std::min(at + 1, text.size());
  if (exception.msg == YAML::ErrorMsg::UNKNOWN_ANCHOR) end = alias_end(text, at);
  const std::string& message = exception.msg;
  const bool bracket = message == YAML::ErrorMsg::END_OF_SEQ_FLOW ||
                       message == YAML::ErrorMsg::END_OF_MAP_FLOW ||
                       message == YAML::ErrorMsg::FLOW_END;
  if (bracket && builder.report_unclosed()) return;
  diagnostics.error(builder.span(at, end), syntax_words(message));
}

}  // namespace

std::optional<SourceNode> parse_yaml(std::shared_ptr<const SourceText> source,
                                     Diagnostics& diagnostics, size_t begin) {
  if (!few_open_brackets(source, begin, diagnostics)) return std::nullopt;
  const std::string_view text = source->text();
  TreeBuilder builder(source, begin, diagnostics);
  std::istringstream stream(source->text().substr(begin));
  try {
    YAML::Parser parser(stream);
    parser.HandleNextDocument(builder);
    // yaml-cpp can hand out empty documents for ever without moving on: no second look after a
    // null.
    if (builder.root().kind != Kind::kNull) parser.HandleNextDocument(builder);
  } catch (const Stop&) {
    return std::nullopt;
  } catch (const YAML::Exception& exception) {
    report_syntax(exception, builder, text, diagnostics);
    return std::nullopt;
  }
  return std::move(builder.root());
}

}  // namespace convnet
