// Which instructions of a device have ended for certain when another begins: those before it in its
// stream, and those that an event makes it wait for, directly or by way of others. All exchanges of
// a bucket begin with the first and end with the last. For plans whose events and buckets are
// sound.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "framework/plan/plan.h"

namespace convnet {

class StreamOrder {
 public:
  StreamOrder(const Plan& plan, const DevicePlan& device);

  // k < i
  bool before(size_t k, size_t i) const { return known_[i][stream_[k]] >= number_[k]; }
  // The first and the last instruction of its bucket; i itself, if it is in none.
  size_t first(size_t i) const { return first_[i]; }
  size_t last(size_t i) const { return last_[i]; }

 private:
  static constexpr size_t kStreams = 2;
  // Of each instruction: how many of each stream have ended when it begins, its own number in its
  // stream, from 1, and the stream.
  std::vector<std::array<int, kStreams>> known_;
  std::vector<int> number_;
  std::vector<size_t> stream_;
  std::vector<size_t> first_, last_;
};

}  // namespace convnet
