#include "framework/comm/codecs/codec.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "framework/base/check.h"
#include "framework/comm/codecs/kernels.h"
#include "framework/comm/codecs/levels.h"

namespace convnet {
namespace {

const codecs::Kernels& kernels() {
  int count = 0;
  static const codecs::Kernels* const kBest = codecs::available_kernels(&count)[0];
  return *kBest;
}

void put(std::byte* to, float x) { std::memcpy(to, &x, sizeof x); }

float get(const std::byte* from) {
  float x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

void encode_bytes(Wire wire, std::span<const float> from, std::byte* to) {
  const auto n = static_cast<int64_t>(from.size());
  const float peak = std::bit_cast<float>(kernels().peak(from.data(), n));
  const float scale = codecs::scale_of(wire, peak);
  put(to, scale);
  auto* const bytes = reinterpret_cast<uint8_t*>(to + 4);
  if (std::isnan(scale) || peak == 0) {
    std::memset(bytes, 0, from.size());
    return;
  }
  const auto tree = codecs::thresholds(codecs::scaled(wire, scale));
  // Filling the buckets takes about as long as searching for so many.
  constexpr int64_t kMany = 1024;
  codecs::Buckets buckets;
  if (n >= kMany && codecs::fill_buckets(tree, buckets))
    kernels().encode_buckets(from.data(), n, buckets.exceeded.data(), buckets.next.data(), bytes);
  else
    kernels().encode_bytes(from.data(), n, tree.data(), bytes);
}

void decode_bytes(Wire wire, const std::byte* from, std::span<float> to) {
  const auto positive = codecs::scaled(wire, get(from));
  std::array<float, 2 * codecs::kLevels> values;
  for (size_t i = 0; i < codecs::kLevels; ++i) {
    values[i] = positive[i];
    values[codecs::kLevels + i] = -positive[i];
  }
  kernels().decode_bytes(reinterpret_cast<const uint8_t*>(from + 4),
                         static_cast<int64_t>(to.size()), values.data(), to.data());
}

// Values, below zero and not, and bits; the residual is what decode_onebit will leave out.
void decode_onebit(const std::byte* from, std::span<float> to) {
  const float below = get(from), above = get(from + 4);
  for (size_t i = 0; i < to.size(); ++i) {
    const auto byte = std::to_integer<unsigned>(from[8 + i / 8]);
    to[i] = (byte >> i % 8 & 1) ? below : above;
  }
}

}  // namespace

void encode(Wire wire, std::span<const float> from, std::span<std::byte> to) {
  const auto n = static_cast<int64_t>(from.size());
  CHECK(static_cast<int64_t>(to.size()) == encoded_bytes(wire, n));
  CHECK(wire != Wire::kOnebit);
  if (n == 0) return;
  switch (wire) {
    case Wire::kF32:
      std::memcpy(to.data(), from.data(), to.size());
      return;
    case Wire::kBf16:
      return kernels().encode_bf16(from.data(), n, reinterpret_cast<uint16_t*>(to.data()));
    case Wire::kF16:
      return kernels().encode_f16(from.data(), n, reinterpret_cast<uint16_t*>(to.data()));
    default:
      return encode_bytes(wire, from, to.data());
  }
}

void decode(Wire wire, std::span<const std::byte> from, std::span<float> to) {
  const auto n = static_cast<int64_t>(to.size());
  CHECK(static_cast<int64_t>(from.size()) == encoded_bytes(wire, n));
  if (n == 0) return;
  switch (wire) {
    case Wire::kF32:
      std::memcpy(to.data(), from.data(), from.size());
      return;
    case Wire::kBf16:
      return kernels().decode_bf16(reinterpret_cast<const uint16_t*>(from.data()), n, to.data());
    case Wire::kF16:
      return kernels().decode_f16(reinterpret_cast<const uint16_t*>(from.data()), n, to.data());
    case Wire::kOnebit:
      return decode_onebit(from.data(), to);
    default:
      return decode_bytes(wire, from.data(), to);
  }
}

void encode_onebit(std::span<const float> from, std::span<float> residual,
                   std::span<std::byte> to) {
  CHECK(residual.size() == from.size());
  CHECK(static_cast<int64_t>(to.size()) ==
        encoded_bytes(Wire::kOnebit, static_cast<int64_t>(from.size())));
  if (from.empty()) return;
  std::memset(to.data(), 0, to.size());
  double sums[2] = {0, 0};  // of those not below zero, of those below
  size_t counts[2] = {0, 0};
  for (size_t i = 0; i < from.size(); ++i) {
    residual[i] += from[i];
    const size_t below = residual[i] < 0;
    sums[below] += static_cast<double>(residual[i]);
    ++counts[below];
    to[8 + i / 8] |= static_cast<std::byte>(below << i % 8);
  }
  float means[2];
  for (size_t side = 0; side < 2; ++side)
    means[side] = counts[side] == 0
                      ? 0.0f
                      : static_cast<float>(sums[side] / static_cast<double>(counts[side]));
  if (!std::isfinite(sums[0]) || !std::isfinite(sums[1]))
    means[0] = means[1] = std::numeric_limits<float>::quiet_NaN();
  put(to.data(), means[1]);
  put(to.data() + 4, means[0]);
  for (size_t i = 0; i < from.size(); ++i) residual[i] -= means[residual[i] < 0 ? 1 : 0];
}

}  // namespace convnet
