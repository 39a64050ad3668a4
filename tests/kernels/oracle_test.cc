// If this fails, the reference backend, against which all other kernels are tested, is itself
// wrong. The oracles here are written another way: one loop over all terms that scatters each.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "framework/base/random.h"
#include "tests/kernels/specs.h"

namespace convnet::kernels {
namespace {

struct ConvArrays {
  Array x, w, b, dy;    // given
  Array y, dx, dw, db;  // made
};

ConvArrays scatter_conv(const ConvSpec& s, Rng& rng) {
  ConvArrays a{random_array(rng, s.x(), Fill::kIntegers),
               random_array(rng, s.filters(), Fill::kIntegers),
               random_array(rng, Shape{s.k}, Fill::kIntegers),
               random_array(rng, s.y(), Fill::kIntegers),
               Array(s.y()),
               Array(s.x()),
               Array(s.filters()),
               Array(Shape{s.k})};
  const Shape y = s.y();
  const int64_t channels = s.c / s.groups, filters = s.k / s.groups;
  for (int64_t n = 0; n < s.n; ++n)
    for (int64_t k = 0; k < s.k; ++k)
      for (int64_t p = 0; p < y[2]; ++p)
        for (int64_t q = 0; q < y[3]; ++q) {
          a.y.at(n, k, p, q) += a.b.at(k);
          a.db.at(k) += a.dy.at(n, k, p, q);
          for (int64_t c = 0; c < channels; ++c)
            for (int64_t r = 0; r < s.kernel[0]; ++r)
              for (int64_t t = 0; t < s.kernel[1]; ++t) {
                const int64_t h = p * s.stride[0] + r * s.dilation[0] - s.pad[0];
                const int64_t v = q * s.stride[1] + t * s.dilation[1] - s.pad[1];
                if (h < 0 || h >= s.h || v < 0 || v >= s.w) continue;
                const int64_t channel = k / filters * channels + c;
                a.y.at(n, k, p, q) += a.x.at(n, channel, h, v) * a.w.at(k, c, r, t);
                a.dx.at(n, channel, h, v) += a.dy.at(n, k, p, q) * a.w.at(k, c, r, t);
                a.dw.at(k, c, r, t) += a.dy.at(n, k, p, q) * a.x.at(n, channel, h, v);
              }
        }
  return a;
}

TEST(Oracle, Convolution) {
  Rng rng(1);
  for (int i = 0; i < 40;) {
    const ConvSpec s = random_conv(rng);
    if (s.y().count() * s.filters().count() / s.k > 100'000) continue;
    ++i;
    const ConvArrays a = scatter_conv(s, rng);
    Case fwd, bwd_data, bwd_weight;
    fwd.op = Op::kConvFwd;
    fwd.attrs = s.attrs().set("act", "none");
    fwd.activation("x", a.x);
    fwd.parameter("w", a.w);
    fwd.parameter("b", a.b);
    fwd.result("y", s.y());
    bwd_data.op = Op::kConvBwdData;
    bwd_data.attrs = s.attrs();
    bwd_data.activation("dy", a.dy);
    bwd_data.parameter("w", a.w);
    bwd_data.result("dx", s.x());
    bwd_weight.op = Op::kConvBwdWeight;
    bwd_weight.attrs = s.attrs().set("cuts", random_cuts(rng, s.n));
    bwd_weight.activation("x", a.x);
    bwd_weight.activation("dy", a.dy);
    bwd_weight.result("dw", s.filters(), Format::kPlain);
    bwd_weight.result("db", Shape{s.k}, Format::kPlain);
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      const Engine& engine = reference(dtype);
      expect_equal(run(fwd, engine)[0], a.y, fwd.str());
      expect_equal(run(bwd_data, engine)[0], a.dx, bwd_data.str());
      const auto grads = run(bwd_weight, engine);
      expect_equal(grads[0], a.dw, bwd_weight.str());
      expect_equal(grads[1], a.db, bwd_weight.str());
    }
  }
}

TEST(Oracle, FullyConnected) {
  Rng rng(2);
  for (int i = 0; i < 10; ++i) {
    const Shape x_shape{pick(rng, {1, 16, 17}), 3, 2, 4}, w_shape{5, 24};
    const Array x = random_array(rng, x_shape, Fill::kIntegers);
    const Array w = random_array(rng, w_shape, Fill::kIntegers);
    const Array b = random_array(rng, Shape{5}, Fill::kIntegers);
    const Array dy = random_array(rng, Shape{x_shape[0], 5, 1, 1}, Fill::kIntegers);
    Array y(dy.shape), dx(x_shape), dw(w_shape), db(Shape{5});
    for (int64_t n = 0; n < x_shape[0]; ++n)
      for (int64_t k = 0; k < 5; ++k) {
        y.at(n, k) += b.at(k);
        db.at(k) += dy.at(n, k);
        for (int64_t j = 0; j < 24; ++j) {  // row-major positions of one example are the columns
          const auto at = static_cast<size_t>(n * 24 + j);
          y.at(n, k) += x.values[at] * w.at(k, j);
          dx.values[at] += dy.at(n, k) * w.at(k, j);
          dw.at(k, j) += dy.at(n, k) * x.values[at];
        }
      }
    for (double& v : y.values) v = std::max(v, 0.0);
    Case fwd, bwd_data, bwd_weight;
    fwd.op = Op::kFcFwd;
    fwd.attrs.set("act", "relu");
    fwd.activation("x", x);
    fwd.parameter("w", w);
    fwd.parameter("b", b);
    fwd.result("y", y.shape);
    bwd_data.op = Op::kFcBwdData;
    bwd_data.activation("dy", dy);
    bwd_data.parameter("w", w);
    bwd_data.result("dx", x_shape);
    bwd_weight.op = Op::kFcBwdWeight;
    bwd_weight.attrs.set("cuts", random_cuts(rng, x_shape[0]));
    bwd_weight.activation("x", x);
    bwd_weight.activation("dy", dy);
    bwd_weight.result("dw", w_shape, Format::kPlain);
    bwd_weight.result("db", Shape{5}, Format::kPlain);
    expect_equal(run(fwd, reference(DType::kF32))[0], y, fwd.str());
    expect_equal(run(bwd_data, reference(DType::kF32))[0], dx, bwd_data.str());
    expect_equal(run(bwd_weight, reference(DType::kF64))[0], dw, bwd_weight.str());
    expect_equal(run(bwd_weight, reference(DType::kF64))[1], db, bwd_weight.str());
  }
}

TEST(Oracle, Pooling) {
  Rng rng(3);
  for (int i = 0; i < 40; ++i) {
    PoolSpec s = random_pool(rng);
    s.n = 2;
    const Shape shape = s.y();
    const Array x = random_array(rng, s.x(), Fill::kIntegers);  // with many equal pixels
    const Array dy = random_array(rng, shape, Fill::kIntegers);
    Array largest(shape), mean(shape), dx_max(s.x()), dx_mean(s.x());
    for (int64_t n = 0; n < s.n; ++n)
      for (int64_t c = 0; c < s.c; ++c)
        for (int64_t p = 0; p < shape[2]; ++p)
          for (int64_t q = 0; q < shape[3]; ++q) {
            std::vector<std::array<int64_t, 2>> pixels;
            for (int64_t r = 0; r < s.kernel[0]; ++r)
              for (int64_t t = 0; t < s.kernel[1]; ++t) {
                const int64_t h = p * s.stride[0] + r - s.pad[0];
                const int64_t v = q * s.stride[1] + t - s.pad[1];
                if (h >= 0 && h < s.h && v >= 0 && v < s.w) pixels.push_back({h, v});
              }
            const auto value = [&](const auto& at) { return x.at(n, c, at[0], at[1]); };
            const auto best = *std::max_element(
                pixels.begin(), pixels.end(),
                [&](const auto& a, const auto& b) { return value(a) < value(b); });
            largest.at(n, c, p, q) = value(best);
            dx_max.at(n, c, best[0], best[1]) += dy.at(n, c, p, q);
            const auto count = static_cast<double>(pixels.size());
            double sum = 0;
            for (const auto& at : pixels) {
              sum += value(at);
              dx_mean.at(n, c, at[0], at[1]) += dy.at(n, c, p, q) / count;
            }
            mean.at(n, c, p, q) = sum / count;
          }
    Case c;
    c.attrs = s.attrs();
    c.op = Op::kPoolMaxFwd;
    c.activation("x", x);
    c.result("y", shape);
    expect_equal(run(c, reference(DType::kF32))[0], largest, c.str());
    c.op = Op::kPoolAvgFwd;
    expect_equal(run(c, reference(DType::kF64))[0], mean, c.str());
    c.op = Op::kPoolMaxBwd;
    c.activation("dy", dy);
    c.out.clear();
    c.result("dx", s.x());
    expect_equal(run(c, reference(DType::kF32))[0], dx_max, c.str());
    c.op = Op::kPoolAvgBwd;
    c.in.erase(c.in.begin());
    expect_near(run(c, reference(DType::kF64))[0], dx_mean, Array(s.x(), 1e-13), c.str());
  }
}

TEST(Oracle, MaximumGoesToTheFirstOfEqualPixels) {
  Case c;
  c.op = Op::kPoolMaxBwd;
  c.attrs.set("kernel", std::vector<int64_t>{2, 2})
      .set("stride", std::vector<int64_t>{2, 2})
      .set("pad", std::vector<int64_t>{0, 0});
  Array x(Shape{1, 1, 2, 2}, 5);
  c.activation("x", x);
  c.activation("dy", Array(Shape{1, 1, 1, 1}, 3));
  c.result("dx", x.shape);
  for (const Engine& engine : engines()) {
    for (double& v : c.in[0].data.values) v = 5;
    EXPECT_EQ(run(c, engine)[0].values, (std::vector<double>{3, 0, 0, 0})) << engine.name;
    c.in[0].data.values = {4, 5, 5, 5};
    EXPECT_EQ(run(c, engine)[0].values, (std::vector<double>{0, 3, 0, 0})) << engine.name;
    c.in[0].data.values = {4, 4, 5, 5};
    EXPECT_EQ(run(c, engine)[0].values, (std::vector<double>{0, 0, 3, 0})) << engine.name;
  }
}

TEST(Oracle, LocalResponseNormalisation) {
  Case c;
  c.op = Op::kLrnFwd;
  c.attrs.set("size", 3).set("alpha", 0.3).set("beta", 0.75).set("k", 2.0);
  Array x(Shape{1, 4, 1, 1});
  x.values = {1, -2, 3, 0.5};
  c.activation("x", x);
  c.result("y", x.shape);
  c.result("scale", x.shape);
  const auto out = run(c, reference(DType::kF64));
  const double sums[] = {5, 14, 13.25, 9.25};
  for (size_t i = 0; i < 4; ++i) {
    const double scale = 2 + 0.1 * sums[i];
    EXPECT_NEAR(out[1].values[i], scale, 1e-14);
    EXPECT_NEAR(out[0].values[i], x.values[i] * std::pow(scale, -0.75), 1e-14);
  }
}

TEST(Oracle, Activations) {
  Rng rng(4);
  Array x(Shape{1, 4000, 1, 1});
  for (double& v : x.values)
    v = std::ldexp(static_cast<double>(between(rng, -1000, 1000)),
                   static_cast<int>(rng() % 40) - 44);
  const struct {
    const char* act;
    double (*f)(double);
  } functions[] = {{"none", [](double v) { return v; }},
                   {"relu", [](double v) { return std::max(v, 0.0); }},
                   {"tanh", [](double v) { return std::tanh(v); }},
                   {"sigmoid", [](double v) { return 1 / (1 + std::exp(-v)); }}};
  for (const auto& [act, f] : functions) {
    Case c;
    c.op = Op::kActFwd;
    c.attrs.set("act", act);
    c.activation("x", x);
    c.result("y", x.shape);
    Array want(x.shape), bound(x.shape);
    for (size_t i = 0; i < x.values.size(); ++i) {
      want.values[i] = f(x.values[i]);
      bound.values[i] = 2e-14 * std::fabs(want.values[i]);
    }
    expect_near(run(c, reference(DType::kF64))[0], want, bound, c.str());
  }
}

// Were it 0, a diverged network could have a finite loss.
TEST(Oracle, ReluOfNaNIsNaN) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Case act;
  act.op = Op::kActFwd;
  act.attrs.set("act", "relu");
  act.activation("x", Array(Shape{1, 1, 1, 1}, nan));
  act.result("y", Shape{1, 1, 1, 1}).may_be_nan = true;
  Case fc;
  fc.op = Op::kFcFwd;
  fc.attrs.set("act", "relu");
  fc.activation("x", Array(Shape{1, 1, 1, 1}, nan));
  fc.parameter("w", Array(Shape{1, 1}, 1));
  fc.result("y", Shape{1, 1, 1, 1}).may_be_nan = true;
  for (const Engine& engine : engines())
    for (const Case& c : {act, fc})
      EXPECT_TRUE(std::isnan(run(c, engine)[0].at(0))) << engine.name << " " << c.str();
}

TEST(Oracle, DropoutDrawsTheDefinedMask) {
  const Shape shape{17, 3, 2, 5};
  Case c;
  c.op = Op::kDropoutFwd;
  c.attrs.set("rate", 0.3).set("key", -5);
  c.step = 11;
  c.seed = 99;
  c.activation("x", Array(shape, 7));
  c.result("y", shape);
  Array want(shape);
  const auto key = random_key(99, static_cast<uint64_t>(-5), 11);
  for (size_t i = 0; i < want.values.size(); ++i)
    want.values[i] = random_uniform(key, i) >= 0.3 ? static_cast<double>(7.0f / 0.7f) : 0.0;
  for (const Engine& engine : engines())
    if (engine.dtype == DType::kF32)
      for (const Op op : {Op::kDropoutFwd, Op::kDropoutBwd}) {
        c.op = op;
        expect_equal(run(c, engine)[0], want, c.str() + " on " + engine.name);
      }
  // An element is kept if its number equals the rate.
  c.attrs.set("rate", random_uniform(key, 123));
  for (const Engine& engine : engines()) EXPECT_GT(run(c, engine)[0].values[123], 7) << engine.name;
}

TEST(Oracle, ConcatPutsPartsOneAfterTheOther) {
  Rng rng(5);
  const Array a = random_array(rng, Shape{17, 2, 2, 3}, Fill::kIntegers);
  const Array b = random_array(rng, Shape{17, 3, 2, 3}, Fill::kIntegers);
  Array y(Shape{17, 5, 2, 3});
  for_each_position(y.shape, Box(y.shape), [&](size_t i) {
    const size_t n = i / 30, c = i / 6 % 5, pixel = i % 6;
    y.values[i] = c < 2 ? a.values[(n * 2 + c) * 6 + pixel] : b.values[(n * 3 + c - 2) * 6 + pixel];
  });
  Case fwd, bwd;
  fwd.op = Op::kConcatFwd;
  fwd.activation("a", a);
  fwd.activation("b", b);
  fwd.result("y", y.shape);
  bwd.op = Op::kConcatBwd;
  bwd.activation("dy", y);
  bwd.result("a", a.shape);
  bwd.result("b", b.shape);
  for (const Engine& engine : engines()) {
    expect_equal(run(fwd, engine)[0], y, engine.name);
    expect_equal(run(bwd, engine)[0], a, engine.name);
    expect_equal(run(bwd, engine)[1], b, engine.name);
  }
}

TEST(Oracle, SoftmaxLossAndAccuracy) {
  const Shape shape{4, 3, 1, 1};
  Array x(shape);
  x.values = {1, 2, 3, /* label -1 */ 9, 9, 9, /* equal scores */ 5, 5, 5, 1000, 0, -1000};
  Array label(Shape{4});
  label.values = {2, -1, 1, 2};
  Case c;
  c.op = Op::kSoftmaxLossFwd;
  c.attrs.set("top", std::vector<int64_t>{1, 2, 3}).set("cuts", std::vector<int64_t>{0, 4});
  c.activation("x", x);
  c.label(label);
  c.result("prob", shape);
  c.metrics(5);
  for (const Engine& engine : engines()) {
    const auto out = run(c, engine);
    const double eps = engine.dtype == DType::kF32 ? 1e-6 : 1e-14;
    const double z = std::exp(-2.0) + std::exp(-1.0) + 1;
    EXPECT_NEAR(out[0].at(0, 0), std::exp(-2.0) / z, eps) << engine.name;
    EXPECT_NEAR(out[0].at(0, 2), 1 / z, eps) << engine.name;
    EXPECT_NEAR(out[0].at(2, 1), 1.0 / 3, eps) << engine.name;
    EXPECT_EQ(out[0].at(3, 0), 1) << engine.name;
    EXPECT_EQ(out[0].at(3, 2), 0) << engine.name;
    EXPECT_NEAR(out[1].at(0), std::log(z) + std::log(3.0) + 2000, 2000 * eps) << engine.name;
    EXPECT_EQ(out[1].at(1), 3) << engine.name;
    // Within top 1: example 0. Top 2: also example 2, which one equal score of lower index
    // precedes.
    EXPECT_EQ(out[1].at(2), 1) << engine.name;
    EXPECT_EQ(out[1].at(3), 2) << engine.name;
    EXPECT_EQ(out[1].at(4), 3) << engine.name;
  }
  Case bwd;
  bwd.op = Op::kSoftmaxLossBwd;
  bwd.attrs.set("scale", 0.25);
  Array prob(shape);
  prob.values = {0.25, 0.25, 0.5, 1, 1, 1, 0.5, 0.25, 0.25, 1, 0, 0};
  bwd.activation("prob", prob);
  bwd.label(label);
  bwd.result("dx", shape);
  for (const Engine& engine : engines())
    EXPECT_EQ(run(bwd, engine)[0].values,
              (std::vector<double>{0.0625, 0.0625, -0.125, 0, 0, 0, 0.125, -0.1875, 0.0625, 0.25, 0,
                                   -0.25}))
        << engine.name;
}

TEST(Oracle, SgdWithMomentumAndDecay) {
  Case c;
  c.op = Op::kUpdateSgd;
  c.attrs.set("rate", 2.0).set("decay", 0.5).set("momentum", 0.25);
  c.rate = 0.125;
  for (const double v : {8.0, 4.0, 16.0}) c.parameter("p", Array(Shape{3}, v));
  c.result("w", Shape{3}, Format::kPlain).alias = 1;
  c.result("m", Shape{3}, Format::kPlain).alias = 2;
  for (const Engine& engine : engines()) {
    const auto out = run(c, engine);
    // m = 0.25 * 16 - 0.25 * (8 + 0.5 * 4), w = 4 + m
    EXPECT_EQ(out[1].values, (std::vector<double>{1.5, 1.5, 1.5})) << engine.name;
    EXPECT_EQ(out[0].values, (std::vector<double>{5.5, 5.5, 5.5})) << engine.name;
  }
}

// Two fused multiply-adds, so that all backends round at the same places.
TEST(Oracle, SgdRoundsAsDefined) {
  Rng rng(6);
  const Shape shape{3, 7, 5, 5};
  Case c;
  c.op = Op::kUpdateSgd;
  c.attrs.set("rate", 2.0).set("decay", 0.7).set("momentum", 0.9);
  c.rate = 0.4;
  for (const char* name : {"dw", "w", "m"})
    c.parameter(name, random_array(rng, shape, Fill::kFloats));
  c.result("w", shape, Format::kPlain).alias = 1;
  c.result("m", shape, Format::kPlain).alias = 2;
  Array w(shape), m(shape);
  for (size_t i = 0; i < w.values.size(); ++i) {
    const auto value = [&](size_t operand) {
      return static_cast<float>(c.in[operand].data.values[i]);
    };
    const float t = std::fma(0.7f, value(1), value(0));
    const float step = std::fma(0.9f, value(2), -(0.8f * t));
    m.values[i] = step;
    w.values[i] = value(1) + step;
  }
  for (const Engine& engine : engines()) {
    if (engine.dtype != DType::kF32) continue;
    const auto out = run(c, engine);
    expect_same_bits(out[0], w, engine.name);
    expect_same_bits(out[1], m, engine.name);
  }
}

TEST(Oracle, GuardStopsWhenTheLossIsNotFinite) {
  for (const Engine& engine : engines())
    for (const double loss : {0.0, -1e300, std::nan(""), HUGE_VAL, -HUGE_VAL}) {
      Case c;
      c.op = Op::kGuard;
      c.parameter("metrics", Array(Shape{3}, loss)).kind = Slot::Kind::kMetrics;
      const Outcome outcome = try_run(c, engine);
      ASSERT_TRUE(outcome.bound.ok()) << engine.name << ": " << outcome.bound.message();
      EXPECT_EQ(outcome.stop, !std::isfinite(loss)) << engine.name << " " << loss;
    }
}

}  // namespace
}  // namespace convnet::kernels
