// The magnitudes that the 8-bit codecs tell apart (Dettmers, "8-Bit Approximations for Parallelism
// in Deep Learning", arXiv 1511.04561). A byte is a sign bit and an index into them.
#pragma once

#include <array>
#include <cstdint>

#include "framework/plan/wire.h"

namespace convnet::codecs {

inline constexpr int kLevels = 128;

// Ascending, the first one zero. kU8Mantissa has 114: the last repeats in the indices left over,
// which are never sent.
const std::array<double, kLevels>& levels(Wire wire);

// What the levels are multiplied by for a piece with this absolute maximum, as it is sent: the
// maximum itself for kU8Tree and kU8Lin. kU8Static and kU8Mantissa, being steps of decades, take a
// power of ten, the least that leaves the maximum within their range, and send its exponent.
float scale_of(Wire wire, float peak);

// The values of indices 0..127, and (not for decoding) the thresholds between them as the search
// tree of Kernels::encode_bytes.
std::array<float, kLevels> scaled(Wire wire, float scale);
std::array<float, kLevels> thresholds(const std::array<float, kLevels>& values);

// The same search in two look-ups: the upper half of a float's bits says how many thresholds all
// floats with it exceed, and the next threshold decides whether it is one more.
struct Buckets {
  std::array<uint8_t, 1 << 15> exceeded;  // by bits >> 16
  std::array<float, kLevels> next;        // ascending; behind the last one infinity
};
// False if two thresholds share a bucket, as they may among the smallest floats.
bool fill_buckets(const std::array<float, kLevels>& tree, Buckets& buckets);

}  // namespace convnet::codecs
