#include <algorithm>
#include <map>

#include "framework/compiler/passes.h"
#include "framework/plan/cost.h"

namespace convnet {
namespace {

Box empty_box(int rank) {
  Box box;
  for (int i = 0; i < rank; ++i) box.append(0, 0);
  return box;
}

// Which pattern the boxes of an exchange form, if any.
class Pattern {
 public:
  Pattern(const Exchange& e, const Shape& shape) : whole_(shape) {
    for (const Part& p : e.from) classify(p, &from_);
    for (const Part& p : e.to) classify(p, &to_);
  }

  Exchange::Kind kind() const {
    using K = Exchange::Kind;
    const int members = from_.members;
    if (from_.partial) {
      if (from_.whole != members) return K::kBoxes;
      if (to_.whole == members) return K::kAllReduce;
      if (to_.whole == 1 && to_.parts == 0) return K::kReduce;
      if (to_.whole == 0 && disjoint_cover(to_)) return K::kReduceScatter;
      return K::kBoxes;
    }
    const bool from_split = from_.whole == 0 && disjoint_cover(from_);
    if (from_split && to_.whole == members) return K::kAllGather;
    if (from_split && to_.whole == 1 && to_.parts == 0) return K::kGather;
    if (from_split && to_.whole == 0 && disjoint_cover(to_) && same_members()) return K::kAllToAll;
    if (from_.whole == 1 && from_.parts == 0 && to_.whole == members) return K::kBroadcast;
    if (from_.whole == 1 && from_.parts == 0 && to_.whole == 0 && disjoint_cover(to_))
      return K::kScatter;
    return K::kBoxes;
  }

 private:
  struct Side {
    int members = 0;  // of the group
    int whole = 0;    // hold or want all of the tensor
    int parts = 0;    // hold or want a smaller box
    int64_t elements = 0;
    bool partial = false;
    std::vector<Box> boxes;
    std::vector<bool> takes_part;
  };

  void classify(const Part& part, Side* side) const {
    ++side->members;
    side->takes_part.push_back(!part.box.empty());
    if (part.box.empty()) return;
    side->partial |= part.of > 1;
    side->elements += part.box.count();
    side->boxes.push_back(part.box);
    ++(part.box == whole_ ? side->whole : side->parts);
  }

  bool disjoint_cover(const Side& side) const {
    if (side.elements != whole_.count()) return false;
    for (size_t i = 0; i < side.boxes.size(); ++i)
      for (size_t k = 0; k < i; ++k)
        if (!intersect(side.boxes[i], side.boxes[k]).empty()) return false;
    return true;
  }

  bool same_members() const { return from_.takes_part == to_.takes_part; }

  Box whole_;
  Side from_, to_;
};

class Lowering {
 public:
  explicit Lowering(const Graph& graph) : g_(graph) {
    plan_.model = g_.model;
    plan_.source = g_.source;
    plan_.phase = g_.phase;
    plan_.dtype = g_.dtype;
    plan_.batch = g_.batch;
    plan_.seed = g_.seed;
    plan_.shards = canonical_shards(g_.batch);
    for (const GraphLayer& layer : g_.layers)
      plan_.layers.push_back(Layer{layer.name, layer.type, layer.span.line()});
    plan_.devices.resize(static_cast<size_t>(g_.devices));
    buffers_.resize(static_cast<size_t>(g_.devices));
  }

  Plan run() {
    for (const Node& node : g_.nodes) {
      if (node.op == Op::kExchange)
        lower_exchange(node);
      else
        lower_node(node);
    }
    return std::move(plan_);
  }

 private:
  int tensor_of(int value) {
    const int logical = g_.value(value).tensor;
    if (const auto it = tensors_.find(logical); it != tensors_.end()) return it->second;
    const Value& v = g_.value(logical);
    plan_.tensors.push_back(Tensor{v.name, v.kind, v.dtype, v.format, v.shape, v.attrs});
    return tensors_[logical] = static_cast<int>(plan_.tensors.size()) - 1;
  }

  static Buffer::Region region_of(TensorKind kind) {
    switch (kind) {
      case TensorKind::kInput:
        return Buffer::Region::kInput;
      case TensorKind::kParameter:
      case TensorKind::kState:
        return Buffer::Region::kState;
      default:
        return Buffer::Region::kArena;
    }
  }

  // The buffer in which a value lives on a device; made when it is first asked for. A device
  // outside the value's mesh (which takes part in an exchange only) gets an empty one.
  int buffer_of(int device, int value) {
    const int memory = g_.value(value).memory;
    auto& known = buffers_[static_cast<size_t>(device)];
    if (const auto it = known.find(memory); it != known.end()) return it->second;
    const Value& v = g_.value(memory);
    Buffer buffer;
    buffer.name = v.name;
    buffer.tensor = tensor_of(memory);
    buffer.part = Part{empty_box(v.shape.rank()), 0, 1};
    const int at = v.layout.mesh.position(device);
    if (at >= 0) buffer.part = v.layout.parts(v.shape)[static_cast<size_t>(at)];
    buffer.region = region_of(v.kind);
    const int64_t bytes = stored_count(v.format, buffer.part.box) * dtype_size(v.dtype);
    buffer.bytes = (bytes + 63) / 64 * 64;
    auto& buffers = plan_.devices[static_cast<size_t>(device)].buffers;
    buffers.push_back(std::move(buffer));
    return known[memory] = static_cast<int>(buffers.size()) - 1;
  }

  Operand operand(int device, int value, const Layout& layout) {
    const Value& v = g_.value(value);
    const int at = layout.mesh.position(device);
    Box box =
        at < 0 ? empty_box(v.shape.rank()) : layout.parts(v.shape)[static_cast<size_t>(at)].box;
    return Operand{buffer_of(device, value), box};
  }

  void lower_node(const Node& node) {
    const Mesh& mesh =
        node.out.empty() ? node.in_layout[0].mesh : g_.value(node.out[0].value).layout.mesh;
    for (int device : mesh.devices) {
      Instr instr;
      instr.op = node.op;
      instr.attrs = node.attrs;
      instr.layer = node.layer;
      bool idle = false;
      for (const Use& use : node.out) {
        instr.out.push_back(operand(device, use.value, g_.value(use.value).layout));
        idle |= instr.out.back().box.empty();
      }
      if (idle) continue;
      for (size_t i = 0; i < node.in.size(); ++i)
        instr.in.push_back(operand(device, node.in[i].value, node.in_layout[i]));
      if (node.attrs.has("cuts")) instr.attrs.set("cuts", cuts_of(instr.in[0].box));
      plan_.devices[static_cast<size_t>(device)].instrs.push_back(std::move(instr));
    }
  }

  // Canonical shards within the examples of a box.
  std::vector<int64_t> cuts_of(const Box& box) const {
    std::vector<int64_t> cuts{box.lo(0)};
    for (int64_t b : plan_.shards)
      if (b > box.lo(0) && b < box.hi(0)) cuts.push_back(b);
    cuts.push_back(box.hi(0));
    return cuts;
  }

  void lower_exchange(const Node& node) {
    const int from = node.in[0].value, to = node.out[0].value;
    const Value& source = g_.value(from);
    const Value& target = g_.value(to);
    Exchange e;
    e.tensor = tensor_of(from);
    e.layer = node.layer;
    e.edge = node.edge;
    e.group = source.layout.mesh.devices;
    for (int device : target.layout.mesh.devices)
      if (source.layout.mesh.position(device) < 0) e.group.push_back(device);
    const std::vector<Part> held = source.layout.parts(source.shape);
    const std::vector<Part> wanted = target.layout.parts(target.shape);
    const Part none{empty_box(source.shape.rank()), 0, 1};
    int of = 1;
    for (int device : e.group) {
      const int at = source.layout.mesh.position(device);
      Part part = at < 0 ? none : held[static_cast<size_t>(at)];
      // Of equal replicas the first is the source.
      if (!part.box.empty() && std::find(e.from.begin(), e.from.end(), part) != e.from.end())
        part = none;
      of = std::max(of, part.of);
      e.from.push_back(part);
      const int wants = target.layout.mesh.position(device);
      e.to.push_back(wants < 0 ? none : wanted[static_cast<size_t>(wants)]);
    }
    if (of > 1)
      e.order = canonical_tree(g_.batch, of) ? Exchange::Order::kTree : Exchange::Order::kRank;
    e.kind = Pattern(e, source.shape).kind();
    e.bytes = wire_bytes(e, plan_.tensors[static_cast<size_t>(e.tensor)]);
    const auto id = static_cast<int64_t>(plan_.exchanges.size());
    for (size_t i = 0; i < e.group.size(); ++i) {
      if (e.from[i].box.empty() && e.to[i].box.empty()) continue;
      const int device = e.group[i];
      Instr instr;
      instr.op = Op::kExchange;
      instr.in = {operand(device, from, source.layout)};
      instr.in[0].box = e.from[i].box;
      instr.out = {operand(device, to, target.layout)};
      instr.attrs.set("id", id);
      instr.layer = node.layer;
      plan_.devices[static_cast<size_t>(device)].instrs.push_back(std::move(instr));
    }
    plan_.exchanges.push_back(std::move(e));
  }

  const Graph& g_;
  Plan plan_;
  std::map<int, int> tensors_;               // logical value -> plan tensor
  std::vector<std::map<int, int>> buffers_;  // per device: memory value -> buffer
};

}  // namespace

Plan lower(const Graph& graph) { return Lowering(graph).run(); }

}  // namespace convnet
