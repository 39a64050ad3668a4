// OrderedSum: the sum of partial sums, element by element, in an exchange's order. The order
// depends on the numbers k of the partial sums alone, so it is the same wherever they lie.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "framework/base/shape.h"
#include "framework/plan/plan.h"

namespace convnet {

class OrderedSum {
 public:
  // source_of[k]: which source holds partial sum k; -1: that one adds nothing. Order kTree: the
  // balanced tree over all k (ops.def), a branch without sources adding nothing; kRank: k = 0, 1,
  // 2, ... At least one source; at most 64 values of k with one.
  OrderedSum(Exchange::Order order, std::span<const int> source_of);

  // dst[i] = sum of sources[..][i], i = 0 .. n-1. dst may be one of the sources; no other overlap.
  // Integers wrap around.
  void run(DType dtype, void* dst, const void* const* sources, int64_t n) const;

 private:
  // out = left + right. Operands: >= 0 a source; < 0 the temporary ~operand. out: a temporary, or
  // the destination (kDestination).
  struct Add {
    int left = 0, right = 0, out = 0;
  };
  int tree(std::span<const int> source_of, size_t lo, size_t hi, int slot);
  template <typename T>
  void run_typed(T* dst, const void* const* sources, int64_t n) const;

  std::vector<Add> adds_;  // empty: the result is source `only_`
  int only_ = 0;
};

}  // namespace convnet
