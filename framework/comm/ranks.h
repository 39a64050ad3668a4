// Ranks: the processes that execute a plan together, each with a block of its devices, and what
// they tell each other between steps. Everything here is called by the main thread of each rank;
// what is collective, by all ranks in the same order. A program that runs alone is rank 0 of 1.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "framework/base/status.h"
#include "framework/comm/communicator.h"
#include "framework/plan/plan.h"

namespace convnet {

class Ranks {
 public:
  // How long to wait for a rank before it counts as lost.
  enum class Patience {
    kStep,  // the time-out: it does what this rank does
    kWork,  // ten times that: it may be opening data or writing a checkpoint
  };

  virtual ~Ranks() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string name(int rank) const = 0;  // "rank 2 on node5"
  // Ranks that run on the cores of this one, itself included.
  virtual int sharing_cores() const = 0;

  // Communicators of the plan's devices, null for those of other ranks. Collective; kUsage if there
  // are more ranks than devices, or if they have different plans.
  virtual Result<std::vector<std::unique_ptr<Communicator>>> communicators(const Plan& plan) = 0;

  // Element by element the largest of all ranks, which may go on meanwhile: between begin_max and
  // end_max lies a step. At most kMaxNumbers.
  static constexpr size_t kMaxNumbers = 4;
  virtual void begin_max(std::span<const int64_t> mine) = 0;
  virtual Status end_max(std::span<int64_t> largest, const std::string& what,
                         Patience patience) = 0;
  // The bytes of each rank. `what` is what others wait for, for messages: "the end of step 12".
  virtual Result<std::vector<std::string>> all_gather(std::string_view mine,
                                                      const std::string& what,
                                                      Patience patience) = 0;
  // From one rank to one other.
  virtual Status send(int to, std::span<const std::byte> data, const std::string& what) = 0;
  virtual Status receive(int from, std::span<std::byte> data, const std::string& what) = 0;

  // Why the ranks stop: one of them was lost, or told that it failed. Every call that waits then
  // returns this, and so does the step that is running.
  virtual Status failure() const = 0;

  // How a rank's run ended.
  struct End {
    int code = 0;      // exit code
    std::string text;  // what to print of an error; empty if there was none
    int rank = 0;      // whose end it is
  };
  // Tells all ranks how this one ended, and hears from them: the end of the one whose error counts,
  // `mine` if none failed. *speaks: this rank is the one to print it.
  virtual End finish(const End& mine, bool* speaks) = 0;
  // The last call; all output is written by then. If a rank failed, it does not return: all
  // processes end with the code that finish() gave.
  virtual void leave() = 0;

  // Rank 0's bytes, to all.
  Status broadcast(std::string& bytes, const std::string& what);
};

// This process alone.
Ranks& one_rank();

// Blocks of devices: rank r of R has the devices of K from first_device(r) to first_device(r + 1).
int first_device(int rank, int ranks, int devices);
int rank_of_device(int device, int ranks, int devices);

// As whom a launcher (mpirun, srun) has started this process, from its environment; nothing if it
// was started alone. Asks no library.
struct Launch {
  int rank = 0;
  std::optional<int> size;  // if the launcher says
};
std::optional<Launch> launched();

}  // namespace convnet
