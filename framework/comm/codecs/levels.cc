#include "framework/comm/codecs/levels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace convnet::codecs {
namespace {

using Levels = std::array<double, kLevels>;

// Of products and quotients alone, hence the same with every mathematics library.
double power_of_ten(int exponent) {
  double power = 1;
  for (int i = 0; i < std::abs(exponent); ++i) power *= 10;
  return exponent < 0 ? 1 / power : power;
}

// n leading zeros of the seven bits are an exponent of ten; a one ends them; the remaining bits
// bisect the decade, at 0.45 first, then evenly; a value is the middle of its interval. The index
// left below them is zero, and the one above is the maximum.
Levels tree() {
  Levels all{};
  auto next = all.begin() + 1;
  for (int zeros = 5; zeros >= 0; --zeros) {
    const int parts = 1 << (5 - zeros);
    const double decade = power_of_ten(-zeros);
    for (const auto& [from, to] : {std::pair{0.1, 0.45}, std::pair{0.45, 1.0}})
      for (int i = 0; i < parts; ++i) *next++ = decade * (from + (to - from) * (i + 0.5) / parts);
  }
  *next = 1;
  return all;
}

Levels linear() {
  Levels all{};
  for (int i = 0; i < kLevels; ++i) all[static_cast<size_t>(i)] = i / 127.0;
  return all;
}

// Eight decades of sixteen values: eight from 1, eight from 4.5. The least, 1e-6, gives its index
// to zero.
Levels static_tree() {
  Levels all{};
  auto next = all.begin();
  for (int e = -6; e <= 1; ++e)
    for (int i = 0; i < 16; ++i)
      *next++ = power_of_ten(e) * (i < 8 ? 1 + 0.4375 * i : 4.5 + 0.675 * (i - 8));
  all[0] = 0;
  return all;
}

// m * 10^e, m = 0..15, e = -6..1; ten of one decade is one of the next.
Levels mantissa() {
  Levels all{};
  auto next = all.begin() + 1;
  for (int e = -6; e <= 1; ++e)
    for (int m = e == -6 ? 1 : 2; m <= 15; ++m) *next++ = m * power_of_ten(e);
  std::sort(all.begin(), next);
  std::fill(next, all.end(), *(next - 1));
  return all;
}

bool decades(Wire wire) { return wire == Wire::kU8Static || wire == Wire::kU8Mantissa; }

}  // namespace

const Levels& levels(Wire wire) {
  static const Levels kTree = tree(), kLinear = linear(), kStatic = static_tree(),
                      kMantissa = mantissa();
  switch (wire) {
    case Wire::kU8Lin:
      return kLinear;
    case Wire::kU8Static:
      return kStatic;
    case Wire::kU8Mantissa:
      return kMantissa;
    default:
      return kTree;
  }
}

float scale_of(Wire wire, float peak) {
  if (!std::isfinite(peak)) return std::numeric_limits<float>::quiet_NaN();
  if (!decades(wire) || peak == 0) return peak;
  int exponent = -47;
  while (levels(wire).back() * power_of_ten(exponent) < static_cast<double>(peak)) ++exponent;
  return static_cast<float>(exponent);
}

std::array<float, kLevels> scaled(Wire wire, float scale) {
  std::array<float, kLevels> values;
  const bool finite = std::isfinite(scale);
  double factor = static_cast<double>(scale);
  if (finite && decades(wire))
    factor = power_of_ten(static_cast<int>(std::clamp(factor, -60.0, 60.0)));
  for (size_t i = 0; i < kLevels; ++i) {
    const double value = levels(wire)[i] * factor;
    values[i] = !finite ? std::numeric_limits<float>::quiet_NaN()
                        : static_cast<float>(std::min<double>(value, __FLT_MAX__));
  }
  return values;
}

std::array<float, kLevels> thresholds(const std::array<float, kLevels>& values) {
  std::array<float, kLevels> tree{};
  // In order, depth first: node k's children are 2k and 2k + 1.
  size_t next = 0;
  const auto fill = [&](const auto& self, size_t node) -> void {
    if (node >= kLevels) return;
    self(self, 2 * node);
    // The middle, exact in double; as the largest float that does not exceed it, it parts the
    // floats in the same way.
    const double middle =
        (static_cast<double>(values[next]) + static_cast<double>(values[next + 1])) / 2;
    float below = static_cast<float>(middle);
    if (static_cast<double>(below) > middle) below = std::nextafter(below, 0.0f);
    tree[node] = below;
    ++next;
    self(self, 2 * node + 1);
  };
  fill(fill, 1);
  return tree;
}

bool fill_buckets(const std::array<float, kLevels>& tree, Buckets& buckets) {
  size_t count = 0;
  const auto sort = [&](const auto& self, size_t node) -> void {
    if (node >= kLevels) return;
    self(self, 2 * node);
    buckets.next[count++] = tree[node];
    self(self, 2 * node + 1);
  };
  sort(sort, 1);
  buckets.next[count] = std::numeric_limits<float>::infinity();
  size_t filled = 0;
  for (size_t i = 0; i < count; ++i) {
    const size_t end = (std::bit_cast<uint32_t>(buckets.next[i]) >> 16) + 1;
    if (i > 0 && buckets.next[i] == buckets.next[i - 1]) continue;  // of levels never sent
    if (end <= filled) return false;
    std::fill(buckets.exceeded.begin() + static_cast<ptrdiff_t>(filled),
              buckets.exceeded.begin() + static_cast<ptrdiff_t>(end), static_cast<uint8_t>(i));
    filled = end;
  }
  std::fill(buckets.exceeded.begin() + static_cast<ptrdiff_t>(filled), buckets.exceeded.end(),
            static_cast<uint8_t>(count));
  return true;
}

}  // namespace convnet::codecs
