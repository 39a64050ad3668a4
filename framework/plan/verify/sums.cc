// Partial sums: over what each runs, that together they count everything once, and in which order
// they may be added.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "framework/plan/names.h"
#include "framework/plan/verify/faults.h"

namespace convnet {
namespace {

// What a result is a sum over.
struct Sum {
  int device = 0, instr = 0;
  Part part;
  int64_t lo = 0, hi = 0, extent = 0;  // the indices summed, and how many there are in all
  bool over_examples = false;
};

// All sums that make up one tensor.
using Sums = std::map<int, std::vector<Sum>>;

class SumCheck {
 public:
  SumCheck(const Plan& plan, Faults& faults) : plan_(plan), faults_(faults) {}

  void run() {
    for (size_t d = 0; d < plan_.devices.size(); ++d)
      for (size_t i = 0; i < plan_.devices[d].instrs.size(); ++i)
        collect(static_cast<int>(d), static_cast<int>(i));
    for (const auto& [tensor, sums] : sums_) check(tensor, sums);
    for (size_t id = 0; id < plan_.exchanges.size(); ++id) order(static_cast<int>(id));
  }

 private:
  const std::string& name(int tensor) const {
    return plan_.tensors[static_cast<size_t>(tensor)].name;
  }

  void collect(int d, int i) {
    const DevicePlan& device = plan_.devices[static_cast<size_t>(d)];
    const Instr& instr = device.instrs[static_cast<size_t>(i)];
    Sum sum{d, i, {}, 0, 0, 0, false};
    size_t first = 0;
    int dim = 0;
    const Operand* over = nullptr;
    switch (instr.op) {
      case Op::kConvFwd:
      case Op::kFcFwd:
        over = &instr.in[1];
        dim = 1;
        break;
      case Op::kConvBwdData:
      case Op::kFcBwdData:
        over = &instr.in[1];
        break;
      case Op::kSoftmaxLossFwd:
        first = 1;
        [[fallthrough]];
      case Op::kConvBwdWeight:
      case Op::kFcBwdWeight:
        over = &instr.in[0];
        sum.over_examples = true;
        break;
      default:
        return;
    }
    sum.lo = over->box.lo(dim);
    sum.hi = over->box.hi(dim);
    sum.extent = tensor_of(plan_, device, *over).shape[dim];
    for (size_t r = first; r < instr.out.size(); ++r) {
      const Buffer& b = buffer_of(device, instr.out[r]);
      sum.part = b.part;
      if (sum.over_examples || b.part.of > 1) sums_[b.tensor].push_back(sum);
    }
    if (sum.over_examples) cuts(d, i, instr.attrs.list("cuts"), sum);
  }

  // The canonical boundaries inside the range, and its ends.
  void cuts(int d, int i, const std::vector<int64_t>& cuts, const Sum& sum) {
    std::vector<int64_t> expected{sum.lo};
    for (int64_t s : plan_.shards)
      if (s > sum.lo && s < sum.hi) expected.push_back(s);
    expected.push_back(sum.hi);
    if (cuts != expected)
      faults_.in_instr(
          d, i, "cuts",
          fmt::format("the cuts are {}, the canonical shards of the examples {}:{} are {}",
                      text(cuts), sum.lo, sum.hi, text(expected)));
  }

  static std::string text(const std::vector<int64_t>& values) {
    std::string s = "[";
    for (size_t i = 0; i < values.size(); ++i) s += (i ? "," : "") + std::to_string(values[i]);
    return s + "]";
  }

  // Index k of every device runs over the same range, and the ranges of k = 0, 1, ... follow on one
  // another from the first index to the last.
  void check(int tensor, const std::vector<Sum>& sums) {
    const int of = sums[0].part.of;
    const char* what = sums[0].over_examples ? "examples" : "indices";
    std::map<int, const Sum*> by_index;
    for (const Sum& s : sums) {
      if (s.part.of != of) {
        faults_.in_instr(s.device, s.instr, "partial",
                         fmt::format("makes '{}' in {} parts, elsewhere it is made in {}",
                                     name(tensor), s.part.of, of));
        return;
      }
      if (of == 1) continue;  // check_geometry has seen to it
      const auto [entry, is_new] = by_index.emplace(s.part.k, &s);
      if (!is_new && (entry->second->lo != s.lo || entry->second->hi != s.hi))
        faults_.in_instr(
            s.device, s.instr, "partial",
            fmt::format("sums the {} {}:{} to part {} of '{}', elsewhere that part sums "
                        "{}:{}",
                        what, s.lo, s.hi, s.part.k, name(tensor), entry->second->lo,
                        entry->second->hi));
      if (!is_new && is_final_metric(tensor))
        faults_.in_instr(
            s.device, s.instr, "loss-coverage",
            fmt::format("makes part {} of '{}' a second time", s.part.k, name(tensor)));
    }
    if (of == 1) return;
    int64_t next = 0;
    for (int k = 0; k < of; ++k) {
      const auto entry = by_index.find(k);
      if (entry == by_index.end()) {
        faults_.in_layer(layer_of(sums[0]), "partial",
                         fmt::format("part {} of {} of '{}' is not made", k, of, name(tensor)));
        return;
      }
      const Sum& s = *entry->second;
      if (s.lo != next)
        faults_.in_instr(s.device, s.instr, "partial",
                         fmt::format("part {} of '{}' sums the {} {}:{}, must begin at {}", k,
                                     name(tensor), what, s.lo, s.hi, next));
      next = s.hi;
    }
    if (next != sums[0].extent)
      faults_.in_layer(layer_of(sums[0]), "partial",
                       fmt::format("the parts of '{}' end at {} of {} {}", name(tensor), next,
                                   sums[0].extent, what));
  }

  int layer_of(const Sum& s) const {
    return plan_.devices[static_cast<size_t>(s.device)].instrs[static_cast<size_t>(s.instr)].layer;
  }

  // Metrics that no exchange adds up: the host does.
  bool is_final_metric(int tensor) const {
    return plan_.tensors[static_cast<size_t>(tensor)].kind == TensorKind::kMetric &&
           std::none_of(plan_.exchanges.begin(), plan_.exchanges.end(),
                        [&](const Exchange& e) { return e.tensor == tensor; });
  }

  // Sums over examples are added as the canonical tree where the parts are its subtrees, else by
  // rank.
  void order(int id) {
    const Exchange& e = plan_.exchanges[static_cast<size_t>(id)];
    if (e.order == Exchange::Order::kNone) return;
    const auto found = sums_.find(e.tensor);
    if (found == sums_.end() || !found->second[0].over_examples) return;
    const int of = found->second[0].part.of;
    for (const Part& p : e.from)
      if (!p.box.empty() && p.of != of) {
        faults_.in_exchange(
            id, "partial",
            fmt::format("adds {} parts of '{}', which is made in {}", p.of, name(e.tensor), of));
        return;
      }
    std::vector<int64_t> bounds(static_cast<size_t>(of) + 1, 0);
    for (const Sum& s : found->second) bounds[static_cast<size_t>(s.part.k) + 1] = s.hi;
    const auto canonical =
        are_subtrees(bounds, 0, static_cast<size_t>(of), 0, plan_.shards.size() - 1)
            ? Exchange::Order::kTree
            : Exchange::Order::kRank;
    if (e.order != canonical)
      faults_.in_exchange(
          id, "order",
          fmt::format("records order={}; its parts {} of the shards {} are {}, so the order is {}",
                      exchange_order_name(e.order), text(bounds), text(plan_.shards),
                      canonical == Exchange::Order::kTree ? "subtrees of the canonical tree"
                                                          : "no subtrees of the canonical tree",
                      exchange_order_name(canonical)));
  }

  // Whether the tree over parts [a, b) and the tree over shards [lo, hi) are the same above the
  // parts.
  bool are_subtrees(const std::vector<int64_t>& bounds, size_t a, size_t b, size_t lo,
                    size_t hi) const {
    if (bounds[a] != plan_.shards[lo] || bounds[b] != plan_.shards[hi]) return false;
    if (b - a == 1) return true;
    if (hi - lo == 1) return false;
    const size_t middle = a + (b - a) / 2, shard = lo + (hi - lo) / 2;
    return are_subtrees(bounds, a, middle, lo, shard) && are_subtrees(bounds, middle, b, shard, hi);
  }

  const Plan& plan_;
  Faults& faults_;
  Sums sums_;  // by tensor
};

}  // namespace

void check_sums(const Plan& plan, Faults& faults) { SumCheck(plan, faults).run(); }

}  // namespace convnet
