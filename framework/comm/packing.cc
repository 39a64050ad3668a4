#include "framework/comm/packing.h"

#include <cstdint>
#include <span>
#include <utility>

#include "framework/comm/codecs/codec.h"

namespace convnet {

Packing::Packing(Round round, const Tensor& tensor, const std::vector<int>& ranks, int rank,
                 std::vector<View> in)
    : round_(std::move(round)),
      tensor_(tensor),
      ranks_(ranks),
      rank_(rank),
      in_(std::move(in)),
      packers_(ranks.size()),
      pieces_(ranks.size()) {
  const Wire wire = round_.exchange.wire;
  for (size_t m = 0; m < ranks.size() && wire != Wire::kF32; ++m)
    if (ranks[m] == rank_ && !in_[m].box.empty())
      pieces_[m] = std::make_unique<EncodedPiece>(wire, tensor, in_[m]);
  for (const Message& message : round_.messages) {
    if (message.from != rank_ && message.to != rank_) continue;
    Parcel parcel;
    parcel.peer = message.from == rank_ ? message.to : message.from;
    parcel.bytes = message.bytes;
    parcel.data = std::make_unique<std::byte[]>(static_cast<size_t>(message.bytes));
    if (message.to == rank_) {
      incoming_messages_.push_back(&message);
      std::vector<Decoded>& decoded = decoded_.emplace_back();
      for (const Segment& segment : message.segments) {
        if (wire == Wire::kF32) break;
        const int64_t elements = stored_count(tensor.format, segment.box);
        decoded.push_back(
            {&segment, elements, std::make_unique<float[]>(static_cast<size_t>(elements))});
      }
      incoming_.push_back(std::move(parcel));
      continue;
    }
    for (const Segment& segment : message.segments) {
      const auto member = static_cast<size_t>(segment.member);
      if (wire != Wire::kF32) {
        pieces_[member]->add_copy(segment.box, parcel.data.get() + segment.offset);
        continue;
      }
      const View& view = in_[member];
      const int sole = 0;
      const Box both[] = {segment.box, view.stored};
      packers_[member].emplace_back(BoxRuns(tensor.format, segment.box, both),
                                    OrderedSum(Exchange::Order::kNone, std::span(&sole, 1)),
                                    tensor.dtype, parcel.data.get() + segment.offset,
                                    std::vector<const void*>{view.data});
    }
    outgoing_.push_back(std::move(parcel));
  }
}

void Packing::pack(size_t member) const {
  if (pieces_[member] != nullptr) {
    pieces_[member]->encode();
    pieces_[member]->copy();
  }
  for (const Transfer& transfer : packers_[member]) transfer.run();
}

void Packing::unpack() const {
  const Wire wire = round_.exchange.wire;
  for (size_t i = 0; i < decoded_.size(); ++i)
    for (const Decoded& d : decoded_[i])
      decode(wire,
             {incoming_[i].data.get() + d.segment->offset,
              static_cast<size_t>(encoded_bytes(wire, d.elements))},
             {d.data.get(), static_cast<size_t>(d.elements)});
}

Source Packing::find(int member, const Box& box) const {
  if (ranks_[static_cast<size_t>(member)] == rank_) {
    const auto& piece = pieces_[static_cast<size_t>(member)];
    if (piece != nullptr) return piece->decoded();
    const View& view = in_[static_cast<size_t>(member)];
    return {view.data, view.stored};
  }
  for (size_t i = 0; i < incoming_.size(); ++i) {
    if (incoming_[i].peer != ranks_[static_cast<size_t>(member)]) continue;
    const Segment* segment = find_segment(*incoming_messages_[i], member, box);
    if (segment != nullptr && !decoded_[i].empty()) {
      const auto at = static_cast<size_t>(segment - incoming_messages_[i]->segments.data());
      return {decoded_[i][at].data.get(), segment->box};
    }
    if (segment != nullptr) return {incoming_[i].data.get() + segment->offset, segment->box};
  }
  CHECK(false);  // make_rounds has provided for every source
  return {};
}

ExchangeSteps Packing::steps(const std::vector<View>& out) const {
  // What members of other ranks read is packed before anything is written.
  std::vector<std::vector<Cell>> here = round_.cells;
  for (size_t m = 0; m < here.size(); ++m)
    if (ranks_[m] != rank_) here[m].clear();
  const bool encoded = round_.exchange.wire != Wire::kF32;
  return direct_steps(round_.exchange, tensor_, here, encoded ? no_operands(here.size()) : in_, out,
                      [this](int member, const Box& box) { return find(member, box); });
}

}  // namespace convnet
