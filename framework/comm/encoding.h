// Encoded exchanges (Exchange::wire): a member's operand is one piece, encoded once; every member
// copies or adds what it decodes to, the operand's own device too. So all devices see the same
// values, and results depend neither on who is near whom nor on how the pieces travel.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "framework/backends/backend.h"
#include "framework/base/status.h"
#include "framework/comm/box_runs.h"
#include "framework/comm/exchange_steps.h"
#include "framework/comm/messages.h"
#include "framework/plan/plan.h"

namespace convnet {

// A member's operand as it travels, and as everyone sees it. All memory is allocated once.
class EncodedPiece {
 public:
  EncodedPiece(Wire wire, const Tensor& tensor, const View& operand);

  // From the operand as it is now.
  void encode();
  // Valid after encode().
  Source decoded() const { return {decoded_.get(), box_}; }

  // Writes boxes of the piece into messages: encoded_bytes() of each box, the piece's scale first.
  void add_copy(const Box& box, std::byte* to);
  void copy() const;  // all that were added

 private:
  struct Copy {
    BoxRuns runs;  // operand 0: the message
    std::byte* to;
  };
  Wire wire_;
  Format format_;
  Box box_;
  const float* operand_;
  BoxRuns gather_;  // operand 0: decoded_
  int64_t count_;   // stored elements
  int64_t scale_bytes_, code_bytes_;
  std::unique_ptr<float[]> decoded_;
  std::unique_ptr<std::byte[]> encoded_;
  std::vector<Copy> copies_;
};

// kUsage if the exchange cannot be encoded as it says.
Status check_wire(const Exchange& exchange, const Tensor& tensor);

// What the members do who share a memory. One after the other:
//   for each round:  barrier, the member's operand is encoded, barrier, `first` of its steps
// so a piece is not encoded anew before everyone has read it.
struct EncodedRound {
  std::vector<std::unique_ptr<EncodedPiece>> operands;  // per member; null: it holds nothing
  ExchangeSteps steps;
};
Result<std::vector<EncodedRound>> encoded_rounds(const Exchange& exchange, const Tensor& tensor,
                                                 const std::vector<View>& in,
                                                 const std::vector<View>& out);

// Views of members whose operands are not read: what they hold is taken from pieces.
std::vector<View> no_operands(size_t members);

}  // namespace convnet
