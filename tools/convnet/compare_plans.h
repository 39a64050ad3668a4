// Comparison of two plans of one model: every value and parameter that a parallel plan computes,
// against the serial plan's, on the same batches. What `convnet verify` does; tests plant faults in
// the parallel plan and look at what it finds.
//
// Values must have the same bits, unless the plan adds partial sums in rank order (order=rank),
// which it does where the devices do not divide the canonical shards of the batch. Then the sums,
// and what is computed from them, must agree within a bound that follows from the plan and the
// serial run's values (rounding_bounds.h). After each such step the parallel session is given the
// serial one's parameters, so that bounds do not grow from step to step.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "framework/base/status.h"
#include "framework/plan/plan.h"
#include "framework/runtime/batch_source.h"
#include "framework/runtime/session.h"

namespace convnet::cli {

struct Mismatch {
  int64_t step = 0;
  std::string layer;  // the first layer, in the order of the plan, that differs
  int line = 0;
  std::string where;  // "conv.fwd on device 2", "parameter"
  std::string tensor;
  std::vector<int64_t> index;  // of the first element that differs
  double serial = 0, parallel = 0;
  double bound = 0;       // 0: the bits had to be the same
  int64_t different = 0;  // elements of this result, of `of`
  int64_t of = 0;
};

struct Comparison {
  int64_t steps = 0;
  int64_t exact = 0;    // values that had to have the same bits
  int64_t bounded = 0;  // values that had to agree within a bound
  int64_t skipped = 0;  // values without a serial counterpart or a bound
  double closest = 0;   // the largest difference over its bound
  std::optional<Mismatch> mismatch;
};

struct ComparisonOptions {
  int64_t steps = 3;
  SessionOptions serial, parallel;
  std::function<double(int64_t step)> rate;
};

// Stops at the first step with a mismatch. Fails only if a plan cannot run or the loss is not
// finite.
Result<Comparison> compare_plans(const Plan& serial, const Plan& parallel, BatchSource& source,
                                 const ComparisonOptions& options);

// "layer 'conv2' (lenet.yaml:19) differs in step 1: ..."
std::string describe(const Mismatch& mismatch, const Plan& parallel);

}  // namespace convnet::cli
