// Convolution forward and backward data, and the fully connected layer's, as one algorithm.
//
// A tile is `tile_outputs` output channels by `tile_pixels` pixels of the same AxisClass pair, that
// is pixels that see the same taps; they may lie in different rows and blocks, so edges, 7x7 images
// and fully connected layers (one pixel a block) fill tiles as well as the inside of a large image.
// A pixel is a Vec of sixteen samples. For each input channel and tap the tile loads its pixels'
// Vecs, broadcasts one weight per output, and multiply-adds all pairs in registers:
//   AVX-512: 8 x 3, 6 x 4 or 4 x 6 accumulators of 32 registers; 11 loads feed 24 multiply-adds.
//   AVX2: 6 x 1 (a Vec is two of the 16 registers); 8 loads feed 12.
// Loop order, outermost first:
//   strip of pixels,
//   block of outputs, whose sums of a strip stay in L2,
//   chunk of input channels: a tile's inputs stay in L1; the strip's inputs are fetched into L2 and
//   the block's weights packed there, as [tile][channel][tap][output of the tile],
//   tile of pixels, tile of outputs.
// So inputs come once from L2 per block of outputs, and weights stream at 2.7 bytes a cycle. Sums
// continue from chunk to chunk in y itself. Where the channels of one pixel fall into the same few
// L1 sets (images of a multiple of 64 pixels), `gather` copies a tile's inputs side by side first.
//
// The order of a sum is (channel, tap row, tap column), starting from the bias: nothing above
// changes it. Taps outside the image are not in a pixel's class and never added.
//
// Where the plan cuts the input channels into canonical shards, no chunk goes beyond a shard. A
// shard's sums start from 0; once its last chunk is done they are added, still in registers, to the
// finished sums that wait for them in the tree of ops.def. Of these the leftmost wait in y, the
// others, at most log2(shards) per pixel and output of a strip, in scratch memory in L2, a tile's
// side by side. So cuts cost one store and one load of a sum per shard, no pass over memory.
//
// Measured: `convnet_bench --case conv --threads 1`, see tools/bench/README.md for the figures.
#include "framework/backends/cpu/kernels/table.h"
#include "framework/backends/cpu/kernels/vec.h"
#include "framework/backends/cpu/kernels/vec_math.h"

namespace convnet::cpu::CONVNET_ISA {
namespace {

constexpr int kMaxOutputs = 8;
constexpr int kMaxPixels = 6;

// Three loops, outermost first: counts, and the steps of inputs and weights.
struct Nest {
  int64_t n[3], x[3], w[3];
};

// Where a tile's sums stand: of pixel p and output o of the block at at[p] + o * output.
struct Sums {
  float* at[kMaxPixels];
  int64_t output;
};

struct Tile {
  const float* x[kMaxPixels];
  Nest nest;
  Sums sums[kMaxMacLevels];  // 0: y
};

// What becomes of a tile's sums before and after a chunk.
struct Ends {
  int64_t output;     // the tile's first, in the block
  int64_t level;      // where they stand
  const float* init;  // their start, one per output; null: continue from where they stand
  int64_t merges;     // waiting sums to add, those of the next level below first
  const float* bias;  // to add after that, one per output, or null
  bool relu;
  bool stream;  // store past the caches
};

using TileFunction = void (*)(const Tile& tile, const float* w, const Ends& ends);

template <int O, int P>
void mac_tile(const Tile& tile, const float* w, const Ends& ends) {
  const float* x[P];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) x[p] = tile.x[p];
  Vec sum[O][P];
  if (ends.init != nullptr) {
#pragma GCC unroll 8
    for (int o = 0; o < O; ++o) {
      const Vec start = set1(ends.init[o]);
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) sum[o][p] = start;
    }
  } else {
    const Sums& from = tile.sums[ends.level];
    const int64_t first = ends.output * from.output;
#pragma GCC unroll 8
    for (int o = 0; o < O; ++o)
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) sum[o][p] = load(from.at[p] + (first + o * from.output));
  }
  const Nest& nest = tile.nest;
  const int64_t n0 = nest.n[0], n1 = nest.n[1], n2 = nest.n[2];
  const int64_t x2 = nest.x[2], w2 = nest.w[2];
  int64_t at0 = 0;
  for (int64_t i = 0; i < n0; ++i, at0 += nest.x[0], w += nest.w[0]) {
    int64_t at1 = at0;
    const float* w1 = w;
    for (int64_t j = 0; j < n1; ++j, at1 += nest.x[1], w1 += nest.w[1]) {
      int64_t at = at1;
      const float* weight = w1;
      for (int64_t k = n2; k > 0; --k, at += x2, weight += w2) {
        Vec pixel[P];
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) pixel[p] = load(x[p] + at);
#pragma GCC unroll 8
        for (int o = 0; o < O; ++o) {
          const Vec b = set1(weight[o]);
#pragma GCC unroll 8
          for (int p = 0; p < P; ++p) sum[o][p] = fma(b, pixel[p], sum[o][p]);
        }
      }
    }
  }
  for (int64_t m = 1; m <= ends.merges; ++m) {
    const Sums& waiting = tile.sums[ends.level - m];
    const int64_t first = ends.output * waiting.output;
#pragma GCC unroll 8
    for (int o = 0; o < O; ++o)
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p)
        sum[o][p] = load(waiting.at[p] + (first + o * waiting.output)) + sum[o][p];
  }
  if (ends.bias != nullptr) {
#pragma GCC unroll 8
    for (int o = 0; o < O; ++o)
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) sum[o][p] = sum[o][p] + set1(ends.bias[o]);
  }
  if (ends.relu) {
#pragma GCC unroll 8
    for (int o = 0; o < O; ++o)
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) sum[o][p] = max(zero(), sum[o][p]);
  }
  const Sums& to = tile.sums[ends.level - ends.merges];
  const int64_t first = ends.output * to.output;
  if (ends.stream) {
#pragma GCC unroll 8
    for (int o = 0; o < O; ++o)
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) stream(to.at[p] + (first + o * to.output), sum[o][p]);
    return;
  }
#pragma GCC unroll 8
  for (int o = 0; o < O; ++o)
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) store(to.at[p] + (first + o * to.output), sum[o][p]);
}

#if defined(__AVX512F__)
constexpr TileFunction kTiles[kMaxOutputs][kMaxPixels] = {
    {mac_tile<1, 1>, mac_tile<1, 2>, mac_tile<1, 3>, mac_tile<1, 4>, mac_tile<1, 5>,
     mac_tile<1, 6>},
    {mac_tile<2, 1>, mac_tile<2, 2>, mac_tile<2, 3>, mac_tile<2, 4>, mac_tile<2, 5>,
     mac_tile<2, 6>},
    {mac_tile<3, 1>, mac_tile<3, 2>, mac_tile<3, 3>, mac_tile<3, 4>, mac_tile<3, 5>,
     mac_tile<3, 6>},
    {mac_tile<4, 1>, mac_tile<4, 2>, mac_tile<4, 3>, mac_tile<4, 4>, mac_tile<4, 5>,
     mac_tile<4, 6>},
    {mac_tile<5, 1>, mac_tile<5, 2>, mac_tile<5, 3>, mac_tile<5, 4>},
    {mac_tile<6, 1>, mac_tile<6, 2>, mac_tile<6, 3>, mac_tile<6, 4>},
    {mac_tile<7, 1>, mac_tile<7, 2>, mac_tile<7, 3>},
    {mac_tile<8, 1>, mac_tile<8, 2>, mac_tile<8, 3>},
};
#else
constexpr TileFunction kTiles[kMaxOutputs][kMaxPixels] = {
    {mac_tile<1, 1>, mac_tile<1, 2>, mac_tile<1, 3>, mac_tile<1, 4>, mac_tile<1, 5>,
     mac_tile<1, 6>},
    {mac_tile<2, 1>, mac_tile<2, 2>},
    {mac_tile<3, 1>},
    {mac_tile<4, 1>},
    {mac_tile<5, 1>},
    {mac_tile<6, 1>},
};
#endif

constexpr float kZeros[kMaxOutputs] = {};

CONVNET_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
CONVNET_INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// Drops loops of one round and joins loops that walk on in equal steps, so that the innermost loop
// is long; the order of the rounds stays.
Nest joined(const int64_t (&n)[3], const int64_t (&x)[3], const int64_t (&w)[3]) {
  Nest out = {{1, 1, 1}, {0, 0, 0}, {0, 0, 0}};
  int at = 2;
  bool open = false;
  for (int i = 2; i >= 0; --i) {
    if (n[i] == 1) continue;
    if (open && x[i] == out.n[at] * out.x[at] && w[i] == out.n[at] * out.w[at]) {
      out.n[at] *= n[i];
      continue;
    }
    if (open) --at;
    open = true;
    out.n[at] = n[i];
    out.x[at] = x[i];
    out.w[at] = w[i];
  }
  return out;
}

// to[t * width + o] = w[o * w_out + t] for o < width, t < n. Writes up to 8 floats beyond the end.
void pack_rows(const float* w, int64_t w_out, int64_t width, int64_t n, float* to) {
  int64_t t = 0;
  for (; t + 8 <= n; t += 8) {
    __m256 a[8];
    for (int o = 0; o < 8; ++o) a[o] = _mm256_loadu_ps(w + (o < width ? o : 0) * w_out + t);
    transpose8(a);
    for (int i = 0; i < 8; ++i) _mm256_storeu_ps(to + (t + i) * width, a[i]);
  }
  for (; t < n; ++t)
    for (int64_t o = 0; o < width; ++o) to[t * width + o] = w[o * w_out + t];
}

// The first `width` of eight floats.
CONVNET_INLINE __m256i first_floats(int64_t width) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(width)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

// Weights of outputs [0, outputs) and `inputs` input channels as [tile][input][tap][output].
void pack(const MacProblem& p, const float* w, int64_t outputs, int64_t inputs, float* to) {
  const int64_t tile = p.tile_outputs;
  if (p.taps == 1 && p.w_out == 1) {
    // Rows of consecutive outputs, cut into tiles; whole rows at a time, as they lie in memory.
    const int64_t rest = outputs % tile;
    const __m256i whole = first_floats(tile), part = first_floats(rest);
    for (int64_t i = 0; i < inputs; ++i) {
      const float* from = w + i * p.w_in;
      for (int64_t o = 0; o < outputs - rest; o += tile)
        _mm256_maskstore_ps(to + o * inputs + i * tile, whole, _mm256_maskload_ps(from + o, whole));
      const int64_t o = outputs - rest;
      if (rest > 0)
        _mm256_maskstore_ps(to + o * inputs + i * rest, part, _mm256_maskload_ps(from + o, part));
    }
    return;
  }
  for (int64_t o = 0; o < outputs; o += tile) {
    const int64_t width = smaller(tile, outputs - o);
    const float* from = w + o * p.w_out;
    float* panel = to + o * inputs * p.taps;
    if (p.w_in == p.taps) {
      pack_rows(from, p.w_out, width, inputs * p.taps, panel);
    } else {
      for (int64_t i = 0; i < inputs; ++i)
        pack_rows(from + i * p.w_in, p.w_out, width, p.taps, panel + i * p.taps * width);
    }
  }
}

// The classes' pixels of one strip, tile by tile.
struct Strip {
  const MacProblem* problem;
  const MacGroup* group;
  int64_t block_lo, block_hi, row_lo, row_hi;
  const MacChunk* chunk;
  bool last;                // it is the last one
  int64_t output, outputs;  // the block of outputs
  const float* panel;
  float* gathered;
  float* levels;   // sums that wait, but those in y
  int64_t pixels;  // in tiles before
};

// Copies the tile's inputs to `to` as [channel][tap][pixel].
void gather(const Tile& tile, int64_t pixels, const int64_t (&n)[3], const int64_t (&x)[3],
            float* to) {
  for (int64_t c = 0; c < n[0]; ++c)
    for (int64_t r = 0; r < n[1]; ++r)
      for (int64_t s = 0; s < n[2]; ++s) {
        const int64_t at = c * x[0] + r * x[1] + s * x[2];
        for (int64_t p = 0; p < pixels; ++p, to += kVec) store(to, load(tile.x[p] + at));
      }
}

void run_tile(const Strip& s, Tile& tile, int64_t pixels, const AxisClass& rows,
              const AxisClass& columns) {
  const MacProblem& p = *s.problem;
  const MacChunk& chunk = *s.chunk;
  const int64_t n[3] = {chunk.inputs, rows.taps, columns.taps};
  int64_t x[3] = {p.x_channel, rows.in_tap * p.x_row, columns.in_tap * kVec};
  if (p.gather) {
    gather(tile, pixels, n, x, s.gathered);
    for (int64_t i = 0; i < pixels; ++i) tile.x[i] = s.gathered + i * kVec;
    x[2] = pixels * kVec;
    x[1] = n[2] * x[2];
    x[0] = n[1] * x[1];
  }
  for (int64_t l = 1; l < p.levels; ++l) {
    Sums& waiting = tile.sums[l];
    waiting.output = pixels * kVec;
    for (int64_t i = 0; i < pixels; ++i)
      waiting.at[i] = s.levels + (l - 1) * p.level_floats + (s.pixels * s.outputs + i) * kVec;
  }
  Ends ends;
  ends.level = chunk.level;
  ends.merges = chunk.merges;
  ends.relu = s.last && p.act == kActRelu;
  ends.stream = p.stream;
  const float* bias = s.group->bias != nullptr ? s.group->bias + s.output : nullptr;
  const int64_t first_tap = rows.tap * p.tap_columns + columns.tap;
  for (int64_t o = 0; o < s.outputs; o += p.tile_outputs) {
    const int64_t width = smaller(p.tile_outputs, s.outputs - o);
    if (o == 0 || width != p.tile_outputs) {
      const int64_t w[3] = {p.taps * width, rows.tap_step * p.tap_columns * width,
                            columns.tap_step * width};
      tile.nest = joined(n, x, w);
    }
    ends.output = o;
    ends.init = nullptr;
    ends.bias = nullptr;
    if (chunk.begin) ends.init = bias != nullptr && !p.bias_last ? bias + o : kZeros;
    if (s.last && bias != nullptr && p.bias_last) ends.bias = bias + o;
    kTiles[width - 1][pixels - 1](tile, s.panel + o * chunk.inputs * p.taps + first_tap * width,
                                  ends);
    if (s.last && p.act > kActRelu)
      for (int64_t f = 0; f < width; ++f)
        for (int64_t i = 0; i < pixels; ++i) {
          float* y = tile.sums[0].at[i] + (o + f) * p.y_channel;
          store(y, activate(p.act, load(y)));
        }
  }
}

struct Range {
  int64_t lo, hi;
};

// The rows of a class that the strip holds.
Range strip_rows(const Strip& s, const AxisClass& rows) {
  const auto count = [&](int64_t row) {
    return row <= rows.out
               ? int64_t{0}
               : smaller(rows.count, (row - rows.out + rows.out_step - 1) / rows.out_step);
  };
  return {count(s.row_lo), count(s.row_hi)};
}

void run_class(Strip& s, const AxisClass& rows, const AxisClass& columns) {
  const MacProblem& p = *s.problem;
  const Range in = strip_rows(s, rows);
  const float* x = s.group->x + s.chunk->input * p.x_channel + columns.in * kVec;
  float* y = s.group->y + s.output * p.y_channel + columns.out * kVec;
  Tile tile;
  tile.sums[0].output = p.y_channel;
  int64_t pixels = 0;
  for (int64_t i = in.lo; i < in.hi; ++i)
    for (int64_t b = s.block_lo; b < s.block_hi; ++b) {
      const float* x_row = x + b * p.x_block + (rows.in + i * rows.in_step) * p.x_row;
      float* y_row = y + b * p.y_block + (rows.out + i * rows.out_step) * p.y_row;
      for (int64_t j = 0; j < columns.count; ++j) {
        tile.x[pixels] = x_row + j * columns.in_step * kVec;
        tile.sums[0].at[pixels] = y_row + j * columns.out_step * kVec;
        if (++pixels == p.tile_pixels) {
          run_tile(s, tile, pixels, rows, columns);
          s.pixels += pixels;
          pixels = 0;
        }
      }
    }
  if (pixels == 0) return;
  run_tile(s, tile, pixels, rows, columns);
  s.pixels += pixels;
}

// Brings the strip's inputs into L2, channel after channel, in the order in which they lie in
// memory; the tiles' own order, a few lines of each channel, is beyond what the processor foresees.
void fetch(const Strip& s) {
  const MacProblem& p = *s.problem;
  int64_t row_lo = INT64_MAX, row_hi = 0;
  for (int64_t r = 0; r < p.row_classes; ++r) {
    const AxisClass& rows = p.rows[r];
    const Range in = strip_rows(s, rows);
    if (in.lo >= in.hi || rows.taps == 0) continue;
    const int64_t first = rows.in + in.lo * rows.in_step;
    const int64_t last = rows.in + (in.hi - 1) * rows.in_step;
    const int64_t reach = (rows.taps - 1) * rows.in_tap;
    row_lo = smaller(row_lo, first + smaller(0, reach));
    row_hi = larger(row_hi, last + larger(0, reach) + 1);
  }
  for (int64_t b = s.block_lo; b < s.block_hi; ++b)
    for (int64_t c = s.chunk->input; c < s.chunk->input + s.chunk->inputs; ++c)
      for (int64_t r = row_lo; r < row_hi; ++r) {
        const float* row = s.group->x + b * p.x_block + c * p.x_channel + r * p.x_row;
        for (int64_t i = 0; i < p.x_columns; ++i) _mm_prefetch(row + i * kVec, _MM_HINT_T1);
      }
}

}  // namespace

void mac(const MacProblem& p, const MacPart& part, float* scratch) {
  const MacGroup& group = p.groups[part.group];
  Strip s;
  s.problem = &p;
  s.group = &group;
  s.panel = scratch;
  s.gathered = scratch + p.panel_floats;
  s.levels = s.gathered + p.gathered_floats;
  const MacChunk* const chunks_end = group.chunks + group.chunk_count;
  if (p.pack_all) {
    const int64_t outputs = part.output_hi - part.output_lo;
    for (const MacChunk* c = group.chunks; c < chunks_end; ++c)
      pack(p, group.w + part.output_lo * p.w_out + c->input * p.w_in, outputs, c->inputs,
           scratch + c->input * p.taps * outputs);
  }
  int64_t packed_input = -1, packed_output = -1;
  for (int64_t block = part.block_lo; block < part.block_hi; block += p.strip_blocks) {
    s.block_lo = block;
    s.block_hi = smaller(block + p.strip_blocks, part.block_hi);
    for (int64_t row = part.row_lo; row < part.row_hi; row += p.strip_rows) {
      s.row_lo = row;
      s.row_hi = smaller(row + p.strip_rows, part.row_hi);
      for (int64_t o = part.output_lo; o < part.output_hi; o += p.out_block) {
        s.output = o;
        s.outputs = smaller(p.out_block, part.output_hi - o);
        for (const MacChunk* c = group.chunks; c < chunks_end; ++c) {
          s.chunk = c;
          s.last = c + 1 == chunks_end;
          if (p.pack_all) {
            s.panel = scratch + c->input * p.taps * s.outputs;
          } else if (packed_input != c->input || packed_output != o) {
            pack(p, group.w + o * p.w_out + c->input * p.w_in, s.outputs, c->inputs, scratch);
            packed_input = c->input;
            packed_output = o;
          }
          if (o == part.output_lo || group.chunk_count > 1) fetch(s);
          s.pixels = 0;
          for (int64_t r = 0; r < p.row_classes; ++r)
            for (int64_t q = 0; q < p.column_classes; ++q) run_class(s, p.rows[r], p.columns[q]);
        }
      }
    }
  }
  if (p.stream) _mm_sfence();
}

void describe_mac(CpuKernels* table) {
  table->mac = mac;
  for (int o = 1; o <= kMaxOutputs; ++o) {
    table->mac_pixels[o] = 0;
    for (int p = 1; p <= kMaxPixels; ++p)
      if (kTiles[o - 1][p - 1] != nullptr) table->mac_pixels[o] = p;
  }
}

}  // namespace convnet::cpu::CONVNET_ISA
