// Activation functions on one number.
#pragma once

#include <optional>
#include <string_view>

#include "framework/backends/reference/require.h"

namespace convnet::reference {

enum class Activation { kNone, kRelu, kTanh, kSigmoid };

// The attribute `act`.
Activation act_attr(const Binding& binding, Require& require);

template <typename T>
T activate(Activation act, T x);

// The derivative at x from the value y = activate(act, x). relu's is 0 at 0.
template <typename T>
T activation_slope(Activation act, T y);

}  // namespace convnet::reference
