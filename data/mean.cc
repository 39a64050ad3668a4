#include "data/mean.h"

#include <vector>

namespace convnet {

Result<HostTensor> compute_mean(const Dataset& dataset, Mean mean) {
  CHECK(mean != Mean::kNone);
  const Shape shape = dataset.example_shape();
  const auto pixels = static_cast<size_t>(shape.count());
  // 2^56 examples would be needed to overflow.
  std::vector<uint64_t> sums(pixels, 0);
  std::vector<uint8_t> example(pixels);
  int32_t label;
  for (int64_t i = 0; i < dataset.examples(); ++i) {
    CONVNET_RETURN_IF_ERROR(dataset.read(i, example.data(), &label));
    for (size_t k = 0; k < pixels; ++k) sums[k] += example[k];
  }
  const auto examples = static_cast<uint64_t>(dataset.examples());
  const auto quotient = [](uint64_t sum, uint64_t count) {
    return static_cast<double>(
        static_cast<float>(static_cast<double>(sum) / static_cast<double>(count)));
  };
  HostTensor tensor;
  tensor.dtype = DType::kF32;
  if (mean == Mean::kPixel) {
    tensor.shape = shape;
    for (uint64_t sum : sums) tensor.values.push_back(quotient(sum, examples));
    return tensor;
  }
  tensor.shape = Shape{shape[0]};
  const auto channel = static_cast<size_t>(shape[1] * shape[2]);
  for (size_t c = 0; c < pixels / channel; ++c) {
    uint64_t sum = 0;
    for (size_t k = 0; k < channel; ++k) sum += sums[c * channel + k];
    tensor.values.push_back(quotient(sum, examples * channel));
  }
  return tensor;
}

}  // namespace convnet
