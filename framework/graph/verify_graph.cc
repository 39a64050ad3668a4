// Invariants of the graph, checked after every pass. It recomputes what it checks from the values
// and nodes alone.
#include <map>
#include <set>

#include "framework/graph/graph.h"
#include "framework/graph/layer_def.h"

namespace convnet {
namespace {

class Verifier {
 public:
  Verifier(const Graph& graph, std::string pass) : g_(graph), pass_(std::move(pass)) {}

  std::vector<std::string> run() {
    updated_ = pass_ == "sync" || pass_ == "schedule";
    laid_out_ = pass_ == "shard" || updated_;
    check_values();
    check_order();
    if (laid_out_) check_layouts();
    if (updated_ && g_.phase == Plan::Phase::kTrain) check_updates();
    return std::move(faults_);
  }

 private:
  void fault(const std::string& text) { faults_.push_back(text); }
  std::string name(int value) const { return "%" + g_.value(value).name; }
  std::string node_name(size_t i) const {
    const Node& n = g_.nodes[i];
    return "node " + std::to_string(i) + " " + std::string(op_info(n.op).text) +
           (n.layer >= 0 ? " of '" + g_.layer(n.layer).name + "'" : "");
  }

  void check_values() {
    std::set<std::string> names;
    std::set<int> read;
    for (const Node& n : g_.nodes)
      for (const Use& use : n.in) read.insert(use.value);
    for (size_t i = 0; i < g_.values.size(); ++i) {
      const Value& v = g_.values[i];
      if (!names.insert(v.name).second) fault("two values are named %" + v.name);
      if (!v.shape.checked_count()) fault("%" + v.name + " is too large");
      const bool fresh = v.producer < 0;
      const bool outside = v.kind == TensorKind::kInput || v.kind == TensorKind::kParameter ||
                           v.kind == TensorKind::kState;
      const bool own = v.tensor == static_cast<int>(i);
      // A second layout of an input is filled by the host, too; every other one is made by a node.
      const bool given = own ? outside : v.kind == TensorKind::kInput;
      // Sub-batches, and what is joined from them, are made when their layout is known; values of
      // layers that are computed in passes have no use of their own.
      const bool later = !laid_out_ && (v.whole >= 0 || !v.joined.empty());
      if (fresh && !given && !later && read.contains(static_cast<int>(i)))
        fault("nothing produces %" + v.name);
      if (!fresh && own && outside) fault("%" + v.name + " is produced by a node");
      const Value& logical = g_.value(v.tensor);
      if (logical.shape != v.shape || logical.dtype != v.dtype)
        fault("%" + v.name + " differs in shape or type from %" + logical.name);
    }
  }

  // Every operand is an input, a parameter or the result of an earlier node; every value has one
  // producer, or an exchange from each pass; phases come in order.
  void check_order() {
    std::set<int> made;
    std::map<int, size_t> arrived;  // exchanges into a value from the passes
    int updates_begin = -1, backward_begin = -1;
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      const Node& n = g_.nodes[i];
      const OpInfo& info = op_info(n.op);
      const int in = static_cast<int>(n.in.size()), out = static_cast<int>(n.out.size());
      if (in < info.in_min || (info.in_max >= 0 && in > info.in_max) || out < info.out_min ||
          (info.out_max >= 0 && out > info.out_max))
        fault(node_name(i) + " has " + std::to_string(in) + " operands and " + std::to_string(out) +
              " results");
      for (const Use& use : n.in) {
        const Value& v = g_.value(use.value);
        if (v.producer >= 0 && !made.contains(use.value))
          fault(node_name(i) + " reads " + name(use.value) + " before it is made");
      }
      for (const Use& use : n.out) {
        if (n.op == Op::kExchange && pass_ == "schedule" && !g_.value(use.value).joined.empty() &&
            ++arrived[use.value] < g_.value(use.value).joined.size())
          continue;
        if (!made.insert(use.value).second) fault(name(use.value) + " is made twice");
        if (g_.value(use.value).producer != static_cast<int>(i))
          fault(name(use.value) + " does not know its producer, " + node_name(i));
      }
      if (n.pass >= 0) continue;  // passes alternate
      if (n.phase == NodePhase::kBackward && backward_begin < 0)
        backward_begin = static_cast<int>(i);
      if (n.phase == NodePhase::kUpdate && updates_begin < 0) updates_begin = static_cast<int>(i);
      if (n.phase == NodePhase::kForward && backward_begin >= 0)
        fault(node_name(i) + " is forward but comes after a backward node");
    }
  }

  // Producer's layout covers what each consumer asks for; partial sums never stand for values.
  void check_layouts() {
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      const Node& n = g_.nodes[i];
      if (n.in_layout.size() != n.in.size()) {
        fault(node_name(i) + " lacks layouts for its operands");
        continue;
      }
      for (size_t k = 0; k < n.in.size(); ++k) check_operand(i, k);
      for (const Use& use : n.out)
        if (g_.value(use.value).layout.empty()) fault(name(use.value) + " has no layout");
    }
  }

  void check_operand(size_t i, size_t k) {
    const Node& n = g_.nodes[i];
    const Value& v = g_.value(n.in[k].value);
    const Layout& wanted = n.in_layout[k];
    if (v.layout.empty() || wanted.empty()) {
      fault(node_name(i) + ": operand %" + v.name + " has no layout");
      return;
    }
    const std::vector<Part> have = v.layout.parts(v.shape);
    const std::vector<Part> want = wanted.parts(v.shape);
    for (int p = 0; p < wanted.mesh.size(); ++p) {
      const Part& w = want[static_cast<size_t>(p)];
      if (w.box.empty()) continue;
      const int device = wanted.mesh.devices[static_cast<size_t>(p)];
      const int at = v.layout.mesh.position(device);
      const Part* h = at < 0 ? nullptr : &have[static_cast<size_t>(at)];
      if (h == nullptr || !h->box.contains(w.box) || h->k != w.k || h->of != w.of) {
        fault(node_name(i) + " needs %" + v.name + " as " + wanted.str() + ", but it is " +
              v.layout.str() + " (device " + std::to_string(device) + ")");
        return;
      }
    }
  }

  // Each trained parameter is updated once, from a complete gradient, and afterwards is laid out as
  // it was before.
  void check_updates() {
    for (size_t i = 0; i < g_.values.size(); ++i) {
      const Value& w = g_.values[i];
      if (w.kind != TensorKind::kParameter || w.tensor != static_cast<int>(i)) continue;
      int updates = 0, gradients = 0, last = -1;
      for (const Node& n : g_.nodes) {
        for (const Use& use : n.out) {
          if (g_.value(use.value).tensor == static_cast<int>(i)) last = use.value;
          const Value& v = g_.value(use.value);
          gradients += v.gradient_of == static_cast<int>(i) && v.tensor == use.value ? 1 : 0;
        }
        if (n.op != Op::kUpdateSgd || g_.value(n.in[1].value).tensor != static_cast<int>(i))
          continue;
        ++updates;
        if (g_.value(n.in[0].value).layout.has_partial())
          fault("%" + w.name + " is updated from partial sums of its gradient");
      }
      if (updates != (w.update.real("rate") != 0 ? gradients : 0))
        fault("%" + w.name + " is updated " + std::to_string(updates) + " times in a step");
      if (last >= 0 && g_.value(last).layout != w.layout)
        fault("%" + w.name + " ends the step as " + g_.value(last).layout.str() +
              ", but began as " + w.layout.str());
    }
  }

  const Graph& g_;
  std::string pass_;
  bool updated_ = false;
  bool laid_out_ = false;
  std::vector<std::string> faults_;
};

}  // namespace

std::vector<std::string> verify_graph(const Graph& graph, const std::string& pass) {
  return Verifier(graph, pass).run();
}

}  // namespace convnet
