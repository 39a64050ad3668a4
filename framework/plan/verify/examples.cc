#include "framework/plan/verify/examples.h"

#include <fmt/format.h>

#include <algorithm>

#include "framework/plan/rows.h"

namespace convnet {

Examples::Examples(const Plan& plan, const Tensor& tensor) {
  const std::vector<int64_t> rows = rows_of(tensor);
  if (rows.empty()) append(0, plan.batch);
  for (size_t i = 0; i + 1 < rows.size(); i += 2) append(rows[i], rows[i + 1]);
}

void Examples::append(int64_t lo, int64_t hi) {
  if (lo >= hi) return;
  if (!segments_.empty() && segments_.back().hi >= lo)
    segments_.back().hi = std::max(segments_.back().hi, hi);
  else
    segments_.push_back({lo, hi});
}

int64_t Examples::count() const {
  int64_t n = 0;
  for (const Segment& s : segments_) n += s.hi - s.lo;
  return n;
}

Examples Examples::common(const Examples& other) const {
  Examples result;
  for (const Segment& a : segments_)
    for (const Segment& b : other.segments_)
      result.append(std::max(a.lo, b.lo), std::min(a.hi, b.hi));
  return result;
}

Examples Examples::without(const Examples& other) const {
  Examples result;
  for (const Segment& a : segments_) {
    int64_t lo = a.lo;
    for (const Segment& b : other.segments_) {
      result.append(lo, std::min(a.hi, b.lo));
      lo = std::max(lo, b.hi);
    }
    result.append(lo, a.hi);
  }
  return result;
}

Examples Examples::with(const Examples& other) const {
  std::vector<Segment> all = segments_;
  all.insert(all.end(), other.segments_.begin(), other.segments_.end());
  std::sort(all.begin(), all.end(), [](const Segment& a, const Segment& b) { return a.lo < b.lo; });
  Examples result;
  for (const Segment& s : all) result.append(s.lo, s.hi);
  return result;
}

std::string Examples::str() const {
  std::string text;
  for (const Segment& s : segments_)
    text += fmt::format("{}{}:{}", text.empty() ? "" : ", ", s.lo, s.hi);
  return text;
}

}  // namespace convnet
