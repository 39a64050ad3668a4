#include "framework/comm/encoding.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "framework/comm/codecs/codec.h"

namespace convnet {
namespace {

BoxRuns runs_between(Format format, const Box& box, const Box& to, const Box& from) {
  const std::array<Box, 2> both{to, from};
  return BoxRuns(format, box, both);
}

// Lanes beyond the last example are no part of the batch, and must not move its scale.
void clear_padding(float* x, int64_t count, const Box& box) {
  const int64_t used = box.hi(0) % kLanes;
  if (used == 0) return;
  const int64_t blocks = (box.hi(0) - box.lo(0) + kLanes - 1) / kLanes;
  for (int64_t at = count / blocks * (blocks - 1); at < count; at += kLanes)
    std::fill(x + at + used, x + at + kLanes, 0.0f);
}

}  // namespace

EncodedPiece::EncodedPiece(Wire wire, const Tensor& tensor, const View& operand)
    : wire_(wire),
      format_(tensor.format),
      box_(operand.box),
      operand_(static_cast<const float*>(operand.data)),
      gather_(runs_between(tensor.format, operand.box, operand.box, operand.stored)),
      count_(stored_count(tensor.format, operand.box)),
      scale_bytes_(2 * encoded_bytes(wire, 1) - encoded_bytes(wire, 2)),
      code_bytes_(encoded_bytes(wire, 2) - encoded_bytes(wire, 1)),
      decoded_(std::make_unique<float[]>(static_cast<size_t>(count_))),
      encoded_(std::make_unique<std::byte[]>(static_cast<size_t>(encoded_bytes(wire, count_)))) {}

void EncodedPiece::encode() {
  const auto run = static_cast<size_t>(gather_.run()) * sizeof(float);
  gather_.for_each(
      [&](const int64_t* at) { std::memcpy(decoded_.get() + at[0], operand_ + at[1], run); });
  if (format_ == Format::kBlocked) clear_padding(decoded_.get(), count_, box_);
  const std::span values(decoded_.get(), static_cast<size_t>(count_));
  const std::span bytes(encoded_.get(), static_cast<size_t>(encoded_bytes(wire_, count_)));
  convnet::encode(wire_, values, bytes);
  decode(wire_, bytes, values);
}

void EncodedPiece::add_copy(const Box& box, std::byte* to) {
  copies_.push_back({runs_between(format_, box, box, box_), to});
}

void EncodedPiece::copy() const {
  const std::byte* codes = encoded_.get() + scale_bytes_;
  for (const Copy& c : copies_) {
    std::memcpy(c.to, encoded_.get(), static_cast<size_t>(scale_bytes_));
    const auto run = static_cast<size_t>(c.runs.run() * code_bytes_);
    c.runs.for_each([&](const int64_t* at) {
      std::memcpy(c.to + scale_bytes_ + at[0] * code_bytes_, codes + at[1] * code_bytes_, run);
    });
  }
}

Status check_wire(const Exchange& exchange, const Tensor& tensor) {
  if (exchange.wire == Wire::kF32) return Status();
  if (tensor.dtype != DType::kF32)
    return Status(Code::kUsage, "'" + tensor.name + "' is not f32, so it cannot be encoded as " +
                                    std::string(to_string(exchange.wire)));
  // Its remainder would have to be kept from step to step, and in checkpoints.
  if (exchange.wire == Wire::kOnebit)
    return Status(Code::kUsage, "exchanges cannot be encoded as onebit");
  return Status();
}

std::vector<View> no_operands(size_t members) {
  View nothing;
  nothing.box.append(0, 0);
  return std::vector<View>(members, nothing);
}

Result<std::vector<EncodedRound>> encoded_rounds(const Exchange& exchange, const Tensor& tensor,
                                                 const std::vector<View>& in,
                                                 const std::vector<View>& out) {
  const size_t members = exchange.group.size();
  CONVNET_RETURN_IF_ERROR(check_wire(exchange, tensor));
  for (size_t m = 0; m < members; ++m)
    CONVNET_RETURN_IF_ERROR(check_views(exchange, tensor, tensor, m, in[m], out[m]));
  CONVNET_ASSIGN_OR_RETURN(const std::vector<Round> rounds,
                           make_rounds(exchange, tensor, std::vector<int>(members, 0)));
  std::vector<EncodedRound> encoded;
  for (size_t r = 0; r < rounds.size(); ++r) {
    EncodedRound round;
    for (size_t m = 0; m < members; ++m) {
      // Between two rounds the pieces lie in the results.
      View operand = r == 0 ? in[m] : out[m];
      operand.box = rounds[r].exchange.from[m].box;
      round.operands.push_back(
          operand.box.empty() ? nullptr
                              : std::make_unique<EncodedPiece>(exchange.wire, tensor, operand));
    }
    round.steps = direct_steps(rounds[r].exchange, tensor, rounds[r].cells, no_operands(members),
                               out, [&round](int member, const Box&) {
                                 return round.operands[static_cast<size_t>(member)]->decoded();
                               });
    encoded.push_back(std::move(round));
  }
  return encoded;
}

}  // namespace convnet
