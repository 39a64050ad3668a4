// How far values may lie from the serial run's where a plan adds partial sums in rank order.
//
//   A sum of m terms taken in two orders differs by at most 2 m u A, u the unit roundoff and A the
//   sum of the terms' magnitudes (Higham, Accuracy and Stability of Numerical Algorithms, section
//   4.2). The terms of a weight's gradient are products of elements of x and dy, so A <= |x| |dy|
//   (Cauchy-Schwarz, norms over the whole tensors); a bias adds n elements of dy, so A <= sqrt(n)
//   |dy|. m counts the canonical shards and the devices: within a shard the order is the same. An
//   update with rate r carries a gradient's bound E over as r E plus the roundings of its own few
//   operations.
#pragma once

#include <vector>

#include "framework/plan/plan.h"
#include "tools/convnet/recorded.h"

namespace convnet::cli {

// Of u, for a type.
double unit_roundoff(DType dtype);

class RoundingBounds {
 public:
  // `serial`: the values of the serial run's step, inputs included; `rate`: the step's. Both plan
  // and records outlive it.
  RoundingBounds(const Plan& plan, const Records& serial, double rate);

  // Of the complete values of a tensor; 0: the bits must be the same, infinity: nothing is known.
  double of(int tensor) const { return bounds_[static_cast<size_t>(tensor)]; }

 private:
  int tensor(int device, const Operand& operand) const;
  const Recorded* recorded(int device, const Operand& operand) const;
  bool raise(int tensor, double bound);
  double magnitude(int of_tensor) const;
  bool visit(int device, const Instr& instr);

  const Plan& plan_;
  const Records& serial_;
  double rate_;
  std::vector<double> bounds_;
};

}  // namespace convnet::cli
