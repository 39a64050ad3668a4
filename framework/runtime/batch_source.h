// BatchSource: where a session's examples come from. data/ implements it; the runtime does not know
// files, images or augmentation.
#pragma once

#include <cstdint>
#include <vector>

#include "framework/base/shape.h"
#include "framework/base/status.h"

namespace convnet {

// One global batch, in the layout that devices use: data is [ceil(N/16)][C][H][W][16], label
// [ceil(N/16)*16]. Examples past `count` are zeros with label -1.
struct Batch {
  int64_t index = 0;  // which batch of the stream
  int64_t count = 0;  // real examples, at most the plan's batch
  std::vector<float> data;
  std::vector<int32_t> label;
};

class BatchSource {
 public:
  virtual ~BatchSource() = default;
  virtual Shape example_shape() const = 0;  // [C, H, W] after cropping
  virtual int64_t examples() const = 0;     // in one epoch
  // Batch number `index` of the stream; a pure function of the index, so a resumed run goes on with
  // the very same batches. Valid until the next call. Implementations prepare index + 1 meanwhile.
  // Training streams are endless: batch b holds examples b*N .. (b+1)*N - 1 of the concatenated
  // epochs. Test streams end: batches ceil(examples / N) and later have count 0.
  virtual Result<const Batch*> get(int64_t index) = 0;
};

}  // namespace convnet
