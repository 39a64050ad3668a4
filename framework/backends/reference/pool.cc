// Pooling, as ops.def defines it. Only pixels inside the image count, so the windows at the edges
// are smaller. Sums run over rows, then columns: of the window (average, forward), of the outputs
// whose windows hold the pixel (backward).
#include <algorithm>

#include "framework/backends/reference/access.h"
#include "framework/backends/reference/kernels.h"
#include "framework/backends/reference/require.h"

namespace convnet::reference {
namespace {

struct Range {
  int64_t lo, hi;
};

struct Geometry {
  std::array<int64_t, 2> kernel, stride, pad, image;

  // The rows (columns) of the image under the window of output row (column) p.
  Range window(size_t axis, int64_t p) const {
    const int64_t first = p * stride[axis] - pad[axis];
    return {std::max<int64_t>(first, 0), std::min(first + kernel[axis], image[axis])};
  }
  // The output rows (columns) of [lo, hi) whose windows may hold row (column) h.
  Range outputs(size_t axis, int64_t h, int64_t lo, int64_t hi) const {
    const int64_t distance = h + pad[axis];
    const int64_t beyond =
        distance - kernel[axis];  // windows that begin here or before end too soon
    const int64_t first = beyond < 0 ? 0 : beyond / stride[axis] + 1;
    return {std::max(first, lo), std::min(distance / stride[axis] + 1, hi)};
  }
  double pixels(int64_t p, int64_t q) const {
    const Range rows = window(0, p), columns = window(1, q);
    return static_cast<double>((rows.hi - rows.lo) * (columns.hi - columns.lo));
  }
};

// Reads the attributes and checks the logical shapes of x and y (or their gradients).
Geometry geometry(Require& require, const View& x, const View& y, DType dtype) {
  Geometry g{};
  require.activation(x, "x", dtype);
  require.activation(y, "y", dtype);
  g.kernel = require.pair("kernel", 1);
  g.stride = require.pair("stride", 1);
  g.pad = require.pair("pad", 0);
  if (!require.ok()) return g;
  g.image = {x.shape[2], x.shape[3]};
  const std::string shapes = "x " + x.shape.str() + " and y " + y.shape.str() + " do not agree";
  require.that(x.shape[0] == y.shape[0] && x.shape[1] == y.shape[1], shapes);
  for (size_t axis = 0; axis < 2; ++axis) {
    const int64_t outputs = y.shape[2 + static_cast<int>(axis)];
    require.that(g.pad[axis] < g.kernel[axis], "the padding is not less than the window");
    require.that(outputs >= 1 && g.window(axis, outputs - 1).lo < g.image[axis], shapes);
  }
  return g;
}

// x holds the windows of outputs [lo, hi) of one axis.
void covers_windows(Require& require, const View& x, const Geometry& g, size_t axis,
                    Range outputs) {
  if (outputs.lo < outputs.hi)
    require.covers(x, "x", 2 + static_cast<int>(axis), g.window(axis, outputs.lo).lo,
                   g.window(axis, outputs.hi - 1).hi);
}

void covers_examples_and_channels(Require& require, const View& view, const char* name,
                                  const View& out) {
  require.covers(view, name, 0, out.box.lo(0), out.box.hi(0));
  require.covers(view, name, 1, out.box.lo(1), out.box.hi(1));
}

// The first of the largest pixels of the window of output (p, q), rows before columns.
template <typename T>
std::array<int64_t, 2> first_maximum(const Geometry& g, const Access<T>& x, int64_t n, int64_t c,
                                     int64_t p, int64_t q) {
  const Range rows = g.window(0, p), columns = g.window(1, q);
  std::array<int64_t, 2> best{rows.lo, columns.lo};
  for (int64_t h = rows.lo; h < rows.hi; ++h)
    for (int64_t w = columns.lo; w < columns.hi; ++w)
      if (x(n, c, h, w) > x(n, c, best[0], best[1])) best = {h, w};
  return best;
}

}  // namespace

template <typename T>
KernelResult pool_max_fwd(const Binding& binding) {
  Require require(binding);
  if (!require.ok()) return require.status();
  const View& in = binding.in[0];
  const View& out = binding.out[0];
  const Geometry g = geometry(require, in, out, DTypeOf<T>::value);
  if (!require.ok()) return require.status();
  covers_examples_and_channels(require, in, "x", out);
  if (!out.box.empty())
    for (size_t axis = 0; axis < 2; ++axis) {
      const int dim = 2 + static_cast<int>(axis);
      covers_windows(require, in, g, axis, {out.box.lo(dim), out.box.hi(dim)});
    }
  if (!require.ok()) return require.status();
  return loop_kernel([g, x = Access<T>(in), y = Access<T>(out)] {
    y.for_each([&](int64_t n, int64_t c, int64_t p, int64_t q) {
      const auto [h, w] = first_maximum(g, x, n, c, p, q);
      y(n, c, p, q) = x(n, c, h, w);
    });
  });
}

template <typename T>
KernelResult pool_max_bwd(const Binding& binding) {
  Require require(binding);
  if (!require.ok()) return require.status();
  const View& in = binding.in[0];
  const View& dy_view = binding.in[1];
  const View& out = binding.out[0];
  const Geometry g = geometry(require, in, dy_view, DTypeOf<T>::value);
  require.activation(out, "dx", DTypeOf<T>::value);
  require.same_shape(out, "dx", in, "x");
  if (!require.ok()) return require.status();
  covers_examples_and_channels(require, in, "x", out);
  covers_examples_and_channels(require, dy_view, "dy", out);
  if (!out.box.empty())
    for (size_t axis = 0; axis < 2; ++axis) {
      const int dim = 2 + static_cast<int>(axis);
      const int64_t lo = dy_view.box.lo(dim), hi = dy_view.box.hi(dim);
      covers_windows(require, in, g, axis,
                     {g.outputs(axis, out.box.lo(dim), lo, hi).lo,
                      g.outputs(axis, out.box.hi(dim) - 1, lo, hi).hi});
    }
  if (!require.ok()) return require.status();
  return loop_kernel([g, x = Access<T>(in), dy = Access<T>(dy_view), dx = Access<T>(out)] {
    dx.for_each([&](int64_t n, int64_t c, int64_t h, int64_t w) {
      const Range rows = g.outputs(0, h, dy.lo(2), dy.hi(2));
      const Range columns = g.outputs(1, w, dy.lo(3), dy.hi(3));
      T sum = 0;
      for (int64_t p = rows.lo; p < rows.hi; ++p)
        for (int64_t q = columns.lo; q < columns.hi; ++q)
          if (first_maximum(g, x, n, c, p, q) == std::array<int64_t, 2>{h, w})
            sum += dy(n, c, p, q);
      dx(n, c, h, w) = sum;
    });
  });
}

template <typename T>
KernelResult pool_avg_fwd(const Binding& binding) {
  Require require(binding);
  if (!require.ok()) return require.status();
  const View& in = binding.in[0];
  const View& out = binding.out[0];
  const Geometry g = geometry(require, in, out, DTypeOf<T>::value);
  if (!require.ok()) return require.status();
  covers_examples_and_channels(require, in, "x", out);
  if (!require.ok()) return require.status();
  return loop_kernel([g, x = Access<T>(in), y = Access<T>(out)] {
    y.for_each([&](int64_t n, int64_t c, int64_t p, int64_t q) {
      const Range rows = g.window(0, p), columns = g.window(1, q);
      T sum = 0;
      for (int64_t h = std::max(rows.lo, x.lo(2)); h < std::min(rows.hi, x.hi(2)); ++h)
        for (int64_t w = std::max(columns.lo, x.lo(3)); w < std::min(columns.hi, x.hi(3)); ++w)
          sum += x(n, c, h, w);
      y(n, c, p, q) = sum / static_cast<T>(g.pixels(p, q));
    });
  });
}

template <typename T>
KernelResult pool_avg_bwd(const Binding& binding) {
  Require require(binding);
  if (!require.ok()) return require.status();
  const View& in = binding.in[0];
  const View& out = binding.out[0];
  const Geometry g = geometry(require, out, in, DTypeOf<T>::value);
  if (!require.ok()) return require.status();
  covers_examples_and_channels(require, in, "dy", out);
  if (!require.ok()) return require.status();
  return loop_kernel([g, dy = Access<T>(in), dx = Access<T>(out)] {
    dx.for_each([&](int64_t n, int64_t c, int64_t h, int64_t w) {
      const Range rows = g.outputs(0, h, dy.lo(2), dy.hi(2));
      const Range columns = g.outputs(1, w, dy.lo(3), dy.hi(3));
      T sum = 0;
      for (int64_t p = rows.lo; p < rows.hi; ++p)
        for (int64_t q = columns.lo; q < columns.hi; ++q)
          sum += dy(n, c, p, q) / static_cast<T>(g.pixels(p, q));
      dx(n, c, h, w) = sum;
    });
  });
}

template KernelResult pool_max_fwd<float>(const Binding&);
template KernelResult pool_max_fwd<double>(const Binding&);
template KernelResult pool_max_bwd<float>(const Binding&);
template KernelResult pool_max_bwd<double>(const Binding&);
template KernelResult pool_avg_fwd<float>(const Binding&);
template KernelResult pool_avg_fwd<double>(const Binding&);
template KernelResult pool_avg_bwd<float>(const Binding&);
template KernelResult pool_avg_bwd<double>(const Binding&);

}  // namespace convnet::reference
