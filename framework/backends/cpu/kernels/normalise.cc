// Local response normalisation across channels, one row of one block, all channels.
//
// Forward: for a few pixels at a time, channel after channel; the window's sum of squares is taken
// anew for each channel, in ascending order, since a sliding sum would depend on where it began.
// The window's inputs are in L1 from the channels before. Backward first writes dy * y / scale of a
// few pixels and all channels to scratch memory, so that each quotient is taken once, not `size`
// times. scale^-beta is sqrt(sqrt(s)) / s for the usual beta = 3/4 (correctly rounded operations,
// relative error at most 2.5 * 2^-24), else exp(-beta log s).
//
// Measured: `convnet_bench --case lrn`, see tools/bench/README.md for the figures.
#include "framework/backends/cpu/kernels/table.h"
#include "framework/backends/cpu/kernels/vec.h"
#include "framework/backends/cpu/kernels/vec_math.h"

namespace convnet::cpu::CONVNET_ISA {
namespace {

// Pixels at a time: 5 channels' windows of 8 Vecs are 2.5 KB, and each channel is read in 512-byte
// runs.
constexpr int64_t kPixels = 8;

CONVNET_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
CONVNET_INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

CONVNET_INLINE Vec shrink(const LrnProblem& p, Vec scale) {
  if (!p.sqrt_power) return power(scale, set1(p.beta));
  return sqrt(sqrt(scale)) / scale;
}

CONVNET_INLINE float* row_of(const Tensor4& t, int64_t block, int64_t row) {
  return t.data + block * t.block + row * t.row;
}

void lrn_fwd(const LrnProblem& p, int64_t block, int64_t row) {
  const float* x = row_of(p.x, block, row);
  float* y = row_of(p.y, block, row);
  float* scale = row_of(p.scale, block, row);
  const Vec k = set1(p.k), factor = set1(p.factor);
  for (int64_t first = 0; first < p.y.columns; first += kPixels) {
    const int64_t last = smaller(first + kPixels, p.y.columns);
    for (int64_t i = 0; i < p.y.channels; ++i) {
      const int64_t c = p.out_first + i;
      const int64_t lo = larger(c - p.size / 2, 0) - p.x_first;
      const int64_t hi = smaller(c + p.size / 2 + 1, p.channels) - p.x_first;
      const float* own = x + (c - p.x_first) * p.x.channel;
      for (int64_t w = first; w < last; ++w) {
        Vec sum = zero();
        for (int64_t j = lo; j < hi; ++j) {
          const Vec value = load(x + j * p.x.channel + w * kVec);
          sum = fma(value, value, sum);
        }
        const Vec s = fma(factor, sum, k);
        store(scale + i * p.scale.channel + w * kVec, s);
        store(y + i * p.y.channel + w * kVec, load(own + w * kVec) * shrink(p, s));
      }
    }
  }
}

// scratch: kPixels Vecs for each channel of dy's box.
void lrn_bwd(const LrnProblem& p, int64_t block, int64_t row, float* scratch) {
  const float* x = row_of(p.x, block, row);
  const float* y = row_of(p.y, block, row);
  const float* scale = row_of(p.scale, block, row);
  const float* dy = row_of(p.dy, block, row);
  float* dx = row_of(p.dx, block, row);
  // Channels whose quotients are needed: those of the windows around dx's.
  const int64_t need_lo = larger(p.out_first - p.size / 2, 0);
  const int64_t need_hi = smaller(p.out_first + p.dx.channels + p.size / 2, p.channels);
  const Vec factor = set1(p.factor);
  for (int64_t first = 0; first < p.dx.columns; first += kPixels) {
    const int64_t count = smaller(kPixels, p.dx.columns - first);
    const int64_t at = first * kVec;
    for (int64_t c = need_lo; c < need_hi; ++c)
      for (int64_t w = 0; w < count; ++w)
        store(scratch + ((c - need_lo) * kPixels + w) * kVec,
              load(dy + (c - p.dy_first) * p.dy.channel + at + w * kVec) *
                  load(y + (c - p.y_first) * p.y.channel + at + w * kVec) /
                  load(scale + (c - p.scale_first) * p.scale.channel + at + w * kVec));
    for (int64_t i = 0; i < p.dx.channels; ++i) {
      const int64_t c = p.out_first + i;
      const int64_t lo = larger(c - p.size / 2, 0) - need_lo;
      const int64_t hi = smaller(c + p.size / 2 + 1, p.channels) - need_lo;
      for (int64_t w = 0; w < count; ++w) {
        Vec sum = zero();
        for (int64_t j = lo; j < hi; ++j) sum = sum + load(scratch + (j * kPixels + w) * kVec);
        const Vec s = load(scale + (c - p.scale_first) * p.scale.channel + at + w * kVec);
        const Vec gradient = load(dy + (c - p.dy_first) * p.dy.channel + at + w * kVec);
        const Vec value = load(x + (c - p.x_first) * p.x.channel + at + w * kVec);
        store(dx + i * p.dx.channel + at + w * kVec,
              fnma(factor * value, sum, gradient * shrink(p, s)));
      }
    }
  }
}

}  // namespace

void describe_normalise(CpuKernels* table) {
  table->lrn_fwd = lrn_fwd;
  table->lrn_bwd = lrn_bwd;
}

}  // namespace convnet::cpu::CONVNET_ISA
