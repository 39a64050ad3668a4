// Arguments that several commands share, and what they stand for.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "framework/backends/cpu/cpu.h"
#include "framework/base/diagnostics.h"
#include "framework/base/status.h"
#include "framework/comm/ranks.h"
#include "framework/compiler/compile.h"
#include "framework/model/binder.h"
#include "framework/plan/plan.h"
#include "framework/runtime/session.h"
#include "tools/convnet/command.h"

namespace convnet::cli {

// FILE and --set: a model file with values replaced.
struct ModelArgument {
  std::string file;
  std::vector<std::string> sets;

  void declare(CommandLine& line, bool required = true);
  // Null if there are mistakes; they are in `diagnostics`.
  std::unique_ptr<BoundModel> load(Diagnostics& diagnostics) const;
};

// --devices: "4" or "cpu:4".
struct DevicesArgument {
  std::string text;

  void declare(CommandLine& line, const char* doc);
  // The number of devices; 0 if not given.
  Result<int> count() const;
};

// --threads and --isa: how the devices of a session are made.
struct BackendArgument {
  std::optional<uint64_t> threads;
  std::string isa;

  void declare(CommandLine& line);
  // For a plan of `devices` devices, of which those of this rank run here. kUsage if this machine
  // cannot execute the instruction set.
  Result<SessionOptions> options(int devices, Ranks& ranks = one_rank()) const;
};

// Those of this machine, the widest last.
std::vector<CpuIsa> instruction_sets();

// Cores that this process may use.
int available_cores();

// The plan of a loaded model, with all mistakes in `diagnostics`.
std::optional<Plan> compile_model(const BoundModel& model, const CompileOptions& options,
                                  Diagnostics& diagnostics);

// Number of elements of all parameters.
int64_t parameters(const Plan& plan);

}  // namespace convnet::cli
