// The passes of a layer are the same computation of other examples.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/plan/verify/program.h"

namespace convnet {
namespace {

class PassCheck {
 public:
  PassCheck(const Plan& plan, const Program& program, Faults& faults)
      : plan_(plan), program_(program), faults_(faults) {}

  void run() {
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      const LogicalOp& op = program_.ops[i];
      if (op.op == Op::kRowsJoin) continue;
      for (size_t k = 0; k < i; ++k) {
        const LogicalOp& other = program_.ops[k];
        if (op.op == Op::kDropoutFwd && other.op == op.op && !are_passes(op, other))
          other_key(op, other);
        else if (is_forward(op.op) && are_passes(op, other))
          same(op, other);
      }
    }
  }

 private:
  static bool is_forward(Op op) { return op_info(op).text.find("bwd") == std::string_view::npos; }
  const Tensor& tensor(int t) const { return plan_.tensors[static_cast<size_t>(t)]; }
  // Those that an operation is computed of.
  const Examples& examples(const LogicalOp& op) const {
    return program_.examples[static_cast<size_t>(op.in[0])];
  }
  bool are_passes(const LogicalOp& a, const LogicalOp& b) const {
    return a.op == b.op && a.layer == b.layer && !examples(a).overlaps(examples(b));
  }
  void fault(const LogicalOp& op, const char* rule, std::string message) {
    faults_.in_instr(op.device, op.instr, rule, std::move(message));
  }

  // Layers with one key would drop the same elements.
  void other_key(const LogicalOp& op, const LogicalOp& other) {
    const int64_t key = op.attrs.integer("key");
    if (key == other.attrs.integer("key"))
      fault(op, "dropout-key",
            fmt::format("the key {} is that of layer '{}' already", key,
                        plan_.layers[static_cast<size_t>(other.layer)].name));
  }

  void same(const LogicalOp& op, const LogicalOp& other) {
    for (const auto& [name, value] : op.attrs.all()) {
      const Attrs::Value* theirs = other.attrs.find(name);
      if (name == "rows" || (theirs != nullptr && *theirs == value)) continue;
      fault(op, name == "key" ? "dropout-key" : "passes",
            fmt::format("the '{}' is not that of the examples {} of the same layer", name,
                        examples(other).str()));
    }
    if (op.in.size() != other.in.size())
      return fault(op, "passes",
                   fmt::format("has {} operands, for the examples {} of the same layer it has {}",
                               op.in.size(), examples(other).str(), other.in.size()));
    for (size_t i = 0; i < op.in.size(); ++i)
      if (op.in[i] != other.in[i] && (tensor(op.in[i]).kind == TensorKind::kParameter ||
                                      tensor(other.in[i]).kind == TensorKind::kParameter))
        fault(op, "passes",
              fmt::format("reads '{}', for the examples {} of the same layer '{}'",
                          tensor(op.in[i]).name, examples(other).str(), tensor(other.in[i]).name));
  }

  const Plan& plan_;
  const Program& program_;
  Faults& faults_;
};

}  // namespace

void check_passes(const Plan& plan, const Program& program, Faults& faults) {
  PassCheck(plan, program, faults).run();
}

}  // namespace convnet
