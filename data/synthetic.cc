#include "data/synthetic.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>

#include "framework/base/random.h"

namespace convnet {

namespace {

// A pattern is a grid of so many standard normals a side, interpolated. The mean square of
// (1 - t) * a + t * b over t is 2/3 in each direction, hence the factor that restores variance 1.
constexpr int64_t kGrid = 4;
constexpr double kVariance1 = 1.5;
constexpr double kMiddle = 128, kAmplitude = 42;
// The sum of the four bytes of a random word: mean 510, standard deviation sqrt(4 * (256^2 - 1) /
// 12).
constexpr double kByteSumMean = 510, kByteSumDeviation = 147.80054;

// Where pixel i of `extent` lies on the grid.
struct GridPlace {
  int64_t cell;
  double t;  // 0..1 within the cell
};
GridPlace grid_place(int64_t i, int64_t extent) {
  if (extent == 1) return {0, 0};
  const double x = static_cast<double>(i * (kGrid - 1)) / static_cast<double>(extent - 1);
  const int64_t cell = std::min(static_cast<int64_t>(x), kGrid - 2);
  return {cell, x - static_cast<double>(cell)};
}

class SyntheticDataset : public Dataset {
 public:
  explicit SyntheticDataset(const SyntheticOptions& options)
      : options_(options),
        noise_key_(random_key(options.seed, name_key("data.synthetic.noise." + options.stream))) {
    const std::string text = options.shape.str() + " " + std::to_string(options.classes) + " " +
                             std::to_string(std::bit_cast<uint64_t>(options.noise)) + " " +
                             std::to_string(options.seed);
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016llx",
                  static_cast<unsigned long long>(XXH3_64bits(text.data(), text.size())));
    fingerprint_ =
        "synthetic-" + options.stream + "-" + std::to_string(options.examples) + "-" + digits;
    for (int64_t x = 0; x < options.shape[2]; ++x)
      columns_.push_back(grid_place(x, options.shape[2]));
  }

  const std::string& name() const override { return name_; }
  Shape example_shape() const override { return options_.shape; }
  int64_t examples() const override { return options_.examples; }
  int64_t classes() const override { return options_.classes; }
  const std::string& fingerprint() const override { return fingerprint_; }

  Status read(int64_t index, uint8_t* pixels, int32_t* label) const override {
    CHECK(index >= 0 && index < options_.examples);
    const int64_t c_count = options_.shape[0], rows = options_.shape[1],
                  columns = options_.shape[2];
    const int64_t kind = index % options_.classes;
    *label = static_cast<int32_t>(kind);
    const auto pattern_key =
        random_key(options_.seed, name_key("data.synthetic.pattern"), static_cast<uint64_t>(kind));
    const auto number = static_cast<uint64_t>(index);
    std::array<uint32_t, 4> words{};
    uint64_t pixel = 0;
    for (int64_t c = 0; c < c_count; ++c) {
      double grid[kGrid][kGrid];
      for (int64_t i = 0; i < kGrid * kGrid; ++i)
        grid[i / kGrid][i % kGrid] =
            kVariance1 * random_normal(pattern_key, static_cast<uint64_t>(c * kGrid * kGrid + i));
      for (int64_t y = 0; y < rows; ++y) {
        const GridPlace row = grid_place(y, rows);
        double line[kGrid];
        for (int64_t i = 0; i < kGrid; ++i)
          line[i] = (1 - row.t) * grid[row.cell][i] + row.t * grid[row.cell + 1][i];
        for (int64_t x = 0; x < columns; ++x, ++pixel) {
          const GridPlace& at = columns_[static_cast<size_t>(x)];
          const double pattern = (1 - at.t) * line[at.cell] + at.t * line[at.cell + 1];
          if (pixel % 4 == 0) {
            const uint64_t block = pixel / 4;
            words = philox({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                            static_cast<uint32_t>(number), static_cast<uint32_t>(number >> 32)},
                           noise_key_);
          }
          const uint32_t w = words[pixel % 4];
          const auto sum =
              static_cast<double>((w & 255) + (w >> 8 & 255) + (w >> 16 & 255) + (w >> 24));
          const double n = (sum - kByteSumMean) / kByteSumDeviation;
          const double value = kMiddle + kAmplitude * (pattern + options_.noise * n);
          *pixels++ = static_cast<uint8_t>(std::clamp(std::floor(value + 0.5), 0.0, 255.0));
        }
      }
    }
    return Status();
  }

 private:
  SyntheticOptions options_;
  std::array<uint32_t, 2> noise_key_;
  std::string name_ = "synthetic";
  std::string fingerprint_;
  std::vector<GridPlace> columns_;
};

}  // namespace

std::shared_ptr<const Dataset> synthetic_dataset(const SyntheticOptions& options) {
  CHECK(options.shape.rank() == 3 && options.classes > 0 && options.examples > 0);
  return std::make_shared<SyntheticDataset>(options);
}

}  // namespace convnet
