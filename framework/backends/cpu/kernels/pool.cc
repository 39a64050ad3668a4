// Maximum and mean pooling, one channel of one block of sixteen samples at a time.
//
// Forward walks over the windows, rows then columns. The maximum's backward finds each window's
// first maximum again, lane by lane (the number of the pixel rides along with its value), and adds
// dy there; the mean's adds dy / pixels to the whole window. Both walk over the windows in rows,
// then columns, so the order in which a pixel's terms are added follows from the logical shape.
// A channel's rows stay in L1 or L2 while the windows pass over them: one pass over memory.
//
// Measured: `convnet_bench --case pool`, see tools/bench/README.md for the figures.
#include "framework/backends/cpu/kernels/table.h"
#include "framework/backends/cpu/kernels/vec.h"

namespace convnet::cpu::CONVNET_ISA {
namespace {

CONVNET_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
CONVNET_INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

struct Range {
  int64_t lo, hi;
};

// Rows (axis 0) or columns (axis 1) of the image under window p.
Range window(const PoolProblem& p, int axis, int64_t at) {
  const int64_t first = at * p.stride[axis] - p.pad[axis];
  return {larger(first, 0), smaller(first + p.kernel[axis], p.image[axis])};
}

// The part of a range that a box of `extent` from `first` holds, relative to it.
Range inside(Range r, int64_t first, int64_t extent) {
  return {larger(r.lo - first, 0), smaller(r.hi - first, extent)};
}

CONVNET_INLINE float* plane(const Tensor4& t, int64_t block, int64_t channel) {
  return t.data + block * t.block + channel * t.channel;
}

float pixels(Range rows, Range columns) {
  return static_cast<float>((rows.hi - rows.lo) * (columns.hi - columns.lo));
}

void pool_max_fwd(const PoolProblem& p, int64_t block, int64_t channel) {
  const float* x = plane(p.x, block, channel);
  float* y = plane(p.y, block, channel);
  for (int64_t i = 0; i < p.y.rows; ++i) {
    const Range rows = inside(window(p, 0, p.y_first[0] + i), p.x_first[0], p.x.rows);
    for (int64_t j = 0; j < p.y.columns; ++j) {
      const Range columns = inside(window(p, 1, p.y_first[1] + j), p.x_first[1], p.x.columns);
      Vec best = load(x + rows.lo * p.x.row + columns.lo * kVec);
      for (int64_t h = rows.lo; h < rows.hi; ++h)
        for (int64_t w = columns.lo; w < columns.hi; ++w)
          best = max(load(x + h * p.x.row + w * kVec), best);
      store(y + i * p.y.row + j * kVec, best);
    }
  }
}

void clear(const Tensor4& t, float* to) {
  for (int64_t h = 0; h < t.rows; ++h)
    for (int64_t w = 0; w < t.columns; ++w) store(to + h * t.row + w * kVec, zero());
}

void pool_max_bwd(const PoolProblem& p, int64_t block, int64_t channel) {
  const float* x = plane(p.x, block, channel);
  const float* dy = plane(p.y, block, channel);
  float* dx = plane(p.dx, block, channel);
  clear(p.dx, dx);
  for (int64_t i = 0; i < p.y.rows; ++i) {
    const Range rows = inside(window(p, 0, p.y_first[0] + i), p.x_first[0], p.x.rows);
    for (int64_t j = 0; j < p.y.columns; ++j) {
      const Range columns = inside(window(p, 1, p.y_first[1] + j), p.x_first[1], p.x.columns);
      Vec best = load(x + rows.lo * p.x.row + columns.lo * kVec);
      IVec where = iset1(0);
      int32_t number = 0;
      for (int64_t h = rows.lo; h < rows.hi; ++h)
        for (int64_t w = columns.lo; w < columns.hi; ++w, ++number) {
          const Vec value = load(x + h * p.x.row + w * kVec);
          where = select(value > best, iset1(number), where);
          best = max(value, best);
        }
      const Vec gradient = load(dy + i * p.y.row + j * kVec);
      number = 0;
      for (int64_t h = rows.lo; h < rows.hi; ++h) {
        const int64_t to_row = h + p.x_first[0] - p.dx_first[0];
        for (int64_t w = columns.lo; w < columns.hi; ++w, ++number) {
          const int64_t to_column = w + p.x_first[1] - p.dx_first[1];
          if (to_row < 0 || to_row >= p.dx.rows || to_column < 0 || to_column >= p.dx.columns)
            continue;
          float* to = dx + to_row * p.dx.row + to_column * kVec;
          const Vec old = load(to);
          store(to, select(where == iset1(number), old + gradient, old));
        }
      }
    }
  }
}

void pool_avg_fwd(const PoolProblem& p, int64_t block, int64_t channel) {
  const float* x = plane(p.x, block, channel);
  float* y = plane(p.y, block, channel);
  for (int64_t i = 0; i < p.y.rows; ++i) {
    const Range all_rows = window(p, 0, p.y_first[0] + i);
    const Range rows = inside(all_rows, p.x_first[0], p.x.rows);
    for (int64_t j = 0; j < p.y.columns; ++j) {
      const Range all_columns = window(p, 1, p.y_first[1] + j);
      const Range columns = inside(all_columns, p.x_first[1], p.x.columns);
      Vec sum = zero();
      for (int64_t h = rows.lo; h < rows.hi; ++h)
        for (int64_t w = columns.lo; w < columns.hi; ++w)
          sum = sum + load(x + h * p.x.row + w * kVec);
      store(y + i * p.y.row + j * kVec, sum / set1(pixels(all_rows, all_columns)));
    }
  }
}

void pool_avg_bwd(const PoolProblem& p, int64_t block, int64_t channel) {
  const float* dy = plane(p.y, block, channel);
  float* dx = plane(p.dx, block, channel);
  clear(p.dx, dx);
  for (int64_t i = 0; i < p.y.rows; ++i) {
    const Range all_rows = window(p, 0, p.y_first[0] + i);
    const Range rows = inside(all_rows, p.dx_first[0], p.dx.rows);
    for (int64_t j = 0; j < p.y.columns; ++j) {
      const Range all_columns = window(p, 1, p.y_first[1] + j);
      const Range columns = inside(all_columns, p.dx_first[1], p.dx.columns);
      const Vec part = load(dy + i * p.y.row + j * kVec) / set1(pixels(all_rows, all_columns));
      for (int64_t h = rows.lo; h < rows.hi; ++h)
        for (int64_t w = columns.lo; w < columns.hi; ++w) {
          float* to = dx + h * p.dx.row + w * kVec;
          store(to, load(to) + part);
        }
    }
  }
}

}  // namespace

void describe_pool(CpuKernels* table) {
  table->pool_max_fwd = pool_max_fwd;
  table->pool_max_bwd = pool_max_bwd;
  table->pool_avg_fwd = pool_avg_fwd;
  table->pool_avg_bwd = pool_avg_bwd;
}

}  // namespace convnet::cpu::CONVNET_ISA
