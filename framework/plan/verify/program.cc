#include "framework/plan/verify/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "framework/plan/rows.h"

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
    for (const auto& [tensor, join] : joins_)
      if (program_.producer_of(tensor) == nullptr) add(join);
    sort();
    find_examples();
    find_origins();
    copies();
    return std::move(program_);
  }

 private:
  void instr(int d, int i) {
    const DevicePlan& device = plan_.devices[static_cast<size_t>(d)];
    const Instr& instr = device.instrs[static_cast<size_t>(i)];
    if (instr.op == Op::kGuard || instr.op == Op::kSum) return;  // of parts of one tensor
    if (instr.op == Op::kExchange) return moved(d, i);
    if (instr.op == Op::kRowsJoin) {
      for (const Operand& o : instr.in)
        join(buffer_of(device, o).tensor, buffer_of(device, instr.out[0]).tensor, instr.layer, d,
             i);
      return;
    }
    LogicalOp op{instr.op, {}, {}, {}, {}, instr.layer, d, i};
    for (const auto& [name, value] : instr.attrs.all())
      name.ends_with("cuts") ? op.cuts.push_back(name) : void(op.attrs.set(name, value));
    std::sort(op.cuts.begin(), op.cuts.end());
    for (const Operand& o : instr.in) op.in.push_back(buffer_of(device, o).tensor);
    for (const Operand& o : instr.out) op.out.push_back(buffer_of(device, o).tensor);
    instr.op == Op::kUpdateSgd ? update(op) : define(op);
  }

  // An exchange into another tensor brings it rows of its own.
  void moved(int d, int i) {
    const Instr& instr = plan_.devices[static_cast<size_t>(d)].instrs[static_cast<size_t>(i)];
    const int64_t id = instr.attrs.integer("id");
    if (id < 0 || id >= static_cast<int64_t>(plan_.exchanges.size())) return;  // exchanges.cc
    const Exchange& e = plan_.exchanges[static_cast<size_t>(id)];
    if (e.into >= 0) join(e.tensor, e.into, e.layer, d, i);
  }

  void join(int from, int to, int layer, int d, int i) {
    LogicalOp& op = joins_.try_emplace(to, LogicalOp{Op::kRowsJoin, {}, {}, {}, {to}, layer, d, i})
                        .first->second;
    if (std::find(op.in.begin(), op.in.end(), from) == op.in.end()) op.in.push_back(from);
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
      if (is_metric(t)) {
        // Each pass adds its examples.
        const auto known = passes_.find(pass_of(op, t));
        first = known == passes_.end() ? nullptr : &program_.ops[known->second];
      }
      if (first == nullptr) continue;
      is_new = false;
      compare(*first, op, t);
    }
    if (is_new) add(op);
  }

  void add(const LogicalOp& op) {
    for (int t : op.out) {
      program_.producer[static_cast<size_t>(t)] = static_cast<int>(program_.ops.size());
      if (is_metric(t)) passes_[pass_of(op, t)] = program_.ops.size();
    }
    program_.ops.push_back(op);
  }

  bool is_metric(int tensor) const {
    return plan_.tensors[static_cast<size_t>(tensor)].kind == TensorKind::kMetric;
  }
  using Pass = std::pair<int, std::vector<int64_t>>;  // metrics and rows
  Pass pass_of(const LogicalOp& op, int metrics) const {
    return {metrics, rows_of(plan_.tensors[static_cast<size_t>(op.in[0])])};
  }

  // A parameter and its state belong together. It may be updated several times, by gradients of
  // different examples.
  void update(const LogicalOp& op) {
    const int w = op.in[1], m = op.in[2];
    const auto [entry, is_new] = updates_.try_emplace({w, op.in[0]}, program_.updates.size());
    if (!is_new) {
      compare(program_.updates[entry->second], op, w);
      return;
    }
    const int owner = parameter_of_.try_emplace(m, w).first->second;
    const int state = state_of_.try_emplace(w, m).first->second;
    if (owner != w || state != m)
      faults_.in_instr(
          op.device, op.instr, "one-definition",
          owner != w
              ? fmt::format("'{}' is the state of '{}', not of '{}'", name(m), name(owner), name(w))
              : fmt::format("'{}' has the state '{}', not '{}'", name(w), name(state), name(m)));
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

  void find_examples() {
    for (const Tensor& t : plan_.tensors)
      program_.examples.push_back(t.kind == TensorKind::kActivation || t.kind == TensorKind::kInput
                                      ? Examples(plan_, t)
                                      : Examples());
    for (const LogicalOp& op : program_.ops)
      for (int t : op.out)
        if (plan_.tensors[static_cast<size_t>(t)].kind == TensorKind::kGradient)
          program_.examples[static_cast<size_t>(t)] =
              program_.examples[static_cast<size_t>(op.in[gradient_operand(op.op)])];
  }

  // The first of the inputs that hold the same for each example.
  int input(int tensor) const {
    const auto what = [&](int t) {
      const Tensor& of = plan_.tensors[static_cast<size_t>(t)];
      std::vector<int64_t> each;
      for (int i = 1; i < of.shape.rank(); ++i) each.push_back(of.shape[i]);
      return std::tuple(of.kind, of.attrs.word("input"), each);
    };
    for (int t = 0; t < tensor; ++t)
      if (plan_.tensors[static_cast<size_t>(t)].kind == TensorKind::kInput &&
          what(t) == what(tensor))
        return t;
    return tensor;
  }

  void find_origins() {
    program_.origins.resize(plan_.tensors.size());
    for (size_t t = 0; t < plan_.tensors.size(); ++t) {
      const int i = static_cast<int>(t);
      const bool filled = plan_.tensors[t].kind == TensorKind::kInput;
      program_.origins[t] = {{filled ? input(i) : i, program_.examples[t]}};
    }
    for (const LogicalOp& op : program_.ops)
      if (op.op == Op::kRowsJoin) {
        std::map<int, Examples> found;
        for (int source : op.in)
          for (const Origin& o :
               program_.origins_of(source, program_.examples[static_cast<size_t>(op.out[0])]))
            found[o.tensor] = found[o.tensor].with(o.examples);
        std::vector<Origin> all;
        for (const auto& [tensor, examples] : found) {
          for (const Origin& other : all)
            if (other.examples.overlaps(examples))
              faults_.in_instr(op.device, op.instr, "one-definition",
                               fmt::format("the examples {} of '{}' come from '{}' and from '{}'",
                                           other.examples.common(examples).str(), name(op.out[0]),
                                           name(other.tensor), name(tensor)));
          all.push_back({tensor, examples});
        }
        program_.origins[static_cast<size_t>(op.out[0])] = all;
      }
  }

  // Rows may come back into the tensor that they were taken from.
  void copies() {
    for (const auto& [tensor, join] : joins_) {
      if (program_.producer_of(tensor)->op == Op::kRowsJoin) continue;
      for (int source : join.in)
        for (const Origin& o :
             program_.origins_of(source, program_.examples[static_cast<size_t>(tensor)]))
          if (o.tensor != tensor)
            faults_.in_instr(
                join.device, join.instr, "one-definition",
                fmt::format("brings rows of '{}' into '{}', which is made by "
                            "instruction {} of device {}",
                            name(o.tensor), name(tensor), program_.producer_of(tensor)->instr,
                            program_.producer_of(tensor)->device));
    }
  }

  const Plan& plan_;
  Faults& faults_;
  Program program_;
  std::map<int, LogicalOp> joins_;                 // by tensor that rows come into
  std::map<Pass, size_t> passes_;                  // -> index of what makes its metrics
  std::map<std::pair<int, int>, size_t> updates_;  // parameter, gradient -> index in updates
  std::map<int, int> parameter_of_;                // of a state
  std::map<int, int> state_of_;                    // of a parameter
};

}  // namespace

std::vector<Origin> Program::origins_of(int tensor, const Examples& of) const {
  std::vector<Origin> found;
  for (const Origin& o : origins[static_cast<size_t>(tensor)])
    if (const Examples some = o.examples.common(of); !some.empty())
      found.push_back({o.tensor, some});
  return found;
}

size_t gradient_operand(Op op) {
  switch (op) {
    case Op::kConvBwdWeight:
    case Op::kFcBwdWeight:
    case Op::kPoolMaxBwd:
    case Op::kActBwd:
      return 1;
    case Op::kLrnBwd:
      return 3;
    default:
      return 0;
  }
}

Program logical_program(const Plan& plan, Faults& faults) { return Collector(plan, faults).run(); }

void check_program(const Plan& plan, Faults& faults) {
  const size_t before = faults.count();
  const Program program = logical_program(plan, faults);
  if (faults.count() > before) return;
  check_parameters(plan, program, faults);
  const std::vector<Loss> losses = check_losses(plan, program, faults);
  if (plan.phase != Plan::Phase::kTrain || faults.count() > before) return;
  check_passes(plan, program, faults);
  check_guards(plan, program, losses, faults);
  check_gradients(plan, program, losses, faults);
}

}  // namespace convnet
