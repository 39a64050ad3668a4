// If this fails, verify_graph lets a broken graph pass: every single node that is dropped, and
// every layout that is changed, must be noticed.
#include <gtest/gtest.h>

#include "framework/graph/graph.h"
#include "layers/registry.h"
#include "tests/support/model_run.h"

namespace convnet {
namespace {

constexpr char kModel[] = R"(format: 1
name: tiny
batch: 64
input: {data: [2, 6, 6], label: {classes: 3}}
layers:
  - {name: c, type: conv, filters: 4, kernel: 3, act: relu}
  - {name: p, type: pool, kernel: 2, stride: 2}
  - {name: f, type: fc, outputs: 3}
  - {name: loss, type: softmax_loss, input: [f, label]}
train: {steps: 1, rate: {base: 0.1}}
)";

// The graph after the last graph pass, for two devices.
Graph final_graph() {
  Graph last;
  CompileOptions options;
  options.devices = 2;
  options.damage_graph = [&](const std::string& pass, Graph& graph) {
    if (pass == "sync") last = graph;
  };
  static const auto model = bind_text(kModel);
  compile_model(*model, options);
  return last;
}

TEST(VerifyGraph, AcceptsWhatTheCompilerMakes) {
  const Graph graph = final_graph();
  EXPECT_EQ(verify_graph(graph, "sync"), std::vector<std::string>{});
  EXPECT_GT(graph.nodes.size(), 15u);
}

TEST(VerifyGraph, RejectsEveryDroppedNode) {
  const Graph good = final_graph();
  for (size_t i = 0; i < good.nodes.size(); ++i) {
    if (good.nodes[i].op == Op::kGuard) continue;  // has no result; verify_plan demands it
    Graph bad = good;
    bad.nodes.erase(bad.nodes.begin() + static_cast<std::ptrdiff_t>(i));
    bad.renumber();
    EXPECT_FALSE(verify_graph(bad, "sync").empty()) << i << " " << op_info(good.nodes[i].op).text;
  }
}

TEST(VerifyGraph, RejectsEveryValueInAnotherLayout) {
  const Graph good = final_graph();
  int changed = 0;
  for (size_t v = 0; v < good.values.size(); ++v) {
    bool read = false;
    for (const Node& n : good.nodes)
      for (const Use& use : n.in) read |= use.value == static_cast<int>(v);
    if (!read || good.values[v].layout.empty()) continue;
    Graph bad = good;
    Layout& layout = bad.values[v].layout;
    // Device 1 alone holds it; no reader asks for that.
    layout = replicated(Mesh::line({1}));
    ++changed;
    EXPECT_FALSE(verify_graph(bad, "sync").empty()) << good.values[v].name;
  }
  EXPECT_GT(changed, 10);
}

}  // namespace
}  // namespace convnet
