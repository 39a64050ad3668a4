// If this fails, a kernel of the cpu backend computes something else than the reference: wrong
// shapes at the edges of tiles, or more rounding than the length of its sums explains.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ranges>

#include "tests/kernels/specs.h"

namespace convnet::kernels {
namespace {

constexpr double kUnit = 0x1p-24;  // relative error of one rounding in f32

// What a quotient of small integers is rounded to is exact in both, but a sum of such quotients is
// not.
bool exact_on_integers(Op op) {
  switch (op) {
    case Op::kLrnFwd:
    case Op::kLrnBwd:
    case Op::kSoftmaxLossFwd:
    case Op::kPoolAvgBwd:
    case Op::kSoftmaxStats:
    case Op::kSoftmaxNorm:
    case Op::kSoftmaxMetrics:
      return false;
    default:
      return true;
  }
}

int cases_of(Op op) {
  return op == Op::kConvFwd || op == Op::kConvBwdData || op == Op::kConvBwdWeight ? 150 : 30;
}

TEST(Equality, IntegersGiveTheReferencesBits) {
  for (const Op op : numeric_ops()) {
    if (!exact_on_integers(op)) continue;
    Rng rng(100 + static_cast<uint64_t>(op));
    for (int i = 0; i < cases_of(op); ++i) {
      Case c = random_case(op, rng, Fill::kIntegers);
      if (i % 2) c = with_cuts(std::move(c), rng);
      const auto want = run(c, reference(DType::kF32));
      for (const Engine& engine : cpu_engines()) {
        const auto got = run(c, engine, 1 + i / 2 % 2);
        for (size_t r = 0; r < want.size(); ++r)
          expect_equal(got[r], want[r], c.str() + " on " + engine.name);
      }
    }
  }
}

// Layers long enough in every direction to be cut for the caches: few, because the reference is
// slow.
TEST(Equality, LargeLayersOnIntegers) {
  Rng rng(150);
  std::vector<Case> cases;
  const ConvSpec specs[] = {
      {1, 256, 8, 8, 64, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1},
      {1, 3, 67, 67, 48, {11, 11}, {4, 4}, {2, 2}, {1, 1}, 1},
      {17, 40, 5, 5, 70, {5, 5}, {1, 1}, {2, 2}, {1, 1}, 2},
      {1, 24, 40, 40, 130, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 1},
      {48, 300, 2, 2, 200, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 1},
  };
  for (const Op op : {Op::kConvFwd, Op::kConvBwdData, Op::kConvBwdWeight})
    for (const ConvSpec& spec : specs) cases.push_back(conv_case(op, spec, rng, Fill::kIntegers));
  for (const Op op : {Op::kFcFwd, Op::kFcBwdData, Op::kFcBwdWeight})
    for (const int64_t outputs : {10, 530})
      cases.push_back(fc_case(op, Shape{17, 64, 5, 5}, outputs, rng, Fill::kIntegers));
  for (const size_t i : std::views::iota(size_t{0}, cases.size()))
    cases.push_back(with_cuts(cases[i], rng));
  for (const Case& c : cases) {
    const auto want = run(c, reference(DType::kF32));
    for (const Engine& engine : cpu_engines())
      for (const int threads : {1, 3}) {
        const auto got = run(c, engine, threads);
        for (size_t r = 0; r < want.size(); ++r)
          expect_equal(got[r], want[r], c.str() + " on " + engine.name);
      }
  }
}

// Same formula, same order, one rounding each: equal bits on any floats.
TEST(Equality, ElementwiseOperationsGiveTheReferencesBits) {
  for (const Op op : {Op::kAdd, Op::kDropoutFwd, Op::kDropoutBwd, Op::kConcatFwd, Op::kConcatBwd,
                      Op::kPoolMaxFwd, Op::kUpdateSgd, Op::kSoftmaxLossBwd}) {
    Rng rng(200 + static_cast<uint64_t>(op));
    for (int i = 0; i < 30; ++i) {
      Case c = random_case(op, rng, Fill::kFloats);
      if (op == Op::kAdd) c.attrs.set("act", i % 2 ? "none" : "relu");
      const auto want = run(c, reference(DType::kF32));
      for (const Engine& engine : cpu_engines()) {
        const auto got = run(c, engine, 2);
        for (size_t r = 0; r < want.size(); ++r)
          expect_equal(got[r], want[r], c.str() + " on " + engine.name);
      }
    }
  }
}

// The longest sum behind one element of a result.
double terms(const Case& c) {
  const auto inner = [](const Shape& s) { return static_cast<double>(s.count() / s[0]); };
  const Shape& first = c.in[0].data.shape;
  switch (c.op) {
    case Op::kConvFwd:
    case Op::kFcFwd:
      return inner(c.in[1].data.shape) + 1;
    case Op::kConvBwdData:
      return inner(c.in[1].data.shape) * static_cast<double>(c.in[1].data.shape[0]);
    case Op::kFcBwdData:
      return static_cast<double>(c.in[1].data.shape[0]);
    case Op::kConvBwdWeight:
      return static_cast<double>(first[0]) * static_cast<double>(c.in[1].data.shape[2]) *
             static_cast<double>(c.in[1].data.shape[3]);
    case Op::kFcBwdWeight:
      return static_cast<double>(first[0]);
    case Op::kPoolAvgFwd:
    case Op::kPoolAvgBwd:
    case Op::kPoolMaxBwd:
      return 5 * 5 + 2;
    default:
      return 4;
  }
}

Array magnitudes(Array a) {
  for (double& v : a.values) v = std::fabs(v);
  return a;
}

// Sums of products: |error| <= terms * unit * sum |a| |b| (the second run computes that sum), and
// the activations, which have slopes up to 1, add a few roundings of their own.
TEST(Equality, FloatsStayWithinTheBoundOfTheirSums) {
  for (const Op op : {Op::kConvFwd, Op::kConvBwdData, Op::kConvBwdWeight, Op::kFcFwd,
                      Op::kFcBwdData, Op::kFcBwdWeight, Op::kPoolAvgFwd, Op::kPoolAvgBwd}) {
    Rng rng(300 + static_cast<uint64_t>(op));
    for (int i = 0; i < cases_of(op) / 3; ++i) {
      const Case c = random_case(op, rng, Fill::kFloats);
      Case sums = c;
      for (Slot& slot : sums.in) slot.data = magnitudes(slot.data);
      if (sums.attrs.has("act")) sums.attrs.set("act", "none");
      const auto want = run(c, reference(DType::kF64));
      auto bound = run(sums, reference(DType::kF64));
      for (size_t r = 0; r < want.size(); ++r)
        for (size_t e = 0; e < want[r].values.size(); ++e)
          bound[r].values[e] = kUnit * (1.01 * (terms(c) + 3) * bound[r].values[e] +
                                        8 * std::fabs(want[r].values[e]));
      for (const Engine& engine : engines()) {
        const auto got = run(c, engine);
        for (size_t r = 0; r < want.size(); ++r)
          expect_near(got[r], want[r], bound[r], c.str() + " on " + engine.name);
      }
    }
  }
}

TEST(Equality, MaximumPoolingBackwardOnFloats) {
  Rng rng(400);
  for (int i = 0; i < 30; ++i) {
    const Case c = random_case(Op::kPoolMaxBwd, rng, Fill::kFloats);
    Case sums = c;
    sums.in[1].data = magnitudes(sums.in[1].data);
    const auto want = run(c, reference(DType::kF64))[0];
    Array bound = run(sums, reference(DType::kF64))[0];
    for (double& v : bound.values) v *= 26 * kUnit;
    for (const Engine& engine : engines())
      expect_near(run(c, engine)[0], want, bound, c.str() + " on " + engine.name);
  }
}

TEST(Equality, Activations) {
  Rng rng(401);
  for (const char* act : {"none", "relu", "tanh", "sigmoid"}) {
    Case fwd, bwd;
    const Shape shape{17, 50, 3, 3};
    Array x = random_array(rng, shape, Fill::kFloats);
    for (double& v : x.values)  // from tiny to where the functions are flat
      v = static_cast<float>(std::ldexp(v, static_cast<int>(rng() % 24) - 18));
    fwd.op = Op::kActFwd;
    fwd.attrs.set("act", act);
    fwd.activation("x", x);
    fwd.result("y", shape);
    bwd.op = Op::kActBwd;
    bwd.attrs.set("act", act);
    bwd.activation("y", run(fwd, reference(DType::kF32))[0]);
    bwd.activation("dy", random_array(rng, shape, Fill::kFloats));
    bwd.result("dx", shape);
    const Array y = run(fwd, reference(DType::kF64))[0];
    const Array dx = run(bwd, reference(DType::kF64))[0];
    Array y_bound = magnitudes(y), dx_bound = magnitudes(bwd.in[1].data);
    for (double& v : y_bound.values) v *= 8 * kUnit;
    for (double& v : dx_bound.values) v *= 4 * kUnit;
    for (const Engine& engine : engines()) {
      expect_near(run(fwd, engine)[0], y, y_bound, fwd.str() + " on " + engine.name);
      expect_near(run(bwd, engine)[0], dx, dx_bound, bwd.str() + " on " + engine.name);
    }
  }
}

TEST(Equality, LocalResponseNormalisation) {
  Rng rng(402);
  for (int i = 0; i < 30; ++i) {
    const Case fwd = random_case(Op::kLrnFwd, rng, Fill::kFloats);
    const double depth = static_cast<double>(fwd.attrs.integer("size")) + 3;
    const auto want = run(fwd, reference(DType::kF64));
    Array y_bound = magnitudes(want[0]), scale_bound = want[1];
    // The power's argument carries the sum's error, and exp(beta log) one that grows with the
    // exponent.
    for (size_t e = 0; e < y_bound.values.size(); ++e) {
      y_bound.values[e] *= (depth + 8 + 2 * std::log(want[1].values[e])) * kUnit;
      scale_bound.values[e] *= depth * kUnit;
    }
    const Case bwd = random_case(Op::kLrnBwd, rng, Fill::kFloats);
    const auto dx = run(bwd, reference(DType::kF64))[0];
    Case sums = bwd;  // with x negative the two terms of dx add up
    for (Slot& slot : sums.in) slot.data = magnitudes(slot.data);
    for (double& v : sums.in[0].data.values) v = -v;
    Array dx_bound = run(sums, reference(DType::kF64))[0];
    const double dx_depth = static_cast<double>(bwd.attrs.integer("size")) + 16;
    for (double& v : dx_bound.values) v *= dx_depth * kUnit;
    for (const Engine& engine : engines()) {
      const auto got = run(fwd, engine);
      expect_near(got[0], want[0], y_bound, fwd.str() + " on " + engine.name);
      expect_near(got[1], want[1], scale_bound, fwd.str() + " on " + engine.name);
      expect_near(run(bwd, engine)[0], dx, dx_bound, bwd.str() + " on " + engine.name);
    }
  }
}

// The same bounds for the loss over classes that are cut.
TEST(Equality, SoftmaxLossByShards) {
  Rng rng(404);
  for (int i = 0; i < 30; ++i)
    for (const Op op : {Op::kSoftmaxStats, Op::kSoftmaxNorm, Op::kSoftmaxMetrics}) {
      const Case c = random_case(op, rng, Fill::kFloats);
      const auto want = run(c, reference(DType::kF64));
      for (const Engine& engine : cpu_engines()) {
        const auto got = run(c, engine, 2);
        for (size_t r = 0; r < want.size(); ++r) {
          Array bound = magnitudes(want[r]);
          if (op == Op::kSoftmaxMetrics) {
            bound = Array(want[r].shape, 0);
            bound.at(0) = want[r].at(1) * (33 + 32) * 2 * kUnit;
          } else {
            for (double& v : bound.values) v *= (33 + 16) * kUnit;
          }
          Array a = got[r], b = want[r];
          for (size_t e = 0; e < a.values.size(); ++e)
            if (std::isinf(b.values[e]) && a.values[e] == b.values[e])  // no label in a shard
              a.values[e] = b.values[e] = bound.values[e] = 0;
          expect_near(a, b, bound, c.str() + " on " + engine.name);
        }
      }
    }
}

TEST(Equality, SoftmaxLoss) {
  Rng rng(403);
  for (int i = 0; i < 30; ++i) {
    const Case c = random_case(Op::kSoftmaxLossFwd, rng, Fill::kFloats);
    const auto classes = static_cast<double>(c.in[0].data.shape[1]);
    const auto want = run(c, reference(DType::kF64));
    // Scores lie within 4 of each other, so exp(x - max) carries a relative error of about 4 + 2
    // units, and the sum of them one more per class.
    Array bound = want[0];
    for (double& v : bound.values) v *= (classes + 16) * kUnit;
    Array metrics_bound(want[1].shape, 0);
    metrics_bound.at(0) = want[1].at(1) * (classes + 32) * 2 * kUnit;
    for (const Engine& engine : engines()) {
      const auto got = run(c, engine, 2);
      expect_near(got[0], want[0], bound, c.str() + " on " + engine.name);
      expect_near(got[1], want[1], metrics_bound, c.str() + " on " + engine.name);
    }
  }
}

}  // namespace
}  // namespace convnet::kernels
