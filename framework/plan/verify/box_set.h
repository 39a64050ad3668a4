// A set of elements of one tensor, kept as disjoint boxes.
#pragma once

#include <vector>

#include "framework/base/shape.h"

namespace convnet {

// a without b, as disjoint boxes. Same rank.
std::vector<Box> subtract(const Box& a, const Box& b);

class BoxSet {
 public:
  bool overlaps(const Box& box) const;
  bool covers(const Box& box) const { return missing(box).empty(); }
  // The part of the box that is not in the set, as disjoint boxes.
  std::vector<Box> missing(const Box& box) const;
  void add(const Box& box);
  bool empty() const { return boxes_.empty(); }

 private:
  std::vector<Box> boxes_;
};

}  // namespace convnet
