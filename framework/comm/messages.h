// What the ranks of an exchange send each other: pure functions of the exchange and of the rank of
// each member, so that all ranks come to the same messages without talking about them.
#pragma once

#include <cstdint>
#include <vector>

#include "framework/base/status.h"
#include "framework/comm/cells.h"
#include "framework/plan/plan.h"

namespace convnet {

// A box of a member's operand, as it travels: densely, in the tensor's format; or its encoding.
struct Segment {
  int member = 0;
  Box box;
  int64_t offset = 0;  // bytes in the message
};

// All that one rank sends to another in a round.
struct Message {
  int from = 0, to = 0;  // ranks
  std::vector<Segment> segments;
  int64_t bytes = 0;
};

// An exchange, or one of two that it is done by. When a round begins, the one before is done.
struct Round {
  Exchange exchange;
  std::vector<std::vector<Cell>> cells;  // per member
  std::vector<Message> messages;         // by rising (from, to); none is empty
};

// An all-reduce of a large tensor by more than two members, and every encoded one, takes two
// rounds: each member sums a piece for all, then sends it to all. Every other exchange takes one.
// `ranks`: of each member.
Result<std::vector<Round>> make_rounds(const Exchange& exchange, const Tensor& tensor,
                                       const std::vector<int>& ranks);

// The segment of `message` that holds `box` of the operand of `member`; null if there is none.
const Segment* find_segment(const Message& message, int member, const Box& box);

}  // namespace convnet
