// Local response normalisation across channels (Krizhevsky, Sutskever and Hinton 2012,
// section 3.3), as ops.def defines it. Sums run over the window's channels in ascending order;
// channels outside the tensor are not there.
#include <algorithm>

#include "framework/backends/reference/access.h"
#include "framework/backends/reference/kernels.h"
#include "framework/backends/reference/require.h"
#include "framework/base/exact_math.h"

namespace convnet::reference {
namespace {

struct Geometry {
  int64_t size, channels;
  double alpha, beta, k;
  // The window around channel c is [lo, hi). c lies in the window of another channel exactly if
  // that one lies in c's, because size is odd.
  int64_t lo(int64_t c) const { return std::max<int64_t>(c - size / 2, 0); }
  int64_t hi(int64_t c) const { return std::min(c + size / 2 + 1, channels); }

  template <typename T>
  T power(T scale) const {
    return static_cast<T>(exact_pow(static_cast<double>(scale), -beta));
  }
};

Geometry geometry(Require& require, const View& x) {
  Geometry g{};
  g.size = require.integer("size", 1);
  g.alpha = require.real("alpha");
  g.beta = require.real("beta");
  g.k = require.real("k");
  if (!require.ok()) return g;
  require.that(g.size % 2 == 1, "attribute 'size' is not an odd number");
  require.that(g.alpha >= 0 && g.k > 0, "attribute 'alpha' is negative, or 'k' is not above 0");
  g.channels = x.shape[1];
  return g;
}

// `view` holds the box of `out` and the windows around its channels.
void covers_windows(Require& require, const View& view, const char* name, const Geometry& g,
                    const View& out) {
  if (!require.ok() || out.box.empty()) return;
  for (const int dim : {0, 2, 3}) require.covers(view, name, dim, out.box.lo(dim), out.box.hi(dim));
  require.covers(view, name, 1, g.lo(out.box.lo(1)), g.hi(out.box.hi(1) - 1));
}

}  // namespace

template <typename T>
KernelResult lrn_fwd(const Binding& binding) {
  Require require(binding);
  if (!require.ok()) return require.status();
  const View& in = binding.in[0];
  const View& out = binding.out[0];
  const View& scale_view = binding.out[1];
  require.activation(in, "x", DTypeOf<T>::value);
  require.activation(out, "y", DTypeOf<T>::value);
  require.activation(scale_view, "scale", DTypeOf<T>::value);
  require.same_shape(out, "y", in, "x");
  require.same_shape(scale_view, "scale", in, "x");
  const Geometry g = geometry(require, in);
  require.that(scale_view.box == out.box, "y and scale have different boxes");
  covers_windows(require, in, "x", g, out);
  if (!require.ok()) return require.status();
  return loop_kernel([g, x = Access<T>(in), y = Access<T>(out), scale = Access<T>(scale_view)] {
    const T factor = static_cast<T>(g.alpha / static_cast<double>(g.size));
    y.for_each([&](int64_t n, int64_t c, int64_t h, int64_t w) {
      T sum = 0;
      for (int64_t i = g.lo(c); i < g.hi(c); ++i) sum += x(n, i, h, w) * x(n, i, h, w);
      const T s = static_cast<T>(g.k) + factor * sum;
      scale(n, c, h, w) = s;
      y(n, c, h, w) = x(n, c, h, w) * g.power(s);
    });
  });
}

template <typename T>
KernelResult lrn_bwd(const Binding& binding) {
  Require require(binding);
  if (!require.ok()) return require.status();
  const char* names[] = {"x", "y", "scale", "dy"};
  const View& out = binding.out[0];
  require.activation(out, "dx", DTypeOf<T>::value);
  for (size_t i = 0; i < 4; ++i) {
    require.activation(binding.in[i], names[i], DTypeOf<T>::value);
    require.same_shape(binding.in[i], names[i], out, "dx");
  }
  const Geometry g = geometry(require, out);
  require.covers(binding.in[0], "x", out);
  for (size_t i = 1; i < 4; ++i) covers_windows(require, binding.in[i], names[i], g, out);
  if (!require.ok()) return require.status();
  return loop_kernel([g, x = Access<T>(binding.in[0]), y = Access<T>(binding.in[1]),
                      scale = Access<T>(binding.in[2]), dy = Access<T>(binding.in[3]),
                      dx = Access<T>(out)] {
    const T factor = static_cast<T>(2 * g.alpha * g.beta / static_cast<double>(g.size));
    dx.for_each([&](int64_t n, int64_t c, int64_t h, int64_t w) {
      T sum = 0;
      for (int64_t i = g.lo(c); i < g.hi(c); ++i)
        sum += dy(n, i, h, w) * y(n, i, h, w) / scale(n, i, h, w);
      dx(n, c, h, w) = dy(n, c, h, w) * g.power(scale(n, c, h, w)) - factor * x(n, c, h, w) * sum;
    });
  });
}

template KernelResult lrn_fwd<float>(const Binding&);
template KernelResult lrn_fwd<double>(const Binding&);
template KernelResult lrn_bwd<float>(const Binding&);
template KernelResult lrn_bwd<double>(const Binding&);

}  // namespace convnet::reference
