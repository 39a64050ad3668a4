#include "parsers/model_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "framework/base/utf8.h"
#include "framework/model/overrides.h"
#include "parsers/limits.h"
#include "parsers/prototxt.h"
#include "parsers/yaml.h"
#include "parsers/yaml_extent.h"

namespace convnet {
namespace {

enum class Spelling { kYaml, kProtobufText };

std::optional<Spelling> spelling_of(const std::string& name) {
  const auto ends_with = [&](std::string_view end) {
    return name.size() > end.size() &&
           std::string_view(name).substr(name.size() - end.size()) == end;
  };
  if (ends_with(".yaml") || ends_with(".yml")) return Spelling::kYaml;
  for (const char* end : {".prototxt", ".pbtxt", ".txtpb"}) {
    if (ends_with(end)) return Spelling::kProtobufText;
  }
  return std::nullopt;
}

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// The first line that only the other spelling has: in protobuf text one that opens a message
// (`layers {`), in YAML an item (`- a`) or a key without a value beside it.
std::optional<Span> line_of_other_spelling(const std::shared_ptr<const SourceText>& source,
                                           Spelling said) {
  for (int i = 1; i <= source->lines(); ++i) {
    const std::string_view line = source->line(i);
    const size_t begin = std::min(line.find_first_not_of(" \t"), line.size());
    size_t end = begin;
    while (end < line.size() && is_word(line[end])) ++end;
    const bool word = end > begin;
    const std::string_view rest = line.substr(end);
    const size_t next = rest.find_first_not_of(" \t");
    const bool message = word && next != std::string_view::npos && rest[next] == '{';
    const bool item = line.substr(begin, 2) == "- " || line.substr(begin) == "---";
    const bool key = word && rest == ":";
    if (said == Spelling::kYaml ? message : item || key) {
      const size_t start = static_cast<size_t>(line.data() - source->text().data());
      return Span{source, start + begin, start + line.size()};
    }
  }
  return std::nullopt;
}

void append(const Diagnostics& from, Diagnostics& to) {
  for (const Diagnostic& entry : from.all()) {
    Diagnostic& copy = entry.severity == Diagnostic::Severity::kError
                           ? to.error(entry.span, entry.message)
                           : to.warning(entry.span, entry.message);
    copy = entry;
  }
}

// The tree of a model file, a map; errors of the notation are reported.
std::optional<SourceNode> parse(const std::shared_ptr<const SourceText>& source, Spelling spelling,
                                Diagnostics& diagnostics) {
  Diagnostics found;
  const bool yaml = spelling == Spelling::kYaml;
  std::optional<SourceNode> root = yaml ? parse_yaml(source, found) : parse_prototxt(source, found);
  const Span start{source, 0, 0};
  const bool empty =
      root && (yaml ? root->kind == SourceNode::Kind::kNull && is_blank(source->text())
                    : root->entries.empty());
  if (empty) {
    diagnostics.error(start, "the model file is empty, it has no layers");
    return std::nullopt;
  }
  if (root && root->kind != SourceNode::Kind::kMap) {
    found.error({source, root->span.begin, root->span.begin + 1},
                fmt::format("the model must be a map (key: value), not {}",
                            root->kind == SourceNode::Kind::kList ? "a list" : "a single value"));
    root.reset();
  }
  if (!root) {
    if (const std::optional<Span> other = line_of_other_spelling(source, spelling)) {
      diagnostics
          .error(*other, yaml ? "this looks like protobuf text, but the file's name says YAML"
                              : "this looks like YAML, but the file's name says protobuf text")
          .help = yaml ? "let the name end in .prototxt" : "let the name end in .yaml";
      return std::nullopt;
    }
  }
  append(found, diagnostics);
  return root;
}

// "PATH=VALUE" into the tree.
void apply_set(const std::string& set, SourceNode& root, Diagnostics& diagnostics) {
  const auto source = std::make_shared<const SourceText>("--set", set);
  if (!check_text(source, diagnostics)) return;
  const size_t equals = set.find('=');
  if (equals == std::string::npos) {
    diagnostics.error({source, 0, set.size()}, "expected PATH=VALUE").code = Code::kUsage;
    return;
  }
  std::optional<SourceNode> value = parse_yaml(source, diagnostics, equals + 1);
  if (!value) return;
  apply_override({{source, 0, equals}, std::move(*value)}, root, diagnostics);
}

Diagnostic& unreadable(const std::string& path, const std::string& why, Diagnostics& diagnostics) {
  return diagnostics.error({}, fmt::format("cannot read '{}': {}", printable(path), why));
}

std::optional<std::string> read_file(const std::string& path, Diagnostics& diagnostics) {
  // Without O_NONBLOCK, opening a FIFO would wait for its writer.
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0) {
    unreadable(path, std::strerror(errno), diagnostics);
    return std::nullopt;
  }
  std::optional<std::string> text;
  struct stat info;
  if (fstat(file, &info) != 0) {
    unreadable(path, std::strerror(errno), diagnostics);
  } else if (S_ISDIR(info.st_mode)) {
    unreadable(path, "it is a directory", diagnostics);
  } else if (!S_ISREG(info.st_mode)) {
    unreadable(path, "it is not a regular file", diagnostics);
  } else {
    text.emplace();
    // One byte more than allowed tells a file that is too large, even one that grows.
    const size_t size = static_cast<size_t>(std::max<off_t>(info.st_size, 0));
    bool failed = size > kMostModelBytes;
    size_t read_bytes = 0;
    while (!failed && read_bytes <= kMostModelBytes) {
      text->resize(std::min(read_bytes + std::max<size_t>(size, 4096) + 1, kMostModelBytes + 1));
      if (read_bytes == text->size()) break;
      const ssize_t got = read(file, text->data() + read_bytes, text->size() - read_bytes);
      if (got == 0) break;
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) {
        unreadable(path, std::strerror(errno), diagnostics);
        close(file);
        return std::nullopt;
      }
      read_bytes += static_cast<size_t>(got);
    }
    if (failed || read_bytes > kMostModelBytes) {
      unreadable(path,
                 fmt::format("it has {} bytes, a model file must have at most {}",
                             std::max(size, read_bytes), kMostModelBytes),
                 diagnostics)
          .code = Code::kLimit;
      text.reset();
    } else {
      text->resize(read_bytes);
    }
  }
  close(file);
  return text;
}

}  // namespace

bool check_text(const std::shared_ptr<const SourceText>& source, Diagnostics& diagnostics) {
  const std::string& text = source->text();
  const auto starts_with = [&](std::string_view start) {
    return text.compare(0, start.size(), start) == 0;
  };
  if (starts_with("\xff\xfe") || starts_with("\xfe\xff")) {
    diagnostics.error({source, 0, 2}, "not text in UTF-8: the file begins like UTF-16");
    return false;
  }
  for (size_t i = 0; i < text.size();) {
    const Utf8Char character = decode_utf8(text, i);
    const bool layout = character.code == '\t' || character.code == '\n' || character.code == '\r';
    const bool control = character.code < 0x20 || character.code == 0x7f;
    if (!character.valid || (control && !layout)) {
      diagnostics.error({source, i, i + 1},
                        fmt::format("not text in UTF-8: {} 0x{:02x} at offset {}",
                                    character.valid ? "control character" : "byte",
                                    static_cast<unsigned>(character.code), i));
      return false;
    }
    i += static_cast<size_t>(character.bytes);
  }
  return true;
}

std::unique_ptr<BoundModel> load_model_text(const std::string& name, std::string text,
                                            const std::vector<std::string>& sets,
                                            Diagnostics& diagnostics) {
  const std::optional<Spelling> spelling = spelling_of(name);
  if (!spelling) {
    diagnostics.error(
        {}, fmt::format("'{}' is not the name of a model file, which ends in .yaml, .yml, "
                        ".prototxt, .pbtxt or .txtpb",
                        printable(name)));
    return nullptr;
  }
  if (text.size() > kMostModelBytes) {
    unreadable(name,
               fmt::format("it has {} bytes, a model file must have at most {}", text.size(),
                           kMostModelBytes),
               diagnostics)
        .code = Code::kLimit;
    return nullptr;
  }
  if (text.compare(0, 3, "\xef\xbb\xbf") == 0) text.erase(0, 3);  // a byte order mark
  const auto source = std::make_shared<const SourceText>(name, std::move(text));
  if (!check_text(source, diagnostics)) return nullptr;
  std::optional<SourceNode> root = parse(source, *spelling, diagnostics);
  if (!root) return nullptr;
  Diagnostics of_sets;
  for (const std::string& set : sets) apply_set(set, *root, of_sets);
  append(of_sets, diagnostics);
  // A tree that was changed by halves would be blamed for what is the option's mistake.
  if (of_sets.has_errors()) return nullptr;
  return bind_model(*root, diagnostics);
}

std::unique_ptr<BoundModel> load_model(const std::string& path,
                                       const std::vector<std::string>& sets,
                                       Diagnostics& diagnostics) {
  std::optional<std::string> text = read_file(path, diagnostics);
  if (!text) return nullptr;
  return load_model_text(path, std::move(*text), sets, diagnostics);
}

}  // namespace convnet
