// Fully-connected layer. Column j of the weights belongs to input element (c, h, w) with
// j = (c * H + h) * W + w. Sums run over the columns (forward), the outputs (backward data), or the
// examples of a canonical shard (backward weight), in ascending order, one rounded product after
// the other. Columns or outputs that an operand's box lacks are not there: the result is a partial
// sum.
#include <algorithm>

#include "framework/backends/reference/access.h"
#include "framework/backends/reference/activation.h"
#include "framework/backends/reference/kernels.h"
#include "framework/backends/reference/require.h"
#include "framework/backends/reference/tree_sum.h"

namespace convnet::reference {
namespace {

// Extents of the flattened input.
struct Columns {
  int64_t rows = 1;     // H
  int64_t columns = 1;  // W
  int64_t at(int64_t c, int64_t h, int64_t w) const { return (c * rows + h) * columns + w; }
};

Columns geometry(Require& require, const View& x, const View& w, const View& y, DType dtype) {
  require.activation(x, "x", dtype);
  require.parameter(w, "w", dtype, 2);
  require.activation(y, "y", dtype);
  if (!require.ok()) return {};
  require.that(
      x.shape[0] == y.shape[0] && y.shape == Shape{x.shape[0], w.shape[0], 1, 1} &&
          w.shape[1] == x.shape[1] * x.shape[2] * x.shape[3],
      "x " + x.shape.str() + ", w " + w.shape.str() + " and y " + y.shape.str() + " do not agree");
  return {x.shape[2], x.shape[3]};
}

}  // namespace

template <typename T>
KernelResult fc_fwd(const Binding& binding) {
  Require require(binding);
  if (!require.ok()) return require.status();
  const bool has_bias = binding.in.size() == 3;
  const View& out = binding.out[0];
  const Columns columns = geometry(require, binding.in[0], binding.in[1], out, DTypeOf<T>::value);
  if (has_bias) require.parameter(binding.in[2], "b", DTypeOf<T>::value, 1);
  const Activation act = act_attr(binding, require);
  if (!require.ok()) return require.status();
  require.covers(binding.in[0], "x", 0, out.box.lo(0), out.box.hi(0));
  require.covers(binding.in[1], "w", 0, out.box.lo(1), out.box.hi(1));
  if (has_bias) require.covers(binding.in[2], "b", 0, out.box.lo(1), out.box.hi(1));
  if (!require.ok()) return require.status();
  const Access<T> b = has_bias ? Access<T>(binding.in[2]) : Access<T>();
  const std::vector<int64_t> cuts = require.cuts("channel_cuts", binding.in[0].box, 1);
  if (!require.ok()) return require.status();
  return loop_kernel([columns, act, has_bias, b, cuts, x = Access<T>(binding.in[0]),
                      w = Access<T>(binding.in[1]), y = Access<T>(out)] {
    y.for_each([&](int64_t n, int64_t k, auto...) {
      T sum = tree_sum<T>(cuts, [&](int64_t c_lo, int64_t c_hi) {
        T part = 0;
        for (int64_t c = c_lo; c < c_hi; ++c)
          for (int64_t h = x.lo(2); h < x.hi(2); ++h)
            for (int64_t v = x.lo(3); v < x.hi(3); ++v) {
              const int64_t j = columns.at(c, h, v);
              if (w.has(1, j)) part += x(n, c, h, v) * w(k, j);
            }
        return part;
      });
      if (has_bias) sum += b(k);
      y(n, k) = activate(act, sum);
    });
  });
}

template <typename T>
KernelResult fc_bwd_data(const Binding& binding) {
  Require require(binding);
  if (!require.ok()) return require.status();
  const View& out = binding.out[0];
  const Columns columns = geometry(require, out, binding.in[1], binding.in[0], DTypeOf<T>::value);
  if (!require.ok()) return require.status();
  require.covers(binding.in[0], "dy", 0, out.box.lo(0), out.box.hi(0));
  if (!out.box.empty())
    require.covers(binding.in[1], "w", 1, columns.at(out.box.lo(1), out.box.lo(2), out.box.lo(3)),
                   columns.at(out.box.hi(1) - 1, out.box.hi(2) - 1, out.box.hi(3) - 1) + 1);
  const std::vector<int64_t> cuts = require.cuts("filter_cuts", binding.in[0].box, 1);
  if (!require.ok()) return require.status();
  return loop_kernel([columns, cuts, dy = Access<T>(binding.in[0]), w = Access<T>(binding.in[1]),
                      dx = Access<T>(out)] {
    dx.for_each([&](int64_t n, int64_t c, int64_t h, int64_t v) {
      const int64_t j = columns.at(c, h, v);
      dx(n, c, h, v) = tree_sum<T>(cuts, [&](int64_t lo, int64_t hi) {
        T sum = 0;
        for (int64_t k = std::max(w.lo(0), lo); k < std::min(w.hi(0), hi); ++k)
          sum += dy(n, k) * w(k, j);
        return sum;
      });
    });
  });
}

template <typename T>
KernelResult fc_bwd_weight(const Binding& binding) {
  Require require(binding);
  if (!require.ok()) return require.status();
  const bool has_bias = binding.out.size() == 2;
  const View& x_view = binding.in[0];
  const View& dy_view = binding.in[1];
  const View& out = binding.out[0];
  const Columns columns = geometry(require, x_view, out, dy_view, DTypeOf<T>::value);
  if (has_bias) require.parameter(binding.out[1], "db", DTypeOf<T>::value, 1);
  if (!require.ok()) return require.status();
  require.covers(x_view, "x", 0, dy_view.box.lo(0), dy_view.box.hi(0));
  require.covers(dy_view, "dy", 1, out.box.lo(0), out.box.hi(0));
  if (has_bias)
    require.covers(dy_view, "dy", 1, binding.out[1].box.lo(0), binding.out[1].box.hi(0));
  const std::vector<int64_t> cuts = require.cuts(dy_view.box);
  if (!require.ok()) return require.status();
  const Access<T> db = has_bias ? Access<T>(binding.out[1]) : Access<T>();
  return loop_kernel([columns, has_bias, cuts, db, x = Access<T>(x_view), dy = Access<T>(dy_view),
                      dw = Access<T>(out)] {
    dw.for_each([&](int64_t k, int64_t j, auto...) {
      const int64_t v = j % columns.columns;
      const int64_t h = j / columns.columns % columns.rows;
      const int64_t c = j / columns.columns / columns.rows;
      const bool here = x.has(1, c) && x.has(2, h) && x.has(3, v);
      dw(k, j) = !here ? T(0) : tree_sum<T>(cuts, [&](int64_t n_lo, int64_t n_hi) {
        T sum = 0;
        for (int64_t n = n_lo; n < n_hi; ++n) sum += x(n, c, h, v) * dy(n, k);
        return sum;
      });
    });
    if (!has_bias) return;
    db.for_each([&](int64_t k, auto...) {
      db(k) = tree_sum<T>(cuts, [&](int64_t n_lo, int64_t n_hi) {
        T sum = 0;
        for (int64_t n = n_lo; n < n_hi; ++n) sum += dy(n, k);
        return sum;
      });
    });
  });
}

template KernelResult fc_fwd<float>(const Binding&);
template KernelResult fc_fwd<double>(const Binding&);
template KernelResult fc_bwd_data<float>(const Binding&);
template KernelResult fc_bwd_data<double>(const Binding&);
template KernelResult fc_bwd_weight<float>(const Binding&);
template KernelResult fc_bwd_weight<double>(const Binding&);

}  // namespace convnet::reference
