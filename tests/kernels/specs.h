// Shapes for kernel tests, biased to the edges of tiles, blocks and windows, and cases made from
// them.
#pragma once

#include "tests/kernels/kernel_case.h"

namespace convnet::kernels {

using Pair = std::array<int64_t, 2>;

struct ConvSpec {
  int64_t n = 1, c = 1, h = 1, w = 1, k = 1;
  Pair kernel{1, 1}, stride{1, 1}, pad{0, 0}, dilation{1, 1};
  int64_t groups = 1;

  Shape x() const { return {n, c, h, w}; }
  Shape filters() const { return {k, c / groups, kernel[0], kernel[1]}; }
  Shape y() const;
  Attrs attrs() const;
};
ConvSpec random_conv(Rng& rng, int64_t examples = 0);  // 0: random too

// One of the three convolutions on random values; x, w and dy in that order without what it makes.
Case conv_case(Op op, const ConvSpec& spec, Rng& rng, Fill fill);
// The same for fully-connected layers on inputs [N, C, H, W].
Case fc_case(Op op, const Shape& x, int64_t outputs, Rng& rng, Fill fill);

struct PoolSpec {
  int64_t n = 1, c = 1, h = 1, w = 1;
  Pair kernel{1, 1}, stride{1, 1}, pad{0, 0};
  bool ceil = false;

  Shape x() const { return {n, c, h, w}; }
  Shape y() const;
  Attrs attrs() const;
};
PoolSpec random_pool(Rng& rng, int64_t examples = 0);

// Boundaries of canonical shards of n examples, some of them empty.
std::vector<int64_t> random_cuts(Rng& rng, int64_t n);

// Boundaries of the canonical shards of channels, filters, rows, columns or classes (FORMAT.md).
std::vector<int64_t> canonical_cuts(int64_t extent);

// A dimension but the examples over which an operation sums: the attribute with its shards, and the
// operand and dimension that they cut.
struct SummedDim {
  std::string cuts;
  size_t operand;
  int dim;
};
std::vector<SummedDim> summed_dims(const Case& c);
// The same case with canonical shards of some of them.
Case with_cuts(Case c, Rng& rng);

// Examples of a batch in whole blocks, dealt out to `parts` sub-batches at random, as `rows`; some
// may go to none, but each part has some.
std::vector<std::vector<int64_t>> random_sub_batches(Rng& rng, int64_t batch, int64_t parts);
// The rows that together hold what these hold.
std::vector<int64_t> all_rows(const std::vector<std::vector<int64_t>>& parts);

// An operation on random shapes and values, whole tensors. n: examples; 0: random too.
Case random_case(Op op, Rng& rng, Fill fill, int64_t n = 0);

// All operations but guard and exchange.
std::vector<Op> numeric_ops();

// The same with examples [lo, hi) of the batch only: as a batch of its own, or as boxes of the
// whole.
Case slice_examples(const Case& c, int64_t lo, int64_t hi, bool own_batch);

}  // namespace convnet::kernels
