// What each member of an exchange does: the box copy that `from` and `to` spell out, worked out
// once for given memory into lists of transfers.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "framework/backends/backend.h"
#include "framework/base/status.h"
#include "framework/comm/box_runs.h"
#include "framework/comm/cells.h"
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

// Below this an all-reduce is done by every member for itself: reading all operands costs less than
// a third barrier. Bytes of the tensor.
constexpr int64_t kTwoPhaseBytes = 16 * 1024;

// `in`, `out`: per member, as given to Communicator::bind. kUsage if the views are not what the
// exchange says, or leave an element without a source; kLimit for groups of more than 64.
Result<ExchangeSteps> exchange_steps(const Exchange& exchange, const Tensor& tensor,
                                     const std::vector<View>& in, const std::vector<View>& out);

// kLimit for groups of more than 64.
Status check_group(const Exchange& exchange);
// kUsage if a member's views of the tensors `from` and `into` are not what the exchange says.
Status check_views(const Exchange& exchange, const Tensor& from, const Tensor& into, size_t member,
                   const View& in, const View& out);

// Memory that holds `box` of the operand of `member`.
struct Source {
  const void* data = nullptr;
  Box stored;
};
using FindSource = std::function<Source(int member, const Box& box)>;

// Every member makes its own result, cell by cell, from what `find` says. Members without cells
// make nothing, and their views are not looked at.
ExchangeSteps direct_steps(const Exchange& exchange, const Tensor& tensor,
                           const std::vector<std::vector<Cell>>& cells, const std::vector<View>& in,
                           const std::vector<View>& out, const FindSource& find);

}  // namespace convnet
