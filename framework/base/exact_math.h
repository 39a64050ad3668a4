// Elementary functions whose bits are the same on every machine: plain IEEE operations in a fixed
// order, no call into the system's mathematics library. For schedules and first values; not for
// kernels. "Exact" means reproducible; the errors are stated with each function.
#pragma once

#include <cstdint>

namespace convnet {

// Natural logarithm, within 2 units in the last place. log(0) = -inf; of a negative number: NaN.
double exact_log(double x);

// e^x, within 2 units in the last place; 0 below about -745, inf above about 709.
double exact_exp(double x);

// x^y for x >= 0 (and any x if y is an integer). Integers |y| <= 1024: repeated squaring, relative
// error at most |y| * 2^-53; otherwise exp(y log x), relative error about (2 + |y log x|) * 2^-53.
// x^0 = 1; a negative x with a fractional y: NaN.
double exact_pow(double x, double y);

}  // namespace convnet
