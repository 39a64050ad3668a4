#include <algorithm>
#include <map>

#include "framework/compiler/passes.h"

namespace convnet {
namespace {

// The sums of a node whose results may be partial are taken by canonical shards; lower fills in
// which of them a device has.
void mark_sums(const Graph& graph, Node& node) {
  for (const Use& use : node.out) {
    const Layout layout =
        layout_of(graph, graph.layer(node.layer), use.role, graph.value(use.value));
    for (const AxisState& axis : layout.axes) {
      if (axis.kind != AxisState::Kind::kPartial || axis.over == 0) continue;
      const char* forward_or_data =
          node.op == Op::kConvFwd || node.op == Op::kFcFwd ? "channel_cuts" : "filter_cuts";
      const char* names[] = {"cuts", forward_or_data, "row_cuts", "column_cuts"};
      node.attrs.set(names[axis.over], std::vector<int64_t>{});
    }
  }
}

// The edge that an exchange of `value` for `reader` serves: layer to layer, forward or backward;
// or, for metrics and what no layer made, the tensor.
std::string edge_of(const Graph& graph, const Value& value, const Node& reader) {
  if (value.kind == TensorKind::kMetric || value.layer < 0 || reader.layer < 0) return value.name;
  return graph.layer(value.layer).name + "->" + graph.layer(reader.layer).name;
}

// How the value travels to its reader: as the layer says that reads it going forward. Of values
// that never leave their layer only partial sums of its output are encoded: what else it saves may
// be no number to round (a rank among classes, a logarithm of a sum).
Wire wire_of(const Graph& graph, const Value& value, const Node& reader, const Use& use) {
  if (value.kind != TensorKind::kActivation || value.dtype != DType::kF32 || value.layer < 0 ||
      reader.layer < 0)
    return Wire::kF32;
  const Wire wire = graph.layer(reader.layer).wire;
  if (value.layer == reader.layer) return value.layout.has_partial() ? wire : Wire::kF32;
  switch (use.role.kind) {
    case RoleKind::kX:
    case RoleKind::kWhole:
      return wire;
    case RoleKind::kDY:  // the gradient is made by the layer that read the value
      return graph.layer(value.layer).wire;
    default:
      return Wire::kF32;
  }
}

// The four states of the edge that a forward or backward exchange serves.
void note_states(const Graph& graph, const Node& reader, const Use& use, const Layout& from,
                 const Layout& to, Node* exchange) {
  const Value& value = graph.value(use.value);
  if (use.role.kind == RoleKind::kX && value.layer >= 0) {
    const GraphLayer& consumer = graph.layer(reader.layer);
    const GraphLayer& producer = graph.layer(value.layer);
    exchange->forward_states = from.str() + "->" + to.str();
    exchange->backward_states =
        layout_of(graph, consumer, Role{RoleKind::kDX, use.role.index}, value).str() + "->" +
        layout_of(graph, producer, Role{RoleKind::kDY, 0}, value).str();
  } else if (use.role.kind == RoleKind::kDY) {
    exchange->backward_states = from.str() + "->" + to.str();
  }
}

// A value in another layout, as it travels encoded in some way.
struct Version {
  int value;
  Wire wire;
};
using Versions = std::map<int, std::vector<Version>>;  // by value

// The values of passes that a value is put together from: in the layouts in which every reader has
// them already, if there are such.
std::vector<int> parts_to_join(const Graph& graph, const Value& whole, const Versions& versions) {
  std::vector<int> parts;
  for (int part : whole.joined) {
    std::vector<int> candidates{part};
    if (const auto at = versions.find(part); at != versions.end())
      for (const Version& v : at->second) candidates.push_back(v.value);
    const auto here = std::ranges::find_if(
        candidates, [&](int v) { return has_rows_for(graph.value(v), whole); });
    if (here == candidates.end()) return whole.joined;
    parts.push_back(*here);
  }
  return parts;
}

// Makes a value of a pass from that of the whole batch, or one of the whole batch from those of its
// passes: as a reader wants it.
Node make_sub_batch(Graph& graph, const Node& reader, const Use& use, const Layout& want,
                    const Versions& versions) {
  Value& value = graph.value(use.value);
  CHECK_MSG(value.whole >= 0 || !value.joined.empty(), "nothing makes %" + value.name);
  value.layout = want;
  Node node;
  node.op = value.whole >= 0 ? Op::kExchange : Op::kRowsJoin;
  for (int part :
       value.whole >= 0 ? std::vector<int>{value.whole} : parts_to_join(graph, value, versions)) {
    node.in.push_back({part, Role{}});
    node.in_layout.push_back(graph.value(part).layout);
  }
  node.out = {{use.value, Role{}}};
  node.layer = reader.layer;
  node.phase = reader.phase;
  node.pass = reader.pass;
  node.edge = edge_of(graph, value, reader);
  node.wire = wire_of(graph, value, reader, use);
  note_states(graph, reader, use, node.in_layout[0], want, &node);
  return node;
}

// Whether devices hold parts that overlap, but are not the same.
bool has_halos(const Value& value) {
  const std::vector<Part> parts = value.layout.parts(value.shape);
  for (const Part& a : parts)
    for (const Part& b : parts)
      if (!(a.box == b.box) && !intersect(a.box, b.box).empty()) return true;
  return false;
}

// The same tensor in another layout.
int add_version(Graph& graph, int value, const Layout& layout, int memory) {
  Value version = graph.value(value);
  int count = 0;
  for (const Value& v : graph.values) count += v.tensor == version.tensor ? 1 : 0;
  version.name = graph.value(version.tensor).name + "@" + std::to_string(count);
  version.memory = memory;
  version.layout = layout;
  return graph.add_value(std::move(version));
}

}  // namespace

bool readable_as(const Shape& shape, const Layout& have, const Layout& want) {
  const std::vector<Part> held = have.parts(shape), wanted = want.parts(shape);
  for (int p = 0; p < want.mesh.size(); ++p) {
    const Part& w = wanted[static_cast<size_t>(p)];
    if (w.box.empty()) continue;
    const int at = have.mesh.position(want.mesh.devices[static_cast<size_t>(p)]);
    if (at < 0) return false;
    const Part& h = held[static_cast<size_t>(at)];
    if (!h.box.contains(w.box) || h.k != w.k || h.of != w.of) return false;
  }
  return true;
}

Node make_exchange(Graph& graph, int value, const Layout& layout, NodePhase phase,
                   const std::string& edge, int memory) {
  Node node;
  node.op = Op::kExchange;
  node.in = {Use{value, Role{}}};
  node.in_layout = {graph.value(value).layout};
  node.layer = graph.value(value).layer;
  node.phase = phase;
  node.edge = edge;
  node.out = {Use{add_version(graph, value, layout, memory), Role{}}};
  return node;
}

void shard(Graph& graph) {
  for (const GraphLayer& layer : graph.layers)
    for (size_t i = 0; i < layer.params.size(); ++i) {
      Value& w = graph.value(layer.params[i]);
      w.layout = layout_of(graph, layer, Role{RoleKind::kParam, static_cast<int>(i)}, w);
    }

  std::vector<Node> nodes;
  Versions versions;
  const auto version_for = [&](const Node& reader, const Use& use, const Layout& want) {
    Value& value = graph.value(use.value);
    // The host can fill any box of an input, so a second layout costs no communication.
    const bool input = value.kind == TensorKind::kInput;
    if (input && value.layout.empty()) value.layout = want;
    if (value.layout.empty()) {
      nodes.push_back(make_sub_batch(graph, reader, use, want, versions));
      return use.value;
    }
    if (readable_as(value.shape, value.layout, want)) return use.value;
    const Wire wire = wire_of(graph, value, reader, use);
    for (const Version& v : versions[use.value])
      if (v.wire == wire && readable_as(value.shape, graph.value(v.value).layout, want))
        return v.value;
    if ((value.whole >= 0 || !value.joined.empty()) && has_halos(value)) {
      // Its elements have no single owner; they come from where they were made, once more.
      const int version = add_version(graph, use.value, Layout(), -1);
      versions[use.value].push_back({version, wire});
      nodes.push_back(make_sub_batch(graph, reader, {version, use.role}, want, versions));
      return version;
    }
    Node exchange = make_exchange(graph, use.value, want, reader.phase,
                                  edge_of(graph, graph.value(use.value), reader));
    exchange.pass = reader.pass;
    exchange.wire = wire;
    const int version = exchange.out[0].value;
    versions[use.value].push_back({version, wire});
    if (!input) {
      note_states(graph, reader, use, graph.value(use.value).layout, want, &exchange);
      nodes.push_back(std::move(exchange));
    }
    return version;
  };

  for (Node node : std::vector<Node>(std::move(graph.nodes))) {
    mark_sums(graph, node);
    if (node.in_layout.empty())
      for (size_t i = 0; i < node.in.size(); ++i)
        node.in_layout.push_back(operand_layout(graph, node, i));
    for (size_t i = 0; i < node.out.size(); ++i)
      graph.value(node.out[i].value).layout = result_layout(graph, node, i);
    for (size_t i = 0; i < node.in.size(); ++i)
      node.in[i].value = version_for(node, node.in[i], node.in_layout[i]);
    nodes.push_back(std::move(node));
  }

  // Without guards (in a test plan) nothing has asked for complete metrics yet.
  if (graph.phase == Plan::Phase::kTest)
    for (const GraphLayer& layer : graph.layers)
      for (const auto& [suffix, use] : layer.saved)
        if (suffix == "metrics" && graph.value(use.value).layout.has_partial())
          nodes.push_back(make_exchange(graph, use.value, replicated(layer.mesh),
                                        NodePhase::kForward, graph.value(use.value).name));
  graph.nodes = std::move(nodes);
  graph.renumber();
}

}  // namespace convnet
