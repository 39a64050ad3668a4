// The end of a step: parameter updates, and the guard before them.
#include <cmath>

#include "framework/backends/reference/access.h"
#include "framework/backends/reference/kernels.h"
#include "framework/backends/reference/require.h"

namespace convnet::reference {

// In this order, each line rounded once to T except for its inner product; every backend must give
// the same bits:
//   t = fma(decay, w, scale * dw)
//   m = fma(momentum, m, -(rate * t))
//   w = w + m
// with rate = T(step's rate * attribute rate), the product taken in double.
template <typename T>
KernelResult update_sgd(const Binding& binding) {
  Require require(binding);
  if (!require.ok()) return require.status();
  const char* names[] = {"dw", "w", "m"};
  const View& out = binding.out[0];
  require.elementwise(out, "the new w", DTypeOf<T>::value);
  require.elementwise(binding.out[1], "the new m", DTypeOf<T>::value);
  for (size_t i = 0; i < 3; ++i) {
    require.elementwise(binding.in[i], names[i], DTypeOf<T>::value);
    require.same_shape(binding.in[i], names[i], out, "the new w");
    require.covers(binding.in[i], names[i], out);
  }
  require.that(binding.out[1].shape == out.shape && binding.out[1].box == out.box,
               "the new w and the new m have different boxes");
  const double factor = require.real("rate");
  const double scale = require.real_or("scale", 1);
  const double decay = require.real("decay");
  const double momentum = require.real("momentum");
  if (!require.ok()) return require.status();
  return loop_kernel([factor, scale = static_cast<T>(scale), decay = static_cast<T>(decay),
                      momentum = static_cast<T>(momentum), &state = binding.state,
                      dw = Access<T>(binding.in[0]), w = Access<T>(binding.in[1]),
                      m = Access<T>(binding.in[2]), new_w = Access<T>(out),
                      new_m = Access<T>(binding.out[1])] {
    const T rate = static_cast<T>(state.rate * factor);
    new_w.for_each([&](auto... at) {
      const T t = std::fma(decay, w(at...), scale * dw(at...));
      const T step = std::fma(momentum, m(at...), -(rate * t));
      new_m(at...) = step;
      new_w(at...) = w(at...) + step;
    });
  });
}

template <typename T>
KernelResult guard(const Binding& binding) {
  Require require(binding);
  if (!require.ok()) return require.status();
  const View& metrics = binding.in[0];
  require.metrics(metrics, metrics.shape.rank() == 1 ? metrics.shape[0] : 1);
  require.that(!metrics.box.empty(), "metrics is empty");
  if (!require.ok()) return require.status();
  return loop_kernel([&state = binding.state, loss = Access<const double>(metrics)] {
    if (!std::isfinite(loss(0))) state.stop = true;
  });
}

template KernelResult update_sgd<float>(const Binding&);
template KernelResult update_sgd<double>(const Binding&);
template KernelResult guard<float>(const Binding&);
template KernelResult guard<double>(const Binding&);

}  // namespace convnet::reference
