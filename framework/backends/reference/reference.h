// The reference backend: every plan operation as plain loops, in float and in double, over any
// boxes. It is what the other backends are tested against, and what runs when exact integers or
// float64 are wanted. One thread; clarity before speed.
#pragma once

#include <memory>

#include "framework/backends/backend.h"

namespace convnet {

std::unique_ptr<Backend> make_reference_backend();

}  // namespace convnet
