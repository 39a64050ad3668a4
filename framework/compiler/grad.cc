#include <map>

#include "framework/compiler/passes.h"

namespace convnet {
namespace {

// Values whose gradient some trained parameter needs: outputs of layers that have trained
// parameters or read such a value.
std::vector<bool> values_that_need_gradients(const Graph& graph) {
  std::vector<bool> needs(graph.values.size(), false);
  for (const GraphLayer& layer : graph.layers) {
    bool trained = false;
    for (int p : layer.params) trained |= graph.value(p).update.real("rate") != 0;
    for (int input : layer.inputs) trained |= needs[static_cast<size_t>(input)];
    if (trained && layer.output >= 0) needs[static_cast<size_t>(layer.output)] = true;
  }
  return needs;
}

void add_guards(Graph& graph) {
  for (size_t l = 0; l < graph.layers.size(); ++l)
    for (const auto& [suffix, use] : graph.layers[l].saved) {
      if (suffix != "metrics") continue;
      Node guard;
      guard.op = Op::kGuard;
      guard.in = {Use{use.value, Role{}}};
      guard.in_layout = {replicated(graph.all_devices())};
      guard.layer = static_cast<int>(l);
      guard.phase = NodePhase::kForward;
      graph.add_node(std::move(guard));
    }
}

}  // namespace

void grad(Graph& graph) {
  if (graph.phase != Plan::Phase::kTrain) return;
  std::vector<bool> has_forward(graph.layers.size(), false);
  for (const Node& n : graph.nodes) has_forward[static_cast<size_t>(n.layer)] = true;
  add_guards(graph);

  const std::vector<bool> needs = values_that_need_gradients(graph);
  std::map<int, std::vector<int>> gradients;  // of a value: what its readers contribute
  for (int l = static_cast<int>(graph.layers.size()) - 1; l >= 0; --l) {
    const GraphLayer layer = graph.layer(l);
    if (!has_forward[static_cast<size_t>(l)]) continue;  // passed through
    Use dy{-1, Role{RoleKind::kDY, 0}};
    if (layer.output >= 0) {
      if (!needs[static_cast<size_t>(layer.output)]) continue;
      // Readers contribute from the last to the first; add in the order of the file.
      std::vector<int> parts(gradients[layer.output].rbegin(), gradients[layer.output].rend());
      if (parts.empty()) continue;  // it reaches no loss
      dy.value = parts.front();
      if (parts.size() > 1) {
        const Value& y = graph.value(layer.output);
        Value sum;
        sum.name = y.name + ".grad";
        sum.dtype = y.dtype;
        sum.format = y.format;
        sum.shape = y.shape;
        sum.layer = l;
        Node add;
        add.op = Op::kAdd;
        for (int part : parts) add.in.push_back(Use{part, Role{RoleKind::kDY, 0}});
        dy.value = graph.add_value(std::move(sum));
        add.out = {dy};
        add.attrs.set("act", "none");
        add.layer = l;
        add.phase = NodePhase::kBackward;
        graph.add_node(std::move(add));
      }
    }
    std::vector<bool> wanted;
    for (int input : layer.inputs) wanted.push_back(needs[static_cast<size_t>(input)]);
    GradBuilder g(graph, l, dy, wanted);
    layer.def->grad(g);
    // Within a layer too: the last input's contribution first.
    for (size_t i = layer.inputs.size(); i-- > 0;)
      if (wanted[i] && g.dx()[i] >= 0) gradients[layer.inputs[i]].push_back(g.dx()[i]);
  }
}

}  // namespace convnet
