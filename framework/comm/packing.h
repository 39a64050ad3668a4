// Packing: one rank's side of a round. Its members pack their operands into the parcels that go
// out; the steps of its members read what came in. It moves nothing itself: the transport takes the
// parcels from there.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "framework/backends/backend.h"
#include "framework/comm/encoding.h"
#include "framework/comm/exchange_steps.h"
#include "framework/comm/messages.h"

namespace convnet {

class Packing {
 public:
  // `in`: per member, of the members of `rank`; the others' are not looked at.
  Packing(Round round, const Tensor& tensor, const std::vector<int>& ranks, int rank,
          std::vector<View> in);

  // The memory of one message; allocated once.
  struct Parcel {
    int peer = 0;
    int64_t bytes = 0;
    std::unique_ptr<std::byte[]> data;
  };
  const std::vector<Parcel>& outgoing() const { return outgoing_; }
  const std::vector<Parcel>& incoming() const { return incoming_; }

  // Fills the member's segments of all outgoing parcels. Members may do so at the same time.
  void pack(size_t member) const;
  // Decodes what has come in; nothing to do if the exchange is not encoded. By one member, before
  // any member's steps.
  void unpack() const;

  // The steps of this rank's members, once all parcels have come in. `out`: as `in`. Of other
  // members there are none.
  ExchangeSteps steps(const std::vector<View>& out) const;

 private:
  Source find(int member, const Box& box) const;

  const Round round_;
  const Tensor tensor_;
  const std::vector<int> ranks_;
  const int rank_;
  const std::vector<View> in_;
  std::vector<Parcel> outgoing_, incoming_;
  std::vector<const Message*> incoming_messages_;  // in the order of incoming_
  std::vector<std::vector<Transfer>> packers_;     // per member
  // Of an encoded exchange: the operands of this rank's members, and what each incoming segment
  // decodes to, one after the other.
  struct Decoded {
    const Segment* segment = nullptr;
    int64_t elements = 0;
    std::unique_ptr<float[]> data;
  };
  std::vector<std::unique_ptr<EncodedPiece>> pieces_;
  std::vector<std::vector<Decoded>> decoded_;  // in the order of incoming_
};

}  // namespace convnet
