#include "data/dataset.h"

#include <xxhash.h>

#include <cstdio>
#include <cstring>
#include <utility>

namespace convnet {

namespace {

class MemoryDataset : public Dataset {
 public:
  MemoryDataset(std::string name, const Shape& shape, std::vector<uint8_t> pixels,
                std::vector<uint8_t> labels, int64_t classes)
      : name_(std::move(name)),
        shape_(shape),
        bytes_(static_cast<size_t>(shape.count())),
        pixels_(std::move(pixels)),
        labels_(std::move(labels)),
        classes_(classes) {
    // The hash of the labels seeds that of the pixels, so it is one hash of both.
    const XXH64_hash_t hash = XXH3_64bits_withSeed(pixels_.data(), pixels_.size(),
                                                   XXH3_64bits(labels_.data(), labels_.size()));
    char text[128];
    std::snprintf(text, sizeof text, "%zux%lldx%lldx%lld-%016llx", labels_.size(),
                  static_cast<long long>(shape_[0]), static_cast<long long>(shape_[1]),
                  static_cast<long long>(shape_[2]), static_cast<unsigned long long>(hash));
    fingerprint_ = text;
  }

  const std::string& name() const override { return name_; }
  Shape example_shape() const override { return shape_; }
  int64_t examples() const override { return static_cast<int64_t>(labels_.size()); }
  int64_t classes() const override { return classes_; }
  const std::string& fingerprint() const override { return fingerprint_; }
  Status read(int64_t index, uint8_t* pixels, int32_t* label) const override {
    CHECK(index >= 0 && index < examples());
    const auto i = static_cast<size_t>(index);
    std::memcpy(pixels, pixels_.data() + i * bytes_, bytes_);
    *label = labels_[i];
    return Status();
  }

 private:
  std::string name_, fingerprint_;
  Shape shape_;
  size_t bytes_;
  std::vector<uint8_t> pixels_, labels_;
  int64_t classes_;
};

}  // namespace

Result<std::shared_ptr<const Dataset>> memory_dataset(std::string name, const Shape& example_shape,
                                                      std::vector<uint8_t> pixels,
                                                      std::vector<uint8_t> labels, int64_t classes,
                                                      const std::string& labels_name) {
  CHECK(example_shape.rank() == 3 && !labels.empty());
  CHECK(static_cast<int64_t>(pixels.size()) ==
        example_shape.count() * static_cast<int64_t>(labels.size()));
  for (size_t i = 0; i < labels.size(); ++i)
    if (labels[i] >= classes)
      return Status(Code::kData, labels_name + ": example " + std::to_string(i) + " has label " +
                                     std::to_string(labels[i]) + ", but there are " +
                                     std::to_string(classes) + " classes (0 to " +
                                     std::to_string(classes - 1) + ")");
  return std::shared_ptr<const Dataset>(std::make_shared<MemoryDataset>(
      std::move(name), example_shape, std::move(pixels), std::move(labels), classes));
}

}  // namespace convnet
