// The factories of the reference kernels, one per plan operation, for T = float and double. Each
// checks the operation's preconditions (kUsage with the reason) and returns a kernel that cannot
// fail.
#pragma once

#include <memory>

#include "framework/backends/backend.h"

namespace convnet::reference {

using KernelResult = Result<std::unique_ptr<Kernel>>;

// conv.cc
template <typename T>
KernelResult conv_fwd(const Binding& binding);
template <typename T>
KernelResult conv_bwd_data(const Binding& binding);
template <typename T>
KernelResult conv_bwd_weight(const Binding& binding);

// fc.cc
template <typename T>
KernelResult fc_fwd(const Binding& binding);
template <typename T>
KernelResult fc_bwd_data(const Binding& binding);
template <typename T>
KernelResult fc_bwd_weight(const Binding& binding);

// pool.cc
template <typename T>
KernelResult pool_max_fwd(const Binding& binding);
template <typename T>
KernelResult pool_max_bwd(const Binding& binding);
template <typename T>
KernelResult pool_avg_fwd(const Binding& binding);
template <typename T>
KernelResult pool_avg_bwd(const Binding& binding);

// activation.cc
template <typename T>
KernelResult act_fwd(const Binding& binding);
template <typename T>
KernelResult act_bwd(const Binding& binding);

// lrn.cc
template <typename T>
KernelResult lrn_fwd(const Binding& binding);
template <typename T>
KernelResult lrn_bwd(const Binding& binding);

// dropout.cc: forward and backward are the same arithmetic.
template <typename T>
KernelResult dropout(const Binding& binding);

// concat_add.cc
template <typename T>
KernelResult concat_fwd(const Binding& binding);
template <typename T>
KernelResult concat_bwd(const Binding& binding);
template <typename T>
KernelResult add(const Binding& binding);
template <typename T>
KernelResult bias_fwd(const Binding& binding);
template <typename T>
KernelResult bias_bwd(const Binding& binding);

// softmax_loss.cc
template <typename T>
KernelResult softmax_loss_fwd(const Binding& binding);
template <typename T>
KernelResult softmax_loss_bwd(const Binding& binding);

// softmax_shards.cc: the loss over classes that are split.
template <typename T>
KernelResult softmax_stats(const Binding& binding);
template <typename T>
KernelResult softmax_norm(const Binding& binding);
template <typename T>
KernelResult softmax_metrics(const Binding& binding);

// sub_batch.cc
template <typename T>
KernelResult rows_join(const Binding& binding);
template <typename T>
KernelResult sum(const Binding& binding);

// update.cc. guard reads metrics, which are f64 whatever T is.
template <typename T>
KernelResult update_sgd(const Binding& binding);
template <typename T>
KernelResult guard(const Binding& binding);

}  // namespace convnet::reference
