// If this fails, generated data differ between runs, or there is nothing in them to learn.
#include "data/synthetic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "data/mean.h"
#include "tests/data/idx_files.h"

namespace convnet {
namespace {

SyntheticOptions small() {
  SyntheticOptions options;
  options.shape = {3, 8, 8};
  options.classes = 5;
  options.examples = 100;
  return options;
}

std::vector<uint8_t> pixels_of(const Dataset& dataset, int64_t index, int32_t* label = nullptr) {
  std::vector<uint8_t> pixels(static_cast<size_t>(dataset.example_shape().count()));
  int32_t ignored;
  EXPECT_TRUE(dataset.read(index, pixels.data(), label != nullptr ? label : &ignored).ok());
  return pixels;
}

TEST(Synthetic, AnExampleIsAFunctionOfSeedStreamAndIndex) {
  const auto a = synthetic_dataset(small());
  SyntheticOptions options = small();
  options.examples = 1'000'000'000'000;
  const auto longer = synthetic_dataset(options);
  EXPECT_EQ(pixels_of(*a, 17), pixels_of(*longer, 17));
  options = small();
  options.seed = 2;
  EXPECT_NE(pixels_of(*a, 17), pixels_of(*synthetic_dataset(options), 17));
  options = small();
  options.stream = "test";
  const auto test = synthetic_dataset(options);
  EXPECT_NE(pixels_of(*a, 17), pixels_of(*test, 17));
  EXPECT_NE(a->fingerprint(), test->fingerprint());
  EXPECT_NE(pixels_of(*a, 17), pixels_of(*a, 22)) << "same class, other noise";
}

TEST(Synthetic, WithoutNoiseAllOfAClassAreItsPattern) {
  SyntheticOptions options = small();
  options.noise = 0;
  const auto train = synthetic_dataset(options);
  options.stream = "test";
  const auto test = synthetic_dataset(options);
  for (int64_t i = 0; i < 5; ++i) {
    int32_t label = -1;
    EXPECT_EQ(pixels_of(*train, i, &label), pixels_of(*test, i + 25));
    EXPECT_EQ(label, i);
    for (int64_t k = 0; k < i; ++k) EXPECT_NE(pixels_of(*train, i), pixels_of(*train, k));
  }
}

TEST(Synthetic, TheNearestPatternTellsTheClass) {
  SyntheticOptions options = small();
  options.noise = 1;
  const auto noisy = synthetic_dataset(options);
  options.noise = 0;
  const auto patterns = synthetic_dataset(options);
  int right = 0;
  for (int64_t i = 0; i < 100; ++i) {
    int32_t label = -1;
    const auto example = pixels_of(*noisy, i, &label);
    int64_t nearest = -1, best = INT64_MAX;
    for (int64_t k = 0; k < 5; ++k) {
      const auto pattern = pixels_of(*patterns, k);
      int64_t distance = 0;
      for (size_t p = 0; p < example.size(); ++p)
        distance += (example[p] - pattern[p]) * (example[p] - pattern[p]);
      if (distance < best) best = distance, nearest = k;
    }
    right += nearest == label;
  }
  EXPECT_GE(right, 99);
}

TEST(Synthetic, NoiseHasTheDeviationThatWasAsked) {
  SyntheticOptions options = small();
  options.classes = 1;
  options.examples = 200;
  options.noise = 0.5;
  const auto noisy = synthetic_dataset(options);
  options.noise = 0;
  const auto pattern = pixels_of(*synthetic_dataset(options), 0);
  double sum = 0, squares = 0;
  int64_t count = 0;
  for (int64_t i = 0; i < 200; ++i) {
    const auto example = pixels_of(*noisy, i);
    for (size_t p = 0; p < example.size(); ++p) {
      // Where the pattern is far from both ends nothing is cut off.
      if (pattern[p] < 80 || pattern[p] > 175) continue;
      const double d = example[p] - pattern[p];
      sum += d;
      squares += d * d;
      ++count;
    }
  }
  ASSERT_GT(count, 5000);
  const double n = static_cast<double>(count);
  // Six standard errors of a mean and of a deviation over n draws of deviation 21.
  EXPECT_NEAR(sum / n, 0, 6 * 21 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n), 21, 6 * 21 / std::sqrt(2 * n));
}

TEST(Synthetic, OnePixelAndOneClassAreEnough) {
  SyntheticOptions options;
  options.shape = {1, 1, 1};
  options.classes = 1;
  options.examples = 1;
  options.noise = 1e6;
  EXPECT_EQ(pixels_of(*synthetic_dataset(options), 0).size(), 1u);
}

TEST(ComputeMean, IsTheExactQuotientOfIntegerSums) {
  // Two channels: 0 1 | 2 3 and 255 255 | 255 254.
  const auto dataset =
      memory_dataset("m", {2, 1, 2}, {0, 1, 255, 255, 2, 3, 255, 254}, {0, 0}, 1, "labels");
  ASSERT_TRUE(dataset.ok());
  const auto channel = compute_mean(**dataset, Mean::kChannel);
  ASSERT_TRUE(channel.ok());
  EXPECT_EQ(channel->shape, (Shape{2}));
  EXPECT_EQ(channel->values, (std::vector<double>{1.5, 254.75}));
  const auto pixel = compute_mean(**dataset, Mean::kPixel);
  ASSERT_TRUE(pixel.ok());
  EXPECT_EQ(pixel->shape, (Shape{2, 1, 2}));
  EXPECT_EQ(pixel->values, (std::vector<double>{1, 2, 255, 254.5}));
  const auto thirds = memory_dataset("m", {1, 1, 1}, {0, 0, 1}, {0, 0, 0}, 1, "labels");
  EXPECT_EQ(compute_mean(**thirds, Mean::kPixel)->values[0], static_cast<double>(1.0f / 3.0f));
}

}  // namespace
}  // namespace convnet
