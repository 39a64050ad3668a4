// What each member of an exchange does: the box copy that `from` and `to` spell out, worked out
// once for given memory into lists of transfers.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "framework/backends/backend.h"
#include "framework/base/status.h"
#include "framework/comm/box_runs.h"
#include "framework/comm/ordered_sum.h"
#include "framework/plan/plan.h"

namespace convnet {

// One box of a result: the copy or the sum of boxes of the members' operands.
class Transfer {
 public:
  Transfer(BoxRuns runs, OrderedSum sum, DType dtype, void* dst, std::vector<const void*> sources)
      : runs_(std::move(runs)),
        sum_(std::move(sum)),
        dtype_(dtype),
        dst_(dst),
        sources_(std::move(sources)) {}
  void run() const;

 private:
  BoxRuns runs_;  // operand 0 is the destination
  OrderedSum sum_;
  DType dtype_;
  void* dst_;
  std::vector<const void*> sources_;
};

// The steps of one member. Between two lists lies a barrier of the group:
//   barrier, first, [barrier, second,] barrier, last
// `first` reads operands, `second` (of an all-reduce) reads other members' results, `last` moves a
// result that had to be made elsewhere, because it overlaps an operand that others were still
// reading.
struct MemberSteps {
  std::vector<Transfer> first, second, last;
  std::unique_ptr<std::byte[]> stage;
};

struct ExchangeSteps {
  bool two_phases = false;  // of every member, or of none
  std::vector<MemberSteps> members;
};

// `in`, `out`: per member, as given to Communicator::bind. kUsage if the views are not what the
// exchange says, or leave an element without a source; kLimit for groups of more than 64.
Result<ExchangeSteps> exchange_steps(const Exchange& exchange, const Tensor& tensor,
                                     const std::vector<View>& in, const std::vector<View>& out);

}  // namespace convnet
