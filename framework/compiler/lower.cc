#include <algorithm>
#include <map>

#include "framework/compiler/passes.h"
#include "framework/plan/cost.h"
#include "framework/plan/rows.h"

namespace convnet {
namespace {

// The smallest box around all that an exchange moves.
Box hull(const Exchange& e) {
  Box all;
  for (const std::vector<Part>* parts : {&e.from, &e.to})
    for (const Part& p : *parts) {
      if (p.box.empty()) continue;
      if (all.rank() == 0) all = p.box;
      for (int d = 0; d < all.rank(); ++d)
        all.set(d, std::min(all.lo(d), p.box.lo(d)), std::max(all.hi(d), p.box.hi(d)));
    }
  return all;
}

// Which pattern the boxes of an exchange form, if any.
class Pattern {
 public:
  explicit Pattern(const Exchange& e) : whole_(hull(e)) {
    for (const Part& p : e.from) classify(p, &from_);
    for (const Part& p : e.to) classify(p, &to_);
  }

  Exchange::Kind kind() const {
    using K = Exchange::Kind;
    const int members = from_.members;
    if (from_.of > to_.of) {
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
    int of = 1;
    std::vector<Box> boxes;
    std::vector<bool> takes_part;
  };

  void classify(const Part& part, Side* side) const {
    ++side->members;
    side->takes_part.push_back(!part.box.empty());
    if (part.box.empty()) return;
    side->of = std::max(side->of, part.of);
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
        lower_exchange(node, node.in[0].value, node.out[0].value);
      else if (node.op == Op::kRowsJoin)
        lower_join(node);
      else
        lower_node(node);
    }
    settle_buckets();
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
    buffer.part = nothing(v.shape.rank());
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
    const Part part =
        at < 0 ? nothing(v.shape.rank()) : layout.parts(v.shape)[static_cast<size_t>(at)];
    return Operand{buffer_of(device, value), part.box};
  }

  void lower_node(const Node& node) {
    const Mesh& mesh =
        node.out.empty() ? node.in_layout[0].mesh : g_.value(node.out[0].value).layout.mesh;
    for (int device : mesh.devices) {
      device_ = device;
      Instr instr;
      instr.op = node.op;
      instr.attrs = node.attrs;
      instr.layer = node.layer;
      instr.stream = node.stream;
      bool idle = !node.out.empty();
      for (const Use& use : node.out) {
        instr.out.push_back(operand(device, use.value, g_.value(use.value).layout));
        idle &= instr.out.back().box.empty();
      }
      if (idle) continue;
      for (size_t i = 0; i < node.in.size(); ++i)
        instr.in.push_back(operand(device, node.in[i].value, node.in_layout[i]));
      fill_cuts(instr);
      plan_.devices[static_cast<size_t>(device)].instrs.push_back(std::move(instr));
    }
  }

  // The canonical shards of what an instruction sums that lie in its operands' boxes.
  void fill_cuts(Instr& instr) const {
    const bool weight = instr.op == Op::kConvBwdWeight;
    const struct {
      const char* name;
      size_t operand;
      int dim;
    } kCuts[] = {{"cuts", 0, 0},
                 {"channel_cuts", 0, 1},
                 {"filter_cuts", 0, 1},
                 {"class_cuts", 0, 1},
                 {"row_cuts", weight ? 1u : 0u, 2},
                 {"column_cuts", weight ? 1u : 0u, 3}};
    for (const auto& [name, operand, dim] : kCuts) {
      if (!instr.attrs.has(name)) continue;
      const Operand& o = instr.in[operand];
      const Tensor& t =
          plan_.tensors[static_cast<size_t>(plan_.devices[static_cast<size_t>(device_)]
                                                .buffers[static_cast<size_t>(o.buffer)]
                                                .tensor)];
      std::vector<int64_t> cuts{o.box.lo(dim)};
      for (int64_t b : dim == 0 ? canonical_shards(t.shape[0]) : canonical_cuts(t.shape[dim]))
        if (b > o.box.lo(dim) && b < o.box.hi(dim)) cuts.push_back(b);
      cuts.push_back(o.box.hi(dim));
      instr.attrs.set(name, cuts);
    }
  }

  // One box copy or sum between layouts, or between a batch and one of its sub-batches. Where
  // devices hold the same parts each group of replicas serves its own members, and what has nothing
  // to do with each other is exchanged apart: so the rows and columns of a mesh have collectives of
  // their own.
  void lower_exchange(const Node& node, int from, int to) {
    const Value& source = g_.value(from);
    const Value& target = g_.value(to);
    std::vector<Member> members;
    const std::vector<Part> held = source.layout.parts(source.shape);
    const std::vector<Part> wanted = target.layout.parts(target.shape);
    const Part none = nothing(source.shape.rank());
    for (size_t i = 0; i < held.size(); ++i)
      members.push_back({source.layout.mesh.devices[i], held[i], none, 0});
    for (size_t i = 0; i < wanted.size(); ++i) {
      const int device = target.layout.mesh.devices[i];
      const auto at = std::ranges::find(members, device, &Member::device);
      if (at == members.end())
        members.push_back({device, none, wanted[i], -1});
      else
        at->to = wanted[i];
    }
    for (const Rows& rows : shared_rows(source, target, members))
      for (std::vector<Member>& group : replica_groups(within(members, rows)))
        for (std::vector<Member>& part : components(group))
          add_exchange(node, from, to, rows, std::move(part));
  }

  struct Member {
    int device = 0;
    Part from, to;
    int replica = 0;  // among the devices that hold the same part; -1: it holds none
  };

  // Pieces of dimension 0 that both sides have: rows [first, first + count) of the sub-batch are
  // the rows from `lo` on of the whole, or of a larger sub-batch. Empty: the sides have the same
  // rows.
  struct Segment {
    int64_t first = 0, lo = 0, count = 0;
  };
  struct Rows {
    std::vector<Segment> segments;
    bool from_whole = false;  // the source is the whole, else the destination is
  };

  // In how many exchanges the rows go over: in one where each member's box of the whole meets one
  // segment at most, else one for each segment.
  std::vector<Rows> shared_rows(const Value& source, const Value& target,
                                const std::vector<Member>& members) const {
    const auto rows_of = [](const Value& value) {
      return value.attrs.has("rows") ? value.attrs.list("rows") : std::vector<int64_t>();
    };
    const RowMap from(rows_of(source)), to(rows_of(target));
    if (from == to) return {Rows{}};
    const bool sub_target = target.shape[0] <= source.shape[0];
    Rows all{{}, sub_target};
    for (const RowRun& run : sub_target ? common_rows(to, 0, target.shape[0], from)
                                        : common_rows(from, 0, source.shape[0], to))
      all.segments.push_back({run.from, run.to, run.count});
    const bool single = std::ranges::all_of(members, [&](const Member& m) {
      const Box& box = (sub_target ? m.from : m.to).box;
      return box.empty() || std::ranges::count_if(all.segments, [&](const Segment& s) {
                              return box.lo(0) < s.lo + s.count && s.lo < box.hi(0);
                            }) <= 1;
    });
    if (single) return {all};
    std::vector<Rows> each;
    for (const Segment& s : all.segments) each.push_back({{s}, sub_target});
    return each;
  }

  // The members' parts within the rows, in the row numbers of the sub-batch.
  static std::vector<Member> within(std::vector<Member> members, const Rows& rows) {
    if (rows.segments.empty()) return members;
    for (Member& m : members) {
      Part& whole = rows.from_whole ? m.from : m.to;
      Part& sub = rows.from_whole ? m.to : m.from;
      const auto clip = [](Part& part, int64_t lo, int64_t hi) {
        lo = std::max(lo, part.box.lo(0));
        hi = std::min(hi, part.box.hi(0));
        if (lo < hi)
          part.box.set(0, lo, hi);
        else
          part = nothing(part.box.rank());
        return lo < hi;
      };
      Part found = nothing(whole.box.rank());
      if (!whole.box.empty())
        for (const Segment& s : rows.segments) {
          Part part = whole;
          if (!clip(part, s.lo, s.lo + s.count)) continue;
          part.box.set(0, part.box.lo(0) - s.lo + s.first, part.box.hi(0) - s.lo + s.first);
          found = part;
        }
      whole = found;
      if (!sub.box.empty() && rows.segments.size() == 1)
        clip(sub, rows.segments[0].first, rows.segments[0].first + rows.segments[0].count);
    }
    return members;
  }

  // Back to the row numbers of the whole.
  static void to_whole(const Rows& rows, Part* part) {
    if (part->box.empty()) return;
    for (const Segment& s : rows.segments)
      if (part->box.lo(0) >= s.first && part->box.hi(0) <= s.first + s.count) {
        part->box.set(0, part->box.lo(0) - s.first + s.lo, part->box.hi(0) - s.first + s.lo);
        return;
      }
  }

  // Members by the set of parts that serves them: each complete set its own devices, and those that
  // hold nothing dealt out over the sets.
  static std::vector<std::vector<Member>> replica_groups(std::vector<Member> members) {
    std::vector<std::pair<Part, int>> seen;
    for (Member& m : members) {
      m.replica = -1;
      if (m.from.box.empty()) continue;
      const auto at = std::ranges::find(seen, m.from, &std::pair<Part, int>::first);
      m.replica = at == seen.end() ? 0 : at->second;
      at == seen.end() ? seen.emplace_back(m.from, 1) : * at = {m.from, m.replica + 1};
    }
    int sets = seen.empty() ? 0 : seen[0].second;
    for (const auto& [part, count] : seen) sets = std::min(sets, count);
    std::vector<std::vector<Member>> groups(static_cast<size_t>(sets));
    int others = 0;
    for (Member& m : members) {
      int set = m.replica;
      if (set < 0 || set >= sets) {  // holds nothing, or what the sets have already
        m.from = nothing(m.from.box.rank());
        set = sets == 0 ? 0 : others++ % sets;
      }
      if (sets > 0) groups[static_cast<size_t>(set)].push_back(m);
    }
    return groups;
  }

  // Split into members that have to do with each other, in their order.
  static std::vector<std::vector<Member>> components(const std::vector<Member>& members) {
    std::vector<size_t> root(members.size());
    for (size_t i = 0; i < root.size(); ++i) root[i] = i;
    const auto find = [&](size_t i) {
      while (root[i] != i) i = root[i];
      return i;
    };
    for (size_t i = 0; i < members.size(); ++i)
      for (size_t k = 0; k < members.size(); ++k)
        if (!members[i].from.box.empty() && !members[k].to.box.empty() &&
            !intersect(members[i].from.box, members[k].to.box).empty()) {
          const size_t a = find(i), b = find(k);
          root[std::max(a, b)] = std::min(a, b);
        }
    std::vector<std::vector<Member>> parts;
    std::map<size_t, size_t> index;
    for (size_t i = 0; i < members.size(); ++i) {
      if (members[i].to.box.empty() && members[i].from.box.empty()) continue;
      const auto [at, is_new] = index.emplace(find(i), parts.size());
      if (is_new) parts.emplace_back();
      parts[at->second].push_back(members[i]);
    }
    // What nobody wants stays where it is.
    std::erase_if(parts, [](const std::vector<Member>& part) {
      return std::ranges::all_of(part, [](const Member& m) { return m.to.box.empty(); });
    });
    return parts;
  }

  void add_exchange(const Node& node, int from, int to, const Rows& rows,
                    std::vector<Member> members) {
    Exchange e;
    e.tensor = tensor_of(from);
    e.into = tensor_of(to) == e.tensor ? -1 : tensor_of(to);
    e.layer = node.layer;
    e.edge = node.edge;
    e.bucket = node.bucket;
    bool sums = false;
    for (const Member& m : members) {
      e.group.push_back(m.device);
      e.from.push_back(m.from);
      e.to.push_back(m.to);
      sums |= !m.from.box.empty() && m.from.of > g_.value(to).layout.passes;
    }
    if (sums)
      e.order = g_.value(from).layout.canonical() ? Exchange::Order::kTree : Exchange::Order::kRank;
    if (members.size() > 1) {  // else a copy on one device
      e.kind = Pattern(e).kind();
      e.wire = node.wire;
    }
    if (!rows.segments.empty())
      for (size_t i = 0; i < members.size(); ++i)
        to_whole(rows, rows.from_whole ? &e.from[i] : &e.to[i]);
    e.bytes = wire_bytes(e, plan_.tensors[static_cast<size_t>(e.tensor)],
                         plan_.tensors[static_cast<size_t>(e.target())]);
    const auto id = static_cast<int64_t>(plan_.exchanges.size());
    for (size_t i = 0; i < e.group.size(); ++i) {
      const int device = e.group[i];
      Instr instr;
      instr.op = Op::kExchange;
      instr.in = {operand(device, from, g_.value(from).layout)};
      instr.in[0].box = e.from[i].box;
      instr.out = {operand(device, to, g_.value(to).layout)};
      instr.out[0].box = e.to[i].box;
      instr.attrs.set("id", id);
      instr.layer = node.layer;
      instr.stream = node.stream;
      plan_.devices[static_cast<size_t>(device)].instrs.push_back(std::move(instr));
    }
    plan_.exchanges.push_back(std::move(e));
  }

  // The values of passes become one: each device puts together what it has, or else every pass
  // brings its rows to those who want them.
  void lower_join(const Node& node) {
    if (joins_locally(g_, node))
      lower_node(node);
    else
      for (const Use& use : node.in) lower_exchange(node, use.value, node.out[0].value);
  }

  // A bucket of the graph is one bucket of each group of devices that takes part in several of its
  // exchanges, and issues them side by side.
  void settle_buckets() {
    using Members = std::vector<std::pair<int, bool>>;  // and whether they take part
    std::map<std::pair<int, Members>, std::vector<int>> buckets;
    for (size_t id = 0; id < plan_.exchanges.size(); ++id) {
      const Exchange& e = plan_.exchanges[id];
      Members members;
      for (size_t m = 0; m < e.group.size(); ++m)
        members.emplace_back(e.group[m], !e.from[m].box.empty() || !e.to[m].box.empty());
      if (e.bucket >= 0) buckets[{e.bucket, members}].push_back(static_cast<int>(id));
    }
    std::vector<std::vector<int>> found;
    for (const auto& [key, ids] : buckets) {
      for (int id : ids) plan_.exchanges[static_cast<size_t>(id)].bucket = -1;
      if (ids.size() > 1 && side_by_side(ids)) found.push_back(ids);
    }
    std::ranges::sort(found);
    for (size_t b = 0; b < found.size(); ++b)
      for (int id : found[b]) plan_.exchanges[static_cast<size_t>(id)].bucket = static_cast<int>(b);
  }

  bool side_by_side(const std::vector<int>& ids) const {
    return std::ranges::all_of(plan_.devices, [&](const DevicePlan& device) {
      std::vector<size_t> at;
      for (size_t i = 0; i < device.instrs.size(); ++i)
        if (device.instrs[i].op == Op::kExchange &&
            std::ranges::find(ids, device.instrs[i].attrs.integer("id")) != ids.end())
          at.push_back(i);
      return at.empty() || at.back() - at.front() + 1 == at.size();
    });
  }

  const Graph& g_;
  Plan plan_;
  int device_ = 0;                           // whose instruction is made
  std::map<int, int> tensors_;               // logical value -> plan tensor
  std::vector<std::map<int, int>> buffers_;  // per device: memory value -> buffer
};

}  // namespace

bool has_rows_for(const Value& part, const Value& whole) {
  const std::vector<Part> wanted = whole.layout.parts(whole.shape);
  const std::vector<Part> held = part.layout.parts(part.shape);
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i].box.empty()) continue;
    const int at = part.layout.mesh.position(whole.layout.mesh.devices[i]);
    if (at < 0) return false;
    Part all = wanted[i];
    all.box.set(0, 0, part.shape[0]);
    if (!(held[static_cast<size_t>(at)] == all) || wanted[i].box.extent(0) != whole.shape[0])
      return false;
  }
  return true;
}

bool joins_locally(const Graph& graph, const Node& join) {
  return std::ranges::all_of(join.in, [&](const Use& use) {
    return has_rows_for(graph.value(use.value), graph.value(join.out[0].value));
  });
}

Plan lower(const Graph& graph) { return Lowering(graph).run(); }

}  // namespace convnet
