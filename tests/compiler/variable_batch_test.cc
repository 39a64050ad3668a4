// If this fails, `update_period: 1` is no longer the second variant of Krizhevsky's 'One weird
// trick' (2014): the batch passes through the fully-connected layers device by device, these are
// updated after each pass with the gradient of its examples, and the convolutions once, with
// gradients that come from different versions of the fully-connected layers. Here that is written
// down as one straight line of loops, which knows neither devices nor plans.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "tests/support/model_run.h"

namespace convnet {
namespace {

constexpr int kBatch = 64, kPasses = 4, kSteps = 3;
constexpr int kC = 2, kSide = 5, kK = 3, kR = 3, kP = kSide - kR + 1;  // conv: [K, P, P]
constexpr int kFeatures = kK * kP * kP, kHidden = 7, kClasses = 4;
constexpr double kRate = 0.125, kMomentum = 0.5, kDecay = 0.03125;

const char* const kModel = R"(format: 1
name: variant
devices: 4
batch: 64
input: {data: [2, 5, 5], label: {classes: 4}}
layers:
  - {name: conv, type: conv, input: data, filters: 3, kernel: 3, bias: false, init: {normal: 0.3}, decay: 0.03125, act: relu}
  - {name: fc1, type: fc, outputs: 7, bias: false, init: {normal: 0.3}, decay: 0.03125, act: relu, parallel: model, exchange: owner, update_period: 1}
  - {name: fc2, type: fc, outputs: 4, bias: false, init: {normal: 0.3}, decay: 0.03125, parallel: model, exchange: owner, update_period: 1}
  - {name: loss, type: softmax_loss, input: [fc2, label]}
train: {solver: sgd, momentum: 0.5, rate: {base: 0.125}, steps: 3, seed: 5}
)";

using Values = std::vector<double>;

struct Parameter {
  Values w, m;
  void update(const Values& gradient) {
    for (size_t i = 0; i < w.size(); ++i) {
      m[i] = kMomentum * m[i] - kRate * (gradient[i] + kDecay * w[i]);
      w[i] += m[i];
    }
  }
};

size_t at(int a) { return static_cast<size_t>(a); }

class StraightLine {
 public:
  Parameter conv, fc1, fc2;

  void step(const Batch& batch) {
    Values features(at(kBatch * kFeatures)), feature_gradients(features.size());
    for (int n = 0; n < kBatch; ++n) forward_conv(batch, n, features);
    constexpr int kShare = kBatch / kPasses;
    for (int pass = 0; pass < kPasses; ++pass) {
      Values d1(fc1.w.size()), d2(fc2.w.size());
      for (int n = pass * kShare; n < (pass + 1) * kShare; ++n)
        example(batch.label[at(n)], &features[at(n * kFeatures)],
                &feature_gradients[at(n * kFeatures)], d1, d2);
      for (Values* d : {&d1, &d2})
        for (double& v : *d) v /= kShare;
      fc1.update(d1);
      fc2.update(d2);
    }
    Values d(conv.w.size());
    for (int n = 0; n < kBatch; ++n) backward_conv(batch, n, features, feature_gradients, d);
    for (double& v : d) v /= kBatch;
    conv.update(d);
  }

 private:
  static double pixel(const Batch& batch, int n, int c, int h, int w) {
    const int element = (c * kSide + h) * kSide + w;
    return batch.data[at((n / 16 * kC * kSide * kSide + element) * 16 + n % 16)];
  }
  static size_t weight(int k, int c, int r, int s) { return at(((k * kC + c) * kR + r) * kR + s); }
  static size_t feature(int n, int k, int p, int q) {
    return at(n * kFeatures + (k * kP + p) * kP + q);
  }

  void forward_conv(const Batch& batch, int n, Values& y) const {
    for (int k = 0; k < kK; ++k)
      for (int p = 0; p < kP; ++p)
        for (int q = 0; q < kP; ++q) {
          double sum = 0;
          for (int c = 0; c < kC; ++c)
            for (int r = 0; r < kR; ++r)
              for (int s = 0; s < kR; ++s)
                sum += conv.w[weight(k, c, r, s)] * pixel(batch, n, c, p + r, q + s);
          y[feature(n, k, p, q)] = std::max(0.0, sum);
        }
  }

  void backward_conv(const Batch& batch, int n, const Values& y, const Values& dy,
                     Values& d) const {
    for (int k = 0; k < kK; ++k)
      for (int p = 0; p < kP; ++p)
        for (int q = 0; q < kP; ++q) {
          if (y[feature(n, k, p, q)] <= 0) continue;
          for (int c = 0; c < kC; ++c)
            for (int r = 0; r < kR; ++r)
              for (int s = 0; s < kR; ++s)
                d[weight(k, c, r, s)] += dy[feature(n, k, p, q)] * pixel(batch, n, c, p + r, q + s);
        }
  }

  // Forward and backward through the fully-connected layers as they are now.
  void example(int label, const double* x, double* dx, Values& d1, Values& d2) const {
    std::array<double, kHidden> hidden{}, hidden_gradient{};
    std::array<double, kClasses> score{};
    for (int o = 0; o < kHidden; ++o) {
      for (int i = 0; i < kFeatures; ++i) hidden[at(o)] += fc1.w[at(o * kFeatures + i)] * x[i];
      hidden[at(o)] = std::max(0.0, hidden[at(o)]);
    }
    double norm = 0;
    for (int o = 0; o < kClasses; ++o) {
      for (int i = 0; i < kHidden; ++i) score[at(o)] += fc2.w[at(o * kHidden + i)] * hidden[at(i)];
      norm += std::exp(score[at(o)]);
    }
    for (int o = 0; o < kClasses; ++o) {
      const double gradient = std::exp(score[at(o)]) / norm - (o == label ? 1 : 0);
      for (int i = 0; i < kHidden; ++i) {
        d2[at(o * kHidden + i)] += gradient * hidden[at(i)];
        hidden_gradient[at(i)] += gradient * fc2.w[at(o * kHidden + i)];
      }
    }
    for (int o = 0; o < kHidden; ++o) {
      if (hidden[at(o)] <= 0) continue;
      for (int i = 0; i < kFeatures; ++i) {
        d1[at(o * kFeatures + i)] += hidden_gradient[at(o)] * x[i];
        dx[i] += hidden_gradient[at(o)] * fc1.w[at(o * kFeatures + i)];
      }
    }
  }
};

std::map<std::string, HostTensor> train(const std::string& model, int devices,
                                        StraightLine* straight) {
  const auto bound = bind_text(model);
  CompileOptions options;
  options.devices = devices;
  options.dtype = DType::kF64;
  const Plan plan = compile_model(*bound, options);
  const auto session = reference_session(plan);
  if (straight != nullptr)
    for (auto& [name, parameter] :
         {std::pair{"conv.w", &straight->conv}, std::pair{"fc1.w", &straight->fc1},
          std::pair{"fc2.w", &straight->fc2}}) {
      parameter->w = session->read(name)->values;
      parameter->m.assign(parameter->w.size(), 0.0);
    }
  for (int step = 0; step < kSteps; ++step) {
    const Batch batch = random_batch(plan, static_cast<uint64_t>(step), kBatch);
    CHECK(session->run(batch, step, kRate).ok());
    if (straight != nullptr) straight->step(batch);
  }
  return read_all(*session);
}

TEST(VariableBatch, IsTheStraightLineOfThePaper) {
  StraightLine straight;
  const auto trained = train(kModel, 4, &straight);
  for (const auto& [name, parameter] :
       {std::pair{"conv.w", &straight.conv}, std::pair{"fc1.w", &straight.fc1},
        std::pair{"fc2.w", &straight.fc2}}) {
    const Values& w = trained.at(name).values;
    const Values& m = trained.at(std::string(name) + ".momentum").values;
    ASSERT_EQ(w.size(), parameter->w.size());
    for (size_t i = 0; i < w.size(); ++i) {
      // Sums of at most 64 * 9 terms of size about 1 in another order.
      EXPECT_NEAR(w[i], parameter->w[i], 1e-12) << name << " " << i;
      EXPECT_NEAR(m[i], parameter->m[i], 1e-12) << name << " " << i;
    }
  }
}

TEST(VariableBatch, DiffersFromTheExactGradient) {
  std::string exact = kModel;
  for (size_t found; (found = exact.find(", update_period: 1")) != std::string::npos;)
    exact.erase(found, std::string(", update_period: 1").size());
  const auto a = train(kModel, 4, nullptr), b = train(exact, 4, nullptr);
  EXPECT_GT(largest_difference(a, b), 1e-4);
  // Which is the same on one device, all at once.
  for (size_t found; (found = exact.find(", exchange: owner")) != std::string::npos;)
    exact.erase(found, std::string(", exchange: owner").size());
  EXPECT_EQ(largest_difference(b, train(exact, 1, nullptr)), 0);
}

}  // namespace
}  // namespace convnet
