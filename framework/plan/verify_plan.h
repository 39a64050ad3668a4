// The plan verifier: an independent check of a plan before it runs. It reads the plan only and
// shares no code with the compiler's passes.
#pragma once

#include <string>
#include <vector>

#include "framework/plan/plan.h"

namespace convnet {

struct PlanFault {
  int device = -1;  // -1: not on one device
  int instr = -1;   // index in its instruction list; -1: not one instruction
  std::string layer;
  std::string rule;     // short name of the violated rule, e.g. "use-before-definition"
  std::string message;  // with names and both numbers
  std::string str() const;
};

// All violations found; an empty list means that the plan may run. The rules are listed in
// FORMAT.md.
std::vector<PlanFault> verify_plan(const Plan& plan);

}  // namespace convnet
