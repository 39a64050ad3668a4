// RateSchedule: the learning rate of every step, a function of the step alone (Rate in
// framework/model/model.proto; exp, dexp and linear as in cuda-convnet2). Made of reproducible
// operations only (base/exact_math.h): a rate has the same bits on every machine.
#pragma once

#include <cstdint>
#include <vector>

namespace convnet {

struct RateSchedule {
  enum class Policy { kConstant, kStep, kMultistep, kExp, kDexp, kLinear, kPoly };

  double base = 0;
  Policy policy = Policy::kConstant;
  double gamma = 0.1;        // step, multistep: factor at each change
  int64_t every = 0;         // step: steps between changes, >= 1
  std::vector<int64_t> at;   // multistep: steps at which the rate changes, rising
  double factor = 1;         // exp, dexp, linear: base over the last rate, >= 1
  int64_t stages = 2;        // dexp: number of stages, >= 2
  double power = 1;          // poly: exponent
  int64_t warmup_steps = 0;  // 0: none
  double warmup_from = 0;    // part of the policy's rate at step 0
  int64_t total_steps = 0;   // of the training; exp, dexp, linear, poly

  // Rate of step 0, 1, 2, ... With t = step / total_steps (the part of training done, at most 1):
  //   constant   base
  //   step       base * gamma^floor(step / every)
  //   multistep  base * gamma^(number of entries of `at` that are <= step)
  //   exp        base / factor^t
  //   dexp       base / factor^(s / (stages - 1)), s = floor(t * stages), at most stages - 1
  //   linear     base * ((1 - t) + t / factor)
  //   poly       base * (1 - t)^power
  // and in step < warmup_steps that times from + (1 - from) * step / warmup_steps.
  double rate_at(int64_t step) const;
};

}  // namespace convnet
