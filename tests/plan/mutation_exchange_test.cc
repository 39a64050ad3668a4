// If this fails, there is a way to break the exchanges or the sums of a plan that the verifier does
// not see.
#include <algorithm>

#include "tests/plan/mutation.h"

namespace convnet {
namespace {

TEST(Mutation, ChangedExchanges) {
  Score score("an exchange's pattern, group or bytes", 8);
  for_each_exchange(kTrainPlans, [&](const Plan& plan, size_t id) {
    const auto change = [&](const std::string& what, auto&& edit, bool harmless = false) {
      if (score.skips()) return;
      Plan m = plan;
      edit(m.exchanges[id]);
      if (m == plan) return;
      score.take(m, plan.model + " exchange " + std::to_string(id) + " " + what,
                 [&] { return harmless; });
    };
    for (int kind = 0; kind < 9; ++kind)
      // The plain box copy is what every pattern means.
      change(
          "kind " + std::to_string(kind),
          [&](Exchange& e) { e.kind = static_cast<Exchange::Kind>(kind); }, kind == 0);
    for (int order = 0; order < 3; ++order)
      change("order", [&](Exchange& e) { e.order = static_cast<Exchange::Order>(order); });
    for (int wire = 0; wire < kWires; ++wire)
      change("wire", [&](Exchange& e) { e.wire = static_cast<Wire>(wire); });
    for (const int64_t more : {-4, 4, 1000}) change("bytes", [&](Exchange& e) { e.bytes += more; });
    for (size_t t = 0; t < plan.tensors.size(); ++t)
      change("tensor", [&](Exchange& e) { e.tensor = static_cast<int>(t); });
    const size_t members = plan.exchanges[id].group.size();
    for (size_t m = 0; m < members; ++m) {
      for (int d = 0; d <= static_cast<int>(plan.devices.size()); ++d)
        change("another member", [&](Exchange& e) { e.group[m] = d; });
      change("a member dropped", [&](Exchange& e) {
        const auto at = static_cast<ptrdiff_t>(m);
        e.group.erase(e.group.begin() + at);
        e.from.erase(e.from.begin() + at);
        e.to.erase(e.to.begin() + at);
      });
      for (size_t o = 0; o < members; ++o) {
        // Of two that give and take the same it does not matter which is named first.
        const Exchange& whole = plan.exchanges[id];
        change(
            "device roles", [&](Exchange& e) { std::swap(e.group[m], e.group[o]); },
            whole.from[m] == whole.from[o] && whole.to[m] == whole.to[o]);
        change("sources swapped", [&](Exchange& e) { std::swap(e.from[m], e.from[o]); });
        change("destinations swapped", [&](Exchange& e) { std::swap(e.to[m], e.to[o]); });
        change("source as another's", [&](Exchange& e) { e.from[m] = e.from[o]; });
        change("destination as another's", [&](Exchange& e) { e.to[m] = e.to[o]; });
      }
      Box nothing;
      for (int i = 0; i < plan.exchanges[id].from[m].box.rank(); ++i) nothing.append(0, 0);
      change("no source", [&](Exchange& e) { e.from[m] = {nothing, 0, 1}; });
      change("no destination", [&](Exchange& e) { e.to[m] = {nothing, 0, 1}; });
      if (!plan.exchanges[id].from[m].box.empty()) {
        change("k", [&](Exchange& e) { e.from[m].k = (e.from[m].k + 1) % e.from[m].of; });
        change("of", [&](Exchange& e) { e.from[m].of += 1; });
      }
      if (!plan.exchanges[id].to[m].box.empty())
        change("to of", [&](Exchange& e) { e.to[m].of += 1; });
      const bool blocked = is_blocked(plan, plan.exchanges[id].tensor);
      for (const Box& box : shrunk(plan.exchanges[id].from[m].box, blocked))
        change("source " + box.str(), [&](Exchange& e) { e.from[m].box = box; });
      for (const Box& box : shrunk(plan.exchanges[id].to[m].box, blocked))
        change("destination " + box.str(), [&](Exchange& e) { e.to[m].box = box; });
    }
  });
}

// The canonical boundaries of a range of so many channels, rows, columns or classes.
std::vector<int64_t> canonical_cuts(int64_t extent, int64_t lo, int64_t hi) {
  const int64_t count = extent >= 8 ? 8 : extent >= 4 ? 4 : extent >= 2 ? 2 : 1;
  std::vector<int64_t> cuts = {lo};
  for (int64_t i = 0; i <= count; ++i)
    if (extent * i / count > lo && extent * i / count < hi) cuts.push_back(extent * i / count);
  cuts.push_back(hi);
  return cuts;
}

// The dimensions that an operation may sum over shard by shard, or not.
struct OptionalCuts {
  const char* name;
  size_t operand;
  int dim;
};
std::vector<OptionalCuts> optional_cuts(Op op) {
  switch (op) {
    case Op::kConvFwd:
    case Op::kFcFwd:
      return {{"channel_cuts", 0, 1}};
    case Op::kConvBwdData:
    case Op::kFcBwdData:
      return {{"filter_cuts", 0, 1}};
    case Op::kConvBwdWeight:
      return {{"row_cuts", 1, 2}, {"column_cuts", 1, 3}};
    case Op::kBiasBwd:
      return {{"row_cuts", 0, 2}, {"column_cuts", 0, 3}};
    default:
      return {};
  }
}

// Two devices do not add up the same sum in two ways, and the tree over parts is claimed only where
// their sums are cut.
TEST(Mutation, ChangedCuts) {
  Score score("a sum cut otherwise", 3);
  for_each_instr(kAllTrainPlans, [&](const Plan& plan, size_t d, size_t i) {
    const Instr& instr = plan.devices[d].instrs[i];
    if (instr.out.empty()) return;
    const auto result = [](const Plan& p, size_t device, const Instr& x) {
      return p.devices[device].buffers[static_cast<size_t>(x.out[0].buffer)].tensor;
    };
    const int tensor = result(plan, d, instr);
    // The same operation wherever it runs.
    const auto everywhere = [&](const std::string& what, auto&& edit) {
      if (score.skips()) return;
      Plan m = plan;
      for (size_t e = 0; e < m.devices.size(); ++e)
        for (Instr& x : m.devices[e].instrs)
          if (x.op == instr.op && result(m, e, x) == tensor) edit(x);
      if (!(m == plan)) score.take(m, place(plan, d, i) + " " + what);
    };
    for (const auto& [attr, value] : instr.attrs.all()) {
      const std::string name = attr;
      if (!name.ends_with("cuts")) continue;
      everywhere("without the inner boundaries of " + name, [&](Instr& x) {
        const auto& cuts = x.attrs.list(name);
        x.attrs.set(name, std::vector<int64_t>{cuts.front(), cuts.back()});
      });
      everywhere("with one more boundary of " + name, [&](Instr& x) {
        auto cuts = x.attrs.list(name);
        for (size_t k = cuts.size() - 1; k > 0; --k)
          if (cuts[k] - cuts[k - 1] > 1)
            cuts.insert(cuts.begin() + static_cast<ptrdiff_t>(k), cuts[k] - 1);
        x.attrs.set(name, cuts);
      });
    }
    const DevicePlan& device = plan.devices[d];
    const bool adds_tree = std::any_of(
        plan.exchanges.begin(), plan.exchanges.end(),
        [&](const Exchange& e) { return e.tensor == tensor && e.order == Exchange::Order::kTree; });
    int makers = 0;
    for (size_t e = 0; e < plan.devices.size(); ++e)
      makers += std::any_of(
          plan.devices[e].instrs.begin(), plan.devices[e].instrs.end(),
          [&](const Instr& x) { return x.op == instr.op && result(plan, e, x) == tensor; });
    for (const auto& [name, operand, dim] : optional_cuts(instr.op)) {
      const Operand& o = instr.in[operand];
      const int64_t extent =
          plan.tensors[static_cast<size_t>(device.buffers[static_cast<size_t>(o.buffer)].tensor)]
              .shape[dim];
      if (!instr.attrs.has(name) && makers > 1 && !score.skips()) {
        Plan m = plan;
        m.devices[d].instrs[i].attrs.set(name,
                                         canonical_cuts(extent, o.box.lo(dim), o.box.hi(dim)));
        score.take(m, place(plan, d, i) + " alone with " + name);
      }
      // Where a part is a single shard and cut no further, the tree is the same without.
      if (instr.attrs.has(name) && adds_tree)
        everywhere(std::string("without ") + name, [&](Instr& x) {
          Attrs without;
          for (const auto& [other, v] : x.attrs.all())
            if (other != name) without.set(other, v);
          x.attrs = without;
        });
    }
  });
}

// Parts of a sum called by each other's numbers, on all devices alike: they would be added in
// another order. Of one tensor, and of all that are made in so many parts.
TEST(Mutation, RenumberedParts) {
  Score score("parts of a sum numbered otherwise");
  for (const std::string& name : kAllTrainPlans) {
    const Plan plan = read_plan(name);
    for (size_t t = 0; t <= plan.tensors.size(); ++t)
      for (int of = 2; of <= 4; ++of)
        for (int a = 0; a < of; ++a)
          for (int b = a + 1; b < of; ++b) {
            if (score.skips()) continue;
            Plan m = plan;
            const auto swap = [&](int tensor, Part* p) {
              if (p->of == of && (tensor == static_cast<int>(t) || t == plan.tensors.size()))
                p->k = p->k == a ? b : p->k == b ? a : p->k;
            };
            for (DevicePlan& d : m.devices)
              for (Buffer& x : d.buffers) swap(x.tensor, &x.part);
            for (Exchange& e : m.exchanges)
              for (Part& p : e.from) swap(e.tensor, &p);
            if (m == plan) continue;
            score.take(m, plan.model + " tensor " + std::to_string(t) + " " + std::to_string(a) +
                              "<->" + std::to_string(b));
          }
    // One part more than is made, or none but the whole.
    for (size_t t = 0; t < plan.tensors.size(); ++t)
      for (const bool more : {true, false}) {
        if (score.skips()) continue;
        Plan m = plan;
        const auto change = [&](int tensor, Part* p) {
          if (p->of == 1 || tensor != static_cast<int>(t)) return;
          p->k = more ? p->k : 0;
          p->of = more ? p->of + 1 : 1;
        };
        for (DevicePlan& d : m.devices)
          for (Buffer& x : d.buffers) change(x.tensor, &x.part);
        for (Exchange& e : m.exchanges) {
          for (Part& p : e.from) change(e.tensor, &p);
          if (e.tensor == static_cast<int>(t) && !more) e.order = Exchange::Order::kNone;
        }
        if (m == plan) continue;
        score.take(m, plan.model + " tensor " + std::to_string(t) + (more ? " + 1" : " whole"));
      }
  }
}

// A tensor that moves within several groups at once: a device in another group's exchange.
TEST(Mutation, ExchangesOfOtherGroups) {
  Score score("another group's exchange", 16);
  for_each_instr(kAllTrainPlans, [&](const Plan& plan, size_t d, size_t i) {
    const Instr& instr = plan.devices[d].instrs[i];
    if (instr.op != Op::kExchange) return;
    for (size_t id = 0; id < plan.exchanges.size(); ++id) {
      if (static_cast<int64_t>(id) == instr.attrs.integer("id")) continue;
      if (score.skips()) continue;
      Plan m = plan;
      m.devices[d].instrs[i].attrs.set("id", static_cast<int64_t>(id));
      score.take(m, place(plan, d, i) + " in exchange " + std::to_string(id));
    }
  });
}

// Table and instructions shrunk together: the views agree, but something is not moved.
TEST(Mutation, ExchangesOfLess) {
  Score score("an exchange of less, everywhere", 4);
  for_each_exchange(kTrainPlans, [&](const Plan& plan, size_t id) {
    const Exchange& e = plan.exchanges[id];
    for (size_t m = 0; m < e.group.size(); ++m)
      for (const bool source : {true, false}) {
        const Box& whole = source ? e.from[m].box : e.to[m].box;
        for (const Box& box : shrunk(whole, is_blocked(plan, e.tensor))) {
          if (score.skips()) continue;
          Plan damaged = plan;
          (source ? damaged.exchanges[id].from[m] : damaged.exchanges[id].to[m]).box = box;
          damaged.exchanges[id].kind = Exchange::Kind::kBoxes;
          for (Instr& i : damaged.devices[static_cast<size_t>(e.group[m])].instrs)
            if (i.op == Op::kExchange && i.attrs.integer("id") == static_cast<int64_t>(id))
              (source ? i.in[0] : i.out[0]).box = box;
          for (int64_t bytes = 0; bytes <= e.bytes * 2; bytes += 4) {
            damaged.exchanges[id].bytes = bytes;
            const auto faults = verify_plan(damaged);
            const bool only_bytes = !faults.empty() && std::all_of(faults.begin(), faults.end(),
                                                                   [](const PlanFault& f) {
                                                                     return f.rule == "bytes";
                                                                   });
            if (!only_bytes) break;  // else the right number of bytes is still to be found
          }
          score.take(
              damaged, plan.model + " exchange " + std::to_string(id) + " " + box.str(), [&] {
                // What is cut off was wanted by no one.
                if (source)
                  return std::all_of(e.to.begin(), e.to.end(), [&](const Part& to) {
                    return to.box.empty() ||
                           intersect(whole, to.box).count() == intersect(box, to.box).count();
                  });
                // A device need not be sent the part of a parameter that it updated itself.
                const bool parameter =
                    plan.tensors[static_cast<size_t>(e.tensor)].kind == TensorKind::kParameter;
                return parameter && box.count() + e.from[m].box.count() -
                                            intersect(box, e.from[m].box).count() ==
                                        e.to[m].box.count();
              });
        }
      }
  });
}

TEST(Mutation, ExchangeTableInAnotherOrder) {
  Score score("the exchange table in another order");
  for_each_exchange(kAllTrainPlans, [&](const Plan& plan, size_t id) {
    if (id + 1 == plan.exchanges.size()) return;
    if (score.skips()) return;
    Plan m = plan;
    std::swap(m.exchanges[id], m.exchanges[id + 1]);
    for (DevicePlan& d : m.devices)
      for (Instr& i : d.instrs)
        if (i.op == Op::kExchange) {
          const int64_t n = i.attrs.integer("id"), first = static_cast<int64_t>(id);
          if (n == first || n == first + 1) i.attrs.set("id", 2 * first + 1 - n);
        }
    // Two that have no device in common may come in any order.
    const auto &a = plan.exchanges[id].group, &b = plan.exchanges[id + 1].group;
    const bool apart = std::none_of(
        a.begin(), a.end(), [&](int d) { return std::find(b.begin(), b.end(), d) != b.end(); });
    score.take(m, plan.model + " exchange " + std::to_string(id), [&] { return apart; });
  });
}

}  // namespace
}  // namespace convnet
