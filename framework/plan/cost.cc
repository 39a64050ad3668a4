#include "framework/plan/cost.h"

#include <algorithm>

#include "framework/plan/rows.h"

namespace convnet {
namespace {

const Shape& logical(const Plan& plan, const DevicePlan& device, const Operand& o) {
  const Buffer& b = device.buffers[static_cast<size_t>(o.buffer)];
  return plan.tensors[static_cast<size_t>(b.tensor)].shape;
}

int64_t area(const std::vector<int64_t>& window) { return window[0] * window[1]; }

}  // namespace

bool is_backward(Op op) { return op_info(op).text.find("bwd") != std::string_view::npos; }

int64_t flops(const Plan& plan, const DevicePlan& device, const Instr& instr) {
  const auto count = [](const Operand& o) { return o.box.count(); };
  // Elements of a filter, or of an example.
  const auto taps = [](const Operand& o) {
    return o.box.count() / std::max<int64_t>(1, o.box.extent(0));
  };
  switch (instr.op) {
    case Op::kConvFwd:
    case Op::kFcFwd:
      return 2 * count(instr.out[0]) * taps(instr.in[1]);
    case Op::kConvBwdData: {
      const Shape& w = logical(plan, device, instr.in[1]);
      const int64_t channels = std::min(instr.out[0].box.extent(1), w[1]);
      return 2 * count(instr.in[0]) * channels * w[2] * w[3];
    }
    case Op::kFcBwdData:
      return 2 * count(instr.in[0]) * taps(instr.out[0]);
    case Op::kConvBwdWeight:
    case Op::kFcBwdWeight: {
      const Operand &dy = instr.in[1], &dw = instr.out[0];
      const int64_t per_filter = count(dy) / std::max<int64_t>(1, dy.box.extent(1));
      return 2 * per_filter * count(dw);
    }
    case Op::kPoolMaxFwd:
    case Op::kPoolAvgFwd:
      return count(instr.out[0]) * area(instr.attrs.list("kernel"));
    case Op::kPoolMaxBwd:
      return count(instr.in[1]) * area(instr.attrs.list("kernel"));
    case Op::kPoolAvgBwd:
      return count(instr.in[0]) * area(instr.attrs.list("kernel"));
    case Op::kActFwd:
    case Op::kDropoutFwd:
    case Op::kDropoutBwd:
      return count(instr.out[0]);
    case Op::kActBwd:
    case Op::kSoftmaxLossBwd:
      return 2 * count(instr.out[0]);
    case Op::kLrnFwd:
      return count(instr.out[0]) * (2 * instr.attrs.integer("size") + 3);
    case Op::kLrnBwd:
      return count(instr.out[0]) * (2 * instr.attrs.integer("size") + 5);
    case Op::kBiasFwd:
      return 2 * count(instr.out[0]);  // with the activation
    case Op::kBiasBwd:
      return count(instr.in[0]);
    case Op::kSoftmaxStats:
      return 3 * count(instr.in[0]);
    case Op::kSoftmaxNorm:
      return 2 * count(instr.out[0]);
    case Op::kSoftmaxMetrics:
      return count(instr.in[0]);
    case Op::kAdd:
    case Op::kSum:
      return count(instr.out[0]) * static_cast<int64_t>(instr.in.size() - 1);
    case Op::kSoftmaxLossFwd:
      return 4 * count(instr.out[0]);
    case Op::kUpdateSgd:
      return 6 * count(instr.out[0]);
    case Op::kConcatFwd:
    case Op::kConcatBwd:
    case Op::kRowsJoin:
    case Op::kGuard:
    case Op::kExchange:
      return 0;
  }
  return 0;
}

std::vector<Traffic> wire_traffic(const Exchange& given, const Tensor& tensor, const Tensor& into) {
  using Kind = Exchange::Kind;
  const std::optional<Exchange> judged = in_common_rows(given, tensor, into);
  CHECK_MSG(judged.has_value(), "exchange of '" + tensor.name + "' into '" + into.name +
                                    "' with a box whose rows do not follow on one another there");
  const Exchange& exchange = *judged;
  const size_t p = exchange.group.size();
  const auto bytes = [&](int64_t count) {
    return exchange.wire == Wire::kF32 ? count * dtype_size(tensor.dtype)
                                       : encoded_bytes(exchange.wire, count);
  };
  const auto from = [&](size_t m) { return bytes(exchange.from[m].box.count()); };
  const auto to = [&](size_t m) { return bytes(exchange.to[m].box.count()); };
  std::vector<Traffic> traffic(p);
  // Around a ring: a member passes on all pieces but the next one's, and gets all but its own.
  const auto around = [&](auto&& piece, bool gathers) {
    int64_t all = 0;
    for (size_t m = 0; m < p; ++m) all += piece(m);
    for (size_t m = 0; m < p; ++m) {
      const int64_t but_next = all - piece((m + 1) % p), but_mine = all - piece(m);
      traffic[m].sent += gathers ? but_next : but_mine;
      traffic[m].received += gathers ? but_mine : but_next;
    }
  };
  switch (exchange.kind) {
    case Kind::kAllGather:
      around(from, true);
      return traffic;
    case Kind::kReduceScatter:
      around(to, false);
      return traffic;
    case Kind::kAllReduce: {  // a reduce-scatter and an all-gather of balanced pieces
      const int64_t count = exchange.from[0].box.count(), n = static_cast<int64_t>(p);
      int64_t most = 0;
      for (int64_t i = 1; i < n; ++i) most += bytes(count * (i + 1) / n - count * i / n);
      traffic.assign(p, {2 * most, 2 * most});
      return traffic;
    }
    case Kind::kBroadcast:  // along a chain
      for (size_t m = 0; m < p; ++m)
        traffic[m] = from(m) > 0 ? Traffic{from(m), 0} : Traffic{to(m), to(m)};
      return traffic;
    case Kind::kReduce:
      for (size_t m = 0; m < p; ++m)
        traffic[m] = to(m) > 0 ? Traffic{0, from(m)} : Traffic{from(m), from(m)};
      return traffic;
    case Kind::kGather:
    case Kind::kScatter:
    case Kind::kAllToAll:
    case Kind::kBoxes:
      break;
  }
  for (size_t a = 0; a < p; ++a)
    for (size_t b = 0; b < p; ++b) {
      const Box &have = exchange.from[a].box, &want = exchange.to[b].box;
      if (a == b || have.empty() || want.empty()) continue;
      const int64_t moved = bytes(intersect(have, want).count());
      traffic[a].sent += moved;
      traffic[b].received += moved;
    }
  return traffic;
}

int64_t wire_bytes(const Exchange& exchange, const Tensor& tensor, const Tensor& into) {
  int64_t most = 0;
  for (const Traffic& t : wire_traffic(exchange, tensor, into))
    most = std::max({most, t.sent, t.received});
  return most;
}

}  // namespace convnet
