// A plan as a drawing: layers with what each device holds of their results, and between them what
// crosses from device to device.
#pragma once

#include <string>

#include "framework/plan/plan.h"

namespace convnet {

// A directed graph in the language of Graphviz (`dot -Tsvg`), of a plan that verify_plan accepts.
std::string print_dot(const Plan& plan);

}  // namespace convnet
