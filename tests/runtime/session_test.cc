// If this fails, a plan on several devices does not compute what it computes on one, or the session
// hands out values that are not those the devices hold.
#include "framework/runtime/session.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <set>

#include "framework/backends/reference/reference.h"
#include "framework/base/random.h"
#include "tests/runtime/fc_plan.h"
#include "tests/runtime/synthetic_batches.h"

namespace convnet {
namespace {

SessionOptions reference(int threads = 1) {
  SessionOptions options;
  options.backend = [](int) { return Result<std::unique_ptr<Backend>>(make_reference_backend()); };
  options.threads = threads;
  return options;
}

std::unique_ptr<Session> open(const Plan& plan, Session* state_of = nullptr) {
  auto session = Session::create(plan, reference(), state_of);
  EXPECT_TRUE(session.ok()) << session.status().message();
  return session.ok() ? *std::move(session) : nullptr;
}

std::vector<std::vector<double>> parameters(const Session& session) {
  std::vector<std::vector<double>> all;
  for (const Tensor& t : session.plan().tensors) {
    if (t.kind != TensorKind::kParameter && t.kind != TensorKind::kState) continue;
    auto value = session.read(t.name);
    EXPECT_TRUE(value.ok()) << value.status().message();
    all.push_back(value->values);
  }
  return all;
}

struct Trained {
  std::vector<std::vector<double>> parameters;
  std::vector<double> losses;
};
Trained train_steps(const FcNet& net, int devices, int steps) {
  const auto session = open(FcPlan::train(net, devices));
  SyntheticBatches data(10 * net.batch, net.batch, net.features, net.classes, true);
  session->initialise();
  Trained result;
  for (int s = 0; s < steps; ++s) {
    const auto step = session->run(**data.get(s), s, 0.125);
    EXPECT_TRUE(step.ok() && step->finite);
    EXPECT_EQ(step->metrics.at(0).examples, static_cast<double>(net.batch));
    result.losses.push_back(step->metrics[0].loss_sum);
  }
  result.parameters = parameters(*session);
  return result;
}

TEST(Session, AnyNumberOfDevicesThatDividesTheShardsGivesTheSameBits) {
  for (DType dtype : {DType::kF32, DType::kF64}) {
    FcNet net;
    net.dtype = dtype;
    const Trained one = train_steps(net, 1, 3);
    EXPECT_LT(one.losses[2], one.losses[0]);
    for (int devices : {2, 4, 8}) {
      const Trained several = train_steps(net, devices, 3);
      EXPECT_EQ(several.parameters, one.parameters) << devices << " devices";
      EXPECT_EQ(several.losses, one.losses) << devices << " devices";
    }
  }
}

TEST(Session, OtherNumbersOfDevicesAgreeWithinRounding) {
  FcNet net;
  net.dtype = DType::kF64;
  net.order = Exchange::Order::kRank;
  const Trained one = train_steps(net, 1, 3);
  for (int devices : {3, 5}) {
    const Trained several = train_steps(net, devices, 3);
    for (size_t t = 0; t < one.parameters.size(); ++t)
      for (size_t i = 0; i < one.parameters[t].size(); ++i)
        EXPECT_NEAR(several.parameters[t][i], one.parameters[t][i], 1e-13);
  }
}

// A batch that is no multiple of 16, with fewer blocks than devices: some have nothing to do.
TEST(Session, DevicesWithoutExamples) {
  FcNet net;
  net.batch = 40;
  EXPECT_EQ(train_steps(net, 4, 3).parameters, train_steps(net, 1, 3).parameters);
  EXPECT_EQ(train_steps(net, 8, 3).parameters, train_steps(net, 1, 3).parameters);
}

TEST(Session, ThreadsDoNotChangeAnything) {
  const FcNet net;
  SyntheticBatches data(1000, net.batch, net.features, net.classes, true);
  std::vector<std::vector<std::vector<double>>> results;
  for (int threads : {1, 3}) {
    auto session = Session::create(FcPlan::train(net, 2), reference(threads));
    ASSERT_TRUE(session.ok());
    (*session)->initialise();
    ASSERT_TRUE((*session)->run(**data.get(0), 0, 0.1).ok());
    results.push_back(parameters(**session));
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST(Session, FirstValuesDependOnSeedNameAndIndexOnly) {
  const FcNet net;
  const auto one = open(FcPlan::train(net, 1));
  one->initialise();
  const auto w = one->read("fc1.w");
  ASSERT_TRUE(w.ok());
  for (size_t i = 0; i < w->values.size(); ++i)
    EXPECT_EQ(w->values[i],
              static_cast<float>(0.5 * random_normal(random_key(7, name_key("fc1.w")), i)));
  EXPECT_EQ(one->read("fc1.w.momentum")->values, std::vector<double>(w->values.size(), 0.0));
  const auto four = open(FcPlan::train(net, 4));
  four->initialise();
  EXPECT_EQ(parameters(*four), parameters(*one));
}

// A parameter whose rows lie on different devices.
TEST(Session, ReadsAndWritesScatteredTensors) {
  Plan plan;
  plan.batch = 16;
  plan.seed = 5;
  Tensor t;
  t.name = "w";
  t.kind = TensorKind::kParameter;
  t.shape = {7, 3};
  t.attrs.set("init", std::string("uniform")).set("lo", -1.0).set("hi", 1.0);
  plan.tensors.push_back(t);
  plan.devices.resize(3);
  const std::pair<int64_t, int64_t> rows[] = {{0, 3}, {2, 6}, {6, 7}};
  for (size_t d = 0; d < 3; ++d) {
    Buffer b;
    b.name = "w";
    b.part.box = Box(t.shape);
    b.part.box.set(0, rows[d].first, rows[d].second);
    b.region = Buffer::Region::kState;
    b.bytes = 64;
    plan.devices[d].buffers.push_back(b);
  }
  const auto session = open(plan);
  session->initialise();
  auto value = session->read("w");
  ASSERT_TRUE(value.ok());
  for (size_t i = 0; i < 21; ++i)
    EXPECT_EQ(value->values[i],
              static_cast<float>(-1 + 2 * random_uniform(random_key(5, name_key("w")), i)));
  for (double& v : value->values) v = std::floor(v * 100);
  ASSERT_TRUE(session->write("w", *value).ok());
  EXPECT_EQ(session->read("w")->values, value->values);

  EXPECT_EQ(session->read("v").status().message(), "the plan has no parameter 'v'");
  value->shape = {3, 7};
  EXPECT_EQ(session->write("w", *value).message(), "'w' is [3, 7] when the model's is [7, 3]");
  plan.devices[1].buffers[0].part.box.set(0, 3, 5);
  EXPECT_EQ(open(plan)->read("w").status().message(), "the devices hold only a part of 'w'");
}

TEST(Session, TestPlanSharesParameters) {
  const FcNet net;
  const auto train = open(FcPlan::train(net, 2));
  const auto test = open(FcPlan::test(net, 2), train.get());
  train->initialise();
  SyntheticBatches data(1000, net.batch, net.features, net.classes, true);
  const Batch& batch = **data.get(0);
  const auto first = train->run(batch, 0, 0.1);
  const auto second = test->run(batch, 0, 0);
  const auto third = train->run(batch, 1, 0.1);
  ASSERT_TRUE(second.ok() && third.ok());
  // Testing sees what the step before has learnt, and changes nothing.
  EXPECT_EQ(second->metrics[0].loss_sum, third->metrics[0].loss_sum);
  EXPECT_LT(second->metrics[0].loss_sum, first->metrics[0].loss_sum);

  EXPECT_EQ(Session::create(FcPlan::test(net, 4), reference(), train.get()).status().message(),
            "the plan has 4 devices, the one it shares its parameters with 2");
  FcNet other = net;
  other.hidden = 10;
  EXPECT_EQ(Session::create(FcPlan::test(other, 2), reference(), train.get()).status().message(),
            "device 0 has no [0:10,0:12] of 'fc1.w' in the plan that it is shared with");
}

TEST(Session, MetricsOfPartialBatches) {
  const FcNet net;
  SyntheticBatches data(150, net.batch, net.features, net.classes, false);
  const auto one = open(FcPlan::test(net, 1));
  const auto four = open(FcPlan::test(net, 4));
  one->initialise();
  four->initialise();
  const Batch& batch = **data.get(1);
  ASSERT_EQ(batch.count, 22);
  const auto a = one->run(batch, 1, 0), b = four->run(batch, 1, 0);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->metrics[0].layer, "loss");
  EXPECT_EQ(a->metrics[0].examples, 22);
  EXPECT_EQ(a->metrics[0].top, (std::vector<int64_t>{1, 2}));
  EXPECT_LE(a->metrics[0].correct[0], a->metrics[0].correct[1]);
  EXPECT_EQ(b->metrics[0].loss_sum, a->metrics[0].loss_sum);
  EXPECT_EQ(b->metrics[0].correct, a->metrics[0].correct);
}

TEST(Session, StopsBeforeParametersChangeIfTheLossIsNotFinite) {
  const FcNet net;
  for (int devices : {1, 2, 4}) {
    const auto session = open(FcPlan::train(net, devices));
    session->initialise();
    SyntheticBatches data(1000, net.batch, net.features, net.classes, true);
    ASSERT_TRUE(session->run(**data.get(0), 0, 0.1)->finite);
    const auto before = parameters(*session);

    data.spoiled = 1;
    data.spoil = std::numeric_limits<float>::infinity();
    const Batch& bad = **data.get(1);
    EXPECT_FALSE(session->run(bad, 1, 0.1)->finite);
    EXPECT_EQ(parameters(*session), before);
    auto found = session->find_non_finite(bad, 1);
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(found->tensor, "data");
    EXPECT_EQ(found->line, 0);

    // Finite numbers whose sums overflow in the first layer.
    const HostTensor weights = *session->read("fc1.w");
    HostTensor large = weights;
    for (double& v : large.values) v = 3e38;
    ASSERT_TRUE(session->write("fc1.w", large).ok());
    const Batch& good = **data.get(2);
    EXPECT_FALSE(session->run(good, 2, 0.1)->finite);
    found = session->find_non_finite(good, 2);
    EXPECT_EQ(found->tensor, "fc1");
    EXPECT_EQ(found->layer, "fc1");
    EXPECT_EQ(found->line, 4);
    ASSERT_TRUE(session->write("fc1.w", weights).ok());
    ASSERT_TRUE(session->run(**data.get(3), 3, 0.1)->finite);  // and it goes on working

    auto w = session->read("fc2.w");
    w->values[4] = std::numeric_limits<double>::quiet_NaN();
    ASSERT_TRUE(session->write("fc2.w", *w).ok());
    const Batch& next = **data.get(4);
    EXPECT_FALSE(session->run(next, 4, 0.1)->finite);
    found = session->find_non_finite(next, 4);
    EXPECT_EQ(found->tensor, "fc2.w");
    EXPECT_EQ(found->layer, "fc2");
    EXPECT_EQ(found->line, 5);
  }
}

TEST(Session, WithoutGuardTheSearchLeavesParametersAlone) {
  FcNet net;
  net.guard = false;
  const auto session = open(FcPlan::train(net, 2));
  session->initialise();
  SyntheticBatches data(1000, net.batch, net.features, net.classes, true);
  data.spoiled = 0;
  data.spoil = std::numeric_limits<float>::quiet_NaN();
  const auto before = parameters(*session);
  const auto found = session->find_non_finite(**data.get(0), 0);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->tensor, "data");
  EXPECT_EQ(parameters(*session), before);
}

TEST(Session, ObserverSeesEveryInstructionAndItsResults) {
  const FcNet net;
  const Plan plan = FcPlan::train(net, 2);
  const auto session = open(plan);
  session->initialise();
  SyntheticBatches data(1000, net.batch, net.features, net.classes, true);
  std::mutex mutex;
  std::vector<std::vector<int>> seen(2);
  session->observe([&](int device, int instr, const std::vector<View>& out) {
    const std::lock_guard lock(mutex);
    const Instr& expected =
        plan.devices[static_cast<size_t>(device)].instrs[static_cast<size_t>(instr)];
    EXPECT_EQ(out.size(), expected.out.size());
    for (size_t o = 0; o < out.size(); ++o) EXPECT_TRUE(out[o].box == expected.out[o].box);
    seen[static_cast<size_t>(device)].push_back(instr);
  });
  ASSERT_TRUE(session->run(**data.get(0), 0, 0.1).ok());
  for (size_t d = 0; d < 2; ++d) {
    ASSERT_EQ(seen[d].size(), plan.devices[d].instrs.size());
    for (size_t i = 0; i < seen[d].size(); ++i) EXPECT_EQ(seen[d][i], static_cast<int>(i));
  }
  session->observe(nullptr);
  ASSERT_TRUE(session->run(**data.get(1), 1, 0.1).ok());
  EXPECT_EQ(seen[0].size(), plan.devices[0].instrs.size());
}

// A backend that lacks some operations; it counts what it gave and what it got back.
class Lacking : public Backend {
 public:
  Lacking(std::set<Op> lacks, int64_t* held) : lacks_(std::move(lacks)), held_(held) {}
  std::string name() const override { return "lacking"; }
  Result<void*> allocate(int64_t bytes) override {
    *held_ += bytes;
    return whole_->allocate(bytes);
  }
  void free_memory(void* memory, int64_t bytes) override {
    *held_ -= bytes;
    whole_->free_memory(memory, bytes);
  }
  Result<std::unique_ptr<Kernel>> bind(const Binding& binding) override {
    if (lacks_.contains(binding.instr.op)) return Status(Code::kLimit, "no kernel");
    return whole_->bind(binding);
  }

 private:
  std::set<Op> lacks_;
  int64_t* held_;
  std::unique_ptr<Backend> whole_ = make_reference_backend();
};

TEST(Session, FallsBackForOperationsThatABackendLacks) {
  const FcNet net;
  int64_t held = 0;
  SessionOptions options;
  options.backend = [&](int) {
    return Result<std::unique_ptr<Backend>>(
        std::make_unique<Lacking>(std::set<Op>{Op::kActBwd, Op::kGuard}, &held));
  };
  EXPECT_EQ(Session::create(FcPlan::train(net, 2), options).status().message(),
            "guard of 'loss' (fc.yaml:6) on device 0: no kernel");
  EXPECT_EQ(held, 0);
  options.fallback = reference().backend;
  {
    auto session = Session::create(FcPlan::train(net, 2), options);
    ASSERT_TRUE(session.ok()) << session.status().message();
    EXPECT_GT(held, 0);
    EXPECT_EQ((*session)->describe(),
              "2 x lacking, 1 thread each; act.bwd on reference, guard on reference");
    (*session)->initialise();
    SyntheticBatches data(10 * net.batch, net.batch, net.features, net.classes, true);
    for (int s = 0; s < 3; ++s) ASSERT_TRUE((*session)->run(**data.get(s), s, 0.125).ok());
    EXPECT_EQ(parameters(**session), train_steps(net, 1, 3).parameters);
  }
  EXPECT_EQ(held, 0);
}

TEST(Session, RefusesPlansAndBatchesThatDoNotFit) {
  const FcNet net;
  Plan plan = FcPlan::train(net, 2);
  auto& instrs = plan.devices[1].instrs;
  instrs.erase(std::find_if(instrs.begin(), instrs.end(),
                            [](const Instr& i) { return i.op == Op::kGuard; }));
  EXPECT_EQ(Session::create(plan, reference()).status().message(),
            "device 1 has 0 guards when others have 1");

  const auto session = open(FcPlan::train(net, 2));
  session->initialise();
  SyntheticBatches data(1000, 64, net.features, net.classes, true);
  const auto result = session->run(**data.get(0), 0, 0.1);
  EXPECT_EQ(result.status().code(), Code::kData);
  EXPECT_EQ(result.status().message(),
            "a batch has 768 numbers of 'data' when the plan takes 1536");
}

}  // namespace
}  // namespace convnet
