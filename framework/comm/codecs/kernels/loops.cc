// Written as plain loops without branches, which the compiler turns into vectors; nothing that it
// includes defines a function, so nothing compiled for one instruction set is linked into
// another's.
#include "framework/comm/codecs/kernels.h"

namespace convnet::codecs {
namespace {

inline __attribute__((always_inline)) uint32_t bits_of(float x) {
  uint32_t u;
  __builtin_memcpy(&u, &x, 4);
  return u;
}
inline __attribute__((always_inline)) float float_of(uint32_t u) {
  float x;
  __builtin_memcpy(&x, &u, 4);
  return x;
}

uint32_t peak(const float* x, int64_t n) {
  int32_t most = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t u = static_cast<int32_t>(bits_of(x[i]) & 0x7fffffffu);
    most = u > most ? u : most;
  }
  return static_cast<uint32_t>(most);
}

// Seven steps down the tree whatever the value: no branch, and a gather each.
void encode_bytes(const float* __restrict x, int64_t n, const float* __restrict tree,
                  uint8_t* __restrict to) {
  constexpr int kBlock = 256;
  int32_t code[kBlock];
  for (int64_t start = 0; start < n; start += kBlock) {
    const int count = n - start < kBlock ? static_cast<int>(n - start) : kBlock;
    for (int i = 0; i < count; ++i) {
      const uint32_t u = bits_of(x[start + i]);
      const float a = float_of(u & 0x7fffffffu);
      int32_t k = 1;
      k = 2 * k + (a > tree[k] ? 1 : 0);
      k = 2 * k + (a > tree[k] ? 1 : 0);
      k = 2 * k + (a > tree[k] ? 1 : 0);
      k = 2 * k + (a > tree[k] ? 1 : 0);
      k = 2 * k + (a > tree[k] ? 1 : 0);
      k = 2 * k + (a > tree[k] ? 1 : 0);
      k = 2 * k + (a > tree[k] ? 1 : 0);
      code[i] = (k - 128) | static_cast<int32_t>(u >> 31 << 7);
    }
    for (int i = 0; i < count; ++i) to[start + i] = static_cast<uint8_t>(code[i]);
  }
}

void encode_buckets(const float* __restrict x, int64_t n, const uint8_t* __restrict exceeded,
                    const float* __restrict next, uint8_t* __restrict to) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t u = bits_of(x[i]);
    const uint32_t a = u & 0x7fffffffu;
    const uint32_t k = exceeded[a >> 16];
    to[i] = static_cast<uint8_t>((k + (float_of(a) > next[k] ? 1u : 0u)) | (u >> 31 << 7));
  }
}

void decode_bytes(const uint8_t* __restrict from, int64_t n, const float* __restrict values,
                  float* __restrict x) {
  for (int64_t i = 0; i < n; ++i) x[i] = values[static_cast<int32_t>(from[i])];
}

void encode_bf16(const float* __restrict x, int64_t n, uint16_t* __restrict to) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t u = bits_of(x[i]);
    const uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1)) >> 16;
    const uint32_t quiet = u >> 16 | 0x40u;  // a NaN stays one when its lower bits go
    to[i] = static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
  }
}

void decode_bf16(const uint16_t* __restrict from, int64_t n, float* __restrict x) {
  for (int64_t i = 0; i < n; ++i) x[i] = float_of(static_cast<uint32_t>(from[i]) << 16);
}

void encode_f16(const float* __restrict x, int64_t n, uint16_t* __restrict to) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t u = bits_of(x[i]);
    const uint32_t a = u & 0x7fffffffu;
    // Below 2^-14: adding 0.5 leaves multiples of 2^-24, rounded, in the lowest bits.
    const uint32_t small = bits_of(float_of(a) + 0.5f) - 0x3f000000u;
    const uint32_t normal = (a - 0x38000000u + 0xfffu + (a >> 13 & 1)) >> 13;
    const uint32_t large = a > 0x7f800000u ? 0x7e00u : 0x7c00u;
    const uint32_t h = a >= 0x47800000u ? large : a < 0x38800000u ? small : normal;
    to[i] = static_cast<uint16_t>(h | (u >> 16 & 0x8000u));
  }
}

void decode_f16(const uint16_t* __restrict from, int64_t n, float* __restrict x) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t h = from[i];
    const uint32_t a = (h & 0x7fffu) << 13;
    const uint32_t normal = a + 0x38000000u;
    const uint32_t large = a + 0x70000000u;
    const uint32_t small = bits_of(float_of(a + 0x38800000u) - 0x1p-14f);
    const uint32_t u = a >= 0x0f800000u ? large : a < 0x00800000u ? small : normal;
    x[i] = float_of(u | (h & 0x8000u) << 16);
  }
}

}  // namespace

extern const Kernels CONVNET_CODECS = {peak,        encode_bytes, encode_buckets, decode_bytes,
                                       encode_bf16, decode_bf16,  encode_f16,     decode_f16};

}  // namespace convnet::codecs
