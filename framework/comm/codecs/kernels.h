// The loops of the codecs, once per instruction set. Integers and comparisons, or single IEEE
// operations an element: the same bits in each.
#pragma once

#include <stdint.h>

namespace convnet::codecs {

struct Kernels {
  // The largest bit pattern of |x|: that of the absolute maximum; 0x7f800000 or more if one of them
  // is infinite or NaN.
  uint32_t (*peak)(const float* x, int64_t n);
  // tree[1..127]: thresholds as an implicit search tree; byte = sign bit | how many |x| exceeds.
  void (*encode_bytes)(const float* x, int64_t n, const float* tree, uint8_t* to);
  // The same, by codecs::Buckets.
  void (*encode_buckets)(const float* x, int64_t n, const uint8_t* exceeded, const float* next,
                         uint8_t* to);
  void (*decode_bytes)(const uint8_t* from, int64_t n, const float* values, float* x);
  void (*encode_bf16)(const float* x, int64_t n, uint16_t* to);
  void (*decode_bf16)(const uint16_t* from, int64_t n, float* x);
  void (*encode_f16)(const float* x, int64_t n, uint16_t* to);
  void (*decode_f16)(const uint16_t* from, int64_t n, float* x);
};

extern const Kernels kernels_base, kernels_avx2, kernels_avx512;

// All that this machine executes, the fastest first.
const Kernels* const* available_kernels(int* count);

}  // namespace convnet::codecs
