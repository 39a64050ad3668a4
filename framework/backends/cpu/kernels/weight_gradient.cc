// Gradients of filters and biases, of convolutions and fully connected layers.
//
// A filter's gradient is a sum over examples and output pixels of dy times the input under a tap.
// dy is transposed once, strip by strip, to [pixel][sample][filter]; then the lanes of a Vec are
// sixteen filters, an input is broadcast straight from x, and there are no lanes to add at the end:
//   dw[16 filters][tap] += dyT[pixel][sample][16 filters] * x[tap's channel][pixel + tap][sample].
// A tile is `vectors` times 16 filters by some taps whose inputs exist for the same pixels (for a
// 3x3 window: the same tap of up to eight channels), so that no check stands in the inner loop:
//   AVX-512: 3 vectors x 8 taps or 4 x 6, 24 accumulators, 11 or 10 loads for 24 multiply-adds.
//   AVX2: 1 x 6.
// A transposed element serves all elements of its filter: 64 shuffles a 256 elements cost 1 to 5 %.
// A strip holds about a dozen pixels, 36 KB of dyT, so it stays in L1 while the taps go by; sums
// wait in L2 meanwhile, and are loaded and stored once in about 190 rounds of the inner loop.
//
// The order of a sum is (block, row, column, sample) within a canonical shard (of examples, or of
// rows, columns and examples), starting from 0, and the tree of ops.def over the shards: a finished
// shard is added to the sums that wait to its left as it is stored. Blocking does not change it.
//
// With few filters a group (depthwise convolution) most of a Vec would be idle: `weight_dot` keeps
// samples in the lanes, multiplies dy's Vec with eight taps' Vecs, and adds the lanes at the end of
// each shard. Which form is taken depends on the number of filters a group alone.
//
// Measured: `convnet_bench --case conv --threads 1`, see tools/bench/README.md for the figures.
#include "framework/backends/cpu/kernels/table.h"
#include "framework/backends/cpu/kernels/vec.h"

namespace convnet::cpu::CONVNET_ISA {
namespace {

constexpr int kMaxTaps = 8;
constexpr int kMaxVectors = 4;
constexpr int kMaxLevels = 64;  // of the tree over shards: more than any number of them needs

CONVNET_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
CONVNET_INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

struct Tile {
  const float* x[kMaxTaps];
  const float* panel;  // dyT of the first pixel
  int64_t blocks;      // of the strip, if it is part of a shard
  int64_t rows, columns;
  int64_t x_block, x_row, x_column, panel_block, panel_row;
  int64_t run;    // rounds on consecutive floats of x for each column
  float* sums;    // [tap][vectors * 16], of the first shard
  int64_t level;  // distance of the sums that wait
  const ShardLeaf* leaves;
  int64_t leaf_count;
  bool start, end;  // first or last strip of the shard; if both, all shards at once
};

using TileFunction = void (*)(const Tile& tile);

template <int V, int T>
void weight_tile(const Tile& tile) {
  const float* x[T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) x[t] = tile.x[t];
  float* to = tile.sums;
  const float* panel0 = tile.panel;
  int64_t at0 = 0;
  for (int64_t l = 0; l < tile.leaf_count; ++l, to += tile.level) {
    Vec sum[T][V];
    if (tile.start) {
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) sum[t][v] = zero();
    } else {
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) sum[t][v] = load(to + (t * V + v) * kVec);
    }
    const ShardLeaf& leaf = tile.leaves[l];
    int64_t blocks = tile.start && tile.end ? leaf.block_hi - leaf.block_lo : tile.blocks;
    if (tile.rows <= 0) blocks = 0;
    for (; blocks > 0; --blocks, at0 += tile.x_block, panel0 += tile.panel_block) {
      const float* panel1 = panel0;
      int64_t at1 = at0;
      for (int64_t r = tile.rows; r > 0; --r, at1 += tile.x_row, panel1 += tile.panel_row) {
        const float* panel = panel1;
        int64_t at2 = at1;
        for (int64_t c = tile.columns; c > 0; --c, at2 += tile.x_column)
          for (int64_t at = at2, stop = at2 + tile.run; at < stop; ++at, panel += V * kVec) {
            Vec filters[V];
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) filters[v] = load(panel + v * kVec);
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t) {
              const Vec input = set1(x[t][at]);
#pragma GCC unroll 8
              for (int v = 0; v < V; ++v) sum[t][v] = fma(input, filters[v], sum[t][v]);
            }
          }
      }
    }
    if (tile.end)
      for (int64_t m = 0; m < leaf.merges; ++m) {
        to -= tile.level;
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t)
#pragma GCC unroll 8
          for (int v = 0; v < V; ++v) sum[t][v] = load(to + (t * V + v) * kVec) + sum[t][v];
      }
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t)
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) store(to + (t * V + v) * kVec, sum[t][v]);
  }
}

#define CONVNET_TILES(V)                                                                         \
  weight_tile<V, 1>, weight_tile<V, 2>, weight_tile<V, 3>, weight_tile<V, 4>, weight_tile<V, 5>, \
      weight_tile<V, 6>
#if defined(__AVX512F__)
constexpr TileFunction kTiles[kMaxVectors][kMaxTaps] = {
    {CONVNET_TILES(1), weight_tile<1, 7>, weight_tile<1, 8>},
    {CONVNET_TILES(2), weight_tile<2, 7>, weight_tile<2, 8>},
    {CONVNET_TILES(3), weight_tile<3, 7>, weight_tile<3, 8>},
    {CONVNET_TILES(4)},
};
#else
constexpr TileFunction kTiles[kMaxVectors][kMaxTaps] = {{CONVNET_TILES(1)}};
#endif
#undef CONVNET_TILES

int most_taps(int vectors) {
  int most = 0;
  for (int t = 1; t <= kMaxTaps; ++t)
    if (kTiles[vectors - 1][t - 1] != nullptr) most = t;
  return most;
}

// A box of output pixels, and where its dyT stands.
struct Strip {
  int64_t block_lo, block_hi, row_lo, row_hi, column_lo, column_hi;
};

// Lanes below `count`.
CONVNET_INLINE Mask first_lanes(int64_t count) {
  alignas(64) static const int32_t kNumbers[kVec] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                     8, 9, 10, 11, 12, 13, 14, 15};
  return iset1(static_cast<int32_t>(count)) > iload(kNumbers);
}

// dyT of the strip's pixels and `filters` filters, padded with zeros to whole vectors.
void transpose_strip(const WeightProblem& p, const float* dy, int64_t filters, const Strip& s,
                     float* to) {
  const int64_t vectors = (filters + kVec - 1) / kVec;
  for (int64_t b = s.block_lo; b < s.block_hi; ++b)
    for (int64_t r = s.row_lo; r < s.row_hi; ++r)
      for (int64_t c = s.column_lo; c < s.column_hi; ++c, to += kVec * vectors * kVec) {
        const float* from = dy + b * p.dy_block + r * p.dy_row + c * kVec;
        for (int64_t v = 0; v < vectors; ++v, from += kVec * p.dy_channel) {
          const int64_t there = filters - v * kVec;
          if (there >= kVec) {
            transpose16(from, p.dy_channel, to + v * kVec, vectors * kVec);
            continue;
          }
          alignas(64) float rows[kVec * kVec];
          for (int64_t f = 0; f < kVec; ++f)
            store(rows + f * kVec, f < there ? load(from + f * p.dy_channel) : zero());
          transpose16(rows, kVec, to + v * kVec, vectors * kVec);
        }
        if (b == p.blocks - 1)
          for (int64_t i = p.last_lanes * vectors * kVec; i < kVec * vectors * kVec; i += kVec)
            store(to + i, zero());
      }
}

// All taps of the part over one strip, whose dyT stands in a panel of the box `panel`. `first`: all
// there is to know of the tile but its taps.
void run_strip(const WeightProblem& p, const WeightPart& part, const Strip& s, const Strip& panel,
               const float* panel_data, const Tile& first) {
  const float* x = p.groups[part.group].x + s.block_lo * p.x_block;
  const int64_t filters = part.filter_hi - part.filter_lo;
  const int vectors = static_cast<int>((filters + kVec - 1) / kVec);
  const int64_t most = most_taps(vectors);
  const int64_t pixel = kVec * vectors * kVec;
  Tile tile = first;
  tile.blocks = s.block_hi - s.block_lo;
  tile.x_block = p.x_block;
  tile.x_row = p.x_step_row;
  tile.x_column = p.x_step_column;
  tile.panel_row = (panel.column_hi - panel.column_lo) * pixel;
  tile.panel_block = (panel.row_hi - panel.row_lo) * tile.panel_row;
  panel_data += (s.block_lo - panel.block_lo) * tile.panel_block;
  for (int64_t t = part.tap_lo; t < part.tap_hi;) {
    const Tap& tap = p.taps[t];
    const int64_t count = smaller(smaller(most, tap.alike), part.tap_hi - t);
    const int64_t row_lo = larger(s.row_lo, tap.row_lo);
    const int64_t column_lo = larger(s.column_lo, tap.col_lo);
    tile.rows = smaller(s.row_hi, tap.row_hi) - row_lo;
    tile.columns = smaller(s.column_hi, tap.col_hi) - column_lo;
    if (tile.columns <= 0) tile.rows = 0;
    if (tile.rows > 0 || tile.start || tile.end) {
      tile.run = kVec;
      if (p.x_step_column == kVec) {
        tile.run *= tile.columns;
        tile.columns = 1;
      }
      if (tile.rows > 0) {
        const int64_t at = row_lo * p.x_step_row + column_lo * p.x_step_column;
        for (int64_t i = 0; i < count; ++i) tile.x[i] = x + (p.taps[t + i].x + at);
        tile.panel = panel_data + (row_lo - panel.row_lo) * tile.panel_row +
                     (column_lo - panel.column_lo) * pixel;
      }
      kTiles[vectors - 1][count - 1](tile);
    }
    tile.sums += count * vectors * kVec;
    t += count;
  }
}

// Sums [tap][vectors * 16] to the filters' gradients.
void write(const WeightProblem& p, const WeightPart& part, const float* sums) {
  const int64_t filters = part.filter_hi - part.filter_lo;
  const int64_t vectors = (filters + kVec - 1) / kVec;
  float* dw = p.groups[part.group].dw + part.filter_lo * p.dw_filter;
  for (int64_t t = part.tap_lo; t < part.tap_hi;) {
    const int64_t index = p.taps[t].index;
    int64_t run = 1;
    while (run < kVec && t + run < part.tap_hi && p.taps[t + run].index == index + run) ++run;
    const float* from = sums + (t - part.tap_lo) * vectors * kVec;
    if (run == kVec) {
      for (int64_t v = 0; v < vectors; ++v) {
        alignas(64) float rows[kVec * kVec];
        transpose16(from + v * kVec, vectors * kVec, rows, kVec);
        for (int64_t f = 0; f < smaller(kVec, filters - v * kVec); ++f) {
          float* to = dw + (v * kVec + f) * p.dw_filter + index;
          if (p.stream && reinterpret_cast<uintptr_t>(to) % 64 == 0)
            stream(to, load(rows + f * kVec));
          else
            store(to, load(rows + f * kVec));
        }
      }
    } else {
      for (int64_t i = 0; i < run; ++i)
        for (int64_t f = 0; f < filters; ++f)
          dw[f * p.dw_filter + index + i] = from[i * vectors * kVec + f];
    }
    t += run;
  }
}

// db of the part's filters: samples in the lanes, their sum at the end of each shard.
void bias_gradient(const WeightProblem& p, const WeightPart& part) {
  const WeightGroup& group = p.groups[part.group];
  for (int64_t f = part.filter_lo; f < part.filter_hi; ++f) {
    const float* dy = group.dy + f * p.dy_channel;
    float waiting[kMaxLevels];
    int64_t depth = 0;
    for (int64_t l = 0; l < p.leaf_count; ++l) {
      Vec lanes = zero();
      for (int64_t b = p.leaves[l].block_lo; b < p.leaves[l].block_hi; ++b) {
        const Mask there = first_lanes(b == p.blocks - 1 ? p.last_lanes : kVec);
        for (int64_t r = p.leaves[l].row_lo; r < p.leaves[l].row_hi; ++r)
          for (int64_t c = p.leaves[l].column_lo; c < p.leaves[l].column_hi; ++c)
            lanes =
                lanes + select(there, load(dy + b * p.dy_block + r * p.dy_row + c * kVec), zero());
      }
      float sum = sum_lanes(lanes);
      for (int64_t m = 0; m < p.leaves[l].merges; ++m) sum = waiting[--depth] + sum;
      waiting[depth++] = sum;
    }
    group.db[f] = depth > 0 ? waiting[0] : 0.0f;
  }
}

void weight(const WeightProblem& p, const WeightPart& whole, float* scratch) {
  if (whole.bias) bias_gradient(p, whole);
  const int64_t filters = whole.filter_hi - whole.filter_lo;
  const int64_t vectors = (filters + kVec - 1) / kVec;
  const int64_t level = smaller(p.tap_block, whole.tap_hi - whole.tap_lo) * vectors * kVec;
  float* sums = scratch;
  float* panel = scratch + p.levels * level;
  const float* dy = p.groups[whole.group].dy + whole.filter_lo * p.dy_channel;
  const Strip all = {0, p.blocks, 0, p.rows, 0, p.columns};
  if (p.keep) transpose_strip(p, dy, filters, all, panel);
  // If no shard is cut into strips, a tile adds up all shards in one go.
  const bool whole_shards = p.keep && p.planes && p.strip_blocks >= p.blocks;
  WeightPart part = whole;
  for (; part.tap_lo < whole.tap_hi; part.tap_lo = part.tap_hi) {
    part.tap_hi = smaller(part.tap_lo + p.tap_block, whole.tap_hi);
    Tile tile;
    tile.level = level;
    if (whole_shards && p.leaf_count > 0) {
      tile.sums = sums;
      tile.leaves = p.leaves;
      tile.leaf_count = p.leaf_count;
      tile.start = tile.end = true;
      run_strip(p, part, all, all, panel, tile);
      write(p, part, sums);
      continue;
    }
    int64_t depth = 0;
    for (int64_t l = 0; l < p.leaf_count; ++l) {
      const ShardLeaf& leaf = p.leaves[l];
      tile.sums = sums + depth * level;
      tile.leaves = &leaf;
      tile.leaf_count = 1;
      tile.start = true;
      Strip s;
      for (s.block_lo = leaf.block_lo; s.block_lo < leaf.block_hi; s.block_lo = s.block_hi) {
        s.block_hi = smaller(s.block_lo + p.strip_blocks, leaf.block_hi);
        for (s.row_lo = leaf.row_lo; s.row_lo < leaf.row_hi; s.row_lo = s.row_hi) {
          s.row_hi = smaller(s.row_lo + p.strip_rows, leaf.row_hi);
          for (s.column_lo = leaf.column_lo; s.column_lo < leaf.column_hi;
               s.column_lo = s.column_hi) {
            s.column_hi = smaller(s.column_lo + p.strip_columns, leaf.column_hi);
            if (!p.keep) transpose_strip(p, dy, filters, s, panel);
            tile.end = s.block_hi == leaf.block_hi && s.row_hi == leaf.row_hi &&
                       s.column_hi == leaf.column_hi;
            run_strip(p, part, s, p.keep ? all : s, panel, tile);
            tile.start = false;
          }
        }
      }
      depth += 1 - leaf.merges;
    }
    if (depth == 0)
      for (int64_t i = 0; i < level; i += kVec) store(sums + i, zero());
    write(p, part, sums);
  }
  if (p.stream) _mm_sfence();
}

struct DotTile {
  const float* dy;
  int64_t partial, lanes;  // the block, from the first, that has only so many samples; or -1
  const float* x[kMaxTaps];
  int64_t n[3], dy_step[3], x_step[3];
  float* sums;
};

template <int T>
void dot_tile(const DotTile& tile) {
  Vec lanes[T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) lanes[t] = zero();
  const float* x[T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) x[t] = tile.x[t];
  for (int64_t b = 0; b < tile.n[0]; ++b) {
    const Mask there = first_lanes(b == tile.partial ? tile.lanes : kVec);
    for (int64_t r = 0; r < tile.n[1]; ++r) {
      const float* dy = tile.dy + b * tile.dy_step[0] + r * tile.dy_step[1];
      int64_t at = b * tile.x_step[0] + r * tile.x_step[1];
      for (int64_t c = tile.n[2]; c > 0; --c, dy += kVec, at += tile.x_step[2]) {
        const Vec gradient = select(there, load(dy), zero());
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) lanes[t] = fma(gradient, load(x[t] + at), lanes[t]);
      }
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) tile.sums[t] = sum_lanes(lanes[t]);
}

using DotFunction = void (*)(const DotTile& tile);
constexpr DotFunction kDotTiles[kMaxTaps] = {dot_tile<1>, dot_tile<2>, dot_tile<3>,
                                             dot_tile<4>,
#if defined(__AVX512F__)
                                             dot_tile<5>, dot_tile<6>, dot_tile<7>,
                                             dot_tile<8>
#endif
};

void weight_dot(const WeightProblem& p, const WeightPart& part, float*) {
  if (part.bias) bias_gradient(p, part);
  const WeightGroup& group = p.groups[part.group];
  int64_t most = 0;
  while (most < kMaxTaps && kDotTiles[most] != nullptr) ++most;
  for (int64_t f = part.filter_lo; f < part.filter_hi; ++f)
    for (int64_t t = part.tap_lo; t < part.tap_hi;) {
      const Tap& tap = p.taps[t];
      const int64_t count = smaller(smaller(most, tap.alike), part.tap_hi - t);
      float waiting[kMaxLevels][kMaxTaps];
      int64_t depth = 0;
      for (int64_t l = 0; l < p.leaf_count; ++l) {
        const ShardLeaf& leaf = p.leaves[l];
        DotTile tile;
        float sums[kMaxTaps];
        tile.sums = sums;
        tile.partial = p.blocks - 1 - leaf.block_lo;
        tile.lanes = p.last_lanes;
        const int64_t row_lo = larger(leaf.row_lo, tap.row_lo);
        const int64_t column_lo = larger(leaf.column_lo, tap.col_lo);
        tile.n[1] = smaller(leaf.row_hi, tap.row_hi) - row_lo;
        tile.n[2] = smaller(leaf.column_hi, tap.col_hi) - column_lo;
        tile.n[0] = tile.n[1] > 0 && tile.n[2] > 0 ? leaf.block_hi - leaf.block_lo : 0;
        tile.dy_step[0] = p.dy_block;
        tile.dy_step[1] = p.dy_row;
        tile.x_step[0] = p.x_block;
        tile.x_step[1] = p.x_step_row;
        tile.x_step[2] = p.x_step_column;
        tile.dy = group.dy + f * p.dy_channel + leaf.block_lo * p.dy_block + row_lo * p.dy_row +
                  column_lo * kVec;
        const int64_t at =
            leaf.block_lo * p.x_block + row_lo * p.x_step_row + column_lo * p.x_step_column;
        for (int64_t i = 0; i < count; ++i) tile.x[i] = group.x + (p.taps[t + i].x + at);
        kDotTiles[count - 1](tile);
        for (int64_t m = 0; m < leaf.merges; ++m) {
          --depth;
          for (int64_t i = 0; i < count; ++i) sums[i] = waiting[depth][i] + sums[i];
        }
        for (int64_t i = 0; i < count; ++i) waiting[depth][i] = sums[i];
        ++depth;
      }
      for (int64_t i = 0; i < count; ++i)
        group.dw[f * p.dw_filter + p.taps[t + i].index] = depth > 0 ? waiting[0][i] : 0.0f;
      t += count;
    }
}

}  // namespace

void describe_weight_gradient(CpuKernels* table) {
  table->weight = weight;
  table->weight_dot = weight_dot;
  table->weight_taps[0] = 0;
  for (int v = 1; v <= kMaxVectors; ++v) table->weight_taps[v] = most_taps(v);
}

}  // namespace convnet::cpu::CONVNET_ISA
