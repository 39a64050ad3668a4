// If this fails, what a device receives is not the nearest to what was sent, differs between
// machines, or hides that a network has diverged.
#include "framework/comm/codecs/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "framework/comm/codecs/kernels.h"
#include "framework/comm/codecs/levels.h"

namespace convnet {
namespace {

constexpr Wire kBytes[] = {Wire::kU8Tree, Wire::kU8Lin, Wire::kU8Static, Wire::kU8Mantissa};
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<std::byte> encoded(Wire wire, const std::vector<float>& x) {
  std::vector<std::byte> to(
      static_cast<size_t>(encoded_bytes(wire, static_cast<int64_t>(x.size()))));
  encode(wire, x, to);
  return to;
}

std::vector<float> decoded(Wire wire, const std::vector<std::byte>& from, size_t n) {
  std::vector<float> x(n);
  decode(wire, from, x);
  return x;
}

std::vector<float> through(Wire wire, const std::vector<float>& x) {
  return decoded(wire, encoded(wire, x), x.size());
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), 4 * a.size()) == 0;
}

std::vector<float> uniform(size_t n, float low, float high, unsigned seed) {
  std::mt19937 bits(seed);
  std::uniform_real_distribution<float> draw(low, high);
  std::vector<float> x(n);
  for (float& v : x) v = draw(bits);
  return x;
}

std::vector<float> normal(size_t n, float deviation, unsigned seed) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> draw(0, deviation);
  std::vector<float> x(n);
  for (float& v : x) v = draw(bits);
  return x;
}

TEST(Codec, NamesAndBytes) {
  for (int i = 0; i < kWires; ++i)
    EXPECT_EQ(parse_wire(to_string(static_cast<Wire>(i))), static_cast<Wire>(i));
  EXPECT_EQ(parse_wire("u8"), std::nullopt);
  EXPECT_EQ(encoded_bytes(Wire::kF32, 9), 36);
  EXPECT_EQ(encoded_bytes(Wire::kBf16, 9), 18);
  EXPECT_EQ(encoded_bytes(Wire::kU8Tree, 9), 13);
  EXPECT_EQ(encoded_bytes(Wire::kOnebit, 9), 10);
  EXPECT_EQ(encoded_bytes(Wire::kU8Tree, 0), 0);
}

// The seven bits read one by one, as the paper describes them.
double tree_of_bits(int code) {
  if (code == 0) return 0;
  int bit = 6, zeros = 0;
  while (!(code >> bit & 1)) --bit, ++zeros;
  if (zeros == 6) return -1;  // 0000001 has no path: its index is the maximum's
  double low = 0.1, high = 1, middle = 0.45;
  for (--bit; bit >= 0; --bit) {
    (code >> bit & 1 ? low : high) = middle;
    middle = (low + high) / 2;
  }
  return middle * std::pow(10.0, -zeros);
}

TEST(Codec, TreeIsThePathsOfItsBits) {
  std::vector<double> expected;
  for (int code = 0; code < 128; ++code)
    if (tree_of_bits(code) >= 0) expected.push_back(tree_of_bits(code));
  expected.push_back(1);
  std::sort(expected.begin(), expected.end());
  const auto& levels = codecs::levels(Wire::kU8Tree);
  ASSERT_EQ(expected.size(), levels.size());
  for (size_t i = 0; i < levels.size(); ++i)
    EXPECT_NEAR(levels[i], expected[i], 1e-15) << "index " << i;
}

TEST(Codec, PublishedExamples) {
  const auto tree = through(Wire::kU8Tree, {0.2345678f, 1});
  EXPECT_NEAR(tree[0], 0.236719, 5e-7);
  EXPECT_NEAR(through(Wire::kU8Static, {0.2345678f, 1})[0], 0.23125, 5e-7);
  EXPECT_NEAR(through(Wire::kU8Mantissa, {0.2345678f, 1})[0], 0.2, 5e-7);
}

// |decoded - x| is the least that any byte would give, and ties go towards zero.
TEST(Codec, BytesRoundToTheNearest) {
  for (Wire wire : kBytes)
    for (float size : {1.0f, 3e-39f, 7.3e-6f, 0.4f, 92.25f, 1e7f, 3.4e38f}) {
      std::vector<float> x = uniform(3000, -1, 1, 1);
      for (float& v : x) v *= size;
      for (size_t i = 0; i < 1000; ++i)
        x[i] *= std::pow(10.0f, -8.0f * static_cast<float>(i) / 1e3f);
      x.push_back(size);
      // The middles, and the floats on both sides of them.
      const auto values = codecs::scaled(wire, codecs::scale_of(wire, size));
      for (size_t i = 0; i + 1 < values.size(); ++i) {
        const auto m = static_cast<float>(
            (static_cast<double>(values[i]) + static_cast<double>(values[i + 1])) / 2);
        for (float v : {m, std::nextafter(m, 0.0f), std::nextafter(m, kInf)})
          if (v <= size) x.push_back(-v);
      }
      const std::vector<float> y = through(wire, x);
      for (size_t i = 0; i < x.size(); ++i) {
        double best = std::numeric_limits<double>::infinity(), nearest = 0;
        for (float v : values) {  // ascending, so a tie keeps the one nearer to zero
          const double d = std::fabs(static_cast<double>(std::fabs(x[i])) - static_cast<double>(v));
          if (d < best) best = d, nearest = static_cast<double>(v);
        }
        ASSERT_EQ(static_cast<double>(y[i]), std::copysign(nearest, static_cast<double>(x[i])))
            << to_string(wire) << ' ' << x[i] << " of " << size;
      }
    }
}

TEST(Codec, DecodedValuesAreKeptWhenSentAgain) {
  for (Wire wire : {Wire::kF32, Wire::kBf16, Wire::kF16, Wire::kU8Tree, Wire::kU8Lin,
                    Wire::kU8Static, Wire::kU8Mantissa}) {
    const auto once = through(wire, normal(5000, 0.3f, 2));
    EXPECT_TRUE(same_bits(through(wire, once), once)) << to_string(wire);
  }
}

TEST(Codec, EveryHalfAndEveryBf16RoundTrips) {
  for (Wire wire : {Wire::kBf16, Wire::kF16}) {
    std::vector<std::byte> all(2 * 65536);
    for (unsigned i = 0; i < 65536; ++i) {
      const auto h = static_cast<uint16_t>(i);
      std::memcpy(&all[2 * i], &h, 2);
    }
    const auto x = decoded(wire, all, 65536);
    const auto back = encoded(wire, x);
    for (unsigned i = 0; i < 65536; ++i) {
      uint16_t h;
      std::memcpy(&h, &back[2 * i], 2);
      if (std::isnan(x[i]))
        EXPECT_TRUE(std::isnan(through(wire, {x[i]})[0]));
      else
        EXPECT_EQ(h, i) << to_string(wire);
    }
    EXPECT_EQ(x[wire == Wire::kF16 ? 0x3c00 : 0x3f80], 1.0f);
  }
  EXPECT_EQ(through(Wire::kF16, {0x1p-24f})[0], 0x1p-24f);
}

// Neighbours in the format, and the floats around the middle between them.
TEST(Codec, HalvesRoundToTheNearestEven) {
  for (Wire wire : {Wire::kBf16, Wire::kF16})
    for (unsigned i = 0; i < 0x7bff; ++i) {
      std::vector<std::byte> pair(4);
      const uint16_t h[2] = {static_cast<uint16_t>(i), static_cast<uint16_t>(i + 1)};
      std::memcpy(pair.data(), h, 4);
      const auto x = decoded(wire, pair, 2);
      const auto m =
          static_cast<float>((static_cast<double>(x[0]) + static_cast<double>(x[1])) / 2);
      const float even = i % 2 == 0 ? x[0] : x[1];
      const std::vector<float> sent = {m, std::nextafter(m, 0.0f), std::nextafter(m, kInf)};
      ASSERT_TRUE(same_bits(through(wire, sent), {even, x[0], x[1]})) << to_string(wire) << i;
    }
  EXPECT_EQ(through(Wire::kF16, {65519.0f, 65520.0f, -1e9f}),
            (std::vector<float>{65504, kInf, -kInf}));
}

TEST(Codec, WhatIsNotFiniteDoesNotBecomeFinite) {
  for (float bad : {kNan, kInf, -kInf}) {
    for (Wire wire : kBytes)
      for (float v : through(wire, {1, bad, -2})) EXPECT_TRUE(std::isnan(v)) << to_string(wire);
    for (Wire wire : {Wire::kF32, Wire::kBf16, Wire::kF16}) {
      const auto y = through(wire, {1, bad, -2});
      EXPECT_FALSE(std::isfinite(y[1])) << to_string(wire);
      EXPECT_EQ(y[2], -2) << to_string(wire);
    }
    std::vector<float> residual(3);
    std::vector<std::byte> to(9);
    encode_onebit(std::vector<float>{1, bad, -2}, residual, to);
    for (float v : decoded(Wire::kOnebit, to, 3)) EXPECT_TRUE(std::isnan(v));
  }
  for (Wire wire : kBytes) EXPECT_EQ(through(wire, {0, 0}), (std::vector<float>{0, 0}));
}

TEST(Codec, OnebitSendsTheMeansAndKeepsTheRest) {
  std::vector<float> residual{0, 0, 0, 0, 1};
  std::vector<std::byte> to(9);
  encode_onebit(std::vector<float>{1, 3, -2, -4, 1}, residual, to);
  EXPECT_EQ(decoded(Wire::kOnebit, to, 5), (std::vector<float>{2, 2, -3, -3, 2}));
  EXPECT_EQ(residual, (std::vector<float>{-1, 1, 1, -1, 0}));
  // What was kept is sent later: over many steps of one gradient, the mean is the gradient.
  const std::vector<float> gradient = {0.5f, -0.25f, 0.125f, -1};
  std::vector<float> left(4);
  std::vector<double> sum(4);
  std::vector<std::byte> bytes(9);
  for (int step = 0; step < 1000; ++step) {
    encode_onebit(gradient, left, bytes);
    const auto y = decoded(Wire::kOnebit, bytes, 4);
    for (size_t i = 0; i < 4; ++i) sum[i] += static_cast<double>(y[i]);
  }
  for (size_t i = 0; i < 4; ++i)
    EXPECT_NEAR(sum[i] + static_cast<double>(left[i]), 1000 * static_cast<double>(gradient[i]),
                1e-2);
}

// Of the elements that are not zero (the generators draw a few zeros, which have no relative
// error).
double mean_relative_error(Wire wire, const std::vector<float>& x) {
  const auto y = through(wire, x);
  double sum = 0;
  int64_t count = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] == 0) continue;
    const auto exact = static_cast<double>(x[i]);
    sum += std::fabs((static_cast<double>(y[i]) - exact) / exact);
    ++count;
  }
  return 100 * sum / static_cast<double>(count);
}

// Percent, with 25 million samples of the mean of |decoded - x| / |x|, computed apart from this
// code.
TEST(Codec, MeanRelativeErrors) {
  const std::vector<float> x = uniform(4'000'000, 0, 1, 3);
  EXPECT_NEAR(mean_relative_error(Wire::kU8Tree, x), 0.935, 0.01);
  EXPECT_NEAR(mean_relative_error(Wire::kU8Lin, x), 1.497, 0.01);
  EXPECT_NEAR(mean_relative_error(Wire::kU8Mantissa, x), 4.967, 0.01);
  EXPECT_NEAR(mean_relative_error(Wire::kU8Static, x), 3.342, 0.01);
}

// The error depends on the largest of the samples, and that on how many there are and on chance:
// one set of 25 million in ten is off by more than 0.04. So this takes the largest that is to be
// expected of so many, and in place of samples the density at equal steps below it.
TEST(Codec, MeanRelativeErrorOfNormalSamples) {
  // The largest of n samples is below t with probability exp(-n P(|x| > t)), and its mean is where
  // the exponent is exp(-0.57721...), Euler's constant.
  const double tail = std::exp(-0.57721566490153286) / 25e6;
  double low = 0, high = 10;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(middle / std::sqrt(2.0)) > tail ? low : high) = middle;
  }
  EXPECT_NEAR(low, 5.59, 0.01);
  const size_t steps = 4'000'000;
  std::vector<float> x(steps);
  for (size_t i = 0; i < steps; ++i)
    x[i] = static_cast<float>(low * static_cast<double>(i + 1) / static_cast<double>(steps));
  const std::vector<float> y = through(Wire::kU8Tree, x);
  double sum = 0, weights = 0;
  for (size_t i = 0; i < steps; ++i) {
    const auto exact = static_cast<double>(x[i]);
    const double weight = std::exp(-exact * exact / 2);
    sum += weight * std::fabs((static_cast<double>(y[i]) - exact) / exact);
    weights += weight;
  }
  EXPECT_NEAR(100 * sum / weights, 1.681, 0.03);
}

// Few elements are searched for, many are looked up.
TEST(Codec, ManyElementsAreEncodedAsFewAre) {
  std::mt19937 draw(6);
  int looked_up = 0;
  for (Wire wire : {Wire::kU8Tree, Wire::kU8Lin, Wire::kU8Static, Wire::kU8Mantissa})
    for (float scale : {1e-44f, 1e-38f, 3e-20f, 0.7f, 0.999f, 1.0f, 1.001f, 3.5f, 2e17f, 1e38f}) {
      std::vector<float> x = normal(100'000, 0.2f, draw());
      for (float& v : x) v = std::clamp(v, -1.0f, 1.0f) * scale;
      float peak = 0;
      for (float v : x) peak = std::max(peak, std::fabs(v));
      const auto levels = codecs::scaled(wire, codecs::scale_of(wire, peak));
      const auto tree = codecs::thresholds(levels);
      for (size_t i = 1; i < tree.size(); ++i)  // the floats at and around each threshold
        for (float v : {tree[i], std::nextafter(tree[i], 0.0f), std::nextafter(tree[i], 1e38f)})
          if (v <= peak) x.push_back(v);
      codecs::Buckets buckets;
      looked_up += codecs::fill_buckets(tree, buckets);
      const auto all = encoded(wire, x);
      int64_t different = 0;
      int count = 0;
      const codecs::Kernels& kernels = *codecs::available_kernels(&count)[0];
      std::vector<uint8_t> searched(x.size());
      kernels.encode_bytes(x.data(), static_cast<int64_t>(x.size()), tree.data(), searched.data());
      for (size_t i = 0; i < x.size(); ++i)
        different += std::to_integer<uint8_t>(all[4 + i]) != searched[i];
      EXPECT_EQ(different, 0) << to_string(wire) << ", up to " << peak;
    }
  EXPECT_GE(looked_up, 4 * 8) << "all but the smallest floats";
}

TEST(Codec, EveryInstructionSetGivesTheSameBits) {
  int count = 0;
  const codecs::Kernels* const* all = codecs::available_kernels(&count);
  const codecs::Kernels& base = *all[count - 1];
  std::mt19937 draw(5);
  for (int64_t n : {1, 7, 16, 255, 256, 257, 5000}) {
    std::vector<float> x(static_cast<size_t>(n));
    for (float& v : x) v = std::bit_cast<float>(static_cast<uint32_t>(draw()));  // NaN and all
    const auto tree = codecs::thresholds(codecs::scaled(Wire::kU8Tree, 3e4f));
    const auto size = static_cast<size_t>(n);
    for (int k = 0; k + 1 < count; ++k) {
      EXPECT_EQ(all[k]->peak(x.data(), n), base.peak(x.data(), n));
      std::vector<uint8_t> a(size), b(size);
      all[k]->encode_bytes(x.data(), n, tree.data(), a.data());
      base.encode_bytes(x.data(), n, tree.data(), b.data());
      EXPECT_EQ(a, b);
      codecs::Buckets buckets;
      ASSERT_TRUE(codecs::fill_buckets(tree, buckets));
      for (const auto& [kernels, to] : {std::pair{all[k], &a}, {&base, &b}})
        kernels->encode_buckets(x.data(), n, buckets.exceeded.data(), buckets.next.data(),
                                to->data());
      EXPECT_EQ(a, b);
      std::vector<uint16_t> c(size), d(size);
      std::vector<float> u(size), v(size);
      for (auto [to, from] :
           {std::pair{&codecs::Kernels::encode_bf16, &codecs::Kernels::decode_bf16},
            std::pair{&codecs::Kernels::encode_f16, &codecs::Kernels::decode_f16}}) {
        (all[k]->*to)(x.data(), n, c.data());
        (base.*to)(x.data(), n, d.data());
        EXPECT_EQ(c, d);
        (all[k]->*from)(c.data(), n, u.data());
        (base.*from)(c.data(), n, v.data());
        EXPECT_TRUE(same_bits(u, v));
      }
    }
  }
}

}  // namespace
}  // namespace convnet
