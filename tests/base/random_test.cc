// If this fails, weights, dropout masks or the order of examples are no longer the ones that a seed
// stands for: runs cannot be repeated or resumed.
#include "framework/base/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>
#include <vector>

namespace convnet {
namespace {

using Words = std::array<uint32_t, 4>;
using Key = std::array<uint32_t, 2>;

TEST(Philox, KnownAnswersOfRandom123) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox({ones, ones, ones, ones}, {ones, ones}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(NameKey, KnownAnswersOfFnv1a) {
  EXPECT_EQ(name_key(""), 0xcbf29ce484222325u);
  EXPECT_EQ(name_key("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(name_key("foobar"), 0x85944171f73967e8u);
}

TEST(RandomKey, EveryPartMatters) {
  std::set<Key> keys;
  int made = 0;
  for (const uint64_t seed : {0ull, 1ull, 2ull, ~0ull})
    for (const uint64_t purpose : {0ull, 1ull, 2ull, ~0ull})
      for (uint64_t step = 0; step < 50; ++step, ++made)
        keys.insert(random_key(seed, purpose, step));
  EXPECT_EQ(keys.size(), static_cast<size_t>(made));
  EXPECT_EQ(random_key(7, 8), random_key(7, 8, 0));
}

TEST(RandomBits, AreTheWordsOfTheBlocks) {
  const Key key{1, 2};
  for (uint64_t index : {0ull, 1ull, 2ull, 3ull, 4ull, 1023ull, (1ull << 40) + 6}) {
    const uint64_t counter = index / 4;
    const Words block =
        philox({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0}, key);
    EXPECT_EQ(random_bits(key, index), block[index % 4]);
    EXPECT_EQ(random_uniform(key, index), (block[index % 4] >> 8) / 16777216.0);
  }
}

TEST(RandomUniform, IsUniformAndExactInFloat) {
  const Key key = random_key(1, name_key("uniform"));
  constexpr int kCount = 1 << 16;
  std::vector<int> bins(64);
  for (uint64_t i = 0; i < kCount; ++i) {
    const double u = random_uniform(key, i);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    ASSERT_EQ(u, static_cast<double>(static_cast<float>(u)));
    ++bins[static_cast<size_t>(u * 64)];
  }
  double chi_square = 0;
  for (const int n : bins) chi_square += (n - 1024.0) * (n - 1024.0) / 1024;
  EXPECT_LT(chi_square, 63 + 6 * std::sqrt(2.0 * 63));  // 63 degrees of freedom, six deviations
}

// The distribution function of the result must be the uniform number that it was made from.
TEST(RandomNormal, InvertsTheDistribution) {
  const Key key = random_key(2, name_key("normal"));
  constexpr uint64_t kCount = 1 << 17;
  double worst = 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    const Words w = philox({static_cast<uint32_t>(i), 0, 0, 0}, key);
    const uint64_t j = (w[0] | static_cast<uint64_t>(w[1]) << 32) >> 11;
    const double z = random_normal(key, i);
    const bool upper = j >> 52;
    const uint64_t from_end = upper ? (uint64_t{1} << 53) - 1 - j : j;
    const double p = (static_cast<double>(from_end) + 0.5) * 0x1p-53;  // of the nearer tail
    const double got = 0.5 * std::erfc(std::fabs(z) / std::sqrt(2.0));
    EXPECT_EQ(z > 0, upper);
    worst = std::max(worst, std::fabs(got - p) / p);
  }
  // A relative error of 1e-16 in z becomes z^2 times as much in the tail's probability.
  EXPECT_LT(worst, 1e-14);
}

// Each of the three polynomials, and both sides of their borders: |q| = 0.425 and tail exp(-25).
TEST(InverseNormal, WholeRange) {
  EXPECT_EQ(inverse_normal(0), 0);
  EXPECT_NEAR(inverse_normal(0.475), 1.959963984540054, 4e-16 * 2);
  for (const double tail : {0.4, 0.1, 0.07500001, 0.075, 0.07499999, 0.01, 1e-5, 1e-10, 1.4e-11,
                            1.388e-11, 1e-12, 1e-14, 0x1p-54}) {
    const double q = 0.5 - tail;
    const double z = inverse_normal(q);
    const double p = 0.5 - q;  // the tail after q's rounding; exact
    EXPECT_NEAR(0.5 * std::erfc(z / std::sqrt(2.0)) / p, 1, 1e-15 * (1 + z * z)) << tail;
    EXPECT_EQ(inverse_normal(-q), -z);
  }
}

TEST(RandomNormal, MomentsOfTheStandardNormal) {
  const Key key = random_key(3, name_key("moments"));
  constexpr int kCount = 1 << 18;
  double m1 = 0, m2 = 0, m3 = 0, m4 = 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    const double z = random_normal(key, i);
    m1 += z, m2 += z * z, m3 += z * z * z, m4 += z * z * z * z;
  }
  // Six standard deviations of each mean: variances 1, 2, 15, 96.
  const double unit = 6 / std::sqrt(static_cast<double>(kCount));
  EXPECT_NEAR(m1 / kCount, 0, unit);
  EXPECT_NEAR(m2 / kCount, 1, unit * std::sqrt(2.0));
  EXPECT_NEAR(m3 / kCount, 0, unit * std::sqrt(15.0));
  EXPECT_NEAR(m4 / kCount, 3, unit * std::sqrt(96.0));
}

// Bits, not nearly: the same numbers on every machine and in every version.
TEST(RandomNormal, GoldenBits) {
  const Key key = random_key(1, name_key("golden"));
  uint64_t hash = 0xcbf29ce484222325;
  for (uint64_t i = 0; i < 100000; ++i) {
    uint64_t bits;
    const double z = random_normal(key, i);
    std::memcpy(&bits, &z, sizeof bits);
    hash = (hash ^ bits) * 0x100000001b3;
  }
  EXPECT_EQ(hash, 0x16e7663bdaefefdbu);
}

TEST(RandomBelow, CoversTheRangeEvenly) {
  const Key key = random_key(4, name_key("below"));
  std::vector<int> count(10);
  for (uint64_t i = 0; i < 100000; ++i) ++count[random_below(key, i, 10)];
  for (const int n : count) EXPECT_NEAR(n, 10000, 6 * 95);  // six deviations
  for (uint64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(random_below(key, i, 1), 0u);
    EXPECT_LT(random_below(key, i, ~0ull), ~0ull);
  }
}

TEST(RandomPermutation, IsAPermutation) {
  for (uint64_t n = 1; n <= 300; ++n)
    for (uint32_t k = 0; k < 4; ++k) {
      std::vector<bool> seen(n);
      for (uint64_t i = 0; i < n; ++i) {
        const uint64_t j = random_permutation({k, 17}, i, n);
        ASSERT_LT(j, n);
        ASSERT_FALSE(seen[j]) << "n " << n << " i " << i;
        seen[j] = true;
      }
    }
  const uint64_t n = 60000;
  std::vector<bool> seen(n);
  for (uint64_t i = 0; i < n; ++i) seen[random_permutation({5, 6}, i, n)] = true;
  for (uint64_t i = 0; i < n; ++i) ASSERT_TRUE(seen[i]);
}

TEST(RandomPermutation, HugeRanges) {
  for (const uint64_t n : {(1ull << 32) - 1, (1ull << 32) + 1, 1ull << 63, ~0ull})
    for (uint64_t i = 0; i < 100; ++i) {
      EXPECT_LT(random_permutation({1, 2}, i, n), n);
      EXPECT_LT(random_permutation({1, 2}, n - 1 - i, n), n);
    }
}

TEST(RandomPermutation, EveryPlaceIsEquallyLikely) {
  constexpr uint64_t kN = 7;
  std::vector<std::vector<int>> count(kN, std::vector<int>(kN));
  constexpr uint32_t kKeys = 7000;
  for (uint32_t k = 0; k < kKeys; ++k)
    for (uint64_t i = 0; i < kN; ++i) ++count[i][random_permutation(random_key(k, 1), i, kN)];
  for (const auto& row : count)
    for (const int n : row) EXPECT_NEAR(n, 1000, 6 * 30);  // six deviations
}

}  // namespace
}  // namespace convnet
