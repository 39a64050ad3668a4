// The logical program of a plan: what all devices' instructions together compute, on whole tensors.
#pragma once

#include <string>
#include <vector>

#include "framework/plan/verify/faults.h"

namespace convnet {

struct LogicalOp {
  Op op = Op::kAdd;
  Attrs attrs;                    // without cuts, which belong to a device's part
  std::vector<std::string> cuts;  // the names of those
  std::vector<int> in, out;       // tensors
  int layer = -1;
  int device = 0, instr = 0;  // where it was seen first
};

struct Program {
  std::vector<LogicalOp> ops;      // each after those whose results it reads
  std::vector<LogicalOp> updates;  // one a parameter
  std::vector<int> producer;       // per tensor: index in ops; -1: input, parameter, state

  const LogicalOp* producer_of(int tensor) const {
    const int p = producer[static_cast<size_t>(tensor)];
    return p < 0 ? nullptr : &ops[static_cast<size_t>(p)];
  }
};

// Reports instructions that do not agree on what a tensor is.
Program logical_program(const Plan& plan, Faults& faults);

struct Loss {
  int op = 0;  // index in Program::ops of what makes the probabilities
  int x = 0, label = 0, prob = 0, metrics = 0;  // tensors
};

// Reports operations of a loss that do not belong together.
std::vector<Loss> check_losses(const Plan& plan, const Program& program, Faults& faults);

// Of a train plan: each gradient is that of the forward operation it belongs to, complete where it
// is used, and leads to an update.
void check_gradients(const Plan& plan, const Program& program, const std::vector<Loss>& losses,
                     Faults& faults);

}  // namespace convnet
