// If this fails, a model is trained with another learning rate than its file says, or with rates
// whose bits depend on the machine.
#include "framework/runtime/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "framework/base/exact_math.h"

namespace convnet {
namespace {

using Policy = RateSchedule::Policy;

RateSchedule schedule(Policy policy, int64_t total = 100) {
  RateSchedule s;
  s.base = 0.5;
  s.policy = policy;
  s.total_steps = total;
  return s;
}

TEST(RateSchedule, Constant) {
  const RateSchedule s = schedule(Policy::kConstant);
  EXPECT_EQ(s.rate_at(0), 0.5);
  EXPECT_EQ(s.rate_at(99), 0.5);
}

TEST(RateSchedule, Step) {
  RateSchedule s = schedule(Policy::kStep);
  s.gamma = 0.25;
  s.every = 30;
  EXPECT_EQ(s.rate_at(29), 0.5);
  EXPECT_EQ(s.rate_at(30), 0.125);
  EXPECT_EQ(s.rate_at(59), 0.125);
  EXPECT_EQ(s.rate_at(60), 0.03125);
  s.gamma = 0.1;
  EXPECT_EQ(s.rate_at(90), 0.5 * (0.1 * (0.1 * 0.1)));
}

TEST(RateSchedule, Multistep) {
  RateSchedule s = schedule(Policy::kMultistep);
  s.gamma = 0.5;
  s.at = {10, 50, 51};
  EXPECT_EQ(s.rate_at(9), 0.5);
  EXPECT_EQ(s.rate_at(10), 0.25);
  EXPECT_EQ(s.rate_at(49), 0.25);
  EXPECT_EQ(s.rate_at(50), 0.125);
  EXPECT_EQ(s.rate_at(51), 0.0625);
  EXPECT_EQ(s.rate_at(99), 0.0625);
}

TEST(RateSchedule, Exp) {
  RateSchedule s = schedule(Policy::kExp);
  s.factor = 256;
  EXPECT_EQ(s.rate_at(0), 0.5);
  EXPECT_NEAR(s.rate_at(25), 0.5 / 4, 1e-15);
  EXPECT_NEAR(s.rate_at(50), 0.5 / 16, 1e-15);
  EXPECT_NEAR(s.rate_at(75), 0.5 / 64, 1e-15);
  EXPECT_EQ(s.rate_at(100), 0.5 / 256);
}

// cuda-convnet2's dexp[base;factor;stages]: `stages` rates, each a factor^(1/(stages-1)) below the
// last.
TEST(RateSchedule, Dexp) {
  RateSchedule s = schedule(Policy::kDexp);
  s.factor = 64;
  s.stages = 4;
  EXPECT_EQ(s.rate_at(0), 0.5);
  EXPECT_EQ(s.rate_at(24), 0.5);
  EXPECT_NEAR(s.rate_at(25), 0.5 / 4, 1e-15);
  EXPECT_NEAR(s.rate_at(49), 0.5 / 4, 1e-15);
  EXPECT_NEAR(s.rate_at(50), 0.5 / 16, 1e-15);
  EXPECT_EQ(s.rate_at(75), 0.5 / 64);
  EXPECT_EQ(s.rate_at(99), 0.5 / 64);
  EXPECT_EQ(s.rate_at(100), 0.5 / 64);
  // The stages begin where they should, though k / 90 * 90 need not be k in floating point.
  s = schedule(Policy::kDexp, 90);
  s.factor = 4;
  s.stages = 90;
  for (int64_t step = 1; step < 90; ++step) EXPECT_LT(s.rate_at(step), s.rate_at(step - 1)) << step;
}

TEST(RateSchedule, Linear) {
  RateSchedule s = schedule(Policy::kLinear);
  s.factor = 4;
  EXPECT_EQ(s.rate_at(0), 0.5);
  EXPECT_EQ(s.rate_at(50), 0.5 * 0.625);
  EXPECT_EQ(s.rate_at(100), 0.125);
}

TEST(RateSchedule, Poly) {
  RateSchedule s = schedule(Policy::kPoly);
  EXPECT_EQ(s.rate_at(25), 0.375);
  s.power = 2;
  EXPECT_EQ(s.rate_at(50), 0.125);
  s.power = 0.5;
  EXPECT_NEAR(s.rate_at(75), 0.25, 1e-15);
  EXPECT_EQ(s.rate_at(100), 0);
}

TEST(RateSchedule, Warmup) {
  RateSchedule s = schedule(Policy::kStep);
  s.gamma = 0.5;
  s.every = 2;
  s.warmup_steps = 4;
  s.warmup_from = 0.5;
  EXPECT_EQ(s.rate_at(0), 0.5 * 0.5);
  EXPECT_EQ(s.rate_at(1), 0.5 * 0.625);
  EXPECT_EQ(s.rate_at(2), 0.25 * 0.75);  // under any policy
  EXPECT_EQ(s.rate_at(4), 0.125);
}

double ulps(double a, long double exact) {
  const double e = static_cast<double>(exact);
  const double ulp =
      std::nextafter(std::abs(e), std::numeric_limits<double>::infinity()) - std::abs(e);
  return static_cast<double>(std::abs(a - exact)) / ulp;
}

TEST(ExactMath, IsWithinTwoUnitsInTheLastPlace) {
  double x = 1e-300;
  for (int i = 0; i < 20000; ++i, x *= 1.0712) {
    if (!std::isfinite(x)) break;
    EXPECT_LE(ulps(exact_log(x), logl(x)), 2) << x;
  }
  for (int i = -4000; i < 4000; ++i) {
    const double y = i * 0.1737;
    if (y > -700 && y < 700) {
      EXPECT_LE(ulps(exact_exp(y), expl(y)), 2) << y;
    }
    const double near = 1 + i * 1e-5;
    EXPECT_LE(ulps(exact_log(near), logl(near)), 2) << near;
  }
  EXPECT_NEAR(exact_pow(0.1, 2.5), 0.0031622776601683795, 1e-17);
}

// The bits themselves, so that another machine or compiler shows if it differs.
TEST(ExactMath, Bits) {
  EXPECT_EQ(exact_log(10.0), 0x1.26bb1bbb55516p+1);
  EXPECT_EQ(exact_exp(1.0), 0x1.5bf0a8b14576ap+1);
  EXPECT_EQ(exact_pow(250.0, 1.0 / 3), 0x1.932cbb7f0cf2cp+2);
}

TEST(ExactMath, EndsOfTheRange) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(exact_log(0), -inf);
  EXPECT_EQ(exact_log(inf), inf);
  EXPECT_TRUE(std::isnan(exact_log(-1)));
  EXPECT_EQ(exact_log(1), 0);
  EXPECT_NEAR(exact_log(5e-324), -744.4400719213812, 1e-12);
  EXPECT_EQ(exact_exp(0), 1);
  EXPECT_EQ(exact_exp(710), inf);
  EXPECT_EQ(exact_exp(-746), 0);
  EXPECT_EQ(exact_exp(-745.1), 5e-324);
  EXPECT_EQ(exact_pow(0, 0), 1);
  EXPECT_EQ(exact_pow(2, 10), 1024);
  EXPECT_EQ(exact_pow(2, -2), 0.25);
  EXPECT_EQ(exact_pow(-2, 3), -8);
  EXPECT_TRUE(std::isnan(exact_pow(-2, 0.5)));
  EXPECT_EQ(exact_pow(0, 1.5), 0);
}

}  // namespace
}  // namespace convnet
