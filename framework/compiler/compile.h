// The graph compiler: from a bound model file to a verified plan. compile.cc lists the passes in
// order.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "framework/base/diagnostics.h"
#include "framework/model/binder.h"
#include "framework/plan/plan.h"

namespace convnet {

class Graph;
struct LayerDef;

struct CompileOptions {
  Plan::Phase phase = Plan::Phase::kTrain;
  DType dtype = DType::kF32;
  int devices = 0;     // number of logical devices; 0: the model file's
  bool encode = true;  // false: as if every layer had wire: f32
  // Called after each pass with its name and the text of what it made (the graph, then the plan),
  // before that is verified.
  std::function<void(const std::string& pass, const std::string& text)> after_pass;
  // For tests: may look at the graph after the named pass or damage it, or the plan at the end.
  std::function<void(const std::string& pass, Graph& graph)> damage_graph;
  std::function<void(Plan& plan)> damage_plan;
  bool verify = true;  // run verify_graph and verify_plan; a violation is a CHECK failure
};

// Names of the passes, in order: what --dump-after takes.
std::vector<std::string> pass_names();

// Nothing if the model file has mistakes; all of them are then in `diagnostics`.
std::optional<Plan> compile(const BoundModel& model, std::span<const LayerDef* const> layers,
                            const CompileOptions& options, Diagnostics& diagnostics);

}  // namespace convnet
