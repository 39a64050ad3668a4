#include <algorithm>
#include <map>
#include <span>
#include <utility>

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

// Small exchanges wait for others until they have so many bytes together: about what a device moves
// in the time that it takes to meet the others.
constexpr int64_t kBucketBytes = 64 * 1024;

class Sync {
 public:
  explicit Sync(Graph& graph) : g_(graph) {}

  // Updates come after the last node that reads the parameter as it was, or makes the gradient;
  // those that need an exchange perhaps a bit later, with others, but before the parameter is read
  // again.
  void run() {
    std::vector<Node> before = std::move(g_.nodes);
    std::map<size_t, std::vector<int>> due;  // gradients, by node
    for (const GraphLayer& layer : g_.layers)
      for (int w : layer.params)
        if (g_.value(w).update.real("rate") != 0)
          for (const auto& [node, gradient] : find_gradients(before, w))
            due[node].push_back(gradient);
    for (size_t i = 0; i < before.size(); ++i) {
      if (std::ranges::any_of(before[i].in, [&](const Use& use) { return is_pending(use.value); }))
        flush();
      for (Use& use : before[i].in)
        if (const auto at = current_.find(use.value); at != current_.end()) use.value = at->second;
      g_.nodes.push_back(std::move(before[i]));
      if (const auto it = due.find(i); it != due.end())
        for (int gradient : it->second) add_update(gradient);
      if (pending_bytes_ >= kBucketBytes) flush();
    }
    flush();
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

  // An update that is due: its gradient, and how it is divided.
  struct Due {
    int gradient;
    Layout layout;
    bool reduce, gather;  // whether the gradient, and the updated parameter, must be exchanged
  };

  void add_update(int gradient) {
    const Value& g = g_.value(gradient);
    const Value& w = g_.value(g.gradient_of);
    Due update{gradient, update_layout(w, g), false, false};
    update.reduce = !readable_as(w.shape, g.layout, update.layout);
    update.gather = update.layout != w.layout;
    if (!update.reduce && !update.gather) {
      apply({&update, 1});
      return;
    }
    if (!pending_.empty() && pending_.front().layout.mesh != update.layout.mesh) flush();
    pending_bytes_ += w.shape.count() * dtype_size(w.dtype);
    pending_.push_back(std::move(update));
  }

  bool is_pending(int param) const {
    return std::ranges::any_of(
        pending_, [&](const Due& d) { return g_.value(d.gradient).gradient_of == param; });
  }

  void flush() {
    apply(pending_);
    pending_.clear();
    pending_bytes_ = 0;
  }

  void apply(std::span<Due> updates) {
    const auto count = [&](bool Due::*what) { return std::ranges::count(updates, true, what); };
    const int reduce = count(&Due::reduce) > 1 ? buckets_++ : -1;
    for (Due& update : updates)
      if (update.reduce) {
        const Value& w = g_.value(g_.value(update.gradient).gradient_of);
        const std::string edge = w.name + ".grad";
        const Wire wire = g_.layer(w.layer).wire;
        Node node = make_exchange(g_, update.gradient, update.layout, NodePhase::kUpdate, edge);
        node.wire = wire;
        node.bucket = reduce;
        update.gradient = node.out[0].value;
        g_.nodes.push_back(std::move(node));
      }
    for (const Due& update : updates) add_solver_step(update);
    const int gather = count(&Due::gather) > 1 ? buckets_++ : -1;
    for (const Due& update : updates)
      if (update.gather) {
        const int param = g_.value(update.gradient).gradient_of;
        const Layout layout = g_.value(param).layout;
        const std::string edge = g_.value(param).name;
        Node node = make_exchange(g_, now(param), layout, NodePhase::kUpdate, edge, param);
        node.bucket = gather;
        current_[param] = node.out[0].value;
        g_.nodes.push_back(std::move(node));
      }
  }

  void add_solver_step(const Due& due) {
    const Value g = g_.value(due.gradient);
    const int param = g.gradient_of;
    const Value w = g_.value(param);
    const int momentum = momentum_of(param, due.layout);
    Node update;
    update.op = Op::kUpdateSgd;
    update.in = {Use{due.gradient, {}}, Use{now(param), {}}, Use{now(momentum), {}}};
    update.in_layout = {due.layout, due.layout, due.layout};
    const auto result = [&](int of) {
      Value v = g_.value(of);
      int updates = 0;
      for (const Value& other : g_.values) updates += other.tensor == of && other.memory == of;
      v.name += ".new" + (updates > 1 ? std::to_string(updates) : "");
      v.tensor = v.memory = of;
      v.layout = due.layout;
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
  std::vector<Due> pending_;     // of one mesh
  int64_t pending_bytes_ = 0;
  int buckets_ = 0;
};

}  // namespace

void sync(Graph& graph) {
  if (graph.phase == Plan::Phase::kTrain) Sync(graph).run();
}

}  // namespace convnet
