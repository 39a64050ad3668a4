// Dataset: examples that can be read in any order. An example is an image of bytes and a class.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "framework/base/shape.h"
#include "framework/base/status.h"

namespace convnet {

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual const std::string& name() const = 0;  // for messages: "fashion-mnist/train"
  virtual Shape example_shape() const = 0;      // [C, H, W], all of one shape
  virtual int64_t examples() const = 0;         // at least 1
  virtual int64_t classes() const = 0;          // labels are 0 .. classes - 1
  // Changes when the contents do: a resumed run compares it. Printable, without spaces.
  virtual const std::string& fingerprint() const = 0;
  // Example `index`: C*H*W bytes row-major to `pixels`, its class to `label`. A pure function of
  // the index; callable from several threads at once.
  virtual Status read(int64_t index, uint8_t* pixels, int32_t* label) const = 0;
};

// A data set that lies in memory: `pixels` is [N, C, H, W], `labels` [N], N at least 1. kData if a
// label is not below `classes`; the message names the label's index and begins with `labels_name`.
Result<std::shared_ptr<const Dataset>> memory_dataset(std::string name, const Shape& example_shape,
                                                      std::vector<uint8_t> pixels,
                                                      std::vector<uint8_t> labels, int64_t classes,
                                                      const std::string& labels_name);

}  // namespace convnet
