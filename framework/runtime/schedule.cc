#include "framework/runtime/schedule.h"

#include <algorithm>

#include "framework/base/exact_math.h"

namespace convnet {
namespace {

// floor(part * stages), where part = step / total, in integers: a quotient of doubles may round up
// to the next stage a step too early.
int64_t stage_of(int64_t step, int64_t total, int64_t stages) {
  if (total <= 0) return 0;
  return static_cast<int64_t>(static_cast<__int128>(step) * stages / total);
}

}  // namespace

double RateSchedule::rate_at(int64_t step) const {
  const int64_t done = total_steps > 0 ? std::min(step, total_steps) : step;
  const double t =
      total_steps > 0 ? static_cast<double>(done) / static_cast<double>(total_steps) : 0;
  double rate = base;
  switch (policy) {
    case Policy::kConstant:
      break;
    case Policy::kStep:
      if (every > 0) rate = base * exact_pow(gamma, static_cast<double>(step / every));
      break;
    case Policy::kMultistep:
      rate =
          base * exact_pow(gamma, static_cast<double>(std::upper_bound(at.begin(), at.end(), step) -
                                                      at.begin()));
      break;
    case Policy::kExp:
      rate = base / exact_pow(factor, t);
      break;
    case Policy::kDexp: {
      const int64_t last = std::max<int64_t>(1, stages - 1);
      const int64_t stage = std::min(last, stage_of(done, total_steps, stages));
      rate = base / exact_pow(factor, static_cast<double>(stage) / static_cast<double>(last));
      break;
    }
    case Policy::kLinear:
      rate = base * ((1 - t) + t / factor);
      break;
    case Policy::kPoly:
      rate = base * exact_pow(1 - t, power);
      break;
  }
  if (step < warmup_steps)
    rate *= warmup_from +
            (1 - warmup_from) * (static_cast<double>(step) / static_cast<double>(warmup_steps));
  return rate;
}

}  // namespace convnet
