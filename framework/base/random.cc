#include "framework/base/random.h"

#include <bit>
#include <cmath>

#include "framework/base/check.h"
#include "framework/base/exact_math.h"

namespace convnet {
namespace {

// The golden ratio's fraction in 64 bits: SplitMix64's increment.
constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;

// SplitMix64's finaliser (Steele, Lea and Flood, OOPSLA 2014), a bijection.
uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

std::array<uint32_t, 4> block(std::array<uint32_t, 2> key, uint64_t counter) {
  return philox({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0}, key);
}

// 64 random bits: the first two words of block `counter`.
uint64_t two_words(std::array<uint32_t, 2> key, uint64_t counter) {
  const auto words = block(key, counter);
  return words[0] | static_cast<uint64_t>(words[1]) << 32;
}

// c[0] + c[1] x + ... + c[7] x^7.
double polynomial(const double (&c)[8], double x) {
  double sum = c[7];
  for (int i = 6; i >= 0; --i) sum = sum * x + c[i];
  return sum;
}

}  // namespace

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> c, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ key[0], static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return c;
}

uint64_t name_key(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  return hash;
}

std::array<uint32_t, 2> random_key(uint64_t seed, uint64_t purpose, uint64_t step) {
  // For one seed, distinct (purpose, step) pairs that agree in either part have distinct keys,
  // since mix is a bijection.
  const uint64_t key = mix(mix(seed + kGolden * (step + 1)) ^ purpose);
  return {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
}

uint32_t random_bits(std::array<uint32_t, 2> key, uint64_t index) {
  return block(key, index / 4)[index % 4];
}

double random_uniform(std::array<uint32_t, 2> key, uint64_t index) {
  return static_cast<double>(random_bits(key, index) >> 8) * 0x1p-24;
}

double inverse_normal(double q) {
  static constexpr double kA[8] = {3.3871328727963666080e0,  1.3314166789178437745e+2,
                                   1.9715909503065514427e+3, 1.3731693765509461125e+4,
                                   4.5921953931549871457e+4, 6.7265770927008700853e+4,
                                   3.3430575583588128105e+4, 2.5090809287301226727e+3};
  static constexpr double kB[8] = {1.0,
                                   4.2313330701600911252e+1,
                                   6.8718700749205790830e+2,
                                   5.3941960214247511077e+3,
                                   2.1213794301586595867e+4,
                                   3.9307895800092710610e+4,
                                   2.8729085735721942674e+4,
                                   5.2264952788528545610e+3};
  static constexpr double kC[8] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                                   5.76949722146069140550e0,  3.64784832476320460504e0,
                                   1.27045825245236838258e0,  2.41780725177450611770e-1,
                                   2.27238449892691845833e-2, 7.74545014278341407640e-4};
  static constexpr double kD[8] = {1.0,
                                   2.05319162663775882187e0,
                                   1.67638483018380384940e0,
                                   6.89767334985100004550e-1,
                                   1.48103976427480074590e-1,
                                   1.51986665636164571966e-2,
                                   5.47593808499534494600e-4,
                                   1.05075007164441684324e-9};
  static constexpr double kE[8] = {6.65790464350110377720e0,  5.46378491116411436990e0,
                                   1.78482653991729133580e0,  2.96560571828504891230e-1,
                                   2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                   2.71155556874348757815e-5, 2.01033439929228813265e-7};
  static constexpr double kF[8] = {1.0,
                                   5.99832206555887937690e-1,
                                   1.36929880922735805310e-1,
                                   1.48753612908506148525e-2,
                                   7.86869131145613259100e-4,
                                   1.84631831751005468180e-5,
                                   1.42151175831644588870e-7,
                                   2.04426310338993978564e-15};
  const double magnitude = q < 0 ? -q : q;
  if (magnitude <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * polynomial(kA, r) / polynomial(kB, r);
  }
  // The nearer tail's probability. Exact for an odd multiple of 2^-54, which random_normal's are.
  double r = std::sqrt(-exact_log(0.5 - magnitude));
  double value;
  if (r <= 5) {
    r -= 1.6;
    value = polynomial(kC, r) / polynomial(kD, r);
  } else {
    r -= 5;
    value = polynomial(kE, r) / polynomial(kF, r);
  }
  return q < 0 ? -value : value;
}

double random_normal(std::array<uint32_t, 2> key, uint64_t index) {
  // 53 bits j name the interval [j, j + 1) of 2^53; its middle less 1/2 is exact in a double, and
  // never +-1/2, where the inverse is infinite.
  const auto j = static_cast<int64_t>(two_words(key, index) >> 11) - (int64_t{1} << 52);
  return inverse_normal((static_cast<double>(j) + 0.5) * 0x1p-53);
}

uint64_t random_below(std::array<uint32_t, 2> key, uint64_t index, uint64_t n) {
  CHECK(n >= 1);
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>(static_cast<Wide>(two_words(key, index)) * n >> 64);
}

uint64_t random_permutation(std::array<uint32_t, 2> key, uint64_t i, uint64_t n) {
  CHECK(i < n);
  if (n == 1) return 0;
  // Unequal halves are as good as equal ones: each round changes one half by a function of the
  // other, which can be undone.
  const int bits = std::bit_width(n - 1);
  const int low_bits = (bits + 1) / 2;
  const uint64_t low_mask = (uint64_t{1} << low_bits) - 1;
  const uint64_t high_mask = (uint64_t{1} << (bits - low_bits)) - 1;
  uint64_t low = i & low_mask, high = i >> low_bits;
  do {  // at most half of the domain lies outside, so two walks on average at worst
    for (uint32_t round = 0; round < 8; round += 2) {
      high ^= philox({static_cast<uint32_t>(low), round, 0, 1}, key)[0] & high_mask;
      low ^= philox({static_cast<uint32_t>(high), round + 1, 0, 1}, key)[0] & low_mask;
    }
  } while ((high << low_bits | low) >= n);
  return high << low_bits | low;
}

}  // namespace convnet
