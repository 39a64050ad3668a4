#include "tools/convnet/rounding_bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace convnet::cli {
namespace {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();

}  // namespace

double unit_roundoff(DType dtype) { return dtype == DType::kF64 ? 0x1p-53 : 0x1p-24; }

RoundingBounds::RoundingBounds(const Plan& plan, const Records& serial, double rate)
    : plan_(plan), serial_(serial), rate_(rate), bounds_(plan.tensors.size(), 0) {
  // Bounds only grow along the plan; a value crosses devices only through exchanges of its
  // tensor, so a pass per device and one more settle all of them.
  bool changed = true;
  for (size_t round = 0; changed && round <= plan.devices.size(); ++round) {
    changed = false;
    for (size_t device = 0; device < plan.devices.size(); ++device) {
      for (const Instr& instr : plan.devices[device].instrs) {
        changed |= visit(static_cast<int>(device), instr);
      }
    }
  }
}

int RoundingBounds::tensor(int device, const Operand& operand) const {
  const DevicePlan& d = plan_.devices[static_cast<size_t>(device)];
  return d.buffers[static_cast<size_t>(operand.buffer)].tensor;
}

bool RoundingBounds::raise(int of_tensor, double bound) {
  double& current = bounds_[static_cast<size_t>(of_tensor)];
  if (bound <= current) return false;
  current = bound;
  return true;
}

const Recorded* RoundingBounds::recorded(int device, const Operand& operand) const {
  auto found = serial_.find(tensor_of(plan_, device, operand).name);
  return found == serial_.end() ? nullptr : &found->second;
}

// The sum of the magnitudes of the terms that make an element of the tensor's partial sums.
double RoundingBounds::magnitude(int of_tensor) const {
  const Tensor& sum = plan_.tensors[static_cast<size_t>(of_tensor)];
  if (sum.kind == TensorKind::kMetric) {  // losses and counts: no term is negative
    auto found = serial_.find(sum.name);
    return found == serial_.end() ? kUnbounded : found->second.largest();
  }
  double most = 0;
  for (size_t device = 0; device < plan_.devices.size(); ++device) {
    const int d = static_cast<int>(device);
    for (const Instr& instr : plan_.devices[device].instrs) {
      if (instr.op == Op::kExchange) continue;
      for (size_t r = 0; r < instr.out.size(); ++r) {
        if (tensor(d, instr.out[r]) != of_tensor || part_of(plan_, d, instr.out[r]).of == 1)
          continue;
        if (instr.op != Op::kConvBwdWeight && instr.op != Op::kFcBwdWeight) return kUnbounded;
        const Recorded* x = recorded(d, instr.in[0]);
        const Recorded* dy = recorded(d, instr.in[1]);
        if (x == nullptr || dy == nullptr) return kUnbounded;
        // A bias adds the elements of one channel of dy.
        const double terms =
            static_cast<double>(dy->count) / static_cast<double>(sum.shape.count());
        most = std::max(most, (r == 0 ? x->norm() : std::sqrt(terms)) * dy->norm());
      }
    }
  }
  return most;
}

bool RoundingBounds::visit(int device, const Instr& instr) {
  // Parameters and state are exact when a step begins and are read before they are updated.
  double in = 0;
  for (const Operand& operand : instr.in) {
    const TensorKind kind = tensor_of(plan_, device, operand).kind;
    if (kind == TensorKind::kParameter || kind == TensorKind::kState) continue;
    in = std::max(in, of(tensor(device, operand)));
  }
  if (instr.op == Op::kExchange) {
    const Exchange& exchange = plan_.exchanges[static_cast<size_t>(instr.attrs.integer("id"))];
    if (exchange.order != Exchange::Order::kRank || of(exchange.tensor) > 0) return false;
    const double terms = static_cast<double>(plan_.shards.size() + plan_.devices.size());
    const DType dtype = plan_.tensors[static_cast<size_t>(exchange.tensor)].dtype;
    return raise(exchange.tensor, 2 * terms * unit_roundoff(dtype) * magnitude(exchange.tensor));
  }
  if (in == 0) return false;
  if (instr.op == Op::kUpdateSgd) {
    const Recorded* dw = recorded(device, instr.in[0]);
    const Recorded* w = recorded(device, instr.out[0]);
    const Recorded* m = recorded(device, instr.out[1]);
    if (dw == nullptr || w == nullptr || m == nullptr) return false;
    // m' = momentum * m - rate * (dw + decay * w): a handful of roundings, each of a number no
    // larger than |m'| and twice the second term together.
    const double u = unit_roundoff(w->dtype);
    const double rate = std::abs(rate_ * instr.attrs.real("rate"));
    const double term = rate * (dw->largest() + instr.attrs.real("decay") * w->largest());
    const double momentum =
        rate * of(tensor(device, instr.in[0])) * (1 + 4 * u) + 8 * u * (m->largest() + 2 * term);
    const bool changed = raise(tensor(device, instr.out[1]), momentum);
    return raise(tensor(device, instr.out[0]), momentum + 2 * u * w->largest()) || changed;
  }
  bool changed = false;
  for (const Operand& out : instr.out) changed |= raise(tensor(device, out), kUnbounded);
  return changed;
}

}  // namespace convnet::cli
