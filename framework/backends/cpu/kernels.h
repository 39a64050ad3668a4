// The contract between the generic side of the cpu backend (binding, geometry, threads) and its
// kernels, which are compiled once per instruction set: plain structs and a table of functions. No
// functions, no standard library: a file compiled for an instruction set includes only this.
//
// Sizes and strides are in floats unless they say otherwise. Activations lie as [block][channel]
// [row][column][16]; the stride of a column is always 16. Pointers and indices are relative to the
// box of an operand, not to what its buffer stores.
#pragma once

#include <stdint.h>

namespace convnet::cpu {

enum Act : int32_t { kActNone, kActRelu, kActTanh, kActSigmoid };

// An activation's box.
struct Tensor4 {
  float* data;
  int64_t block, channel, row;  // strides
  int64_t blocks, channels, rows, columns;
};

// ---- mac: convolution forward and backward data, fully connected forward and backward data ----

// Output rows (or columns) that see the same taps: out + i * out_step for i < count. The first
// tap of pixel i lies at input index in + i * in_step, tap j of it at in_tap * j further on.
struct AxisClass {
  int64_t out, out_step, count;
  int64_t in, in_step;
  int64_t tap, tap_step, taps;  // tap + j * tap_step for j < taps
  int64_t in_tap;
};

// Input channels [input, input + inputs) at a time: all of a canonical shard, or some.
struct MacChunk {
  int64_t input, inputs;
  int64_t level;   // where the shard's sums stand meanwhile: 0: in y, else in scratch memory
  int32_t begin;   // it is the first of its shard
  int32_t merges;  // how many finished sums of the levels below are added once it is done
};

constexpr int kMaxMacLevels = 8;  // of the tree over shards: enough for 128

// Channels that see each other.
struct MacGroup {
  const float* x;     // first input channel, at the box's first row and column
  float* y;           // first output channel
  const float* w;     // weight of the first output and input, tap (0, 0)
  const float* bias;  // of the first output, or null
  int64_t outputs, inputs;
  const MacChunk* chunks;  // one at least, in order
  int64_t chunk_count;
};

// y[o](pixel) = act(bias[o] + sum over inputs i, tap rows r, tap columns s, in this order, of
// w[o][i][r][s] * x[i](pixel's tap)), or with shards act(tree over the shards' sums + bias[o]).
struct MacProblem {
  const MacGroup* groups;
  int64_t x_block, x_channel, x_row, x_columns;
  int64_t y_block, y_channel, y_row;
  int64_t w_out, w_in;        // strides of the weights; tap (r, s) lies at r * tap_columns + s
  int64_t taps, tap_columns;  // of the whole window
  const AxisClass *rows, *columns;
  int64_t row_classes, column_classes;
  int32_t act;
  int32_t bias_last;  // the bias is added to the sum, instead of the sum to it
  int64_t levels;     // of sums, that in y included
  // Blocking, free as far as results go; see mac.cc.
  int32_t tile_outputs, tile_pixels;
  int32_t gather;    // copy a tile's inputs side by side first
  int32_t stream;    // store results past the caches
  int32_t pack_all;  // pack all weights of a part once; it is one block of outputs
  int64_t chunk;     // most input channels of a chunk
  int64_t out_block, strip_rows, strip_blocks;
  // Scratch memory: packed weights, gathered inputs, levels of sums.
  int64_t panel_floats, gathered_floats, level_floats;
};

// A thread's part of it.
struct MacPart {
  int64_t group;
  int64_t output_lo, output_hi, block_lo, block_hi, row_lo, row_hi;
};

// ---- weight gradient ----

// An element (c, r, s) of a filter: where its inputs lie, and for which output pixels.
struct Tap {
  int64_t x;                               // of the input under output pixel (0, 0); may be outside
  int32_t row_lo, row_hi, col_lo, col_hi;  // output pixels whose input is there
  int64_t index;                           // of the element in the filter (its place in dw)
  int64_t channel;
  int64_t alike;  // taps from this one on that have the same pixels
};

// A canonical shard: blocks, rows and columns of dy, and how many finished sums to the left are
// added once it is done (the tree of ops.def).
struct ShardLeaf {
  int64_t block_lo, block_hi, row_lo, row_hi, column_lo, column_hi;
  int64_t merges;
};

struct WeightGroup {
  const float* x;   // first input channel
  const float* dy;  // first filter
  float* dw;        // its gradient, element 0
  float* db;        // or null
  int64_t filters;
};

struct WeightProblem {
  const WeightGroup* groups;
  int64_t x_block, x_step_row, x_step_column;  // steps: to the next output row or column
  int64_t dy_block, dy_channel, dy_row;
  int64_t rows, columns;  // of dy
  int64_t dw_filter;
  const Tap* taps;  // all elements of a filter, those with the same pixels next to each other ...
  int64_t tap_count;
  const ShardLeaf* leaves;
  int64_t leaf_count;
  int32_t planes;  // the shards are of blocks only: each has all rows and columns
  int64_t levels;  // sums that wait at the same time, at most
  // Blocking, free as far as results go; see weight_gradient.cc.
  int32_t stream;     // store dw past the caches
  int32_t keep;       // transpose all of dy once instead of strip by strip
  int64_t tap_block;  // elements at a time
  int64_t strip_blocks, strip_rows, strip_columns;
  int64_t blocks;      // of dy
  int64_t last_lanes;  // samples of its last block; the other lanes are left out
};

// Filters [filter_lo, filter_hi), elements [tap_lo, tap_hi) of `taps`; with `bias` their db too.
struct WeightPart {
  int64_t group, filter_lo, filter_hi, tap_lo, tap_hi;
  int32_t bias;
};

// ---- the rest: one (block, channel) or the like at a time ----

struct PoolProblem {
  Tensor4 x, y;  // or dx, dy
  int64_t kernel[2], stride[2], pad[2], image[2];
  int64_t x_first[2], y_first[2];  // logical row and column of the boxes' first
  // Backward: dx's box may be smaller than x's.
  Tensor4 dx;
  int64_t dx_first[2];
};

struct LrnProblem {
  Tensor4 x, y, scale, dy, dx;  // forward: x, y, scale
  int64_t size, channels;       // channels of the logical tensor
  int64_t x_first, y_first, scale_first, dy_first,
      out_first;          // logical channel of the boxes' first
  float k, factor, beta;  // factor: alpha / size, or 2 alpha beta / size
  int32_t sqrt_power;     // beta is 0.75
};

struct DropoutProblem {
  Tensor4 x, y;
  const int64_t* examples;          // the first of each block of y
  int64_t first[3];                 // logical channel, row and column of y's box
  int64_t channels, rows, columns;  // of the logical tensor
  uint32_t threshold;               // kept if the upper 24 bits are at least this
  float kept;                       // 1 - rate
};

struct SgdStep {
  float rate, scale, decay, momentum;
};

struct SoftmaxProblem {
  const float* x;
  float* y;
  int64_t x_block, x_channel, y_block, y_channel, classes;
  int64_t first;  // the first of the classes
};

// Softmax by canonical shards of the classes; stats: of a shard the largest score, the sum of
// exp(score - largest), and the label's score or -infinity. p: y is prob (or unused).
struct SoftmaxShards {
  SoftmaxProblem p;
  const int64_t* cuts;  // of the classes [0, p.classes), the ends included
  int64_t shards, first_shard;
  float* stats;  // of shard 0 of all
  int64_t stats_block, stats_channel, all_shards;
  const int32_t* merges;  // of the tree over all shards
  float* rank;            // of shard first_shard
  int64_t rank_block, rank_channel;
};

struct CpuKernels {
  // Tile limits: for each number of outputs (1 .. 8) the most pixels; 0: no such tile.
  int32_t mac_pixels[9];
  // For each number of filter vectors (1 .. 4) the taps of a tile; 0: no such tile.
  int32_t weight_taps[5];

  void (*mac)(const MacProblem& problem, const MacPart& part, float* scratch);
  void (*weight)(const WeightProblem& problem, const WeightPart& part, float* scratch);
  // The form for few filters a group: one filter, lanes summed at the end.
  void (*weight_dot)(const WeightProblem& problem, const WeightPart& part, float* scratch);

  // One channel of one block.
  void (*pool_max_fwd)(const PoolProblem& problem, int64_t block, int64_t channel);
  void (*pool_max_bwd)(const PoolProblem& problem, int64_t block, int64_t channel);
  void (*pool_avg_fwd)(const PoolProblem& problem, int64_t block, int64_t channel);
  void (*pool_avg_bwd)(const PoolProblem& problem, int64_t block, int64_t channel);
  // Some rows of one block, all channels.
  void (*lrn_fwd)(const LrnProblem& problem, int64_t block, int64_t row);
  void (*lrn_bwd)(const LrnProblem& problem, int64_t block, int64_t row, float* scratch);
  void (*dropout)(const DropoutProblem& problem, const uint32_t key[2], int64_t block,
                  int64_t channel);

  // Arrays of n floats.
  void (*act_fwd)(const float* x, float* y, int64_t n, int32_t act);
  void (*bias_fwd)(const float* z, float bias, float* y, int64_t n, int32_t act);
  void (*act_bwd)(const float* y, const float* dy, float* dx, int64_t n, int32_t act);
  void (*add)(const float* const* x, int64_t terms, float* y, int64_t n, int32_t act);
  // The balanced tree over the terms; after term i the last merges[i] sums are added up.
  void (*sum)(const float* const* x, const int32_t* merges, int64_t terms, float* y, int64_t n);
  void (*update_sgd)(const float* dw, const float* w, const float* m, float* new_w, float* new_m,
                     int64_t n, SgdStep step);

  // One block. loss[i] = -log prob[label[i]]; rank[i]: classes that score higher; of lanes with a
  // label in range.
  void (*softmax_fwd)(const SoftmaxProblem& problem, int64_t block, const int32_t* label,
                      float* loss, int32_t* rank);
  void (*softmax_bwd)(const SoftmaxProblem& problem, int64_t block, const int32_t* label,
                      float factor);
  void (*softmax_stats)(const SoftmaxShards& problem, int64_t block, const int32_t* label);
  void (*softmax_norm)(const SoftmaxShards& problem, int64_t block, const int32_t* label);
  // As softmax_fwd, from the statistics and ranks of all shards.
  void (*softmax_loss)(const SoftmaxShards& problem, int64_t block, float* loss, int32_t* rank);
  // Register-only multiply-adds, for the machine's peak: the number of floating-point operations.
  int64_t (*peak)(int64_t iterations, float* sink);
};

const CpuKernels& kernels_avx2();
const CpuKernels& kernels_avx512();

}  // namespace convnet::cpu
