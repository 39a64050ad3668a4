// Guards: each stops all devices at one place, and none changes a parameter before it is known that
// the losses that lead to the change are finite.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "framework/plan/verify/program.h"

namespace convnet {
namespace {

class GuardCheck {
 public:
  GuardCheck(const Plan& plan, const Program& program, const std::vector<Loss>& losses,
             Faults& faults)
      : plan_(plan), program_(program), losses_(losses), faults_(faults) {}

  void run() {
    find_losses();
    for (size_t d = 0; d < plan_.devices.size(); ++d) updates(static_cast<int>(d));
    std::set<Guard> guards;
    for (const DevicePlan& d : plan_.devices)
      for (const Instr& i : d.instrs)
        if (i.op == Op::kGuard) guards.insert(guard(d, i));
    for (const Guard& g : guards) order(g);
  }

 private:
  static constexpr size_t kNever = std::numeric_limits<size_t>::max();

  // Of the metrics `tensor`: of the step, or of pass `k` of `of`.
  struct Guard {
    int tensor, k, of;
    bool operator<(const Guard& other) const {
      return std::tie(tensor, k, of) < std::tie(other.tensor, other.k, other.of);
    }
    bool operator==(const Guard&) const = default;
  };
  static Guard guard(const DevicePlan& device, const Instr& instr) {
    const Buffer& b = buffer_of(device, instr.in[0]);
    return {b.tensor, b.part.k, b.part.of};
  }
  const std::string& name(int tensor) const {
    return plan_.tensors[static_cast<size_t>(tensor)].name;
  }

  // Which losses lead to each gradient.
  void find_losses() {
    lead_to_.resize(plan_.tensors.size());
    for (const LogicalOp& op : program_.ops) {
      std::set<size_t> all;
      for (size_t l = 0; l < losses_.size(); ++l)
        if (op.op == Op::kSoftmaxLossBwd && losses_[l].prob == op.in[0]) all.insert(l);
      for (int t : op.in) {
        const auto& some = lead_to_[static_cast<size_t>(t)];
        all.insert(some.begin(), some.end());
      }
      for (int t : op.out) lead_to_[static_cast<size_t>(t)] = all;
    }
  }

  // Before an update by the gradient of the whole batch all losses are known, before one of some of
  // its examples those that lead to it.
  void updates(int d) {
    const DevicePlan& device = plan_.devices[static_cast<size_t>(d)];
    std::set<Guard> passed;
    for (size_t i = 0; i < device.instrs.size(); ++i) {
      const Instr& instr = device.instrs[i];
      if (instr.op == Op::kGuard) passed.insert(guard(device, instr));
      if (instr.op != Op::kUpdateSgd) continue;
      const auto gradient = static_cast<size_t>(buffer_of(device, instr.in[0]).tensor);
      const bool whole = program_.examples[gradient] == Examples(0, plan_.batch);
      for (size_t l = 0; l < losses_.size(); ++l) {
        if (!whole && !lead_to_[gradient].contains(l)) continue;
        const Loss& loss = losses_[l];
        if (std::any_of(passed.begin(), passed.end(), [&](const Guard& g) {
              return g.tensor == loss.metrics && (g.of == 1 || g.k == loss.pass);
            }))
          continue;
        faults_.in_instr(
            d, static_cast<int>(i), "guard",
            fmt::format("updates a parameter before a guard of '{}' of the examples "
                        "{}",
                        name(loss.metrics), program_.examples[static_cast<size_t>(loss.x)].str()));
        return;
      }
    }
  }

  size_t find(const DevicePlan& d, auto&& matches) const {
    const auto at = std::find_if(d.instrs.begin(), d.instrs.end(), matches);
    return at == d.instrs.end() ? kNever : static_cast<size_t>(at - d.instrs.begin());
  }

  // If the guard stops the step, every exchange is issued by all its members or by none.
  void order(const Guard& g) {
    std::vector<size_t> places;
    for (const DevicePlan& d : plan_.devices)
      places.push_back(
          find(d, [&](const Instr& i) { return i.op == Op::kGuard && guard(d, i) == g; }));
    for (size_t id = 0; id < plan_.exchanges.size(); ++id) {
      int before = -1, after = -1;
      for (int d : plan_.exchanges[id].group) {
        const auto i = static_cast<size_t>(d);
        const size_t at = find(plan_.devices[i], [&](const Instr& x) {
          return x.op == Op::kExchange && x.attrs.integer("id") == static_cast<int64_t>(id);
        });
        if (at != kNever) (at < places[i] ? before : after) = d;
      }
      if (before >= 0 && after >= 0)
        faults_.in_exchange(
            static_cast<int>(id), "guard-order",
            fmt::format("comes before the guard of '{}'{} on device {} and after it on "
                        "device {}: if it stops the step, one waits for the other",
                        name(g.tensor), g.of == 1 ? "" : fmt::format(" of pass {}", g.k), before,
                        after));
    }
  }

  const Plan& plan_;
  const Program& program_;
  const std::vector<Loss>& losses_;
  Faults& faults_;
  std::vector<std::set<size_t>> lead_to_;  // per tensor
};

}  // namespace

void check_guards(const Plan& plan, const Program& program, const std::vector<Loss>& losses,
                  Faults& faults) {
  GuardCheck(plan, program, losses, faults).run();
}

}  // namespace convnet
