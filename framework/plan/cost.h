// What a plan costs: arithmetic of an instruction, bytes of an exchange. FORMAT.md states the
// formulas. For plans that verify_plan accepts, or exchanges and instructions on their way into
// one.
#pragma once

#include <cstdint>
#include <vector>

#include "framework/plan/plan.h"

namespace convnet {

// Floating-point operations of an instruction on its boxes. A multiply-add counts 2; bias and
// activation inside a convolution or fully-connected layer are not counted.
int64_t flops(const Plan& plan, const DevicePlan& device, const Instr& instr);

// Whether the operation belongs to the backward pass: *.bwd*, by its name. (Sums of gradients are
// `add`.)
bool is_backward(Op op);

// Bytes that one member of an exchange sends and receives.
struct Traffic {
  int64_t sent = 0, received = 0;
};
// Per member, in the order of the group, by the best algorithm known for the exchange's pattern.
// `tensor`, `into`: those of the exchange (the same, or with other rows).
std::vector<Traffic> wire_traffic(const Exchange& exchange, const Tensor& tensor,
                                  const Tensor& into);

// What Exchange::bytes records: the largest sent or received over the members.
int64_t wire_bytes(const Exchange& exchange, const Tensor& tensor, const Tensor& into);

}  // namespace convnet
