// The proof over random networks: each on random devices against the same network on one. Every
// case runs in a process of its own, so that an abort or an endless wait is a finding like others.
//
// Three levels: every second network is made of layers that keep whole numbers, and is compared in
// double on small integers, where no operation rounds: bit for bit, in whatever order sums are
// added. Every network is compared in double, within rounding where the plan adds partial sums in
// rank order and bit for bit elsewhere; and, where it does not, bit for bit in float, on the
// reference and the cpu backend.
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
  int64_t most_failures = 10;  // it ends with the first group of cases that brings so many
  double shrink_seconds = 60;  // for each
  // For tests: damages the plan of many devices.
  std::function<void(Plan& plan)> damage;
  std::function<void(int64_t done)> progress;
};

struct ProofResult {
  int64_t run = 0;
  int64_t refused = 0;   // placements that the compiler refused; another was drawn
  int64_t unplaced = 0;  // networks of which every placement drawn was refused
  // Of `run`, those compared as whole numbers, bit for bit in double, within rounding in double,
  // and bit for bit in float.
  int64_t integer = 0, exact = 0, rounded = 0, single = 0;
  // Of `run`, those with a mesh of two axes, updates in passes, 3, 5, 6 or 7 devices.
  int64_t meshes = 0, update_periods = 0, odd_devices = 0;
  std::vector<ProofFailure> failures;
};
// "500 run: 240 in whole numbers, ..."
std::string levels_text(const ProofResult& result);

// Case i has the seed `seed` + i.
ProofResult prove(const ProofOptions& options);

}  // namespace convnet::cli
