// Loader: batches of a data set in the layout of the devices, shuffled and augmented while
// training. What is in a batch is a function of its number, the options and the data set; threads
// only fill it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "data/dataset.h"
#include "framework/base/status.h"
#include "framework/runtime/batch_source.h"
#include "framework/runtime/session.h"

namespace convnet {

struct LoaderOptions {
  int64_t batch = 1;      // examples per batch; the last test batch may hold fewer
  bool training = false;  // an endless stream of epochs; else one pass in the data set's order
  bool shuffle = false;   // training: a new permutation in each epoch, by (seed, epoch)
  // Zeros on each side (of what comes out: after mean and scale), then a square of `crop` pixels;
  // 0: all. At a random place, by (seed, epoch, example), in training; else at the centre, rounded
  // down.
  int64_t pad = 0;
  int64_t crop = 0;
  bool mirror = false;  // training: left and right swapped, by (seed, epoch, example)
  // Subtracted: [C], or [C, H, W] of the data set's shape, which is then cut and mirrored with the
  // image.
  std::optional<HostTensor> mean;
  double scale = 1;  // (byte - mean) * scale, in f32
  uint64_t seed = 1;
  // Of each batch, the examples begin .. end-1 are wanted, to whole blocks of 16; the others may be
  // anything. Negative end: all.
  int64_t begin = 0, end = -1;
  int workers = 0;  // threads that prepare the next batch meanwhile; 0: get() does all the work
};

class Loader : public BatchSource {
 public:
  // kData if the crop is larger than the padded image or the mean has another shape; kLimit if a
  // batch does not fit in memory or a thread cannot be started.
  static Result<std::unique_ptr<Loader>> create(std::shared_ptr<const Dataset> dataset,
                                                LoaderOptions options);
  ~Loader() override;

  Shape example_shape() const override;
  int64_t examples() const override;
  // Errors of the data set: those of the first example concerned, each time that its batch is asked
  // for.
  Result<const Batch*> get(int64_t index) override;

 private:
  Loader();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace convnet
