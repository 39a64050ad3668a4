// The logical program of a plan: what all devices' instructions together compute, on whole tensors.
#pragma once

#include <string>
#include <vector>

#include "framework/plan/verify/examples.h"
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

// Rows of a tensor that are copies of another's, for the same examples.
struct Origin {
  int tensor = 0;
  Examples examples;
  bool operator==(const Origin&) const = default;
};

struct Program {
  // Each after those whose results it reads. A rows.join stands for all instructions and exchanges
  // that bring rows of other tensors into one.
  std::vector<LogicalOp> ops;
  std::vector<LogicalOp> updates;  // of each parameter, in order
  std::vector<int> producer;       // per tensor: index in ops; -1: input, parameter, state
  // Per tensor: the examples of its rows; of a gradient of a parameter, those that it sums; none of
  // other tensors.
  std::vector<Examples> examples;
  // Per tensor, by rising tensor: where its rows come from without any arithmetic. Tensors that the
  // host fills with the same data count as the first of them.
  std::vector<std::vector<Origin>> origins;

  const LogicalOp* producer_of(int tensor) const {
    const int p = producer[static_cast<size_t>(tensor)];
    return p < 0 ? nullptr : &ops[static_cast<size_t>(p)];
  }
  // The same of some of its examples.
  std::vector<Origin> origins_of(int tensor, const Examples& of) const;
  // Whether both have the same values for these examples.
  bool same_values(int a, int b, const Examples& of) const {
    return a == b || (!of.empty() && origins_of(a, of) == origins_of(b, of));
  }
};

// Reports instructions that do not agree on what a tensor is.
Program logical_program(const Plan& plan, Faults& faults);

// Which operand of an operation of the backward pass is the gradient of the result.
size_t gradient_operand(Op op);

struct Loss {
  int op = 0;  // index in Program::ops of what makes the probabilities
  int x = 0, label = 0, prob = 0, metrics = 0;  // tensors
  int pass = 0;  // among those of the same metrics, by rising first example
};

// Reports operations of a loss that do not belong together.
std::vector<Loss> check_losses(const Plan& plan, const Program& program, Faults& faults);

// The passes of a layer are the same computation, with the same random numbers, of other examples.
void check_passes(const Plan& plan, const Program& program, Faults& faults);

// Parameters are read, updated and spread in the right order.
void check_parameters(const Plan& plan, const Program& program, Faults& faults);

// Of a train plan: guards stand before the updates, and stop all devices at one place.
void check_guards(const Plan& plan, const Program& program, const std::vector<Loss>& losses,
                  Faults& faults);

// Of a train plan: each gradient is that of the forward operation it belongs to, complete where it
// is used, and leads to an update.
void check_gradients(const Plan& plan, const Program& program, const std::vector<Loss>& losses,
                     Faults& faults);

}  // namespace convnet
