// A learnable data set without files: each class lights some features.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "framework/base/random.h"
#include "framework/runtime/batch_source.h"

namespace convnet {

class SyntheticBatches : public BatchSource {
 public:
  // `endless`: a training stream; else the batches end with the examples.
  SyntheticBatches(int64_t examples, int64_t batch, int64_t features, int64_t classes, bool endless)
      : examples_(examples),
        size_(batch),
        features_(features),
        classes_(classes),
        endless_(endless) {}

  Shape example_shape() const override { return {features_, 1, 1}; }
  int64_t examples() const override { return examples_; }

  Result<const Batch*> get(int64_t index) override {
    const int64_t blocks = (size_ + kLanes - 1) / kLanes;
    batch_.index = index;
    batch_.data.assign(static_cast<size_t>(blocks * kLanes * features_), 0.0f);
    batch_.label.assign(static_cast<size_t>(blocks * kLanes), -1);
    const int64_t first = index * size_;
    batch_.count = endless_ ? size_ : std::clamp<int64_t>(examples_ - first, 0, size_);
    for (int64_t n = 0; n < batch_.count; ++n) {
      const int64_t example = (first + n) % examples_;
      const auto key = random_key(3, 1, static_cast<uint64_t>(example));
      const auto label =
          static_cast<int64_t>(random_below(key, 1000, static_cast<uint64_t>(classes_)));
      batch_.label[static_cast<size_t>(n)] = static_cast<int32_t>(label);
      for (int64_t f = 0; f < features_; ++f) {
        const double noise = random_uniform(key, static_cast<uint64_t>(f));
        batch_.data[static_cast<size_t>((n / kLanes * features_ + f) * kLanes + n % kLanes)] =
            static_cast<float>(noise + (f % classes_ == label ? 1 : 0));
      }
    }
    if (index == spoiled) batch_.data[3] = spoil;
    return &batch_;
  }

  int64_t spoiled = -1;  // this batch has one number `spoil`
  float spoil = 0;

 private:
  int64_t examples_, size_, features_, classes_;
  bool endless_;
  Batch batch_;
};

}  // namespace convnet
