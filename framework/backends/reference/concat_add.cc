// Concatenation along the channels, sums of tensors, and biases.
#include "framework/backends/reference/access.h"
#include "framework/backends/reference/activation.h"
#include "framework/backends/reference/kernels.h"
#include "framework/backends/reference/require.h"
#include "framework/backends/reference/tree_sum.h"

namespace convnet::reference {
namespace {

// The parts follow each other along the channels of `whole`: the first channel of each.
std::vector<int64_t> offsets(Require& require, const std::vector<View>& parts, const View& whole,
                             DType dtype) {
  std::vector<int64_t> first;
  int64_t channels = 0;
  require.activation(whole, "the whole", dtype);
  for (size_t i = 0; i < parts.size(); ++i) {
    require.activation(parts[i], "part " + std::to_string(i), dtype);
    if (!require.ok()) return first;
    for (const int dim : {0, 2, 3})
      require.that(parts[i].shape[dim] == whole.shape[dim], "part " + std::to_string(i) + " is " +
                                                                parts[i].shape.str() +
                                                                " of a whole " + whole.shape.str());
    first.push_back(channels);
    channels += parts[i].shape[1];
  }
  require.that(channels == whole.shape[1], "the parts have " + std::to_string(channels) +
                                               " channels, the whole has " +
                                               std::to_string(whole.shape[1]));
  return first;
}

// `box` of a part, in the channels of the whole, or the other way round with a negative offset.
Box shifted(Box box, int64_t channels) {
  box.set(1, box.lo(1) + channels, box.hi(1) + channels);
  return box;
}

}  // namespace

template <typename T>
KernelResult concat_fwd(const Binding& binding) {
  Require require(binding);
  if (!require.ok()) return require.status();
  const View& out = binding.out[0];
  const std::vector<int64_t> first = offsets(require, binding.in, out, DTypeOf<T>::value);
  if (!require.ok()) return require.status();
  std::vector<Access<T>> parts;
  for (size_t i = 0; i < binding.in.size(); ++i) {
    View wanted = binding.in[i];  // what the result takes of this part
    wanted.box = intersect(shifted(out.box, -first[i]), Box(wanted.shape));
    require.covers(binding.in[i], "part " + std::to_string(i), wanted);
    parts.emplace_back(wanted);
  }
  if (!require.ok()) return require.status();
  return loop_kernel([parts, first, y = Access<T>(out)] {
    for (size_t i = 0; i < parts.size(); ++i)
      parts[i].for_each([&](int64_t n, int64_t c, int64_t h, int64_t w) {
        y(n, c + first[i], h, w) = parts[i](n, c, h, w);
      });
  });
}

template <typename T>
KernelResult concat_bwd(const Binding& binding) {
  Require require(binding);
  if (!require.ok()) return require.status();
  const View& in = binding.in[0];
  const std::vector<int64_t> first = offsets(require, binding.out, in, DTypeOf<T>::value);
  if (!require.ok()) return require.status();
  std::vector<Access<T>> parts;
  for (size_t i = 0; i < binding.out.size(); ++i) {
    View wanted = in;
    wanted.box = shifted(binding.out[i].box, first[i]);
    require.covers(in, "dy", wanted);
    parts.emplace_back(binding.out[i]);
  }
  if (!require.ok()) return require.status();
  return loop_kernel([parts, first, dy = Access<T>(in)] {
    for (size_t i = 0; i < parts.size(); ++i)
      parts[i].for_each([&](int64_t n, int64_t c, int64_t h, int64_t w) {
        parts[i](n, c, h, w) = dy(n, c + first[i], h, w);
      });
  });
}

template <typename T>
KernelResult add(const Binding& binding) {
  Require require(binding);
  if (!require.ok()) return require.status();
  const View& out = binding.out[0];
  require.elementwise(out, "y", DTypeOf<T>::value);
  std::vector<Access<T>> terms;
  for (size_t i = 0; i < binding.in.size(); ++i) {
    const std::string name = "x" + std::to_string(i);
    require.elementwise(binding.in[i], name, DTypeOf<T>::value);
    require.same_shape(binding.in[i], name, out, "y");
    require.covers(binding.in[i], name, out);
    if (!require.ok()) return require.status();
    terms.emplace_back(binding.in[i]);
  }
  const Activation act = act_attr(binding, require);
  if (!require.ok()) return require.status();
  return loop_kernel([act, terms, y = Access<T>(out)] {
    y.for_each([&](auto... at) {
      T sum = terms[0](at...);
      for (size_t i = 1; i < terms.size(); ++i) sum += terms[i](at...);
      y(at...) = activate(act, sum);
    });
  });
}

template <typename T>
KernelResult bias_fwd(const Binding& binding) {
  Require require(binding);
  if (!require.ok()) return require.status();
  const View& z = binding.in[0];
  const View& out = binding.out[0];
  require.activation(z, "z", DTypeOf<T>::value);
  require.activation(out, "y", DTypeOf<T>::value);
  const bool has_bias = binding.in.size() == 2;
  if (has_bias) require.parameter(binding.in[1], "b", DTypeOf<T>::value, 1);
  if (!require.ok()) return require.status();
  require.same_shape(z, "z", out, "y");
  require.covers(z, "z", out);
  if (has_bias) require.covers(binding.in[1], "b", 0, out.box.lo(1), out.box.hi(1));
  const Activation act = act_attr(binding, require);
  if (!require.ok()) return require.status();
  const Access<T> b = has_bias ? Access<T>(binding.in[1]) : Access<T>();
  return loop_kernel([act, has_bias, b, x = Access<T>(z), y = Access<T>(out)] {
    y.for_each([&](int64_t n, int64_t k, int64_t p, int64_t q) {
      const T sum = x(n, k, p, q) + (has_bias ? b(k) : T(0));
      y(n, k, p, q) = activate(act, sum);
    });
  });
}

template <typename T>
KernelResult bias_bwd(const Binding& binding) {
  Require require(binding);
  if (!require.ok()) return require.status();
  const View& in = binding.in[0];
  const View& out = binding.out[0];
  require.activation(in, "dy", DTypeOf<T>::value);
  require.parameter(out, "db", DTypeOf<T>::value, 1);
  if (!require.ok()) return require.status();
  require.that(in.shape[1] == out.shape[0], "dy has " + std::to_string(in.shape[1]) +
                                                " channels, db " + std::to_string(out.shape[0]));
  require.covers(in, "dy", 1, out.box.lo(0), out.box.hi(0));
  const std::vector<int64_t> cuts = require.cuts(in.box);
  const std::vector<int64_t> rows = require.cuts("row_cuts", in.box, 2);
  const std::vector<int64_t> columns = require.cuts("column_cuts", in.box, 3);
  if (!require.ok()) return require.status();
  return loop_kernel([cuts, rows, columns, dy = Access<T>(in), db = Access<T>(out)] {
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

template KernelResult bias_fwd<float>(const Binding&);
template KernelResult bias_fwd<double>(const Binding&);
template KernelResult bias_bwd<float>(const Binding&);
template KernelResult bias_bwd<double>(const Binding&);
template KernelResult concat_fwd<float>(const Binding&);
template KernelResult concat_fwd<double>(const Binding&);
template KernelResult concat_bwd<float>(const Binding&);
template KernelResult concat_bwd<double>(const Binding&);
template KernelResult add<float>(const Binding&);
template KernelResult add<double>(const Binding&);

}  // namespace convnet::reference
