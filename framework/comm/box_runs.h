// BoxRuns: where the elements of a box lie in several buffers of one format, as runs of elements
// that are side by side in all of them. The one way in which boxes are copied and summed, between
// devices and between host and device.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "framework/base/shape.h"

namespace convnet {

class BoxRuns {
 public:
  // The elements of `box` in buffers that hold the boxes `stored`; each of them contains `box`.
  // Blocked buffers are walked by whole blocks of sixteen examples, lanes past the last example
  // included, so batches must be cut at multiples of 16 (blocks_aligned).
  BoxRuns(Format format, const Box& box, std::span<const Box> stored);

  int64_t run() const { return run_; }    // elements of a run
  int64_t runs() const { return runs_; }  // number of runs; 0 if the box is empty
  int operands() const { return static_cast<int>(operands_.size()); }

  // Calls f(offsets) for each run; offsets[i] is its first element in buffer i, counted in elements
  // from the buffer's first. Does not allocate.
  template <typename F>
  void for_each(F&& f) const {
    std::array<int64_t, kMaxOperands> offsets{};
    for (size_t i = 0; i < operands_.size(); ++i) offsets[i] = operands_[i].offset;
    std::array<int64_t, kMaxLoops> at{};
    for (int64_t r = 0; r < runs_; ++r) {
      f(offsets.data());
      for (int d = loops_ - 1; d >= 0; --d) {
        const auto dim = static_cast<size_t>(d);
        const bool wraps = ++at[dim] == extent_[dim];
        const int64_t steps = wraps ? 1 - extent_[dim] : 1;
        for (size_t i = 0; i < operands_.size(); ++i)
          offsets[i] += steps * operands_[i].stride[dim];
        if (!wraps) break;
        at[dim] = 0;
      }
    }
  }

  static constexpr int kMaxOperands = 66;

 private:
  static constexpr int kMaxLoops = kMaxRank + 1;
  struct Operand {
    int64_t offset = 0;
    std::array<int64_t, kMaxLoops> stride{};
  };
  int64_t run_ = 0;
  int64_t runs_ = 0;
  int loops_ = 0;  // around the run, outermost first
  std::array<int64_t, kMaxLoops> extent_{};
  std::vector<Operand> operands_;
};

// True if `box` cuts the batch only between blocks: plain formats always; blocked ones if the first
// example is a multiple of 16, and the end too or the end of the batch (`examples`).
bool blocks_aligned(Format format, const Box& box, int64_t examples);

}  // namespace convnet
