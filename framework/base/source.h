// Source texts and places in them, for messages that point at what they speak of.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace convnet {

// A model file, or the text of a command-line option. Shared by everything that points into it.
class SourceText {
 public:
  SourceText(std::string name, std::string text);
  const std::string& name() const { return name_; }  // as the user wrote it; "--set" for options
  const std::string& text() const { return text_; }
  int lines() const { return static_cast<int>(starts_.size()); }
  // Without the line end; 1-based. Empty for lines that are not there.
  std::string_view line(int number) const;
  // 1-based line and column (in bytes) of a byte offset.
  void position(size_t offset, int* line, int* column) const;

 private:
  std::string name_, text_;
  std::vector<size_t> starts_;
};

// A piece of a source text: [begin, end) in bytes. A null source means "no place".
struct Span {
  std::shared_ptr<const SourceText> source;
  size_t begin = 0;
  size_t end = 0;

  int line() const;    // 1-based; 0 without a source
  int column() const;  // 1-based, in bytes
};

}  // namespace convnet
