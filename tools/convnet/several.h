// A command as one of several processes that a launcher has started, each with a part of the
// devices.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "framework/base/status.h"
#include "framework/comm/ranks.h"
#include "framework/plan/plan.h"
#include "framework/runtime/checkpoint.h"
#include "tools/convnet/command.h"

namespace convnet::cli {

// --timeout: for commands that run as several processes.
struct RanksArgument {
  std::optional<uint64_t> timeout;

  void declare(CommandLine& line);
  // Joins the others, if there are any, and runs body(ranks). If one fails, all end with its exit
  // code, and its error is printed once. Returns the exit code.
  int run(Output& output, const std::function<int(Ranks&)>& body) const;
};

// What rank 0 has read of a run, given to the others: the head of a checkpoint and its tensors
// called "data.*", and any `words`.
Status share(Ranks& ranks, Checkpoint& checkpoint, std::vector<std::string>& words);

// kData, naming the rank, unless all have the same training data.
Status check_same_data(Ranks& ranks, const std::string& fingerprint);

// The examples of each batch that the devices of a rank read: begin, end.
std::pair<int64_t, int64_t> examples_of_rank(const Plan& plan, const Ranks& ranks);

}  // namespace convnet::cli
