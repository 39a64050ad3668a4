// The proof over random networks: each on random devices against the same network on one. Every
// case runs in a process of its own, so that an abort or an endless wait is a finding like others.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "framework/plan/plan.h"

namespace convnet::cli {

struct ProofFailure {
  uint64_t seed = 0;       // of the case: --random 1 --seed S repeats it
  std::string difference;  // of the smallest model
  std::string model;       // the smallest model file found that still fails
};

struct ProofOptions {
  int64_t graphs = 1;
  uint64_t seed = 1;
  int processes = 1;
  double shrink_seconds = 60;
  // For tests: damages the plan of many devices.
  std::function<void(Plan& plan)> damage;
  std::function<void(int64_t done)> progress;
};

struct ProofResult {
  int64_t run = 0;
  int64_t exact = 0;     // of `run`, those compared bit for bit
  int64_t refused = 0;   // placements that the compiler refused; another was drawn
  int64_t unplaced = 0;  // networks of which every placement drawn was refused
  std::vector<ProofFailure> failures;
};

// Case i has the seed `seed` + i.
ProofResult prove(const ProofOptions& options);

}  // namespace convnet::cli
