// Vec: sixteen floats, one per sample of a block. Compiled once per instruction set: one AVX-512
// register, or a pair of AVX2 registers. Every operation here is one IEEE operation per lane (fma
// is one), so a kernel written over Vec gives the same bits either way. Everything lives in the
// namespace of its instruction set, so that no inline copy can be linked into another one's code.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#define CONVNET_INLINE static inline __attribute__((always_inline))

namespace convnet::cpu::CONVNET_ISA {

constexpr int kVec = 16;

#if defined(__AVX512F__)

struct Vec {
  __m512 v;
};
struct IVec {
  __m512i v;
};
struct Mask {
  __mmask16 v;
};

CONVNET_INLINE Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
CONVNET_INLINE void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
// Past the caches; p is aligned to 64 bytes.
CONVNET_INLINE void stream(float* p, Vec a) { _mm512_stream_ps(p, a.v); }
CONVNET_INLINE Vec set1(float a) { return {_mm512_set1_ps(a)}; }
CONVNET_INLINE Vec zero() { return {_mm512_setzero_ps()}; }
CONVNET_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
CONVNET_INLINE Vec fnma(Vec a, Vec b, Vec c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
CONVNET_INLINE Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
CONVNET_INLINE Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
CONVNET_INLINE Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
CONVNET_INLINE Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
CONVNET_INLINE Vec sqrt(Vec a) { return {_mm512_sqrt_ps(a.v)}; }
// a > b ? a : b, lane by lane; so b where one of them is NaN, or both are zero.
CONVNET_INLINE Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
CONVNET_INLINE Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
// To the nearest integer, halves to even.
CONVNET_INLINE Vec round(Vec a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
CONVNET_INLINE Mask operator>(Vec a, Vec b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
CONVNET_INLINE Mask operator>=(Vec a, Vec b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ)}; }
CONVNET_INLINE Mask operator==(Vec a, Vec b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
CONVNET_INLINE Mask operator&(Mask a, Mask b) { return {static_cast<__mmask16>(a.v & b.v)}; }
CONVNET_INLINE Mask operator|(Mask a, Mask b) { return {static_cast<__mmask16>(a.v | b.v)}; }
// m ? a : b
CONVNET_INLINE Vec select(Mask m, Vec a, Vec b) { return {_mm512_mask_blend_ps(m.v, b.v, a.v)}; }
CONVNET_INLINE IVec select(Mask m, IVec a, IVec b) {
  return {_mm512_mask_blend_epi32(m.v, b.v, a.v)};
}
CONVNET_INLINE unsigned bits(Mask m) { return m.v; }

CONVNET_INLINE IVec iload(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
CONVNET_INLINE void istore(int32_t* p, IVec a) { _mm512_storeu_si512(p, a.v); }
CONVNET_INLINE IVec iset1(int32_t a) { return {_mm512_set1_epi32(a)}; }
CONVNET_INLINE IVec operator+(IVec a, IVec b) { return {_mm512_add_epi32(a.v, b.v)}; }
CONVNET_INLINE IVec operator-(IVec a, IVec b) { return {_mm512_sub_epi32(a.v, b.v)}; }
CONVNET_INLINE IVec operator&(IVec a, IVec b) { return {_mm512_and_si512(a.v, b.v)}; }
CONVNET_INLINE IVec operator|(IVec a, IVec b) { return {_mm512_or_si512(a.v, b.v)}; }
CONVNET_INLINE IVec operator^(IVec a, IVec b) { return {_mm512_xor_si512(a.v, b.v)}; }
CONVNET_INLINE Mask operator==(IVec a, IVec b) { return {_mm512_cmpeq_epi32_mask(a.v, b.v)}; }
CONVNET_INLINE Mask operator>(IVec a, IVec b) { return {_mm512_cmpgt_epi32_mask(a.v, b.v)}; }
template <int N>
CONVNET_INLINE IVec shift_left(IVec a) {
  return {_mm512_slli_epi32(a.v, N)};
}
template <int N>
CONVNET_INLINE IVec shift_right(IVec a) {  // sign extended
  return {_mm512_srai_epi32(a.v, N)};
}
template <int N>
CONVNET_INLINE IVec shift_right_zero(IVec a) {
  return {_mm512_srli_epi32(a.v, N)};
}
CONVNET_INLINE IVec as_int(Vec a) { return {_mm512_castps_si512(a.v)}; }
CONVNET_INLINE Vec as_float(IVec a) { return {_mm512_castsi512_ps(a.v)}; }
CONVNET_INLINE IVec to_int(Vec a) { return {_mm512_cvtps_epi32(a.v)}; }
CONVNET_INLINE Vec to_float(IVec a) { return {_mm512_cvtepi32_ps(a.v)}; }
// The 64-bit products of a's lanes with m: their upper and lower halves.
CONVNET_INLINE void multiply_wide(IVec a, uint32_t m, IVec* high, IVec* low) {
  const __m512i f = _mm512_set1_epi64(m);
  const __m512i even = _mm512_mul_epu32(a.v, f);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), f);
  *low = {_mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32))};
  *high = {_mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd)};
}

CONVNET_INLINE float sum_lanes(Vec a) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  const __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_shuffle_ps(pair, pair, 1)));
}

#else

struct Vec {
  __m256 lo, hi;
};
struct IVec {
  __m256i lo, hi;
};
struct Mask {
  __m256 lo, hi;
};

CONVNET_INLINE Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
CONVNET_INLINE void store(float* p, Vec a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
// Past the caches; p is aligned to 64 bytes.
CONVNET_INLINE void stream(float* p, Vec a) {
  _mm256_stream_ps(p, a.lo);
  _mm256_stream_ps(p + 8, a.hi);
}
CONVNET_INLINE Vec set1(float a) {
  const __m256 v = _mm256_set1_ps(a);
  return {v, v};
}
CONVNET_INLINE Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
CONVNET_INLINE Vec fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
CONVNET_INLINE Vec fnma(Vec a, Vec b, Vec c) {
  return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
CONVNET_INLINE Vec operator+(Vec a, Vec b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
CONVNET_INLINE Vec operator-(Vec a, Vec b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
CONVNET_INLINE Vec operator*(Vec a, Vec b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
CONVNET_INLINE Vec operator/(Vec a, Vec b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
CONVNET_INLINE Vec sqrt(Vec a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
// a > b ? a : b, lane by lane; so b where one of them is NaN, or both are zero.
CONVNET_INLINE Vec max(Vec a, Vec b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
CONVNET_INLINE Vec min(Vec a, Vec b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
// To the nearest integer, halves to even.
CONVNET_INLINE Vec round(Vec a) {
  return {_mm256_round_ps(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
CONVNET_INLINE Mask operator>(Vec a, Vec b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ)};
}
CONVNET_INLINE Mask operator>=(Vec a, Vec b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ)};
}
CONVNET_INLINE Mask operator==(Vec a, Vec b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ)};
}
CONVNET_INLINE Mask operator&(Mask a, Mask b) {
  return {_mm256_and_ps(a.lo, b.lo), _mm256_and_ps(a.hi, b.hi)};
}
CONVNET_INLINE Mask operator|(Mask a, Mask b) {
  return {_mm256_or_ps(a.lo, b.lo), _mm256_or_ps(a.hi, b.hi)};
}
// m ? a : b
CONVNET_INLINE Vec select(Mask m, Vec a, Vec b) {
  return {_mm256_blendv_ps(b.lo, a.lo, m.lo), _mm256_blendv_ps(b.hi, a.hi, m.hi)};
}
CONVNET_INLINE IVec select(Mask m, IVec a, IVec b) {
  return {_mm256_blendv_epi8(b.lo, a.lo, _mm256_castps_si256(m.lo)),
          _mm256_blendv_epi8(b.hi, a.hi, _mm256_castps_si256(m.hi))};
}
CONVNET_INLINE unsigned bits(Mask m) {
  return static_cast<unsigned>(_mm256_movemask_ps(m.lo)) |
         static_cast<unsigned>(_mm256_movemask_ps(m.hi)) << 8;
}

CONVNET_INLINE IVec iload(const int32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
CONVNET_INLINE void istore(int32_t* p, IVec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), a.hi);
}
CONVNET_INLINE IVec iset1(int32_t a) { return {_mm256_set1_epi32(a), _mm256_set1_epi32(a)}; }
CONVNET_INLINE IVec operator+(IVec a, IVec b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
CONVNET_INLINE IVec operator-(IVec a, IVec b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
CONVNET_INLINE IVec operator&(IVec a, IVec b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
CONVNET_INLINE IVec operator|(IVec a, IVec b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
CONVNET_INLINE IVec operator^(IVec a, IVec b) {
  return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
}
CONVNET_INLINE Mask operator==(IVec a, IVec b) {
  return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(a.lo, b.lo)),
          _mm256_castsi256_ps(_mm256_cmpeq_epi32(a.hi, b.hi))};
}
CONVNET_INLINE Mask operator>(IVec a, IVec b) {
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(a.lo, b.lo)),
          _mm256_castsi256_ps(_mm256_cmpgt_epi32(a.hi, b.hi))};
}
template <int N>
CONVNET_INLINE IVec shift_left(IVec a) {
  return {_mm256_slli_epi32(a.lo, N), _mm256_slli_epi32(a.hi, N)};
}
template <int N>
CONVNET_INLINE IVec shift_right(IVec a) {  // sign extended
  return {_mm256_srai_epi32(a.lo, N), _mm256_srai_epi32(a.hi, N)};
}
template <int N>
CONVNET_INLINE IVec shift_right_zero(IVec a) {
  return {_mm256_srli_epi32(a.lo, N), _mm256_srli_epi32(a.hi, N)};
}
CONVNET_INLINE IVec as_int(Vec a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
CONVNET_INLINE Vec as_float(IVec a) {
  return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)};
}
CONVNET_INLINE IVec to_int(Vec a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
CONVNET_INLINE Vec to_float(IVec a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
CONVNET_INLINE void multiply_wide_half(__m256i a, __m256i f, __m256i* high, __m256i* low) {
  const __m256i even = _mm256_mul_epu32(a, f);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), f);
  *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
  *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
}
// The 64-bit products of a's lanes with m: their upper and lower halves.
CONVNET_INLINE void multiply_wide(IVec a, uint32_t m, IVec* high, IVec* low) {
  const __m256i f = _mm256_set1_epi64x(m);
  multiply_wide_half(a.lo, f, &high->lo, &low->lo);
  multiply_wide_half(a.hi, f, &high->hi, &low->hi);
}

CONVNET_INLINE float sum_lanes(Vec a) {
  const __m256 half = _mm256_add_ps(a.lo, a.hi);
  const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  const __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_shuffle_ps(pair, pair, 1)));
}

#endif

// Eight rows of eight floats, transposed in place.
CONVNET_INLINE void transpose8(__m256 (&a)[8]) {
  __m256 b[8];
  for (int i = 0; i < 4; ++i) {
    b[2 * i] = _mm256_unpacklo_ps(a[2 * i], a[2 * i + 1]);
    b[2 * i + 1] = _mm256_unpackhi_ps(a[2 * i], a[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    a[4 * i] = _mm256_shuffle_ps(b[4 * i], b[4 * i + 2], 0x44);
    a[4 * i + 1] = _mm256_shuffle_ps(b[4 * i], b[4 * i + 2], 0xEE);
    a[4 * i + 2] = _mm256_shuffle_ps(b[4 * i + 1], b[4 * i + 3], 0x44);
    a[4 * i + 3] = _mm256_shuffle_ps(b[4 * i + 1], b[4 * i + 3], 0xEE);
  }
  for (int i = 0; i < 4; ++i) {
    b[i] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x20);
    b[i + 4] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x31);
  }
  for (int i = 0; i < 8; ++i) a[i] = b[i];
}

// 16 x 16: row i of the result holds lane i of the rows of `from` (`from_step` floats apart).
CONVNET_INLINE void transpose16(const float* from, int64_t from_step, float* to, int64_t to_step) {
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 2; ++j) {
      __m256 a[8];
      for (int r = 0; r < 8; ++r) a[r] = _mm256_loadu_ps(from + (8 * i + r) * from_step + 8 * j);
      transpose8(a);
      for (int r = 0; r < 8; ++r) _mm256_storeu_ps(to + (8 * j + r) * to_step + 8 * i, a[r]);
    }
}

}  // namespace convnet::cpu::CONVNET_ISA
