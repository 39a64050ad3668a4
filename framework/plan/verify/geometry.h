// The words in which the checks of one instruction's shapes and boxes are written.
#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "framework/plan/verify/faults.h"

namespace convnet {

struct Range {
  int64_t lo = 0, hi = 0;
  bool operator==(const Range&) const = default;
};

inline constexpr const char* kActivationDims[] = {"examples", "channels", "rows", "columns"};

// One instruction: what its operands hold against what they must hold.
class InstrGeometry {
 public:
  InstrGeometry(const Plan& plan, int device, int instr, Faults& faults)
      : plan_(plan),
        device_(plan.devices[static_cast<size_t>(device)]),
        instr_(device_.instrs[static_cast<size_t>(instr)]),
        device_index_(device),
        instr_index_(instr),
        faults_(faults) {}

 protected:
  const Operand& in(size_t i) const { return instr_.in[i]; }
  const Operand& out(size_t i) const { return instr_.out[i]; }
  const Shape& shape(const Operand& o) const { return tensor_of(plan_, device_, o).shape; }
  const Part& part(const Operand& o) const { return buffer_of(device_, o).part; }
  std::string name(const Operand& o) const { return operand_name(device_, o); }
  static Range range(const Operand& o, int dim) { return {o.box.lo(dim), o.box.hi(dim)}; }

  void fault(const char* rule, std::string message) {
    faults_.in_instr(device_index_, instr_index_, rule, std::move(message));
  }

  bool rank(const Operand& o, int rank) {
    if (shape(o).rank() == rank) return true;
    fault("shape",
          fmt::format("{} has {} dimensions, must have {}", name(o), shape(o).rank(), rank));
    return false;
  }
  // Extents of logical tensors.
  bool agree(const char* what, int64_t is, int64_t must_be) {
    if (is == must_be) return true;
    fault("shape", fmt::format("{} is {}, must be {}", what, is, must_be));
    return false;
  }
  bool same_shape(const Operand& a, const Operand& b) {
    if (shape(a) == shape(b)) return true;
    fault("shape", fmt::format("{} is {}, {} is {}; they must be the same", name(a), shape(a).str(),
                               name(b), shape(b).str()));
    return false;
  }

  void covers(const Operand& o, int dim, Range need, const char* what) {
    if (need.lo >= need.hi || (o.box.lo(dim) <= need.lo && need.hi <= o.box.hi(dim))) return;
    fault("coverage", fmt::format("{} has the {} {}:{}, {}:{} are needed", name(o), what,
                                  o.box.lo(dim), o.box.hi(dim), need.lo, need.hi));
  }
  void equals(const Operand& o, int dim, Range need, const char* what) {
    if (o.box.lo(dim) == need.lo && o.box.hi(dim) == need.hi) return;
    fault("coverage", fmt::format("{} has the {} {}:{}, must have {}:{}", name(o), what,
                                  o.box.lo(dim), o.box.hi(dim), need.lo, need.hi));
  }
  void whole(const Operand& o, int dim, const char* what) {
    equals(o, dim, {0, shape(o)[dim]}, what);
  }
  void same_box(const Operand& o, const Operand& as) {
    if (o.box == as.box) return;
    fault("coverage", fmt::format("{} has the box {}, {} has {}; they must be the same", name(o),
                                  o.box.str(), name(as), as.box.str()));
  }

  // Results that are sums over these dimensions of `over`: all of them with the same index,
  // complete only if all of each dimension is there.
  void sums_over(const Operand& over, std::initializer_list<int> dims,
                 const std::vector<Operand>& results) {
    for (const Operand& o : results) {
      const Part& p = part(o);
      if (p.of != part(results[0]).of || p.k != part(results[0]).k)
        fault("complete",
              fmt::format("{} holds partial sum {} of {}, {} holds {} of {}", name(o), p.k, p.of,
                          name(results[0]), part(results[0]).k, part(results[0]).of));
      if (p.of > 1) continue;  // sums.cc
      for (int dim : dims)
        if (over.box.extent(dim) != shape(over)[dim])
          fault("complete", fmt::format("{} counts as complete, but sums the {} {}:{} of {}",
                                        name(o), kActivationDims[dim], over.box.lo(dim),
                                        over.box.hi(dim), shape(over)[dim]));
    }
  }

  const Plan& plan_;
  const DevicePlan& device_;
  const Instr& instr_;
  int device_index_, instr_index_;
  Faults& faults_;
};

// The operations of a loss (losses.cc).
void check_loss_geometry(const Plan& plan, int device, int instr, Faults& faults);

}  // namespace convnet
