#include "framework/comm/packing.h"

#include <cstdint>
#include <span>
#include <utility>

namespace convnet {

Packing::Packing(Round round, const Tensor& tensor, const std::vector<int>& ranks, int rank,
                 std::vector<View> in)
    : round_(std::move(round)),
      tensor_(tensor),
      ranks_(ranks),
      rank_(rank),
      in_(std::move(in)),
      packers_(ranks.size()) {
  for (const Message& message : round_.messages) {
    if (message.from != rank_ && message.to != rank_) continue;
    Parcel parcel;
    parcel.peer = message.from == rank_ ? message.to : message.from;
    parcel.bytes = message.bytes;
    parcel.data = std::make_unique<std::byte[]>(static_cast<size_t>(message.bytes));
    if (message.to == rank_) {
      incoming_messages_.push_back(&message);
      incoming_.push_back(std::move(parcel));
      continue;
    }
    for (const Segment& segment : message.segments) {
      const auto member = static_cast<size_t>(segment.member);
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
  for (const Transfer& transfer : packers_[member]) transfer.run();
}

Source Packing::find(int member, const Box& box) const {
  if (ranks_[static_cast<size_t>(member)] == rank_) {
    const View& view = in_[static_cast<size_t>(member)];
    return {view.data, view.stored};
  }
  for (size_t i = 0; i < incoming_.size(); ++i) {
    if (incoming_[i].peer != ranks_[static_cast<size_t>(member)]) continue;
    const Segment* segment = find_segment(*incoming_messages_[i], member, box);
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
  return direct_steps(round_.exchange, tensor_, here, in_, out,
                      [this](int member, const Box& box) { return find(member, box); });
}

}  // namespace convnet
