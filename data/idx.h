// IDX files: the format of MNIST and Fashion-MNIST (yann.lecun.com/exdb/mnist). Big-endian: two
// zero bytes, the element type, the number of dimensions, each dimension as 32 bits, the elements.
#pragma once

#include <memory>
#include <string>

#include "data/dataset.h"
#include "framework/base/status.h"

namespace convnet {

// An image file [N, rows, columns] and a label file [N], both of unsigned bytes, plain or (by the
// name's .gz) gzip, as a data set of shape [1, rows, columns] in memory. Nothing is accepted but
// files of exactly the size that their headers say, with all labels below `classes`: kData, kLimit
// if the machine's memory cannot hold them.
Result<std::shared_ptr<const Dataset>> read_idx(const std::string& name,
                                                const std::string& images_path,
                                                const std::string& labels_path, int64_t classes);

}  // namespace convnet
