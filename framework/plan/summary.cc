#include "framework/plan/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "framework/base/amounts.h"
#include "framework/plan/cost.h"
#include "framework/plan/names.h"

namespace convnet {
namespace {

// Tensors that depend on the gradient of a loss.
std::vector<bool> backward_tensors(const Plan& plan) {
  std::vector<bool> backward(plan.tensors.size(), false);
  // A device may add gradients that were made elsewhere, so until nothing changes.
  for (bool changed = true; changed;) {
    changed = false;
    for (const DevicePlan& d : plan.devices)
      for (const Instr& i : d.instrs) {
        const auto tensor = [&](const Operand& o) {
          return static_cast<size_t>(d.buffers[static_cast<size_t>(o.buffer)].tensor);
        };
        if (i.op == Op::kExchange || i.op == Op::kUpdateSgd) continue;
        bool is = is_backward(i.op);
        for (const Operand& o : i.in) is = is || backward[tensor(o)];
        for (const Operand& o : i.out) {
          changed = changed || (is && !backward[tensor(o)]);
          if (is) backward[tensor(o)] = true;
        }
      }
    for (const Exchange& e : plan.exchanges) {
      const auto from = static_cast<size_t>(e.tensor), to = static_cast<size_t>(e.target());
      changed = changed || (backward[from] && !backward[to]);
      if (backward[from]) backward[to] = true;
    }
  }
  return backward;
}

// The most bytes of the device's workspace buffers that are live at once.
int64_t workspace_peak(const Plan& plan, const DevicePlan& device) {
  const size_t n = device.buffers.size();
  std::vector<int> first(n, -1), last(n, -1);
  std::vector<bool> is_workspace(n, false);
  for (size_t b = 0; b < n; ++b)
    is_workspace[b] =
        plan.tensors[static_cast<size_t>(device.buffers[b].tensor)].kind == TensorKind::kGradient;
  for (size_t i = 0; i < device.instrs.size(); ++i) {
    const Instr& instr = device.instrs[i];
    for (const auto* list : {&instr.in, &instr.out})
      for (const Operand& o : *list) {
        const auto b = static_cast<size_t>(o.buffer);
        if (first[b] < 0) first[b] = static_cast<int>(i);
        last[b] = static_cast<int>(i);
      }
    if (instr.op == Op::kExchange)
      for (const Operand& o : instr.out) is_workspace[static_cast<size_t>(o.buffer)] = true;
  }
  std::vector<int64_t> change(device.instrs.size() + 1, 0);
  for (size_t b = 0; b < n; ++b) {
    if (!is_workspace[b] || device.buffers[b].region != Buffer::Region::kArena || first[b] < 0)
      continue;
    change[static_cast<size_t>(first[b])] += device.buffers[b].bytes;
    change[static_cast<size_t>(last[b]) + 1] -= device.buffers[b].bytes;
  }
  int64_t live = 0, peak = 0;
  for (int64_t c : change) peak = std::max(peak, live += c);
  return peak;
}

PlanSummary::Device summarise_device(const Plan& plan, const DevicePlan& device,
                                     const std::vector<bool>& backward) {
  PlanSummary::Device s;
  for (const Buffer& b : device.buffers) {
    switch (plan.tensors[static_cast<size_t>(b.tensor)].kind) {
      case TensorKind::kParameter:
        s.parameters += b.bytes;
        break;
      case TensorKind::kState:
        s.state += b.bytes;
        break;
      case TensorKind::kInput:
        s.inputs += b.region == Buffer::Region::kInput ? b.bytes : 0;
        break;
      default:
        break;
    }
  }
  s.arena = device.arena_bytes;
  s.arena_bound = device.arena_bound;
  s.workspace = workspace_peak(plan, device);
  s.instructions = static_cast<int64_t>(device.instrs.size());
  for (const Instr& i : device.instrs) {
    bool is = is_backward(i.op) || i.op == Op::kUpdateSgd;
    for (const Operand& o : i.out)
      is =
          is || backward[static_cast<size_t>(device.buffers[static_cast<size_t>(o.buffer)].tensor)];
    (is ? s.flops_backward : s.flops_forward) += flops(plan, device, i);
  }
  return s;
}

std::string flops_text(int64_t flops) {
  const auto v = static_cast<double>(flops);
  if (v >= 1e12) return fmt::format("{:.3f} TFLOP", v / 1e12);
  if (v >= 1e9) return fmt::format("{:.3f} GFLOP", v / 1e9);
  return fmt::format("{:.3f} MFLOP", v / 1e6);
}

double ratio(int64_t a, int64_t b) {
  return b > 0 ? static_cast<double>(a) / static_cast<double>(b) : 1.0;
}

}  // namespace

const char* direction_name(PlanSummary::Direction direction) {
  switch (direction) {
    case PlanSummary::Direction::kForward:
      return "forward";
    case PlanSummary::Direction::kBackward:
      return "backward";
    case PlanSummary::Direction::kSync:
      return "sync";
  }
  return "?";
}

PlanSummary summarise(const Plan& plan) {
  PlanSummary s;
  s.model = plan.model;
  s.phase = plan.phase;
  s.dtype = plan.dtype;
  s.batch = plan.batch;
  for (const Tensor& t : plan.tensors)
    if (t.kind == TensorKind::kParameter) s.parameters += t.shape.count();
  const std::vector<bool> backward = backward_tensors(plan);
  for (const DevicePlan& d : plan.devices) {
    s.devices.push_back(summarise_device(plan, d, backward));
    s.flops_forward += s.devices.back().flops_forward;
    s.flops_backward += s.devices.back().flops_backward;
  }
  for (const Exchange& e : plan.exchanges) {
    const Tensor& t = plan.tensors[static_cast<size_t>(e.tensor)];
    const auto direction = t.kind == TensorKind::kParameter || t.kind == TensorKind::kGradient ||
                                   t.kind == TensorKind::kState
                               ? PlanSummary::Direction::kSync
                           : backward[static_cast<size_t>(e.tensor)]
                               ? PlanSummary::Direction::kBackward
                               : PlanSummary::Direction::kForward;
    const std::string layer = e.layer < 0 ? "" : plan.layers[static_cast<size_t>(e.layer)].name;
    s.edges.push_back({t.name, e.edge, layer, e.kind, e.order, e.wire, direction,
                       static_cast<int64_t>(e.group.size()), e.bytes});
    (direction == PlanSummary::Direction::kSync       ? s.bytes_sync
     : direction == PlanSummary::Direction::kBackward ? s.bytes_backward
                                                      : s.bytes_forward) += e.bytes;
    const std::vector<Traffic> traffic =
        wire_traffic(e, t, plan.tensors[static_cast<size_t>(e.target())]);
    for (size_t m = 0; m < e.group.size(); ++m) {
      PlanSummary::Device& d = s.devices[static_cast<size_t>(e.group[m])];
      d.sent += traffic[m].sent;
      d.received += traffic[m].received;
    }
  }
  return s;
}

std::string print_summary(const PlanSummary& s) {
  std::string out;
  out += fmt::format("{}, {} plan for {} {}, batch {}, {}\n", s.model, phase_name(s.phase),
                     s.devices.size(), s.devices.size() == 1 ? "device" : "devices", s.batch,
                     dtype_name(s.dtype));
  out += fmt::format("parameters      {}\n", with_commas(s.parameters));
  out +=
      fmt::format("arithmetic      {} forward, {} backward, {} per example\n",
                  flops_text(s.flops_forward), flops_text(s.flops_backward),
                  flops_text((s.flops_forward + s.flops_backward) / std::max<int64_t>(1, s.batch)));
  out += fmt::format("communication   {} forward, {} backward, {} sync, per device at most\n",
                     bytes_text(s.bytes_forward), bytes_text(s.bytes_backward),
                     bytes_text(s.bytes_sync));
  out += fmt::format(
      "\n{:>6}  {:>11}  {:>11}  {:>11}  {:>11}  {:>11}  {:>11}  {:>13}  {:>11}  {:>11}\n", "device",
      "parameters", "state", "inputs", "arena", "over bound", "workspace", "arithmetic", "sent",
      "received");
  for (size_t d = 0; d < s.devices.size(); ++d) {
    const PlanSummary::Device& v = s.devices[d];
    out += fmt::format(
        "{:>6}  {:>11}  {:>11}  {:>11}  {:>11}  {:>11}  {:>11}  {:>13}  {:>11}  {:>11}\n", d,
        bytes_text(v.parameters), bytes_text(v.state), bytes_text(v.inputs), bytes_text(v.arena),
        fmt::format("{:.2f}x", ratio(v.arena, v.arena_bound)), bytes_text(v.workspace),
        flops_text(v.flops_forward + v.flops_backward), bytes_text(v.sent), bytes_text(v.received));
  }
  if (s.edges.empty()) return out;
  size_t width = 6;
  for (const auto& e : s.edges) width = std::max(width, e.tensor.size());
  out += fmt::format("\n{:<{}}  {:<14}  {:<5}  {:<10}  {:<9}  {:>7}  {:>14}\n", "tensor", width,
                     "kind", "order", "wire", "direction", "devices", "bytes/device");
  for (const auto& e : s.edges)
    out += fmt::format("{:<{}}  {:<14}  {:<5}  {:<10}  {:<9}  {:>7}  {:>14}\n", e.tensor, width,
                       exchange_kind_name(e.kind), exchange_order_name(e.order), to_string(e.wire),
                       direction_name(e.direction), e.devices, with_commas(e.bytes));
  return out;
}

std::string summary_json(const PlanSummary& s) {
  nlohmann::ordered_json json = {
      {"model", s.model},
      {"phase", phase_name(s.phase)},
      {"dtype", dtype_name(s.dtype)},
      {"batch", s.batch},
      {"parameters", s.parameters},
      {"flops_forward", s.flops_forward},
      {"flops_backward", s.flops_backward},
      {"bytes_forward", s.bytes_forward},
      {"bytes_backward", s.bytes_backward},
      {"bytes_sync", s.bytes_sync},
      {"devices", nlohmann::ordered_json::array()},
      {"edges", nlohmann::ordered_json::array()},
  };
  for (const PlanSummary::Device& d : s.devices)
    json["devices"].push_back({{"parameter_bytes", d.parameters},
                               {"state_bytes", d.state},
                               {"input_bytes", d.inputs},
                               {"arena_bytes", d.arena},
                               {"arena_bound", d.arena_bound},
                               {"workspace_bytes", d.workspace},
                               {"flops_forward", d.flops_forward},
                               {"flops_backward", d.flops_backward},
                               {"sent_bytes", d.sent},
                               {"received_bytes", d.received},
                               {"instructions", d.instructions}});
  for (const PlanSummary::Edge& e : s.edges)
    json["edges"].push_back({{"tensor", e.tensor},
                             {"edge", e.edge},
                             {"layer", e.layer},
                             {"kind", exchange_kind_name(e.kind)},
                             {"order", exchange_order_name(e.order)},
                             {"wire", to_string(e.wire)},
                             {"direction", direction_name(e.direction)},
                             {"devices", e.devices},
                             {"bytes", e.bytes}});
  // Names are taken from files: bytes that are no UTF-8 must not stop the report.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace convnet
