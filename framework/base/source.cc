#include "framework/base/source.h"

#include <algorithm>
#include <utility>

namespace convnet {

SourceText::SourceText(std::string name, std::string text)
    : name_(std::move(name)), text_(std::move(text)), starts_{0} {
  for (size_t i = text_.find('\n'); i != std::string::npos; i = text_.find('\n', i + 1)) {
    if (i + 1 < text_.size()) starts_.push_back(i + 1);
  }
}

std::string_view SourceText::line(int number) const {
  if (number < 1 || number > lines()) return {};
  const size_t index = static_cast<size_t>(number - 1);
  const size_t begin = starts_[index];
  size_t end = index + 1 < starts_.size() ? starts_[index + 1] : text_.size();
  if (end > begin && text_[end - 1] == '\n') --end;
  if (end > begin && text_[end - 1] == '\r') --end;
  return std::string_view(text_).substr(begin, end - begin);
}

void SourceText::position(size_t offset, int* line_number, int* column) const {
  const auto after = std::upper_bound(starts_.begin(), starts_.end(), offset);
  const size_t index = static_cast<size_t>(after - starts_.begin()) - 1;
  *line_number = static_cast<int>(index) + 1;
  // An offset in the line end, or past the text, is the place just after the line.
  const size_t in_line = std::min(offset - starts_[index], line(*line_number).size());
  *column = static_cast<int>(in_line) + 1;
}

int Span::line() const {
  if (!source) return 0;
  int line_number, column_number;
  source->position(begin, &line_number, &column_number);
  return line_number;
}

int Span::column() const {
  if (!source) return 0;
  int line_number, column_number;
  source->position(begin, &line_number, &column_number);
  return column_number;
}

}  // namespace convnet
