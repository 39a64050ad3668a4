#include "framework/backends/reference/activation.h"

#include "framework/backends/reference/access.h"
#include "framework/backends/reference/kernels.h"
#include "framework/base/exact_math.h"

namespace convnet::reference {
namespace {

double tanh_of(double x) {
  // Below 1/32 the quotient would lose the digits that cancel in 1 - e; the series is exact there.
  if (x > -0x1p-5 && x < 0x1p-5) {
    const double z = x * x;
    return x + x * z * (-1.0 / 3 + z * (2.0 / 15 + z * (-17.0 / 315 + z * (62.0 / 2835))));
  }
  const double e = exact_exp(x < 0 ? 2 * x : -2 * x);
  const double y = (1 - e) / (1 + e);
  return x < 0 ? -y : y;
}

}  // namespace

Activation act_attr(const Binding& binding, Require& require) {
  const Attrs::Value* value = binding.instr.attrs.find("act");
  const auto* word = value != nullptr ? std::get_if<std::string>(value) : nullptr;
  if (word != nullptr) {
    if (*word == "none") return Activation::kNone;
    if (*word == "relu") return Activation::kRelu;
    if (*word == "tanh") return Activation::kTanh;
    if (*word == "sigmoid") return Activation::kSigmoid;
  }
  require.that(false, "attribute 'act' is not none, relu, tanh or sigmoid");
  return Activation::kNone;
}

template <typename T>
T activate(Activation act, T x) {
  switch (act) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return x < 0 ? T(0) : x;
    case Activation::kTanh:
      return static_cast<T>(tanh_of(x));
    case Activation::kSigmoid:
      return static_cast<T>(1 / (1 + exact_exp(-static_cast<double>(x))));
  }
  return x;
}

template <typename T>
T activation_slope(Activation act, T y) {
  switch (act) {
    case Activation::kNone:
      return 1;
    case Activation::kRelu:
      return y > 0 ? T(1) : T(0);
    case Activation::kTanh:
      return 1 - y * y;
    case Activation::kSigmoid:
      return y * (1 - y);
  }
  return 1;
}

template <typename T>
KernelResult act_fwd(const Binding& binding) {
  Require require(binding);
  if (!require.ok()) return require.status();
  const View& x = binding.in[0];
  const View& y = binding.out[0];
  require.elementwise(x, "x", DTypeOf<T>::value);
  require.elementwise(y, "y", DTypeOf<T>::value);
  require.covers(x, "x", y);
  const Activation act = act_attr(binding, require);
  if (!require.ok()) return require.status();
  return loop_kernel([act, x = Access<T>(x), y = Access<T>(y)] {
    y.for_each([&](auto... at) { y(at...) = activate(act, x(at...)); });
  });
}

template <typename T>
KernelResult act_bwd(const Binding& binding) {
  Require require(binding);
  if (!require.ok()) return require.status();
  const View& y = binding.in[0];
  const View& dy = binding.in[1];
  const View& dx = binding.out[0];
  require.elementwise(y, "y", DTypeOf<T>::value);
  require.elementwise(dy, "dy", DTypeOf<T>::value);
  require.elementwise(dx, "dx", DTypeOf<T>::value);
  require.covers(y, "y", dx);
  require.covers(dy, "dy", dx);
  const Activation act = act_attr(binding, require);
  if (!require.ok()) return require.status();
  return loop_kernel([act, y = Access<T>(y), dy = Access<T>(dy), dx = Access<T>(dx)] {
    dx.for_each([&](auto... at) { dx(at...) = dy(at...) * activation_slope(act, y(at...)); });
  });
}

template float activate(Activation, float);
template double activate(Activation, double);
template float activation_slope(Activation, float);
template double activation_slope(Activation, double);
template KernelResult act_fwd<float>(const Binding&);
template KernelResult act_fwd<double>(const Binding&);
template KernelResult act_bwd<float>(const Binding&);
template KernelResult act_bwd<double>(const Binding&);

}  // namespace convnet::reference
