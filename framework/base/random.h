// Random numbers without state: Philox4x32-10 (Salmon et al., SC 2011), a function of key and
// counter. Everything random in the program is keyed by (seed, what it is for, step) and counted by
// logical indices, so no number depends on devices, threads or what ran before, and a checkpoint
// holds none.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace convnet {

// The ten rounds: four 32-bit words for a 128-bit counter and a 64-bit key.
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// A key's name: FNV-1a, 64 bits.
uint64_t name_key(std::string_view name);

// Philox's key for (seed, purpose, step): two rounds of mixing (SplitMix64's finaliser).
std::array<uint32_t, 2> random_key(uint64_t seed, uint64_t purpose, uint64_t step = 0);

// Word `index % 4` of the block with counter index / 4: the 32 random bits of logical element
// `index`.
uint32_t random_bits(std::array<uint32_t, 2> key, uint64_t index);

// [0, 1): the upper 24 bits over 2^24, exact in float and double.
double random_uniform(std::array<uint32_t, 2> key, uint64_t index);

// The x whose standard normal distribution function is 1/2 + q, |q| < 1/2: Wichura, Algorithm AS
// 241 (Applied Statistics 37, 1988), PPND16; relative error about 1e-16.
double inverse_normal(double q);

// Standard normal by inversion (inverse_normal), with logarithm and square root in plain IEEE
// operations: the same bits on every machine. Uses 53 bits: two words of element `index`'s own
// block (counter index, not index / 4).
double random_normal(std::array<uint32_t, 2> key, uint64_t index);

// 0 .. n-1, n >= 1, without bias that matters (64-bit multiply-shift on two words of block
// `index`).
uint64_t random_below(std::array<uint32_t, 2> key, uint64_t index, uint64_t n);

// Entry i of a pseudo-random permutation of 0..n-1: a Feistel network over ceil(log2 n) bits,
// walked until it falls inside. No table, no state: the order of an epoch's examples.
uint64_t random_permutation(std::array<uint32_t, 2> key, uint64_t i, uint64_t n);

}  // namespace convnet
