// A set of examples of the batch: those that the rows of a tensor stand for, or that a sum runs
// over.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "framework/plan/plan.h"

namespace convnet {

class Examples {
 public:
  Examples() = default;
  Examples(int64_t lo, int64_t hi) {
    if (lo < hi) segments_ = {{lo, hi}};
  }
  // Those of an activation or input: of its rows, or all of the batch.
  Examples(const Plan& plan, const Tensor& tensor);

  bool empty() const { return segments_.empty(); }
  int64_t first() const { return segments_.front().lo; }  // not empty
  int64_t count() const;
  bool contains(const Examples& other) const { return common(other) == other; }
  bool overlaps(const Examples& other) const { return !common(other).empty(); }
  Examples common(const Examples& other) const;
  Examples without(const Examples& other) const;
  Examples with(const Examples& other) const;
  std::string str() const;  // "0:16, 32:48"

  bool operator==(const Examples&) const = default;

 private:
  struct Segment {
    int64_t lo, hi;
    bool operator==(const Segment&) const = default;
  };
  void append(int64_t lo, int64_t hi);
  std::vector<Segment> segments_;  // rising, none empty, none next to another
};

}  // namespace convnet
