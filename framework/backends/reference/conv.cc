// Convolution, as ops.def defines it. Sums run over the channels of the group, then rows, then
// columns of the window (forward); over filters, rows, columns (backward data); over the examples
// of a canonical shard, then output rows, then columns (backward weight), one rounded product after
// the other. Where an operand's box does not hold a term, the term is not there: outside the image
// that is the zero padding, inside it makes the result a partial sum.
#include <algorithm>

#include "framework/backends/reference/access.h"
#include "framework/backends/reference/activation.h"
#include "framework/backends/reference/kernels.h"
#include "framework/backends/reference/require.h"
#include "framework/backends/reference/tree_sum.h"

namespace convnet::reference {
namespace {

struct Geometry {
  std::array<int64_t, 2> stride, pad, dilation;
  int64_t groups;
  int64_t channels;  // per group
  int64_t filters;   // per group

  int64_t group_of_filter(int64_t k) const { return k / filters; }
  int64_t group_of_channel(int64_t c) const { return c / channels; }
  // The input row (column) under tap r of output row (column) p.
  int64_t input(size_t axis, int64_t p, int64_t r) const {
    return p * stride[axis] - pad[axis] + r * dilation[axis];
  }
  // The output row (column) whose tap r lies on input row (column) h; -1 if there is none.
  int64_t output(size_t axis, int64_t h, int64_t r) const {
    const int64_t distance = h + pad[axis] - r * dilation[axis];
    return distance >= 0 && distance % stride[axis] == 0 ? distance / stride[axis] : -1;
  }
};

// Reads the attributes and checks the logical shapes of x, w and y (or their gradients).
Geometry geometry(Require& require, const View& x, const View& w, const View& y, DType dtype) {
  Geometry g{};
  require.activation(x, "x", dtype);
  require.parameter(w, "w", dtype, 4);
  require.activation(y, "y", dtype);
  g.stride = require.pair("stride", 1);
  g.pad = require.pair("pad", 0);
  g.dilation = require.pair("dilation", 1);
  g.groups = require.integer("groups", 1);
  if (!require.ok()) return g;
  g.channels = w.shape[1];
  g.filters = w.shape[0] / g.groups;
  const std::string shapes =
      "x " + x.shape.str() + ", w " + w.shape.str() + " and y " + y.shape.str() + " do not agree";
  require.that(w.shape[0] % g.groups == 0 && g.filters >= 1 && g.channels >= 1, shapes);
  require.that(x.shape[0] == y.shape[0] && x.shape[1] == g.channels * g.groups, shapes);
  require.that(y.shape[1] == w.shape[0], shapes);
  for (size_t axis = 0; axis < 2; ++axis) {
    const int dim = 2 + static_cast<int>(axis);
    const int64_t room = x.shape[dim] + 2 * g.pad[axis] - g.dilation[axis] * (w.shape[dim] - 1) - 1;
    require.that(room >= 0 && y.shape[dim] == room / g.stride[axis] + 1, shapes);
  }
  return g;
}

}  // namespace

template <typename T>
KernelResult conv_fwd(const Binding& binding) {
  Require require(binding);
  if (!require.ok()) return require.status();
  const bool has_bias = binding.in.size() == 3;
  const View& out = binding.out[0];
  const Geometry g = geometry(require, binding.in[0], binding.in[1], out, DTypeOf<T>::value);
  if (has_bias) require.parameter(binding.in[2], "b", DTypeOf<T>::value, 1);
  const Activation act = act_attr(binding, require);
  if (!require.ok()) return require.status();
  require.covers(binding.in[0], "x", 0, out.box.lo(0), out.box.hi(0));
  require.covers(binding.in[1], "w", 0, out.box.lo(1), out.box.hi(1));
  if (has_bias) require.covers(binding.in[2], "b", 0, out.box.lo(1), out.box.hi(1));
  if (!require.ok()) return require.status();
  const Access<T> b = has_bias ? Access<T>(binding.in[2]) : Access<T>();
  const bool cut = binding.instr.attrs.has("channel_cuts");
  require.that(!cut || g.groups == 1, "channels of groups are not summed by shards");
  // Without cuts all channels of the group.
  const std::vector<int64_t> cuts =
      cut ? require.cuts("channel_cuts", binding.in[0].box, 1)
          : std::vector<int64_t>{binding.in[1].box.lo(1), binding.in[1].box.hi(1)};
  if (!require.ok()) return require.status();
  return loop_kernel([g, act, has_bias, b, cuts, x = Access<T>(binding.in[0]),
                      w = Access<T>(binding.in[1]), y = Access<T>(out)] {
    y.for_each([&](int64_t n, int64_t k, int64_t p, int64_t q) {
      T sum = tree_sum<T>(cuts, [&](int64_t c_lo, int64_t c_hi) {
        T part = 0;
        for (int64_t c = std::max(c_lo, w.lo(1)); c < std::min(c_hi, w.hi(1)); ++c) {
          const int64_t channel = g.group_of_filter(k) * g.channels + c;
          if (!x.has(1, channel)) continue;
          for (int64_t r = w.lo(2); r < w.hi(2); ++r) {
            const int64_t h = g.input(0, p, r);
            if (!x.has(2, h)) continue;
            for (int64_t s = w.lo(3); s < w.hi(3); ++s) {
              const int64_t column = g.input(1, q, s);
              if (x.has(3, column)) part += x(n, channel, h, column) * w(k, c, r, s);
            }
          }
        }
        return part;
      });
      if (has_bias) sum += b(k);
      y(n, k, p, q) = activate(act, sum);
    });
  });
}

template <typename T>
KernelResult conv_bwd_data(const Binding& binding) {
  Require require(binding);
  if (!require.ok()) return require.status();
  const View& out = binding.out[0];
  const Geometry g = geometry(require, out, binding.in[1], binding.in[0], DTypeOf<T>::value);
  if (!require.ok()) return require.status();
  require.covers(binding.in[0], "dy", 0, out.box.lo(0), out.box.hi(0));
  for (int64_t c = out.box.lo(1); c < out.box.hi(1); ++c)
    require.covers(binding.in[1], "w", 1, c % g.channels, c % g.channels + 1);
  const std::vector<int64_t> cuts = require.cuts("filter_cuts", binding.in[0].box, 1);
  if (!require.ok()) return require.status();
  return loop_kernel(
      [g, cuts, dy = Access<T>(binding.in[0]), w = Access<T>(binding.in[1]), dx = Access<T>(out)] {
        dx.for_each([&](int64_t n, int64_t channel, int64_t h, int64_t column) {
          const int64_t group = g.group_of_channel(channel);
          const int64_t c = channel - group * g.channels;
          const int64_t k_lo = std::max({group * g.filters, w.lo(0), dy.lo(1)});
          const int64_t k_hi = std::min({(group + 1) * g.filters, w.hi(0), dy.hi(1)});
          dx(n, channel, h, column) = tree_sum<T>(cuts, [&](int64_t lo, int64_t hi) {
            T sum = 0;
            for (int64_t k = std::max(lo, k_lo); k < std::min(hi, k_hi); ++k)
              for (int64_t r = w.lo(2); r < w.hi(2); ++r) {
                const int64_t p = g.output(0, h, r);
                if (!dy.has(2, p)) continue;
                for (int64_t s = w.lo(3); s < w.hi(3); ++s) {
                  const int64_t q = g.output(1, column, s);
                  if (dy.has(3, q)) sum += dy(n, k, p, q) * w(k, c, r, s);
                }
              }
            return sum;
          });
        });
      });
}

template <typename T>
KernelResult conv_bwd_weight(const Binding& binding) {
  Require require(binding);
  if (!require.ok()) return require.status();
  const bool has_bias = binding.out.size() == 2;
  const View& x_view = binding.in[0];
  const View& dy_view = binding.in[1];
  const View& out = binding.out[0];
  const Geometry g = geometry(require, x_view, out, dy_view, DTypeOf<T>::value);
  if (has_bias) require.parameter(binding.out[1], "db", DTypeOf<T>::value, 1);
  if (!require.ok()) return require.status();
  require.covers(x_view, "x", 0, dy_view.box.lo(0), dy_view.box.hi(0));
  require.covers(dy_view, "dy", 1, out.box.lo(0), out.box.hi(0));
  if (has_bias)
    require.covers(dy_view, "dy", 1, binding.out[1].box.lo(0), binding.out[1].box.hi(0));
  if (!out.box.empty())
    for (int64_t group = g.group_of_filter(out.box.lo(0));
         group <= g.group_of_filter(out.box.hi(0) - 1); ++group)
      require.covers(x_view, "x", 1, group * g.channels + out.box.lo(1),
                     group * g.channels + out.box.hi(1));
  const std::vector<int64_t> cuts = require.cuts(dy_view.box);
  const std::vector<int64_t> rows = require.cuts("row_cuts", dy_view.box, 2);
  const std::vector<int64_t> columns = require.cuts("column_cuts", dy_view.box, 3);
  if (!require.ok()) return require.status();
  const Access<T> db = has_bias ? Access<T>(binding.out[1]) : Access<T>();
  return loop_kernel([g, has_bias, cuts, rows, columns, db, x = Access<T>(x_view),
                      dy = Access<T>(dy_view), dw = Access<T>(out)] {
    dw.for_each([&](int64_t k, int64_t c, int64_t r, int64_t s) {
      const int64_t channel = g.group_of_filter(k) * g.channels + c;
      dw(k, c, r, s) = pixel_sum<T>(rows, columns, cuts, [&](const Block& b) {
        T sum = 0;
        for (int64_t n = b.n_lo; n < b.n_hi; ++n)
          for (int64_t p = b.p_lo; p < b.p_hi; ++p) {
            const int64_t h = g.input(0, p, r);
            if (!x.has(2, h)) continue;
            for (int64_t q = b.q_lo; q < b.q_hi; ++q) {
              const int64_t column = g.input(1, q, s);
              if (x.has(3, column)) sum += x(n, channel, h, column) * dy(n, k, p, q);
            }
          }
        return sum;
      });
    });
    if (!has_bias) return;
    db.for_each([&](int64_t k, auto...) {
      db(k) = pixel_sum<T>(rows, columns, cuts, [&](const Block& b) {
        T sum = 0;
        for (int64_t n = b.n_lo; n < b.n_hi; ++n)
          for (int64_t p = b.p_lo; p < b.p_hi; ++p)
            for (int64_t q = b.q_lo; q < b.q_hi; ++q) sum += dy(n, k, p, q);
        return sum;
      });
    });
  });
}

template KernelResult conv_fwd<float>(const Binding&);
template KernelResult conv_fwd<double>(const Binding&);
template KernelResult conv_bwd_data<float>(const Binding&);
template KernelResult conv_bwd_data<double>(const Binding&);
template KernelResult conv_bwd_weight<float>(const Binding&);
template KernelResult conv_bwd_weight<double>(const Binding&);

}  // namespace convnet::reference
