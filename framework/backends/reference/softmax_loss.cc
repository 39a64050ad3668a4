// Softmax with cross-entropy. Sums over classes run in ascending order. An example's loss is
// log(sum of exp(x - max)) - (x[label] - max), in double, so that a probability too small for T
// still has a finite loss. A label that is no class has an infinite one, which stops the step.
#include <algorithm>
#include <limits>

#include "framework/backends/reference/access.h"
#include "framework/backends/reference/kernels.h"
#include "framework/backends/reference/require.h"
#include "framework/backends/reference/tree_sum.h"
#include "framework/base/exact_math.h"

namespace convnet::reference {
namespace {

// Both `view` and the labels hold the examples of `out`; scores and probabilities hold all classes.
void check_operands(Require& require, const View& view, const char* name, const View& label,
                    const View& out, DType dtype) {
  require.activation(view, name, dtype);
  require.label(label);
  require.activation(out, "the result", dtype);
  require.same_shape(out, "the result", view, name);
  if (!require.ok()) return;
  require.that(view.shape[1] >= 1 && view.shape[2] == 1 && view.shape[3] == 1,
               std::string(name) + " is " + view.shape.str() + ", not [N, classes, 1, 1]");
  require.that(label.shape[0] == view.shape[0], std::string(name) + " is " + view.shape.str() +
                                                    ", but label is " + label.shape.str());
  require.covers(label, "label", 0, out.box.lo(0), out.box.hi(0));
  require.covers(view, name, out);
}

template <typename T>
struct Example {
  T largest, sum;  // of the scores; of exp(score - largest)
};

template <typename T>
T exponential(T x) {
  return static_cast<T>(exact_exp(static_cast<double>(x)));
}

template <typename T>
Example<T> normaliser(const Access<T>& x, int64_t n) {
  Example<T> e{x(n, 0), 0};
  for (int64_t c = 0; c < x.hi(1); ++c) e.largest = std::max(e.largest, x(n, c));
  for (int64_t c = 0; c < x.hi(1); ++c) e.sum += exponential(x(n, c) - e.largest);
  return e;
}

template <typename T>
double loss(const Access<T>& x, int64_t n, int64_t label) {
  if (!x.has(1, label)) return std::numeric_limits<double>::infinity();
  const Example<T> e = normaliser(x, n);
  return exact_log(e.sum) - (static_cast<double>(x(n, label)) - e.largest);
}

// How many classes score higher than the label; equal scores of lower index count as higher.
template <typename T>
int64_t rank(const Access<T>& x, int64_t n, int64_t label) {
  if (!x.has(1, label)) return x.hi(1);
  int64_t higher = 0;
  for (int64_t c = 0; c < x.hi(1); ++c)
    higher += x(n, c) > x(n, label) || (x(n, c) == x(n, label) && c < label);
  return higher;
}

}  // namespace

template <typename T>
KernelResult softmax_loss_fwd(const Binding& binding) {
  Require require(binding);
  if (!require.ok()) return require.status();
  const View& in = binding.in[0];
  const View& out = binding.out[0];
  check_operands(require, in, "x", binding.in[1], out, DTypeOf<T>::value);
  const std::vector<int64_t> top = require.list("top");
  require.metrics(binding.out[1], 2 + static_cast<int64_t>(top.size()));
  if (!require.ok()) return require.status();
  require.covers(out, "prob", 1, 0, out.shape[1]);
  const std::vector<int64_t> cuts = require.cuts(out.box);
  if (!require.ok()) return require.status();
  return loop_kernel([top, cuts, x = Access<T>(in), label = Access<int32_t>(binding.in[1]),
                      prob = Access<T>(out), metrics = Access<double>(binding.out[1])] {
    for (int64_t n = prob.lo(0); n < prob.hi(0); ++n) {
      const Example<T> e = normaliser(x, n);
      for (int64_t c = 0; c < x.hi(1); ++c) prob(n, c) = exponential(x(n, c) - e.largest) / e.sum;
    }
    // The sum of f(n) over the examples that there are.
    const auto total = [&](const auto& f) {
      return tree_sum<double>(cuts, [&](int64_t n_lo, int64_t n_hi) {
        double sum = 0;
        for (int64_t n = n_lo; n < n_hi; ++n)
          if (label(n) >= 0) sum += f(n);
        return sum;
      });
    };
    metrics(0) = total([&](int64_t n) { return loss(x, n, label(n)); });
    metrics(1) = total([&](int64_t) { return 1.0; });
    for (size_t i = 0; i < top.size(); ++i)
      metrics(2 + static_cast<int64_t>(i)) =
          total([&](int64_t n) { return rank(x, n, label(n)) < top[i] ? 1.0 : 0.0; });
  });
}

template <typename T>
KernelResult softmax_loss_bwd(const Binding& binding) {
  Require require(binding);
  if (!require.ok()) return require.status();
  const View& in = binding.in[0];
  const View& out = binding.out[0];
  check_operands(require, in, "prob", binding.in[1], out, DTypeOf<T>::value);
  const double scale = require.real("scale");
  if (!require.ok()) return require.status();
  return loop_kernel([factor = static_cast<T>(scale), prob = Access<T>(in),
                      label = Access<int32_t>(binding.in[1]), dx = Access<T>(out)] {
    dx.for_each([&](int64_t n, int64_t c, auto...) {
      const T target = label(n) == c ? T(1) : T(0);
      dx(n, c) = label(n) < 0 ? T(0) : (prob(n, c) - target) * factor;
    });
  });
}

template KernelResult softmax_loss_fwd<float>(const Binding&);
template KernelResult softmax_loss_fwd<double>(const Binding&);
template KernelResult softmax_loss_bwd<float>(const Binding&);
template KernelResult softmax_loss_bwd<double>(const Binding&);

}  // namespace convnet::reference
