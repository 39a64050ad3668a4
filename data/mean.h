// The mean of a data set, which is subtracted from its examples. Sums are integers, so the mean
// does not depend on the order or on threads.
#pragma once

#include "data/dataset.h"
#include "framework/base/status.h"
#include "framework/runtime/session.h"

namespace convnet {

enum class Mean { kNone, kChannel, kPixel };

// Over all examples, at their full size before any crop: [C] or [C, H, W], each value the exact
// quotient rounded to double and then to f32. Not for kNone.
Result<HostTensor> compute_mean(const Dataset& dataset, Mean mean);

}  // namespace convnet
