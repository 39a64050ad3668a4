// Exchanges: who takes part and when, what arrives, which pattern it is, how many bytes it takes.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "framework/plan/names.h"
#include "framework/plan/rows.h"
#include "framework/plan/verify/box_set.h"
#include "framework/plan/verify/faults.h"

namespace convnet {
namespace {

using Kind = Exchange::Kind;

class ExchangeCheck {
 public:
  // `e`: with the boxes of both sides in one numbering of rows.
  ExchangeCheck(const Plan& plan, const Exchange& e, int id, Faults& faults)
      : plan_(plan), e_(e), id_(id), faults_(faults) {}

  void run() {
    wire();
    if (!sums() || !cover()) return;
    if (!has_pattern())
      fault("pattern", fmt::format("is no {}: its boxes are not of that pattern",
                                   exchange_kind_name(e_.kind)));
    else if (e_.bytes != wire_bytes())
      fault("bytes", fmt::format("records {} bytes, its boxes take {}", e_.bytes, wire_bytes()));
  }

 private:
  size_t members() const { return e_.group.size(); }
  const Box& from(size_t m) const { return e_.from[m].box; }
  const Box& to(size_t m) const { return e_.to[m].box; }
  void fault(const char* rule, const std::string& message) {
    faults_.in_exchange(id_, rule, message);
  }

  // What may be encoded, and how.
  void wire() {
    if (e_.wire == Wire::kF32) return;
    const Tensor& t = plan_.tensors[static_cast<size_t>(e_.tensor)];
    const std::string as = fmt::format("is encoded as {}, ", to_string(e_.wire));
    if (t.dtype != DType::kF32)
      fault("wire", fmt::format("{}but '{}' is not f32", as, t.name));
    else if (t.kind != TensorKind::kActivation && t.kind != TensorKind::kGradient)
      fault("wire", fmt::format("{}but '{}' is of kind {}; only activations and gradients are", as,
                                t.name, tensor_kind_name(t.kind)));
    else if (e_.wire == Wire::kOnebit)
      fault("wire", as + "but a plan has no state for what that leaves to the next step");
    else if (members() == 1)
      fault("wire", as + "but stays on one device");
  }

  // How many partial sums make up each element, the same everywhere.
  bool sums() {
    bool good = true;
    for (size_t m = 0; m < members(); ++m) {
      if (!from(m).empty()) {
        if (of_ == 0) of_ = e_.from[m].of;
        if (e_.from[m].of != of_) {
          fault("partial", fmt::format("mixes sums of {} and of {} parts", of_, e_.from[m].of));
          good = false;
        }
      }
      if (!to(m).empty()) {
        if (to_of_ == 0) to_of_ = e_.to[m].of;
        if (e_.to[m].of != to_of_) {
          fault("partial", fmt::format("makes sums of {} and of {} parts", to_of_, e_.to[m].of));
          good = false;
        }
      }
    }
    if (of_ == 0) {
      fault("cover", "has no source");
      return false;
    }
    if (to_of_ == 0) {
      fault("cover", "has no destination");
      return false;
    }
    if (of_ % to_of_ != 0) {
      fault("partial", fmt::format("makes sums of {} parts from sums of {}", to_of_, of_));
      return false;
    }
    each_ = of_ / to_of_;
    if ((each_ > 1) != (e_.order != Exchange::Order::kNone)) {
      fault("order",
            fmt::format("adds {} parts with order={}", each_, exchange_order_name(e_.order)));
      good = false;
    }
    return good;
  }

  // Every element wanted comes from exactly one source, or once from each partial sum of its part.
  bool cover() {
    bool good = true;
    for (size_t d = 0; d < members(); ++d) {
      if (to(d).empty()) continue;
      for (int k = e_.to[d].k * each_; k < (e_.to[d].k + 1) * each_; ++k) {
        BoxSet arrived;
        int64_t count = 0;
        for (size_t s = 0; s < members(); ++s) {
          if (from(s).empty() || e_.from[s].k != k) continue;
          const Box common = intersect(from(s), to(d));
          count += common.count();
          arrived.add(common);
        }
        const auto missing = arrived.missing(to(d));
        const std::string what = of_ == 1 ? "" : fmt::format(" of partial sum {} of {}", k, of_);
        if (!missing.empty())
          fault("cover", fmt::format("brings device {} nothing for the elements {}{}", e_.group[d],
                                     missing.front().str(), what));
        else if (count != to(d).count())
          fault("cover", fmt::format("brings device {} {} elements{} for the {} of {}", e_.group[d],
                                     count, what, to(d).count(), to(d).str()));
        good &= missing.empty() && count == to(d).count();
      }
    }
    return good;
  }

  static const Box* only(const std::vector<Part>& parts) {
    const Box* found = nullptr;
    for (const Part& p : parts) {
      if (p.box.empty()) continue;
      if (found != nullptr) return nullptr;
      found = &p.box;
    }
    return found;
  }
  // The box that all members have; nullptr if they differ.
  static const Box* common(const std::vector<Part>& parts) {
    for (const Part& p : parts)
      if (p.box.empty() || !(p.box == parts[0].box)) return nullptr;
    return &parts[0].box;
  }
  // Whether the boxes are an exact cover of `whole`.
  static bool partition(const std::vector<Part>& parts, const Box& whole) {
    BoxSet set;
    int64_t count = 0;
    for (const Part& p : parts) {
      if (p.box.empty()) continue;
      if (!whole.contains(p.box)) return false;
      count += p.box.count();
      set.add(p.box);
    }
    return count == whole.count() && set.covers(whole);
  }
  static Box hull(const std::vector<Part>& parts) {
    Box h;
    bool first = true;
    for (const Part& p : parts) {
      if (p.box.empty()) continue;
      if (first) h = p.box;
      first = false;
      for (int i = 0; i < h.rank(); ++i)
        h.set(i, std::min(h.lo(i), p.box.lo(i)), std::max(h.hi(i), p.box.hi(i)));
    }
    return h;
  }
  // Each member has its own one of as many partial sums as there are members, which all add up to
  // the same part.
  bool one_sum_each() const {
    if (each_ != static_cast<int>(members())) return false;
    std::vector<bool> seen(members(), false);
    for (const Part& p : e_.from) seen[static_cast<size_t>(p.k % each_)] = true;
    return std::find(seen.begin(), seen.end(), false) == seen.end() &&
           std::all_of(e_.from.begin(), e_.from.end(),
                       [&](const Part& p) { return p.k / each_ == e_.from[0].k / each_; });
  }

  // Judged by the boxes of this group alone: it may move a part of the tensor.
  bool has_pattern() const {
    if (members() == 1) return e_.kind == Kind::kBoxes;  // a copy on one device
    const bool copies = each_ == 1;
    const Box *all_from = common(e_.from), *all_to = common(e_.to);
    const Box *one_from = only(e_.from), *one_to = only(e_.to);
    switch (e_.kind) {
      case Kind::kBoxes:
        return true;
      case Kind::kAllGather:
        return copies && all_to != nullptr && one_from == nullptr && partition(e_.from, *all_to);
      case Kind::kReduceScatter:
        return all_from != nullptr && one_to == nullptr && one_sum_each() &&
               partition(e_.to, *all_from);
      case Kind::kAllReduce:
        return all_from != nullptr && all_to != nullptr && *all_from == *all_to && one_sum_each();
      case Kind::kBroadcast: {
        if (!copies || one_from == nullptr) return false;
        for (size_t m = 0; m < members(); ++m)
          if (!(to(m) == *one_from) && !(to(m).empty() && from(m) == *one_from)) return false;
        return true;
      }
      case Kind::kReduce:
        return all_from != nullptr && one_to != nullptr && *one_to == *all_from && one_sum_each();
      case Kind::kGather:
        return copies && one_to != nullptr && partition(e_.from, *one_to);
      case Kind::kScatter:
        return copies && one_from != nullptr && partition(e_.to, *one_from);
      case Kind::kAllToAll: {
        const Box whole = hull(e_.from);
        return copies && one_from == nullptr && one_to == nullptr && all_from == nullptr &&
               all_to == nullptr && partition(e_.from, whole) && partition(e_.to, whole);
      }
    }
    return false;
  }

  // FORMAT.md, "Bytes on the wire".
  int64_t wire_bytes() const {
    const auto p = static_cast<int64_t>(members());
    switch (e_.kind) {
      case Kind::kAllGather:
        return all_but_smallest(e_.from);
      case Kind::kReduceScatter:
        return all_but_smallest(e_.to);
      case Kind::kAllReduce: {
        const int64_t n = from(0).count();
        int64_t sum = 0;
        for (int64_t i = 1; i < p; ++i) sum += encoded(n * (i + 1) / p - n * i / p);
        return 2 * sum;
      }
      case Kind::kBroadcast:
        return encoded(only(e_.from)->count());
      case Kind::kReduce:
        return encoded(only(e_.to)->count());
      case Kind::kGather:
      case Kind::kScatter:
      case Kind::kAllToAll:
      case Kind::kBoxes:
        break;
    }
    int64_t most = 0;
    for (size_t a = 0; a < members(); ++a) {
      int64_t sent = 0, received = 0;
      for (size_t b = 0; b < members(); ++b) {
        if (a == b) continue;
        if (!from(a).empty() && !to(b).empty()) sent += encoded(intersect(from(a), to(b)).count());
        if (!to(a).empty() && !from(b).empty())
          received += encoded(intersect(to(a), from(b)).count());
      }
      most = std::max({most, sent, received});
    }
    return most;
  }
  int64_t encoded(int64_t count) const {
    if (e_.wire != Wire::kF32) return encoded_bytes(e_.wire, count);
    return count * dtype_size(plan_.tensors[static_cast<size_t>(e_.tensor)].dtype);
  }
  int64_t all_but_smallest(const std::vector<Part>& pieces) const {
    int64_t all = 0, least = encoded(pieces[0].box.count());
    for (const Part& p : pieces) {
      all += encoded(p.box.count());
      least = std::min(least, encoded(p.box.count()));
    }
    return all - least;
  }

  const Plan& plan_;
  const Exchange& e_;
  int id_;
  Faults& faults_;
  int of_ = 0, to_of_ = 0;  // parts of what is sent, and of what is made of it
  int each_ = 0;            // parts sent that add up to one made
};

// Every member that holds or wants something issues the exchange, once, with those very boxes; all
// devices in the order of the table; and so none waits for ever.
class IssueCheck {
 public:
  IssueCheck(const Plan& plan, Faults& faults) : plan_(plan), faults_(faults) {}

  void run() {
    issued_.assign(plan_.exchanges.size(), std::vector<int>(plan_.devices.size(), 0));
    queues_.resize(plan_.devices.size());
    for (size_t d = 0; d < plan_.devices.size(); ++d) device(static_cast<int>(d));
    for (size_t id = 0; id < plan_.exchanges.size(); ++id) counts(static_cast<int>(id));
    simulate();
  }

 private:
  void device(int d) {
    const DevicePlan& device = plan_.devices[static_cast<size_t>(d)];
    int64_t last = -1;
    for (size_t i = 0; i < device.instrs.size(); ++i) {
      const Instr& instr = device.instrs[i];
      if (instr.op != Op::kExchange) continue;
      const int64_t id = instr.attrs.integer("id");
      if (id >= static_cast<int64_t>(plan_.exchanges.size())) {
        faults_.in_instr(d, static_cast<int>(i), "index",
                         fmt::format("exchange {} of {}", id, plan_.exchanges.size()));
        continue;
      }
      if (id <= last)
        faults_.in_instr(d, static_cast<int>(i), "exchange-order",
                         fmt::format("issues exchange {} after exchange {}", id, last));
      last = std::max(last, id);
      queues_[static_cast<size_t>(d)].push_back(static_cast<int>(id));
      ++issued_[static_cast<size_t>(id)][static_cast<size_t>(d)];
      views(d, static_cast<int>(i), static_cast<int>(id));
    }
  }

  // Operand and result of the instruction against the table.
  void views(int d, int i, int id) {
    const Exchange& e = plan_.exchanges[static_cast<size_t>(id)];
    const auto member = std::find(e.group.begin(), e.group.end(), d);
    if (member == e.group.end()) {
      faults_.in_instr(d, i, "group", fmt::format("device {} is no member of exchange {}", d, id));
      return;
    }
    const auto m = static_cast<size_t>(member - e.group.begin());
    const Instr& instr = plan_.devices[static_cast<size_t>(d)].instrs[static_cast<size_t>(i)];
    view(d, i, e.tensor, "operand", instr.in, e.from[m]);
    view(d, i, e.target(), "result", instr.out, e.to[m]);
  }

  void view(int d, int i, int tensor, const char* what, const std::vector<Operand>& list,
            const Part& part) {
    const DevicePlan& device = plan_.devices[static_cast<size_t>(d)];
    const bool nothing = list[0].box.empty();
    const Buffer& b = buffer_of(device, list[0]);
    if (b.tensor != tensor) {
      faults_.in_instr(d, i, "exchange-view",
                       fmt::format("its {} {} is of the tensor '{}', the table says '{}'", what,
                                   operand_name(device, list[0]),
                                   plan_.tensors[static_cast<size_t>(b.tensor)].name,
                                   plan_.tensors[static_cast<size_t>(tensor)].name));
      return;
    }
    if (part.box.empty() && nothing) return;
    if (part.box.empty() || nothing) {
      faults_.in_instr(d, i, "exchange-view",
                       fmt::format("its {} is {}, the table says {}", what,
                                   nothing ? "nothing" : operand_name(device, list[0]),
                                   part.box.empty() ? "nothing" : part.box.str()));
      return;
    }
    if (!(list[0].box == part.box))
      faults_.in_instr(d, i, "exchange-view",
                       fmt::format("its {} is the box {} of '%{}', the table says {}", what,
                                   list[0].box.str(), b.name, part.box.str()));
    else if (b.part.k != part.k || b.part.of != part.of)
      faults_.in_instr(
          d, i, "exchange-view",
          fmt::format("its {} '%{}' holds partial sum {} of {}, the table says {} of {}", what,
                      b.name, b.part.k, b.part.of, part.k, part.of));
  }

  void counts(int id) {
    const Exchange& e = plan_.exchanges[static_cast<size_t>(id)];
    for (size_t m = 0; m < e.group.size(); ++m) {
      const int wanted = e.from[m].box.empty() && e.to[m].box.empty() ? 0 : 1;
      const int n = issued_[static_cast<size_t>(id)][static_cast<size_t>(e.group[m])];
      if (n != wanted)
        faults_.in_exchange(id, "exchange-issue",
                            fmt::format("is issued {} times by device {}, must be "
                                        "{} times",
                                        n, e.group[m], wanted));
    }
  }

  // Runs the devices against each other; an exchange completes when all who issue it have come to
  // it.
  void simulate() {
    std::vector<size_t> at(plan_.devices.size(), 0);
    bool moved = true;
    while (moved) {
      moved = false;
      for (size_t d = 0; d < at.size(); ++d) {
        if (at[d] == queues_[d].size()) continue;
        const auto id = static_cast<size_t>(queues_[d][at[d]]);
        bool all_here = true;
        for (size_t o = 0; o < at.size(); ++o)
          if (issued_[id][o] > 0)
            all_here &= at[o] < queues_[o].size() && static_cast<size_t>(queues_[o][at[o]]) == id;
        if (!all_here) continue;
        for (size_t o = 0; o < at.size(); ++o)
          if (issued_[id][o] > 0) ++at[o];
        moved = true;
      }
    }
    std::string waiting;
    for (size_t d = 0; d < at.size(); ++d)
      if (at[d] < queues_[d].size())
        waiting += fmt::format("{}device {} waits in exchange {}", waiting.empty() ? "" : ", ", d,
                               queues_[d][at[d]]);
    if (!waiting.empty()) faults_.in_plan("deadlock", waiting);
  }

  const Plan& plan_;
  Faults& faults_;
  std::vector<std::vector<int>> issued_;  // per exchange and device, how often
  std::vector<std::vector<int>> queues_;  // per device, the exchanges in its order
};

}  // namespace

void check_exchanges(const Plan& plan, Faults& faults) {
  for (size_t id = 0; id < plan.exchanges.size(); ++id) {
    const Exchange& e = plan.exchanges[id];
    const auto judged = in_common_rows(e, plan.tensors[static_cast<size_t>(e.tensor)],
                                       plan.tensors[static_cast<size_t>(e.target())]);
    if (judged)
      ExchangeCheck(plan, *judged, static_cast<int>(id), faults).run();
    else
      faults.in_exchange(static_cast<int>(id), "into",
                         "has a box whose rows are not one range in the rows of the other side");
  }
  IssueCheck(plan, faults).run();
}

}  // namespace convnet
