#include "framework/plan/verify/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

namespace convnet {
namespace {

class Collector {
 public:
  Collector(const Plan& plan, Faults& faults) : plan_(plan), faults_(faults) {
    program_.producer.assign(plan.tensors.size(), -1);
  }

  Program run() {
    for (size_t d = 0; d < plan_.devices.size(); ++d)
      for (size_t i = 0; i < plan_.devices[d].instrs.size(); ++i)
        instr(static_cast<int>(d), static_cast<int>(i));
    sort();
    return std::move(program_);
  }

 private:
  void instr(int d, int i) {
    const DevicePlan& device = plan_.devices[static_cast<size_t>(d)];
    const Instr& instr = device.instrs[static_cast<size_t>(i)];
    if (instr.op == Op::kGuard || instr.op == Op::kSum) return;  // of parts of one tensor
    if (instr.op == Op::kExchange) return moved(d, i);
    LogicalOp op{instr.op, {}, {}, {}, {}, instr.layer, d, i};
    for (const auto& [name, value] : instr.attrs.all())
      name.ends_with("cuts") ? op.cuts.push_back(name) : void(op.attrs.set(name, value));
    std::sort(op.cuts.begin(), op.cuts.end());
    for (const Operand& o : instr.in) op.in.push_back(buffer_of(device, o).tensor);
    for (const Operand& o : instr.out) op.out.push_back(buffer_of(device, o).tensor);
    instr.op == Op::kUpdateSgd ? update(op) : define(op);
  }

  // An exchange into another tensor makes that of the rows of its own.
  void moved(int d, int i) {
    const Instr& instr = plan_.devices[static_cast<size_t>(d)].instrs[static_cast<size_t>(i)];
    const int64_t id = instr.attrs.integer("id");
    if (id < 0 || id >= static_cast<int64_t>(plan_.exchanges.size())) return;  // exchanges.cc
    const Exchange& e = plan_.exchanges[static_cast<size_t>(id)];
    if (e.into < 0) return;
    const int p = program_.producer[static_cast<size_t>(e.into)];
    if (p >= 0 && program_.ops[static_cast<size_t>(p)].op == Op::kRowsJoin) {
      // Several sub-batches may go into one tensor.
      std::vector<int>& sources = program_.ops[static_cast<size_t>(p)].in;
      if (std::find(sources.begin(), sources.end(), e.tensor) == sources.end())
        sources.push_back(e.tensor);
      return;
    }
    define({Op::kRowsJoin, {}, {}, {e.tensor}, {e.into}, e.layer, d, i});
  }

  const std::string& name(int tensor) const {
    return plan_.tensors[static_cast<size_t>(tensor)].name;
  }

  // "" if the two are one operation.
  std::string difference(const LogicalOp& a, const LogicalOp& b) const {
    if (a.op != b.op)
      return fmt::format("is {} there and {} here", op_info(a.op).text, op_info(b.op).text);
    if (a.layer != b.layer)
      return fmt::format("belongs to layer '{}' there and to '{}' here",
                         plan_.layers[static_cast<size_t>(a.layer)].name,
                         plan_.layers[static_cast<size_t>(b.layer)].name);
    if (a.in != b.in || a.out != b.out) return "has other operands or results here";
    for (const auto& [attr, value] : a.attrs.all()) {
      const Attrs::Value* other = b.attrs.find(attr);
      if (other == nullptr || !(*other == value)) return fmt::format("has another '{}' here", attr);
    }
    for (const auto& [have, lack, where] :
         {std::tuple(&a.cuts, &b.cuts, "there"), std::tuple(&b.cuts, &a.cuts, "here")})
      for (const std::string& name : *have)
        if (!std::binary_search(lack->begin(), lack->end(), name))
          return fmt::format("has '{}' only {}", name, where);
    return "";
  }

  void compare(const LogicalOp& first, const LogicalOp& op, int tensor) {
    const std::string what = difference(first, op);
    if (!what.empty())
      faults_.in_instr(
          op.device, op.instr, "one-definition",
          fmt::format("'{}' is made by instruction {} of device {} too; the operation {}",
                      name(tensor), first.instr, first.device, what));
  }

  void define(const LogicalOp& op) {
    for (size_t i = 1; i < op.out.size(); ++i)
      if (std::find(op.out.begin(), op.out.begin() + static_cast<ptrdiff_t>(i), op.out[i]) !=
          op.out.begin() + static_cast<ptrdiff_t>(i))
        faults_.in_instr(op.device, op.instr, "one-definition",
                         fmt::format("two of its results are '{}'", name(op.out[i])));
    bool is_new = true;
    for (int t : op.out) {
      const LogicalOp* first = program_.producer_of(t);
      if (first == nullptr) continue;
      is_new = false;
      compare(*first, op, t);
    }
    if (!is_new) return;
    for (int t : op.out)
      program_.producer[static_cast<size_t>(t)] = static_cast<int>(program_.ops.size());
    program_.ops.push_back(op);
  }

  // One update a parameter, with a state of its own.
  void update(const LogicalOp& op) {
    const int w = op.in[1], m = op.in[2];
    const auto [entry, is_new] = updates_.emplace(w, program_.updates.size());
    if (!is_new) {
      compare(program_.updates[entry->second], op, w);
      return;
    }
    const auto [owner, first_use] = state_of_.emplace(m, w);
    if (!first_use)
      faults_.in_instr(op.device, op.instr, "one-definition",
                       fmt::format("'{}' is the state of '{}', not of '{}'", name(m),
                                   name(owner->second), name(w)));
    program_.updates.push_back(op);
  }

  // Operations after those whose results they read.
  void sort() {
    std::vector<int> place(program_.ops.size(), -1);
    std::vector<LogicalOp> sorted;
    bool moved = true;
    while (moved) {
      moved = false;
      for (size_t i = 0; i < program_.ops.size(); ++i) {
        if (place[i] >= 0) continue;
        bool ready = true;
        for (int t : program_.ops[i].in) {
          const int p = program_.producer[static_cast<size_t>(t)];
          ready &= p < 0 || place[static_cast<size_t>(p)] >= 0;
        }
        if (!ready) continue;
        place[i] = static_cast<int>(sorted.size());
        sorted.push_back(program_.ops[i]);
        moved = true;
      }
    }
    if (sorted.size() < program_.ops.size()) {
      faults_.in_plan("one-definition", fmt::format("{} operations depend on their own results",
                                                    program_.ops.size() - sorted.size()));
      return;
    }
    for (int& p : program_.producer)
      if (p >= 0) p = place[static_cast<size_t>(p)];
    program_.ops = std::move(sorted);
  }

  const Plan& plan_;
  Faults& faults_;
  Program program_;
  std::map<int, size_t> updates_;  // parameter -> index in program_.updates
  std::map<int, int> state_of_;    // state -> parameter
};

}  // namespace

Program logical_program(const Plan& plan, Faults& faults) { return Collector(plan, faults).run(); }

void check_program(const Plan& plan, Faults& faults) {
  const size_t before = faults.count();
  const Program program = logical_program(plan, faults);
  if (faults.count() > before) return;
  const std::vector<Loss> losses = check_losses(plan, program, faults);
  if (plan.phase == Plan::Phase::kTrain && faults.count() == before)
    check_gradients(plan, program, losses, faults);
}

}  // namespace convnet
