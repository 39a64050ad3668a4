// exp, log, tanh, sigmoid and power over Vec: polynomials with explicit fma, the same bits on every
// instruction set. Largest errors found on every 37th float, against double, in units in the last
// place: exp 1.0, log 0.8, tanh 1.3, sigmoid 1.5 (of negative numbers 2.3); power(s, 0.7) for s
// from 1 to 16: 2.7. exp gives 0 and infinity where the result is beyond float's range, and NaN of
// NaN.
#pragma once

#include "framework/backends/cpu/kernels.h"
#include "framework/backends/cpu/kernels/vec.h"

namespace convnet::cpu::CONVNET_ISA {

CONVNET_INLINE Vec infinity() { return as_float(iset1(0x7F800000)); }
CONVNET_INLINE Vec nan() { return as_float(iset1(0x7FC00000)); }
CONVNET_INLINE Vec magnitude(Vec a) { return as_float(as_int(a) & iset1(0x7FFFFFFF)); }
CONVNET_INLINE Vec negative(Vec a) { return as_float(as_int(a) ^ iset1(INT32_MIN)); }

// 2^n for integers -252 <= n <= 254 as two factors, so that a * first * second rounds once.
CONVNET_INLINE Vec scale(Vec a, IVec n) {
  const IVec first = shift_right<1>(n);
  const IVec second = n - first;
  const Vec f = as_float(shift_left<23>(first + iset1(127)));
  const Vec s = as_float(shift_left<23>(second + iset1(127)));
  return a * f * s;
}

// e^x: x = n log 2 + r with |r| <= log(2) / 2, log 2 in two parts; e^r by a polynomial (the
// coefficients of Cephes' expf, S. Moshier).
CONVNET_INLINE Vec exp(Vec x) {
  // Beyond these bounds the result is infinite or zero; NaN stays, as min and max return their
  // second operand.
  const Vec bounded = max(set1(-150.0f), min(set1(90.0f), x));
  const Vec n = round(bounded * set1(1.44269504088896341f));
  Vec r = fnma(n, set1(0.693359375f), bounded);
  r = fnma(n, set1(-2.12194440e-4f), r);
  Vec p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = fma(p, r * r, r);
  return scale(p + set1(1.0f), to_int(n));
}

// Natural logarithm: x = 2^e m with m in [sqrt(1/2), sqrt(2)); log m by Cephes' logf polynomial.
CONVNET_INLINE Vec log(Vec x) {
  const Mask small = set1(1.17549435e-38f) > x;
  const Vec normal = select(small, x * set1(8388608.0f), x);
  const IVec offset = iset1(0x3F3504F3);  // sqrt(1/2)
  const IVec bits_of = as_int(normal) - offset;
  const IVec e = shift_right<23>(bits_of);
  const Vec m = as_float((bits_of & iset1(0x007FFFFF)) + offset);
  const Vec exponent = to_float(e) - select(small, set1(23.0f), zero());
  const Vec f = m - set1(1.0f);
  const Vec f2 = f * f;
  Vec p = set1(7.0376836292e-2f);
  p = fma(p, f, set1(-1.1514610310e-1f));
  p = fma(p, f, set1(1.1676998740e-1f));
  p = fma(p, f, set1(-1.2420140846e-1f));
  p = fma(p, f, set1(1.4249322787e-1f));
  p = fma(p, f, set1(-1.6668057665e-1f));
  p = fma(p, f, set1(2.0000714765e-1f));
  p = fma(p, f, set1(-2.4999993993e-1f));
  p = fma(p, f, set1(3.3333331174e-1f));
  p = p * f * f2;
  p = fma(exponent, set1(-2.12194440e-4f), p);
  p = fma(set1(-0.5f), f2, p);
  Vec y = fma(exponent, set1(0.693359375f), f + p);
  y = select(x == infinity(), x, y);
  y = select(x == zero(), negative(infinity()), y);
  return select(x >= zero(), y, nan());
}

CONVNET_INLINE Vec sigmoid(Vec x) {
  const Vec e = exp(negative(magnitude(x)));
  return select(x >= zero(), set1(1.0f), e) / (set1(1.0f) + e);
}

// Below 0.625 an odd polynomial (Cephes' tanhf), above 1 - 2 / (e^2|x| + 1) with the sign of x.
CONVNET_INLINE Vec tanh(Vec x) {
  const Vec a = magnitude(x);
  const Vec z = x * x;
  Vec p = set1(-5.70498872745e-3f);
  p = fma(p, z, set1(2.06390887954e-2f));
  p = fma(p, z, set1(-5.37397155531e-2f));
  p = fma(p, z, set1(1.33314422036e-1f));
  p = fma(p, z, set1(-3.33332819422e-1f));
  const Vec near = fma(p * z, x, x);
  const Vec e = exp(a + a);
  const Vec far = set1(1.0f) - set1(2.0f) / (e + set1(1.0f));
  const IVec sign = as_int(x) & iset1(INT32_MIN);
  return select(a >= set1(0.625f), as_float(as_int(far) | sign), near);
}

// s^-beta for s > 0.
CONVNET_INLINE Vec power(Vec s, Vec beta) { return exp(negative(beta) * log(s)); }

CONVNET_INLINE Vec activate(int32_t act, Vec x) {
  switch (act) {
    case kActRelu:
      return max(zero(), x);
    case kActTanh:
      return tanh(x);
    case kActSigmoid:
      return sigmoid(x);
    default:
      return x;
  }
}

}  // namespace convnet::cpu::CONVNET_ISA
