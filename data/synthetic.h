// Generated examples, for tests and benchmarks: a task that a network can learn. Each class has a
// smooth random pattern; an example is its class's pattern plus noise, drawn afresh for each
// example.
#pragma once

#include <memory>
#include <string>

#include "data/dataset.h"
#include "framework/base/status.h"

namespace convnet {

struct SyntheticOptions {
  Shape shape;  // [C, H, W]
  int64_t classes = 0;
  int64_t examples = 0;
  double noise = 0.25;  // standard deviation over that of the patterns
  uint64_t seed = 1;
  // Examples of two streams share the patterns and no noise: "train", "test".
  std::string stream = "train";
};

// Example i is of class i mod classes, and a pure function of (seed, stream, i). Pixel = 128 + 42 *
// (pattern + noise * n), rounded and cut to 0..255, the pattern of mean 0 and variance 1 over
// classes.
std::shared_ptr<const Dataset> synthetic_dataset(const SyntheticOptions& options);

}  // namespace convnet
