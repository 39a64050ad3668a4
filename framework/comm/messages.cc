#include "framework/comm/messages.h"

#include <algorithm>
#include <map>
#include <utility>

#include "framework/comm/exchange_steps.h"

namespace convnet {
namespace {

// Segments begin at multiples of the widest element.
constexpr int64_t kSegmentAlignment = 8;

int64_t bytes_of(const Tensor& tensor, const Box& box) {
  return stored_count(tensor.format, box) * dtype_size(tensor.dtype);
}

// As it travels.
int64_t message_bytes(Wire wire, const Tensor& tensor, const Box& box) {
  if (wire == Wire::kF32) return bytes_of(tensor, box);
  return encoded_bytes(wire, stored_count(tensor.format, box));
}

// The sum of an encoded all-reduce is encoded by pieces (FORMAT.md), whatever its size.
bool goes_by_pieces(const Exchange& exchange, const Tensor& tensor) {
  const Box& box = exchange.to[0].box;
  const bool encoded = exchange.wire != Wire::kF32 && exchange.kind == Exchange::Kind::kAllReduce;
  const bool large = exchange.group.size() > 2 && bytes_of(tensor, box) >= kTwoPhaseBytes &&
                     exchange.wire == Wire::kF32;
  if (box.empty() || !(encoded || large)) return false;
  for (size_t m = 0; m < exchange.group.size(); ++m)
    if (!(exchange.to[m].box == box) || !(exchange.from[m].box == box) || exchange.from[m].of < 2)
      return false;
  return true;
}

// `box` cut into n pieces along the first dimension that has enough of them, else along the one
// that has most; some pieces are then empty. Blocked batches are cut between blocks.
std::vector<Box> pieces(const Tensor& tensor, const Box& box, int64_t n) {
  const auto unit = [&](int d) {
    return tensor.format == Format::kBlocked && d == 0 ? kLanes : int64_t{1};
  };
  const auto units = [&](int d) { return (box.extent(d) + unit(d) - 1) / unit(d); };
  int along = 0;
  for (int d = 0; d < box.rank() && units(along) < n; ++d)
    if (units(d) > units(along)) along = d;
  std::vector<Box> result;
  for (int64_t m = 0; m < n; ++m) {
    const auto cut = [&](int64_t i) {
      return std::min(box.hi(along), box.lo(along) + units(along) * i / n * unit(along));
    };
    Box piece = box;
    piece.set(along, cut(m), cut(m + 1));
    result.push_back(piece);
  }
  return result;
}

// Adds what `message` lacks to carry `box` of the operand of `member`.
void add_segment(Message& message, int member, const Box& box) {
  if (find_segment(message, member, box) != nullptr) return;
  std::erase_if(message.segments,
                [&](const Segment& s) { return s.member == member && box.contains(s.box); });
  message.segments.push_back({member, box, 0});
}

Result<Round> make_round(const Exchange& exchange, const Tensor& tensor,
                         const std::vector<int>& ranks) {
  Round round;
  round.exchange = exchange;
  std::map<std::pair<int, int>, Message> messages;
  for (size_t m = 0; m < exchange.group.size(); ++m) {
    CONVNET_ASSIGN_OR_RETURN(std::vector<Cell> cells,
                             make_cells(exchange, tensor.name, static_cast<int>(m), ranks));
    for (const Cell& cell : cells) {
      for (int source : cell.source_of) {
        if (source < 0 || ranks[static_cast<size_t>(source)] == ranks[m]) continue;
        Message& message = messages[{ranks[static_cast<size_t>(source)], ranks[m]}];
        add_segment(message, source, cell.box);
      }
    }
    round.cells.push_back(std::move(cells));
  }
  for (auto& [way, message] : messages) {
    message.from = way.first;
    message.to = way.second;
    for (Segment& segment : message.segments) {
      segment.offset = message.bytes;
      const int64_t bytes = message_bytes(exchange.wire, tensor, segment.box);
      message.bytes += (bytes + kSegmentAlignment - 1) / kSegmentAlignment * kSegmentAlignment;
    }
    round.messages.push_back(std::move(message));
  }
  return round;
}

}  // namespace

const Segment* find_segment(const Message& message, int member, const Box& box) {
  for (const Segment& segment : message.segments)
    if (segment.member == member && segment.box.contains(box)) return &segment;
  return nullptr;
}

Result<std::vector<Round>> make_rounds(const Exchange& exchange, const Tensor& tensor,
                                       const std::vector<int>& ranks) {
  CHECK(ranks.size() == exchange.group.size());
  CONVNET_RETURN_IF_ERROR(check_group(exchange));
  std::vector<Exchange> parts{exchange};
  if (goes_by_pieces(exchange, tensor)) {
    const auto members = static_cast<int64_t>(exchange.group.size());
    const std::vector<Box> mine = pieces(tensor, exchange.to[0].box, members);
    parts.push_back(exchange);
    for (size_t m = 0; m < mine.size(); ++m) {
      parts[0].to[m].box = mine[m];
      parts[1].from[m] = Part{mine[m], 0, 1};
    }
    parts[1].order = Exchange::Order::kNone;
  }
  std::vector<Round> rounds;
  for (const Exchange& part : parts) {
    CONVNET_ASSIGN_OR_RETURN(Round round, make_round(part, tensor, ranks));
    rounds.push_back(std::move(round));
  }
  return rounds;
}

}  // namespace convnet
