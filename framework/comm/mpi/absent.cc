// In place of the ranks of MPI where the program is built without it.
#include "framework/comm/mpi/join.h"

namespace convnet {

std::string mpi_version() { return ""; }

Result<std::unique_ptr<Ranks>> join_ranks(double) {
  return Status(Code::kUsage,
                "this program is built without MPI, so it does not run as one of several "
                "processes; install libopenmpi-dev, configure again and build");
}

}  // namespace convnet
