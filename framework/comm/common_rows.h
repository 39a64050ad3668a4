// Exchanges between tensors that hold other examples of the batch, in one numbering of rows, so
// that everything behind sees boxes of one tensor.
#pragma once

#include <cstddef>

#include "framework/backends/backend.h"
#include "framework/base/status.h"
#include "framework/plan/plan.h"

namespace convnet {

class CommonRows {
 public:
  // Of an exchange of `plan`; where it stays in one tensor, that exchange as it is.
  CommonRows(const Plan& plan, const Exchange& exchange);

  // Boxes are of tensor().
  const Exchange& exchange() const { return exchange_; }
  const Tensor& tensor() const { return by_receiver_ ? into_ : from_; }

  // A member's views, given as the plan has them, in these rows. kUsage if they are not what the
  // exchange says, or if its boxes have no place in them.
  Status renumber(size_t member, View& in, View& out) const;

 private:
  const Exchange given_;
  const Tensor from_, into_;
  const bool by_receiver_;  // the rows are those of into_
  Exchange exchange_;
  bool possible_ = true;
};

}  // namespace convnet
