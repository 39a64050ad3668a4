// In which order, and beside what, a step communicates. The order of nodes stays one in which they
// could run one after the other; what is on the stream of communication runs beside the computation
// that stands behind it, up to its first reader.
#include <algorithm>
#include <iterator>
#include <ranges>
#include <utility>

#include "framework/compiler/passes.h"

namespace convnet {
namespace {

bool communicates(const Node& n) { return n.op == Op::kExchange; }

class Schedule {
 public:
  explicit Schedule(Graph& graph) : g_(graph) {}

  void run() {
    split_joins();
    send_input_gradients_first();
    fetch_ahead();
    g_.renumber();
    for (size_t i = 0; i < g_.nodes.size(); ++i)
      if (communicates(g_.nodes[i])) choose_stream(i);
  }

 private:
  // What passes bring to others travels when the pass has made it, not when all have.
  void split_joins() {
    std::vector<Node> pieces;
    std::erase_if(g_.nodes, [&](const Node& n) {
      if (n.op != Op::kRowsJoin || joins_locally(g_, n)) return false;
      for (size_t k = 0; k < n.in.size(); ++k) {
        pieces.push_back(n);
        Node& piece = pieces.back();
        piece.op = Op::kExchange;
        piece.in = {n.in[k]};
        piece.in_layout = {n.in_layout[k]};
      }
      return true;
    });
    g_.renumber();
    // From the last producer to the first, so that the places of the others stay what they are.
    std::ranges::stable_sort(pieces, std::greater(), [&](const Node& n) { return producer(n); });
    for (Node& piece : pieces) {
      const auto after = g_.nodes.begin() + producer(piece) + 1;
      const NodePhase phase = after == g_.nodes.begin() ? piece.phase : after[-1].phase;
      piece.phase = std::min(piece.phase, phase);
      piece.pass = after == g_.nodes.begin() ? piece.pass : after[-1].pass;
      g_.nodes.insert(after, std::move(piece));
    }
  }
  int producer(const Node& n) const { return g_.value(n.in[0].value).producer; }

  // An input gradient that must travel is made before the weight gradient, which then hides its
  // way:
  //   bwd_weight; bwd_data -> dx; exchange dx   becomes   bwd_data -> dx; exchange dx; bwd_weight
  void send_input_gradients_first() {
    auto& nodes = g_.nodes;
    const auto next = [&](size_t i) {  // updates may stand between
      while (++i < nodes.size() && nodes[i].phase == NodePhase::kUpdate) {
      }
      return i;
    };
    for (size_t w = 0; w < nodes.size(); ++w) {
      if (nodes[w].op != Op::kConvBwdWeight && nodes[w].op != Op::kFcBwdWeight) continue;
      const size_t data = next(w), exchange = next(data);
      if (exchange >= nodes.size() || nodes[data].layer != nodes[w].layer ||
          (nodes[data].op != Op::kConvBwdData && nodes[data].op != Op::kFcBwdData) ||
          !communicates(nodes[exchange]) || nodes[exchange].phase != NodePhase::kBackward ||
          nodes[exchange].in[0].value != nodes[data].out[0].value)
        continue;
      move(data, w);
      move(exchange, w + 1);
    }
  }

  // Node `from` to the earlier place `to`.
  void move(size_t from, size_t to) {
    const auto begin = g_.nodes.begin();
    std::rotate(begin + static_cast<std::ptrdiff_t>(to), begin + static_cast<std::ptrdiff_t>(from),
                begin + static_cast<std::ptrdiff_t>(from) + 1);
  }

  // The rows of a pass set out before the pass ahead of it begins. Not earlier: then all would lie
  // in memory at once.
  void fetch_ahead() {
    g_.renumber();
    auto& nodes = g_.nodes;
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (!communicates(nodes[i]) || nodes[i].pass < 1 || nodes[i].phase != NodePhase::kForward)
        continue;
      const int pass = nodes[i].pass;
      size_t to = i;
      for (size_t k = i; k-- > 0;) {
        const bool update = nodes[k].phase == NodePhase::kUpdate;
        if (!update && nodes[k].pass != pass && nodes[k].pass != pass - 1) break;
        if (nodes[k].pass == pass - 1 && !update && !communicates(nodes[k])) to = k;
      }
      if (producer(nodes[i]) >= static_cast<int>(to)) continue;
      move(i, to);
      g_.renumber();
    }
  }

  // On the stream of communication if one of its devices has something to compute before anyone
  // reads the result. The updates of a parameter stand between two exchanges, and go with them.
  void choose_stream(size_t i) {
    Node& node = g_.nodes[i];
    if (node.stream == Stream::kComm) return;
    size_t end = i;
    if (node.phase == NodePhase::kUpdate)
      while (end + 1 < g_.nodes.size() && belongs(i, end + 1)) ++end;
    std::vector<int> results;
    for (size_t k = i; k <= end; ++k)
      for (const Use& use : g_.nodes[k].out) results.push_back(use.value);
    for (size_t k = end + 1; k < g_.nodes.size(); ++k) {
      const Node& other = g_.nodes[k];
      const bool reads = std::ranges::any_of(other.in, [&](const Use& use) {
        return std::ranges::find(results, use.value) != results.end();
      });
      if (reads) return;
      if (communicates(other) || other.op == Op::kUpdateSgd || !meets(node, other)) continue;
      for (size_t n = i; n <= end; ++n) g_.nodes[n].stream = Stream::kComm;
      return;
    }
  }

  // Whether node k is a part of the exchange of gradients, update, and exchange of parameters that
  // begins with node i.
  bool belongs(size_t i, size_t k) const {
    const Node& n = g_.nodes[k];
    if (n.phase != NodePhase::kUpdate) return false;
    return std::ranges::any_of(n.in,
                               [&](const Use& use) {
                                 const int p = g_.value(use.value).producer;
                                 return p >= static_cast<int>(i) && p < static_cast<int>(k);
                               }) ||
           (communicates(n) && n.bucket >= 0 && n.bucket == g_.nodes[i].bucket);
  }

  // Whether some device takes part in both.
  bool meets(const Node& exchange, const Node& other) const {
    const Mesh& mesh =
        other.out.empty() ? other.in_layout[0].mesh : g_.value(other.out[0].value).layout.mesh;
    return std::ranges::any_of(mesh.devices, [&](int d) {
      return exchange.in_layout[0].mesh.position(d) >= 0 ||
             g_.value(exchange.out[0].value).layout.mesh.position(d) >= 0;
    });
  }

  Graph& g_;
};

}  // namespace

void schedule(Graph& graph) { Schedule(graph).run(); }

}  // namespace convnet
