// If this fails, a backward kernel is not the gradient of its forward kernel, and training goes
// astray. Linear operations obey <f(x), dy> = <x, f*(dy)> exactly on integers; the others are
// compared with central differences.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/specs.h"

namespace convnet::kernels {
namespace {

double dot(const Array& a, const Array& b) {
  EXPECT_EQ(a.shape, b.shape);
  double sum = 0;
  for (size_t i = 0; i < a.values.size(); ++i) sum += a.values[i] * b.values[i];
  return sum;
}

// The engines whose arithmetic is exact here; in f32 all sums stay below 2^24.
TEST(Adjoint, Convolution) {
  Rng rng(10);
  for (int i = 0; i < 60; ++i) {
    const ConvSpec s = random_conv(rng);
    const Array x = random_array(rng, s.x(), Fill::kIntegers);
    const Array w = random_array(rng, s.filters(), Fill::kIntegers);
    const Array dy = random_array(rng, s.y(), Fill::kIntegers);
    Case fwd, bwd_data, bwd_weight;
    fwd.op = Op::kConvFwd;
    fwd.attrs = s.attrs().set("act", "none");
    fwd.activation("x", x);
    fwd.parameter("w", w);
    fwd.result("y", s.y());
    bwd_data.op = Op::kConvBwdData;
    bwd_data.attrs = s.attrs();
    bwd_data.activation("dy", dy);
    bwd_data.parameter("w", w);
    bwd_data.result("dx", s.x());
    bwd_weight.op = Op::kConvBwdWeight;
    bwd_weight.attrs = s.attrs().set("cuts", random_cuts(rng, s.n));
    bwd_weight.activation("x", x);
    bwd_weight.activation("dy", dy);
    bwd_weight.result("dw", s.filters(), Format::kPlain);
    for (const Engine& engine : engines()) {
      if (engine.is_reference && engine.dtype == DType::kF32) continue;  // see oracle_test
      const double forward = dot(run(fwd, engine)[0], dy);
      EXPECT_EQ(forward, dot(x, run(bwd_data, engine)[0])) << bwd_data.str() << " " << engine.name;
      EXPECT_EQ(forward, dot(w, run(bwd_weight, engine)[0]))
          << bwd_weight.str() << " " << engine.name;
    }
  }
}

TEST(Adjoint, FullyConnected) {
  Rng rng(11);
  for (int i = 0; i < 30; ++i) {
    Case fwd = random_case(Op::kFcFwd, rng, Fill::kIntegers);
    fwd.attrs.set("act", "none");
    fwd.in.resize(2);
    const Array &x = fwd.in[0].data, &w = fwd.in[1].data;
    const Array dy = random_array(rng, fwd.out[0].data.shape, Fill::kIntegers);
    Case bwd_data, bwd_weight;
    bwd_data.op = Op::kFcBwdData;
    bwd_data.activation("dy", dy);
    bwd_data.parameter("w", w);
    bwd_data.result("dx", x.shape);
    bwd_weight.op = Op::kFcBwdWeight;
    bwd_weight.attrs.set("cuts", random_cuts(rng, x.shape[0]));
    bwd_weight.activation("x", x);
    bwd_weight.activation("dy", dy);
    bwd_weight.result("dw", w.shape, Format::kPlain);
    for (const Engine& engine : engines()) {
      const double forward = dot(run(fwd, engine)[0], dy);
      EXPECT_EQ(forward, dot(x, run(bwd_data, engine)[0])) << bwd_data.str() << " " << engine.name;
      EXPECT_EQ(forward, dot(w, run(bwd_weight, engine)[0]))
          << bwd_weight.str() << " " << engine.name;
    }
  }
}

TEST(Adjoint, AveragePoolingWithExactQuotients) {
  Rng rng(12);
  for (int i = 0; i < 40; ++i) {
    PoolSpec s = random_pool(rng);
    // Whole windows of 1, 2, 4, 8 or 16 pixels only.
    s.kernel = {pick(rng, {1, 2, 4}), pick(rng, {1, 2, 4})};
    s.pad = {0, 0};
    s.ceil = false;
    s.h = std::max(s.h, s.kernel[0]);
    s.w = std::max(s.w, s.kernel[1]);
    Case fwd, bwd;
    fwd.op = Op::kPoolAvgFwd;
    bwd.op = Op::kPoolAvgBwd;
    fwd.attrs = bwd.attrs = s.attrs();
    const Array x = random_array(rng, s.x(), Fill::kIntegers);
    const Array dy = random_array(rng, s.y(), Fill::kIntegers);
    fwd.activation("x", x);
    fwd.result("y", s.y());
    bwd.activation("dy", dy);
    bwd.result("dx", s.x());
    for (const Engine& engine : engines())
      EXPECT_EQ(dot(run(fwd, engine)[0], dy), dot(x, run(bwd, engine)[0]))
          << bwd.str() << " " << engine.name;
  }
}

TEST(Adjoint, Concat) {
  Rng rng(13);
  for (int i = 0; i < 10; ++i) {
    const Case fwd = random_case(Op::kConcatFwd, rng, Fill::kIntegers);
    Case bwd;
    bwd.op = Op::kConcatBwd;
    bwd.activation("dy", random_array(rng, fwd.out[0].data.shape, Fill::kIntegers));
    for (const Slot& part : fwd.in) bwd.result(part.name, part.data.shape);
    for (const Engine& engine : engines()) {
      const auto dx = run(bwd, engine);
      double backward = 0;
      for (size_t part = 0; part < dx.size(); ++part) backward += dot(fwd.in[part].data, dx[part]);
      EXPECT_EQ(dot(run(fwd, engine)[0], bwd.in[0].data), backward) << bwd.str() << engine.name;
    }
  }
}

// d/dx of f at x, by central differences in f64, against `gradient`: the relative error of the
// whole, and of every element against the largest.
void expect_gradient(const std::function<double(const Array&)>& f, const Array& x,
                     const Array& gradient, const std::string& what) {
  constexpr double kStep = 1e-5;
  double largest = 0;
  for (const double g : gradient.values) largest = std::max(largest, std::fabs(g));
  ASSERT_GT(largest, 0) << what;
  for (size_t i = 0; i < x.values.size(); ++i) {
    Array moved = x;
    moved.values[i] = x.values[i] + kStep;
    const double above = f(moved);
    moved.values[i] = x.values[i] - kStep;
    const double slope = (above - f(moved)) / (2 * kStep);
    ASSERT_NEAR(slope, gradient.values[i], 1e-6 * std::max(std::fabs(slope), 1e-2 * largest))
        << what << " element " << i;
  }
}

TEST(Gradient, Activations) {
  Rng rng(14);
  for (const char* act : {"tanh", "sigmoid", "relu"}) {
    const Shape shape{3, 5, 2, 1};
    Array x = random_array(rng, shape, Fill::kFloats);
    for (double& v : x.values)
      if (std::fabs(v) < 0.01) v = 0.01;  // away from relu's kink
    const Array dy = random_array(rng, shape, Fill::kFloats);
    Case fwd, bwd;
    fwd.op = Op::kActFwd;
    fwd.attrs.set("act", act);
    fwd.activation("x", x);
    fwd.result("y", shape);
    bwd.op = Op::kActBwd;
    bwd.attrs.set("act", act);
    bwd.activation("y", run(fwd, reference(DType::kF64))[0]);
    bwd.activation("dy", dy);
    bwd.result("dx", shape);
    const auto f = [&](const Array& at) {
      fwd.in[0].data = at;
      return dot(run(fwd, reference(DType::kF64))[0], dy);
    };
    expect_gradient(f, x, run(bwd, reference(DType::kF64))[0], act);
  }
}

TEST(Gradient, LocalResponseNormalisation) {
  Rng rng(15);
  for (const int64_t size : {1, 3, 5}) {
    const Shape shape{2, 6, 1, 2};
    const Array x = random_array(rng, shape, Fill::kFloats);
    const Array dy = random_array(rng, shape, Fill::kFloats);
    Case fwd, bwd;
    fwd.op = Op::kLrnFwd;
    bwd.op = Op::kLrnBwd;
    fwd.attrs.set("size", size).set("alpha", 0.7).set("beta", 0.75).set("k", 1.5);
    bwd.attrs = fwd.attrs;
    fwd.activation("x", x);
    fwd.result("y", shape);
    fwd.result("scale", shape);
    const auto out = run(fwd, reference(DType::kF64));
    bwd.activation("x", x);
    bwd.activation("y", out[0]);
    bwd.activation("scale", out[1]);
    bwd.activation("dy", dy);
    bwd.result("dx", shape);
    const auto f = [&](const Array& at) {
      fwd.in[0].data = at;
      return dot(run(fwd, reference(DType::kF64))[0], dy);
    };
    expect_gradient(f, x, run(bwd, reference(DType::kF64))[0], bwd.str());
  }
}

TEST(Gradient, SoftmaxLoss) {
  Rng rng(16);
  const Shape shape{4, 5, 1, 1};
  const Array x = random_array(rng, shape, Fill::kFloats);
  Array label(Shape{4});
  label.values = {0, 4, -1, 2};
  Case fwd, bwd;
  fwd.op = Op::kSoftmaxLossFwd;
  fwd.attrs.set("top", std::vector<int64_t>{1}).set("cuts", std::vector<int64_t>{0, 4});
  fwd.activation("x", x);
  fwd.label(label);
  fwd.result("prob", shape);
  fwd.metrics(3);
  bwd.op = Op::kSoftmaxLossBwd;
  bwd.attrs.set("scale", 0.25);
  bwd.activation("prob", run(fwd, reference(DType::kF64))[0]);
  bwd.label(label);
  bwd.result("dx", shape);
  const auto f = [&](const Array& at) {
    fwd.in[0].data = at;
    return run(fwd, reference(DType::kF64))[1].at(0) * 0.25;
  };
  expect_gradient(f, x, run(bwd, reference(DType::kF64))[0], "softmax loss");
}

}  // namespace
}  // namespace convnet::kernels
