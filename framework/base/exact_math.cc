#include "framework/base/exact_math.h"

#include <bit>
#include <limits>

namespace convnet {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// ln 2 in two parts: the high one has 32 significant bits, so that its product with a binary
// exponent is exact.
constexpr double kLn2High = 0x1.62e42feep-1;
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
constexpr double kInvLn2 = 0x1.71547652b82fep+0;

constexpr uint64_t kMantissa = (uint64_t{1} << 52) - 1;

// 2^k for a normal result.
double power_of_two(int64_t k) {
  return std::bit_cast<double>(static_cast<uint64_t>(k + 1023) << 52);
}

}  // namespace

double exact_log(double x) {
  if (!(x >= 0)) return kNan;
  if (x == 0) return -kInf;
  if (x == kInf) return kInf;
  int64_t k = 0;
  if (x < 0x1p-1022) {  // subnormal
    x *= 0x1p54;
    k = -54;
  }
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  k += static_cast<int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & kMantissa) | (uint64_t{1023} << 52));  // in [1, 2)
  if (m > 0x1.6a09e667f3bcdp+0) {                                                 // sqrt 2
    m *= 0.5;
    ++k;
  }
  // log m = 2 atanh(s) with s = f / (2 + f), f = m - 1 (exact), |s| < 0.172. Written as
  // f - s (f - series), where series = log m / s - 2: the exact f carries most of it.
  const double f = m - 1;
  const double s = f / (2 + f);
  const double z = s * s;
  double series = 0;  // 2 (z/3 + z^2/5 + ...)
  for (int n = 12; n >= 1; --n) series = z * (2.0 / (2 * n + 1) + series);
  const double high = static_cast<double>(k) * kLn2High;
  const double low = static_cast<double>(k) * kLn2Low;
  return high - ((s * (f - series) - low) - f);
}

double exact_exp(double x) {
  if (x != x) return kNan;
  if (x > 709.8) return kInf;
  if (x < -745.2) return 0;
  const int64_t k = static_cast<int64_t>(x * kInvLn2 + (x < 0 ? -0.5 : 0.5));
  const double r =
      (x - static_cast<double>(k) * kLn2High) - static_cast<double>(k) * kLn2Low;  // |r| < 0.35
  double p = 1;
  for (int n = 14; n >= 1; --n) p = 1 + r / n * p;
  // In two factors, so that results near both ends of the range are reached.
  const int64_t half = k / 2;
  return p * power_of_two(half) * power_of_two(k - half);
}

double exact_pow(double x, double y) {
  if (y == 0) return 1;
  const bool integer = y >= -1024 && y <= 1024 && y == static_cast<double>(static_cast<int>(y));
  if (integer) {
    int n = static_cast<int>(y < 0 ? -y : y);
    double result = 1;
    for (double square = x;; square *= square) {
      if (n & 1) result *= square;
      n >>= 1;
      if (n == 0) break;
    }
    return y < 0 ? 1 / result : result;
  }
  if (x == 1) return 1;
  if (x == 0) return y > 0 ? 0 : kInf;
  return exact_exp(y * exact_log(x));
}

}  // namespace convnet
