// The communicators of the devices of one rank.
#pragma once

#include <memory>
#include <vector>

#include "framework/base/status.h"
#include "framework/comm/communicator.h"
#include "framework/comm/mpi/world.h"
#include "framework/plan/plan.h"

namespace convnet::mpi {

// By device of the plan; null for those of other ranks. The world outlives them. All ranks call it
// with the same plan.
Result<std::vector<std::unique_ptr<Communicator>>> communicators(World& world, const Plan& plan);

}  // namespace convnet::mpi
