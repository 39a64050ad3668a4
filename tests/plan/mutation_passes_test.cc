// If this fails, the verifier lets a plan run in which passes over sub-batches do not add up to one
// step: the damage here is the same on all devices, so that no two of them disagree.
#include <algorithm>
#include <set>

#include "framework/plan/rows.h"
#include "tests/plan/mutation.h"

namespace convnet {
namespace {

void for_each_plan(const std::function<void(const Plan&)>& f) {
  for (const std::string& name : kPassPlans) f(read_plan(name));
}

int tensor_of(const DevicePlan& device, const Operand& o) {
  return device.buffers[static_cast<size_t>(o.buffer)].tensor;
}

// All instructions of a kind, on all devices, that make the same tensor.
template <typename Edit>
void edit_makers(Plan& plan, Op op, int tensor, Edit&& edit) {
  for (DevicePlan& d : plan.devices)
    for (Instr& i : d.instrs)
      if (i.op == op && !i.out.empty() && tensor_of(d, i.out[0]) == tensor) edit(d, i);
}

// A tensor, and what follows from its rows, for the same number of other examples.
TEST(Mutation, ChangedRowMaps) {
  Score score("a sub-batch of other examples");
  for_each_plan([&](const Plan& plan) {
    std::set<std::vector<int64_t>> maps;
    for (const Tensor& t : plan.tensors)
      if (t.attrs.has("rows")) maps.insert(rows_of(t));
    // As those of another pass, and a block further.
    for (const std::vector<int64_t>& map : std::set(maps)) {
      std::vector<int64_t> moved = map;
      for (int64_t& example : moved) example += example < plan.batch ? kLanes : 0;
      maps.insert(moved);
    }
    const auto change = [&](const std::string& what, auto&& is_meant) {
      for (const auto& map : maps) {
        Plan m = plan;
        for (size_t t = 0; t < m.tensors.size(); ++t)
          if (is_meant(t)) m.tensors[t].attrs.set("rows", map);
        for (DevicePlan& d : m.devices)
          for (Instr& i : d.instrs)
            if (i.attrs.has("rows") && is_meant(static_cast<size_t>(tensor_of(d, i.out[0]))))
              i.attrs.set("rows", map);
        if (!(m == plan)) score.take(m, plan.model + " " + what);
      }
    };
    for (size_t t = 0; t < plan.tensors.size(); ++t)
      if (plan.tensors[t].attrs.has("rows"))
        change(plan.tensors[t].name, [&](size_t other) { return other == t; });
    // All tensors of one pass.
    for (const auto& map : maps)
      change("a pass", [&](size_t t) { return rows_of(plan.tensors[t]) == map; });
  });
}

TEST(Mutation, ExchangesIntoOtherTensors) {
  Score score("an exchange into another tensor", 6);
  for_each_exchange(kPassPlans, [&](const Plan& plan, size_t id) {
    for (int t = -1; t < static_cast<int>(plan.tensors.size()); ++t) {
      if (t == plan.exchanges[id].into || score.skips()) continue;
      Plan m = plan;
      m.exchanges[id].into = t;
      score.take(m, plan.model + " exchange " + std::to_string(id) + " " + std::to_string(t));
      if (t < 0) continue;
      // The instructions with it.
      for (DevicePlan& d : m.devices) {
        const auto b = std::find_if(d.buffers.begin(), d.buffers.end(),
                                    [&](const Buffer& x) { return x.tensor == t; });
        if (b == d.buffers.end()) continue;
        for (Instr& i : d.instrs)
          if (i.op == Op::kExchange && i.attrs.integer("id") == static_cast<int64_t>(id))
            i.out[0].buffer = static_cast<int>(b - d.buffers.begin());
      }
      score.take(m, plan.model + " exchange " + std::to_string(id) + " all " + std::to_string(t));
    }
  });
}

TEST(Mutation, ChangedScales) {
  Score score("the scale of an update or a loss");
  for_each_plan([&](const Plan& plan) {
    for (size_t t = 0; t < plan.tensors.size(); ++t)
      for (const Op op : {Op::kUpdateSgd, Op::kSoftmaxLossBwd})
        for (const double factor : {0.5, 2.0, 4.0}) {
          Plan m = plan;
          edit_makers(m, op, static_cast<int>(t), [&](DevicePlan&, Instr& i) {
            i.attrs.set("scale", factor * (i.attrs.has("scale") ? i.attrs.real("scale") : 1.0));
          });
          if (!(m == plan)) score.take(m, plan.model + " " + plan.tensors[t].name);
        }
  });
}

// Buffers of `a` become those of `b` and the other way round in the operands of some instructions.
template <typename Meant>
Plan swapped(const Plan& plan, int a, int b, Meant&& is_meant) {
  Plan m = plan;
  for (DevicePlan& d : m.devices) {
    const auto other = [&](const Operand& o) {
      const Buffer& x = d.buffers[static_cast<size_t>(o.buffer)];
      for (size_t k = 0; k < d.buffers.size(); ++k)
        if (d.buffers[k].tensor == (x.tensor == a ? b : a) && d.buffers[k].part == x.part)
          return static_cast<int>(k);
      return o.buffer;
    };
    for (Instr& i : d.instrs)
      if (is_meant(d, i))
        for (Operand& o : i.in)
          if (tensor_of(d, o) == a || tensor_of(d, o) == b) o.buffer = other(o);
  }
  return m;
}

// The gradients of two passes, or their values, taken for each other.
TEST(Mutation, SwappedPasses) {
  Score score("values of two passes for each other");
  for_each_plan([&](const Plan& plan) {
    for (int a = 0; a < static_cast<int>(plan.tensors.size()); ++a)
      for (int b = a + 1; b < static_cast<int>(plan.tensors.size()); ++b) {
        const Tensor &x = plan.tensors[static_cast<size_t>(a)],
                     &y = plan.tensors[static_cast<size_t>(b)];
        const std::string stem = x.name.substr(0, x.name.find(".pass"));
        if (stem == x.name || y.name.substr(0, y.name.find(".pass")) != stem ||
            !(x.shape == y.shape))
          continue;
        for (int op = 0; op <= static_cast<int>(Op::kExchange); ++op) {
          const Plan m = swapped(plan, a, b, [&](const DevicePlan&, const Instr& i) {
            return i.op == static_cast<Op>(op);
          });
          // Rows are joined by their examples.
          if (!(m == plan))
            score.take(m, plan.model + " " + x.name,
                       [&] { return static_cast<Op>(op) == Op::kRowsJoin; });
        }
      }
  });
}

// One pass with another activation, forward and backward.
TEST(Mutation, PassesComputedOtherwise) {
  Score score("a pass that computes something else");
  for_each_plan([&](const Plan& plan) {
    for (size_t t = 0; t < plan.tensors.size(); ++t) {
      if (plan.tensors[t].name.find(".pass") == std::string::npos) continue;
      const auto is_it = [&](const DevicePlan& d, const Operand& o) {
        return tensor_of(d, o) == static_cast<int>(t);
      };
      for (const char* act : {"tanh", "sigmoid", "none"}) {
        Plan m = plan;
        for (DevicePlan& d : m.devices)
          for (Instr& i : d.instrs)
            if (i.attrs.has("act") &&
                (is_it(d, i.out[0]) || (i.op == Op::kActBwd && is_it(d, i.in[0]))))
              i.attrs.set("act", act);
        if (!(m == plan)) score.take(m, plan.model + " " + plan.tensors[t].name + " " + act);
      }
    }
  });
}

// Updates of one parameter, and guards, at other places of the step on all devices.
TEST(Mutation, MovedUpdatesAndGuards) {
  Score score("an update or guard at another time");
  for_each_plan([&](const Plan& plan) {
    // The same instruction of each device: the n-th one of its tensor.
    const auto place_of = [](const DevicePlan& d, Op op, int tensor, int n) {
      for (size_t i = 0; i < d.instrs.size(); ++i)
        if (d.instrs[i].op == op &&
            tensor_of(d, d.instrs[i].in[op == Op::kGuard ? 0 : 1]) == tensor)
          if (n-- == 0) return static_cast<ptrdiff_t>(i);
      return static_cast<ptrdiff_t>(-1);
    };
    for (const Op op : {Op::kUpdateSgd, Op::kGuard})
      for (int t = 0; t < static_cast<int>(plan.tensors.size()); ++t)
        for (int n = 0; place_of(plan.devices[0], op, t, n) >= 0; ++n) {
          // The metrics of the step are the sum of those that guards of all passes have looked at.
          const auto looked_at_before = [&] {
            const DevicePlan& d = plan.devices[0];
            const Operand& o = d.instrs[static_cast<size_t>(place_of(d, op, t, n))].in[0];
            return op == Op::kGuard && n > 0 &&
                   d.buffers[static_cast<size_t>(o.buffer)].part.of == 1;
          };
          if (!score.skips()) {
            Plan m = plan;
            for (DevicePlan& d : m.devices)
              if (const ptrdiff_t at = place_of(d, op, t, n); at >= 0)
                d.instrs.erase(d.instrs.begin() + at);
            score.take(m, plan.model + " dropped " + std::to_string(n), looked_at_before);
          }
          // At each exchange that all devices issue.
          for (size_t id = 0; id < plan.exchanges.size(); ++id) {
            if (score.skips()) continue;
            Plan m = plan;
            bool all = true, changes = false;
            for (DevicePlan& d : m.devices) {
              const ptrdiff_t from = place_of(d, op, t, n);
              const auto e = std::find_if(d.instrs.begin(), d.instrs.end(), [&](const Instr& i) {
                return i.op == Op::kExchange && i.attrs.integer("id") == static_cast<int64_t>(id);
              });
              all = all && from >= 0 && e != d.instrs.end();
              if (!all) break;
              const ptrdiff_t to = e - d.instrs.begin();
              const auto begin = d.instrs.begin();
              // Only past what reads or writes its parameter does it matter.
              const auto matters = [&](const Instr& i) {
                if (op == Op::kGuard) return i.op == Op::kUpdateSgd;
                for (const auto* list : {&i.in, &i.out})
                  for (const Operand& o : *list)
                    if (tensor_of(d, o) == t ||
                        tensor_of(d, o) == tensor_of(d, d.instrs[static_cast<size_t>(from)].in[0]))
                      return true;
                return false;
              };
              changes |= to > from ? std::any_of(begin + from + 1, begin + to + 1, matters)
                                   : std::any_of(begin + to, begin + from, matters);
              if (to > from)
                std::rotate(begin + from, begin + from + 1, begin + to + 1);
              else
                std::rotate(begin + to, begin + from, begin + from + 1);
            }
            if (all && changes)
              score.take(m, plan.model + " moved to " + std::to_string(id), looked_at_before);
          }
        }
  });
}

}  // namespace
}  // namespace convnet
