// The codecs of the wire, against a copy of the same elements.
#pragma once

#include <string>
#include <vector>

#include "framework/plan/wire.h"

namespace convnet::bench {

struct CodecMeasurement {
  Wire wire = Wire::kF32;
  // Gigabytes of f32 elements a second, one thread, the median of the runs.
  double encode = 0, decode = 0, copy = 0;
};

// `count` elements, normally distributed; `runs` of each.
std::vector<CodecMeasurement> measure_codecs(int64_t count, int runs);

}  // namespace convnet::bench
