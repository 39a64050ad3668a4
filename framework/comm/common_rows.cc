#include "framework/comm/common_rows.h"

#include <optional>
#include <vector>

#include "framework/comm/exchange_steps.h"
#include "framework/plan/rows.h"

namespace convnet {
namespace {

// The same memory with its rows in the numbers of `to`. The rows of a view are one run there, so
// its memory begins where row 0 would be, which may be before the first.
void renumber_view(const Tensor& tensor, const Tensor& to, const Box& box, View& view) {
  const RowMap mine = row_map(tensor), common = row_map(to);
  if (mine == common || view.box.empty() || box.empty()) return;
  const std::vector<RowRun> runs = common_rows(mine, view.box.lo(0), view.box.hi(0), common);
  const int64_t shift = runs[0].to - runs[0].from;
  view.stored.set(0, view.stored.lo(0) + shift, view.stored.hi(0) + shift);
  view.box = box;
}

}  // namespace

CommonRows::CommonRows(const Plan& plan, const Exchange& exchange)
    : given_(exchange),
      from_(plan.tensors[static_cast<size_t>(exchange.tensor)]),
      into_(plan.tensors[static_cast<size_t>(exchange.target())]),
      by_receiver_(judged_by_receiver(from_, into_)),
      exchange_(exchange) {
  if (exchange.into < 0) return;
  std::optional<Exchange> common = in_common_rows(exchange, from_, into_);
  possible_ = common.has_value();
  if (possible_) exchange_ = *std::move(common);
}

Status CommonRows::renumber(size_t member, View& in, View& out) const {
  CONVNET_RETURN_IF_ERROR(check_views(given_, from_, into_, member, in, out));
  if (!possible_)
    return Status(Code::kUsage,
                  "a box of '" + from_.name + "' is not one box of '" + into_.name + "'");
  renumber_view(from_, tensor(), exchange_.from[member].box, in);
  renumber_view(into_, tensor(), exchange_.to[member].box, out);
  return Status();
}

}  // namespace convnet
