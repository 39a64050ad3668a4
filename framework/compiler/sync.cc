#include <map>

#include "framework/compiler/passes.h"

namespace convnet {
namespace {

// How the solver's work on a parameter is divided: devices that hold the same box of it, and partial
// sums of its gradient, take an equal share each, cut along the first dimension; others work on what
// they hold.
Layout update_layout(const Value& w, const Value& gradient) {
  if (!gradient.layout.has_partial()) return w.layout;
  Layout layout = w.layout;
  layout.pieces = gradient.layout.parts(w.shape);
  for (Part& part : layout.pieces) {
    if (part.box.empty()) continue;
    const std::vector<int64_t> cuts = balanced_cuts(part.box.extent(0), part.of);
    const int64_t lo = part.box.lo(0);
    const auto k = static_cast<size_t>(part.k);
    part.box.set(0, lo + cuts[k], lo + cuts[k + 1]);
    part.k = 0;
    part.of = 1;
    if (part.box.empty()) part = nothing(w.shape.rank());
  }
  return layout;
}

void add_update(Graph& graph, int param, int gradient, std::vector<Node>& nodes) {
  const Value w = graph.value(param);
  const Layout layout = update_layout(w, graph.value(gradient));

  int complete = gradient;
  if (!readable_as(w.shape, graph.value(gradient).layout, layout)) {
    nodes.push_back(make_exchange(graph, gradient, layout, NodePhase::kUpdate, w.name + ".grad"));
    complete = nodes.back().out[0].value;
  }
  Value momentum;
  momentum.name = w.name + ".momentum";
  momentum.kind = TensorKind::kState;
  momentum.dtype = w.dtype;
  momentum.shape = w.shape;
  momentum.layer = w.layer;
  momentum.layout = layout;
  momentum.attrs.set("init", "constant").set("value", 0.0);
  const int m = graph.add_value(std::move(momentum));

  const auto updated = [&](int of) {
    Value v = graph.value(of);
    v.name += ".new";
    v.tensor = of;
    v.memory = of;
    v.layout = layout;
    return graph.add_value(std::move(v));
  };
  Node update;
  update.op = Op::kUpdateSgd;
  update.in = {Use{complete, {}}, Use{param, {}}, Use{m, {}}};
  update.in_layout = {layout, layout, layout};
  update.out = {Use{updated(param), {}}, Use{updated(m), {}}};
  update.attrs.set("rate", w.update.real("rate"))
      .set("decay", w.update.real("decay"))
      .set("momentum", graph.momentum);
  update.layer = w.layer;
  update.phase = NodePhase::kUpdate;
  const int new_w = update.out[0].value;
  nodes.push_back(std::move(update));
  if (layout != w.layout)
    nodes.push_back(make_exchange(graph, new_w, w.layout, NodePhase::kUpdate, w.name, param));
}

}  // namespace

void sync(Graph& graph) {
  if (graph.phase != Plan::Phase::kTrain) return;
  struct Param {
    int value, gradient, last = -1;  // last node that reads it or makes its gradient
  };
  std::map<int, std::vector<Param>> due;  // by last node
  for (const GraphLayer& layer : graph.layers)
    for (int value : layer.params) {
      if (graph.value(value).update.real("rate") == 0) continue;
      Param p{value, -1};
      for (size_t i = 0; i < graph.nodes.size(); ++i) {
        for (const Use& use : graph.nodes[i].in)
          if (graph.value(use.value).tensor == value) p.last = static_cast<int>(i);
        for (const Use& use : graph.nodes[i].out)
          if (graph.value(use.value).name == graph.value(value).name + ".grad") {
            p.gradient = use.value;
            p.last = static_cast<int>(i);
          }
      }
      if (p.gradient >= 0) due[p.last].push_back(p);
    }

  std::vector<Node> nodes;
  const std::vector<Node> before = std::move(graph.nodes);
  for (size_t i = 0; i < before.size(); ++i) {
    nodes.push_back(before[i]);
    if (const auto it = due.find(static_cast<int>(i)); it != due.end())
      for (const Param& p : it->second) add_update(graph, p.value, p.gradient, nodes);
  }
  graph.nodes = std::move(nodes);
  graph.renumber();
}

}  // namespace convnet
