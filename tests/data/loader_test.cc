// If this fails, batches depend on threads or on where a run was stopped, examples are left out or
// repeated, or pixels land in the wrong place.
#include "data/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <numeric>
#include <set>

#include "data/synthetic.h"
#include "tests/data/idx_files.h"

namespace convnet {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// `count` images [C, H, W] whose first pixels hold the example's number, the others their place.
std::shared_ptr<const Dataset> numbered(int64_t count, const Shape& shape) {
  const auto size = static_cast<size_t>(shape.count());
  std::vector<uint8_t> pixels, labels;
  for (int64_t n = 0; n < count; ++n) {
    for (size_t i = 0; i < size; ++i) pixels.push_back(static_cast<uint8_t>(i == 0 ? n : i));
    labels.push_back(static_cast<uint8_t>(n % 7));
  }
  auto dataset = memory_dataset("numbered", shape, pixels, labels, 7, "labels");
  EXPECT_TRUE(dataset.ok());
  return *dataset;
}

std::unique_ptr<Loader> loader_of(std::shared_ptr<const Dataset> dataset, LoaderOptions options) {
  auto loader = Loader::create(std::move(dataset), std::move(options));
  EXPECT_TRUE(loader.ok()) << loader.status().message();
  return *std::move(loader);
}

Batch batch_of(Loader& loader, int64_t index) {
  const auto batch = loader.get(index);
  EXPECT_TRUE(batch.ok()) << batch.status().message();
  return **batch;
}

float value_at(const Batch& batch, const Shape& shape, int64_t n, int64_t c, int64_t y, int64_t x) {
  const int64_t plane = (c * shape[1] + y) * shape[2] + x;
  return batch.data[static_cast<size_t>((n / 16 * shape.count() + plane) * 16 + n % 16)];
}

LoaderOptions training(int64_t batch) {
  LoaderOptions options;
  options.batch = batch;
  options.training = true;
  options.shuffle = true;
  return options;
}

// Everything that randomness touches.
LoaderOptions augmented(int64_t batch) {
  LoaderOptions options = training(batch);
  options.pad = 1;
  options.crop = 3;
  options.mirror = true;
  return options;
}

TEST(Loader, LaysSixteenExamplesSideBySide) {
  const Shape shape{2, 2, 3};
  LoaderOptions options;
  options.batch = 20;
  const auto loader = loader_of(numbered(20, shape), options);
  const Batch batch = batch_of(*loader, 0);
  EXPECT_EQ(batch.count, 20);
  EXPECT_EQ(batch.data.size(), 2u * 16 * 12);
  EXPECT_EQ(batch.label.size(), 32u);
  for (int64_t n = 0; n < 20; ++n) {
    EXPECT_EQ(batch.label[static_cast<size_t>(n)], n % 7);
    for (int64_t i = 0; i < 12; ++i)
      EXPECT_EQ(value_at(batch, shape, n, i / 6, i / 3 % 2, i % 3),
                static_cast<float>(i == 0 ? n : i));
  }
  for (int64_t n = 20; n < 32; ++n) {
    EXPECT_EQ(batch.label[static_cast<size_t>(n)], -1);
    for (int64_t i = 0; i < 12; ++i)
      EXPECT_EQ(value_at(batch, shape, n, i / 6, i / 3 % 2, i % 3), 0.0f);
  }
}

TEST(Loader, ATestStreamEndsWithAPartialBatch) {
  for (int workers : {0, 1}) {
    LoaderOptions options;
    options.batch = 8;
    options.workers = workers;
    const auto loader = loader_of(numbered(18, {1, 1, 2}), options);
    EXPECT_EQ(loader->examples(), 18);
    // Out of order too: a batch is a function of its number.
    for (int64_t index : {2, 0, 1, 2, 3, 4}) {
      const Batch batch = batch_of(*loader, index);
      EXPECT_EQ(batch.index, index);
      EXPECT_EQ(batch.count, index < 2 ? 8 : index == 2 ? 2 : 0);
      EXPECT_EQ(batch.data.size(), 32u);
      for (int64_t lane = 0; lane < 16; ++lane) {
        const bool real = lane < batch.count;
        const int64_t n = index * 8 + lane;
        EXPECT_EQ(batch.label[static_cast<size_t>(lane)], real ? n % 7 : -1);
        EXPECT_EQ(value_at(batch, {1, 1, 2}, lane, 0, 0, 0), static_cast<float>(real ? n : 0));
        EXPECT_EQ(value_at(batch, {1, 1, 2}, lane, 0, 0, 1), real ? 1.0f : 0.0f);
      }
    }
  }
}

// The numbers of the examples in the first `batches` batches.
std::vector<int> stream_of(Loader& loader, int64_t batches) {
  std::vector<int> numbers;
  for (int64_t b = 0; b < batches; ++b) {
    const Batch batch = batch_of(loader, b);
    for (int64_t n = 0; n < batch.count; ++n)
      numbers.push_back(static_cast<int>(value_at(batch, {1, 1, 1}, n, 0, 0, 0)));
  }
  return numbers;
}

TEST(Loader, EachEpochOfTrainingIsAPermutationOfItsOwn) {
  // 50 examples in batches of 8: epochs begin in the middle of batches.
  const auto loader = loader_of(numbered(50, {1, 1, 1}), training(8));
  const std::vector<int> numbers = stream_of(*loader, 25);
  ASSERT_EQ(numbers.size(), 200u);
  std::set<std::vector<int>> orders;
  for (int epoch = 0; epoch < 4; ++epoch) {
    std::vector<int> order(numbers.begin() + 50 * epoch, numbers.begin() + 50 * (epoch + 1));
    orders.insert(order);
    std::sort(order.begin(), order.end());
    std::vector<int> all(50);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(order, all) << "epoch " << epoch;
  }
  EXPECT_EQ(orders.size(), 4u);
}

TEST(Loader, WithoutShuffleTheOrderIsTheDataSets) {
  LoaderOptions options = training(8);
  options.shuffle = false;
  const auto loader = loader_of(numbered(10, {1, 1, 1}), options);
  const std::vector<int> numbers = stream_of(*loader, 5);
  for (size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(numbers[i], static_cast<int>(i % 10));
}

TEST(Loader, ABatchMayBeLargerThanTheDataSet) {
  const auto loader = loader_of(numbered(3, {1, 1, 1}), training(20));
  std::map<int, int> times;
  for (int number : stream_of(*loader, 3)) ++times[number];
  EXPECT_EQ(times, (std::map<int, int>{{0, 20}, {1, 20}, {2, 20}}));
}

TEST(Loader, WorkersDoNotChangeABit) {
  const auto dataset = numbered(37, {2, 5, 4});
  const auto reference = loader_of(dataset, augmented(40));
  std::vector<Batch> batches;
  for (int64_t b = 0; b < 6; ++b) batches.push_back(batch_of(*reference, b));
  for (int workers : {1, 2, 4}) {
    LoaderOptions options = augmented(40);
    options.workers = workers;
    const auto loader = loader_of(dataset, options);
    for (int64_t b = 0; b < 6; ++b) {
      const Batch batch = batch_of(*loader, b);
      EXPECT_EQ(batch.data, batches[static_cast<size_t>(b)].data) << workers << " workers";
      EXPECT_EQ(batch.label, batches[static_cast<size_t>(b)].label);
    }
  }
}

TEST(Loader, AResumedStreamGoesOnWithTheSameBatches) {
  const auto dataset = numbered(37, {2, 5, 4});
  for (int workers : {0, 2}) {
    LoaderOptions options = augmented(16);
    options.workers = workers;
    const auto whole = loader_of(dataset, options);
    std::vector<Batch> batches;
    for (int64_t b = 0; b < 8; ++b) batches.push_back(batch_of(*whole, b));
    const auto resumed = loader_of(dataset, options);
    for (int64_t b = 5; b < 8; ++b)
      EXPECT_EQ(batch_of(*resumed, b).data, batches[static_cast<size_t>(b)].data);
  }
}

TEST(Loader, SeedsChangeOrderAndPlace) {
  const auto dataset = numbered(37, {2, 5, 4});
  LoaderOptions other = augmented(16);
  other.seed = 2;
  EXPECT_NE(batch_of(*loader_of(dataset, augmented(16)), 0).data,
            batch_of(*loader_of(dataset, other), 0).data);
}

TEST(Loader, PrefetchedBatchesStayValidUntilTheNextCall) {
  LoaderOptions options = augmented(16);
  options.workers = 2;
  const auto loader = loader_of(numbered(64, {1, 5, 5}), options);
  for (int64_t b = 0; b < 20; ++b) {
    const auto batch = loader->get(b);
    ASSERT_TRUE(batch.ok());
    const Batch copy = **batch;
    std::this_thread::yield();
    EXPECT_EQ((*batch)->data, copy.data);
    EXPECT_EQ((*batch)->index, b);
  }
}

// One example of 3 x 4 pixels 1..12, cut and perhaps mirrored while training; every window must be
// one of those that exist, and all of them must come up.
TEST(Loader, TrainingWindowsAreAllThoseThatExist) {
  std::vector<uint8_t> image(12);
  std::iota(image.begin(), image.end(), uint8_t{1});
  const auto dataset = *memory_dataset("one", {1, 3, 4}, image, {0}, 1, "labels");
  const auto padded = [&image](int64_t y, int64_t x) {
    return y < 1 || y > 3 || x < 1 || x > 4
               ? 0.0f
               : static_cast<float>(image[static_cast<size_t>((y - 1) * 4 + x - 1)]);
  };
  std::map<std::vector<float>, int> windows;
  for (int64_t top = 0; top <= 3; ++top)
    for (int64_t left = 0; left <= 4; ++left)
      for (bool mirror : {false, true})
        windows[{padded(top, left + mirror), padded(top, left + !mirror),
                 padded(top + 1, left + mirror), padded(top + 1, left + !mirror)}] = 0;
  LoaderOptions options = training(1);
  options.pad = 1;
  options.crop = 2;
  options.mirror = true;
  const auto loader = loader_of(dataset, options);
  EXPECT_EQ(loader->example_shape(), (Shape{1, 2, 2}));
  for (int64_t b = 0; b < 1000; ++b) {
    const Batch batch = batch_of(*loader, b);
    std::vector<float> window;
    for (int64_t i = 0; i < 4; ++i)
      window.push_back(value_at(batch, {1, 2, 2}, 0, 0, i / 2, i % 2));
    ASSERT_EQ(windows.count(window), 1u) << "batch " << b;
    ++windows[window];
  }
  for (const auto& [window, times] : windows) EXPECT_GT(times, 0);
}

TEST(Loader, TestsCutAtTheCentreAndNeverMirror) {
  LoaderOptions options;
  options.crop = 2;
  options.mirror = true;
  options.shuffle = true;
  const auto loader = loader_of(numbered(2, {1, 5, 3}), options);
  const Batch batch = batch_of(*loader, 1);
  // Rows 1 and 2 of 5, columns 0 and 1 of 3.
  EXPECT_EQ(value_at(batch, {1, 2, 2}, 0, 0, 0, 0), 3.0f);
  EXPECT_EQ(value_at(batch, {1, 2, 2}, 0, 0, 0, 1), 4.0f);
  EXPECT_EQ(value_at(batch, {1, 2, 2}, 0, 0, 1, 0), 6.0f);
  EXPECT_EQ(value_at(batch, {1, 2, 2}, 0, 0, 1, 1), 7.0f);
}

TEST(Loader, PaddingIsZeroAfterMeanAndScale) {
  LoaderOptions options;
  options.pad = 1;
  options.mean = HostTensor{Shape{1}, DType::kF32, {2.5}};
  options.scale = 2;
  const auto loader = loader_of(numbered(1, {1, 2, 2}), options);
  EXPECT_EQ(loader->example_shape(), (Shape{1, 4, 4}));
  const Batch batch = batch_of(*loader, 0);
  const float expected[4][4] = {{0, 0, 0, 0}, {0, -5, -3, 0}, {0, -1, 1, 0}, {0, 0, 0, 0}};
  for (int64_t y = 0; y < 4; ++y)
    for (int64_t x = 0; x < 4; ++x)
      EXPECT_EQ(value_at(batch, {1, 4, 4}, 0, 0, y, x), expected[y][x]) << y << " " << x;
}

TEST(Loader, AMeanImageIsCutAndMirroredWithTheImage) {
  // The mean of a data set of one image is the image: whatever the window, nothing is left.
  std::vector<uint8_t> image(24);
  std::iota(image.begin(), image.end(), uint8_t{1});
  const auto dataset = *memory_dataset("one", {2, 3, 4}, image, {0}, 1, "labels");
  LoaderOptions options = augmented(4);
  options.crop = 2;
  options.mean =
      HostTensor{Shape{2, 3, 4}, DType::kF32, std::vector<double>(image.begin(), image.end())};
  const auto loader = loader_of(dataset, options);
  for (int64_t b = 0; b < 50; ++b) EXPECT_THAT(batch_of(*loader, b).data, Each(0.0f));
}

TEST(Loader, ShapesThatDoNotFitAreRefused) {
  LoaderOptions options;
  options.crop = 6;
  Status status = Loader::create(numbered(1, {1, 5, 8}), options).status();
  EXPECT_EQ(status.code(), Code::kData);
  EXPECT_THAT(status.message(), HasSubstr("a crop of 6 x 6 pixels is larger than the 5 x 8"));
  options.pad = 1;
  EXPECT_TRUE(Loader::create(numbered(1, {1, 5, 8}), options).ok());
  options.mean = HostTensor{Shape{3}, DType::kF32, {1, 2, 3}};
  status = Loader::create(numbered(1, {1, 5, 8}), options).status();
  EXPECT_EQ(status.code(), Code::kData);
  EXPECT_THAT(status.message(), HasSubstr("mean has shape [3], but the images have [1, 5, 8]"));
}

TEST(Loader, APositionThatIsNoNumberIsRefused) {
  const auto loader = loader_of(numbered(3, {1, 1, 1}), training(1 << 20));
  EXPECT_EQ(loader->get(int64_t{1} << 50).status().code(), Code::kLimit);
}

// A data set that fails for some examples.
class Failing : public Dataset {
 public:
  const std::string& name() const override { return name_; }
  Shape example_shape() const override { return {1, 1, 1}; }
  int64_t examples() const override { return 200; }
  int64_t classes() const override { return 2; }
  const std::string& fingerprint() const override { return name_; }
  Status read(int64_t index, uint8_t* pixels, int32_t* label) const override {
    *pixels = 0;
    *label = index == bad_label_ ? 2 : 1;
    if (index >= first_bad_) return Status(Code::kData, "example " + std::to_string(index));
    return Status();
  }
  std::atomic<int64_t> first_bad_{1000}, bad_label_{-1};

 private:
  std::string name_ = "failing";
};

TEST(Loader, ErrorsComeWithTheBatchThatTheyConcernAndNameTheFirstExample) {
  for (int workers : {0, 1, 4}) {
    const auto dataset = std::make_shared<Failing>();
    dataset->first_bad_ = 105;
    LoaderOptions options;
    options.batch = 100;
    options.workers = workers;
    const auto loader = loader_of(dataset, options);
    EXPECT_TRUE(loader->get(0).ok());
    for (int again = 0; again < 2; ++again) {
      const Status status = loader->get(1).status();
      EXPECT_EQ(status.code(), Code::kData);
      EXPECT_EQ(status.message(), "example 105");
    }
    dataset->first_bad_ = 1000;
    EXPECT_TRUE(loader->get(1).ok());
  }
}

TEST(Loader, LabelsAreCheckedInEveryBatch) {
  const auto dataset = std::make_shared<Failing>();
  dataset->bad_label_ = 3;
  LoaderOptions options;
  options.batch = 5;
  const auto loader = loader_of(dataset, options);
  const Status status = loader->get(0).status();
  EXPECT_EQ(status.code(), Code::kData);
  EXPECT_THAT(status.message(), HasSubstr("example 3 has label 2, but there are 2 classes"));
}

TEST(Loader, EndsWhileABatchIsBeingPrepared) {
  SyntheticOptions synthetic;
  synthetic.shape = {3, 32, 32};
  synthetic.classes = 10;
  synthetic.examples = 1000;
  for (int i = 0; i < 20; ++i) {
    LoaderOptions options = training(128);
    options.workers = 2;
    const auto loader = loader_of(synthetic_dataset(synthetic), options);
    if (i % 2 == 0) {
      EXPECT_TRUE(loader->get(i).ok());
    }
  }
}

}  // namespace
}  // namespace convnet
