#include "framework/plan/verify/box_set.h"

#include <algorithm>

namespace convnet {

std::vector<Box> subtract(const Box& a, const Box& b) {
  if (a.empty()) return {};
  const Box common = intersect(a, b);
  if (common.empty()) return {a};
  std::vector<Box> pieces;
  // Cuts off what lies before and after `common`, dimension by dimension.
  Box rest = a;
  for (int i = 0; i < a.rank(); ++i) {
    const int64_t lo = rest.lo(i), hi = rest.hi(i);
    if (lo < common.lo(i)) {
      rest.set(i, lo, common.lo(i));
      pieces.push_back(rest);
    }
    if (common.hi(i) < hi) {
      rest.set(i, common.hi(i), hi);
      pieces.push_back(rest);
    }
    rest.set(i, common.lo(i), common.hi(i));
  }
  return pieces;
}

bool BoxSet::overlaps(const Box& box) const {
  return std::any_of(boxes_.begin(), boxes_.end(),
                     [&](const Box& b) { return !intersect(b, box).empty(); });
}

std::vector<Box> BoxSet::missing(const Box& box) const {
  std::vector<Box> rest;
  if (!box.empty()) rest.push_back(box);
  for (const Box& b : boxes_) {
    std::vector<Box> next;
    for (const Box& r : rest)
      for (const Box& piece : subtract(r, b)) next.push_back(piece);
    rest = std::move(next);
    if (rest.empty()) break;
  }
  return rest;
}

void BoxSet::add(const Box& box) {
  for (const Box& b : missing(box)) boxes_.push_back(b);
}

}  // namespace convnet
