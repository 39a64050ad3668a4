// What convnet_bench measures: the layers of well-known networks, one instruction each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "framework/base/shape.h"
#include "framework/plan/attrs.h"
#include "framework/plan/ops.h"

namespace convnet::bench {

struct TensorSpec {
  Shape shape;
  Format format = Format::kBlocked;
};

struct Case {
  std::string name;  // "alexnet.conv2.fwd"
  Op op = Op::kConvFwd;
  Attrs attrs;
  std::vector<TensorSpec> in, out;
  double operations =
      0;  // floating-point operations, a multiply-add counting as two; 0: not counted
  // Filled with small integers, so that every sum is exact and results equal the reference's bits.
  bool integers = false;
};

std::vector<Case> all_cases();

}  // namespace convnet::bench
