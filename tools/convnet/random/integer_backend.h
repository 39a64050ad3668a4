// The reference backend with a loss of whole numbers, so that a network whose other layers keep
// whole numbers computes without any rounding: its sums are then the same in whatever order they
// are added, and a plan that computes anything else differs in some bit.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "framework/backends/backend.h"

namespace convnet::cli {

// In double. In place of probabilities the loss saves the scores modulo 3, and its gradient is not
// divided by the `batch`. `rounded`, which outlives the backend, is set when a kernel outside the
// loss rounds a result: the processor says so.
std::unique_ptr<Backend> make_integer_backend(int64_t batch, std::atomic<bool>& rounded);

}  // namespace convnet::cli
