#include "framework/compiler/compile.h"

#include "framework/compiler/passes.h"
#include "framework/plan/verify_plan.h"

namespace convnet {
namespace {

void check_graph(const Graph& graph, const std::string& pass, const CompileOptions& options) {
  if (!options.verify) return;
  const std::vector<std::string> faults = verify_graph(graph, pass);
  CHECK_MSG(faults.empty(), "after pass " + pass + ": " + faults.front());
}

}  // namespace

std::vector<std::string> pass_names() {
  return {"build", "place",    "grad",  "rebatch", "shard",
          "sync",  "schedule", "lower", "events",  "memory"};
}

std::optional<Plan> compile(const BoundModel& model, std::span<const LayerDef* const> layers,
                            const CompileOptions& options, Diagnostics& diagnostics) {
  Graph graph;
  const auto done = [&](const std::string& pass) {
    if (options.damage_graph) options.damage_graph(pass, graph);
    if (options.after_pass) options.after_pass(pass, graph.str());
    check_graph(graph, pass, options);
  };

  if (!build_graph(model, layers, options.phase, options.dtype, options.devices, graph,
                   diagnostics))
    return std::nullopt;
  done("build");
  if (!place(graph, model, diagnostics)) return std::nullopt;
  // The codecs are of f32.
  if (!options.encode || options.dtype != DType::kF32)
    for (GraphLayer& layer : graph.layers) layer.wire = Wire::kF32;
  done("place");
  grad(graph);
  done("grad");
  if (!rebatch(graph, model, diagnostics)) return std::nullopt;
  done("rebatch");
  shard(graph);
  done("shard");
  sync(graph);
  done("sync");
  schedule(graph);
  done("schedule");

  Plan plan = lower(graph);
  if (options.after_pass) options.after_pass("lower", print_plan(plan));
  assign_events(plan);
  if (options.after_pass) options.after_pass("events", print_plan(plan));
  assign_memory(plan);
  if (options.damage_plan) options.damage_plan(plan);
  if (options.after_pass) options.after_pass("memory", print_plan(plan));
  if (options.verify) {
    const std::vector<PlanFault> faults = verify_plan(plan);
    CHECK_MSG(faults.empty(), "after pass memory: " + faults.front().str());
  }
  return plan;
}

}  // namespace convnet
