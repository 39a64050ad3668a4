#include <map>

#include "framework/compiler/passes.h"

namespace convnet {
namespace {

// How the solver's work on a parameter is divided: devices that hold the same box of it, and
// partial sums of its gradient, take an equal share each, cut along the first dimension; others
// work on what they hold.
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

class Sync {
 public:
  explicit Sync(Graph& graph) : g_(graph) {}

  // Updates come after the last node that reads the parameter as it was, or makes the gradient.
  void run() {
    std::vector<Node> before = std::move(g_.nodes);
    std::map<size_t, std::vector<int>> due;  // gradients, by node
    for (const GraphLayer& layer : g_.layers)
      for (int w : layer.params)
        if (g_.value(w).update.real("rate") != 0)
          for (const auto& [node, gradient] : find_gradients(before, w))
            due[node].push_back(gradient);
    for (size_t i = 0; i < before.size(); ++i) {
      for (Use& use : before[i].in)
        if (const auto at = current_.find(use.value); at != current_.end()) use.value = at->second;
      g_.nodes.push_back(std::move(before[i]));
      if (const auto it = due.find(i); it != due.end())
        for (int gradient : it->second) add_update(gradient);
    }
    g_.renumber();
  }

 private:
  // The gradients of a parameter, each with the node after which it is applied: the last one of its
  // passes that uses either.
  std::vector<std::pair<size_t, int>> find_gradients(const std::vector<Node>& nodes, int w) const {
    std::vector<std::pair<size_t, int>> found;
    for (size_t i = 0; i < nodes.size(); ++i)
      for (const Use& use : nodes[i].out)
        if (g_.value(use.value).gradient_of == w && g_.value(use.value).tensor == use.value)
          found.emplace_back(i, use.value);
    for (auto& [last, gradient] : found) {
      const int pass = nodes[last].pass;  // -1: of all passes
      for (size_t i = 0; i < nodes.size(); ++i)
        for (const Use& use : nodes[i].in)
          if (use.value == w && (pass < 0 || nodes[i].pass <= pass)) last = std::max(last, i);
    }
    return found;
  }

  void add_update(int gradient) {
    const Value g = g_.value(gradient);
    const int param = g.gradient_of;
    const Value w = g_.value(param);
    const Layout layout = update_layout(w, g);

    int complete = gradient;
    if (!readable_as(w.shape, g.layout, layout)) {
      g_.nodes.push_back(make_exchange(g_, gradient, layout, NodePhase::kUpdate, w.name + ".grad"));
      g_.nodes.back().wire = g_.layer(w.layer).wire;
      complete = g_.nodes.back().out[0].value;
    }
    const int momentum = momentum_of(param, layout);
    Node update;
    update.op = Op::kUpdateSgd;
    update.in = {Use{complete, {}}, Use{now(param), {}}, Use{now(momentum), {}}};
    update.in_layout = {layout, layout, layout};
    const auto result = [&](int of) {
      Value v = g_.value(of);
      int updates = 0;
      for (const Value& other : g_.values) updates += other.tensor == of && other.memory == of;
      v.name += ".new" + (updates > 1 ? std::to_string(updates) : "");
      v.tensor = v.memory = of;
      v.layout = layout;
      return g_.add_value(std::move(v));
    };
    update.out = {Use{result(param), {}}, Use{result(momentum), {}}};
    const int64_t examples = g.examples > 0 ? g.examples : g_.batch;
    const double rate = w.update.real("rate");
    update.attrs.set("rate", rate * g_.scaling.rate_factor(examples))
        .set("decay", g_.scaling.decay(w.update.real("decay"), rate, examples))
        .set("momentum", g_.momentum);
    if (g.scale != 1) update.attrs.set("scale", g.scale);
    update.layer = w.layer;
    update.phase = NodePhase::kUpdate;
    current_[param] = update.out[0].value;
    current_[momentum] = update.out[1].value;
    g_.nodes.push_back(std::move(update));
    if (layout != w.layout) {
      g_.nodes.push_back(
          make_exchange(g_, now(param), w.layout, NodePhase::kUpdate, w.name, param));
      current_[param] = g_.nodes.back().out[0].value;
    }
  }

  int now(int value) const {
    const auto at = current_.find(value);
    return at == current_.end() ? value : at->second;
  }

  int momentum_of(int param, const Layout& layout) {
    if (const auto at = momentum_.find(param); at != momentum_.end()) return at->second;
    const Value w = g_.value(param);
    Value momentum;
    momentum.name = w.name + ".momentum";
    momentum.kind = TensorKind::kState;
    momentum.dtype = w.dtype;
    momentum.shape = w.shape;
    momentum.layer = w.layer;
    momentum.layout = layout;
    momentum.attrs.set("init", "constant").set("value", 0.0);
    return momentum_[param] = g_.add_value(std::move(momentum));
  }

  Graph& g_;
  std::map<int, int> current_;   // of a parameter or state, the value after its last update so far
  std::map<int, int> momentum_;  // of a parameter
};

}  // namespace

void sync(Graph& graph) {
  if (graph.phase == Plan::Phase::kTrain) Sync(graph).run();
}

}  // namespace convnet
