// The ranks that MPI has started.
#pragma once

#include <memory>
#include <string>

#include "framework/base/status.h"
#include "framework/comm/ranks.h"

namespace convnet {

// "Open MPI v4.1.4"; empty if this program is built without MPI. Starts nothing.
std::string mpi_version();

// Joins the ranks that a launcher (launched()) has started this process among. Once a process.
// `timeout`: seconds after which a rank that does not answer is lost. kUsage if the program is
// built without MPI, or by another MPI than the launcher's.
Result<std::unique_ptr<Ranks>> join_ranks(double timeout);

}  // namespace convnet
