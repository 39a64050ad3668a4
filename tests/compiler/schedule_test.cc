// What runs beside what: the streams of the plans of shipped models, and that the verifier finds
// every order that is taken away.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "framework/plan/plan.h"
#include "framework/plan/verify_plan.h"
#include "parsers/model_file.h"
#include "tests/support/model_run.h"

namespace convnet {
namespace {

Plan plan_of(const std::string& name, const std::vector<std::string>& sets, int devices) {
  Diagnostics diagnostics;
  auto model = load_model(CONVNET_SOURCE_DIR "/model-defs/" + name, sets, diagnostics);
  CHECK_MSG(model != nullptr, diagnostics.render());
  CompileOptions options;
  options.devices = devices;
  return compile_model(*model, options);
}

// The place of the first instruction of device 0 whose first result is the named buffer.
int maker(const Plan& plan, const std::string& buffer) {
  const DevicePlan& device = plan.devices[0];
  for (size_t i = 0; i < device.instrs.size(); ++i)
    for (const Operand& o : device.instrs[i].out)
      if (device.buffers[static_cast<size_t>(o.buffer)].name == buffer) return static_cast<int>(i);
  ADD_FAILURE() << "nothing makes %" << buffer;
  return 0;
}
const Instr& instr(const Plan& plan, int i) {
  return plan.devices[0].instrs[static_cast<size_t>(i)];
}

TEST(Schedule, GradientsTravelWhileEarlierLayersCompute) {
  const Plan plan = plan_of("alexnet.yaml", {"batch=64"}, 2);
  for (const std::string layer : {"fc8", "fc7", "fc6", "conv5", "conv4", "conv3", "conv2"})
    EXPECT_EQ(instr(plan, maker(plan, layer + ".w.grad@1")).stream, Stream::kComm) << layer;
  // Behind the first layer's there is nothing to hide it.
  EXPECT_EQ(instr(plan, maker(plan, "conv1.w.grad@1")).stream, Stream::kCompute);
}

TEST(Schedule, BiasesTravelInABucketWithWeights) {
  const Plan plan = plan_of("alexnet.yaml", {"batch=64"}, 2);
  const auto bucket = [&](const std::string& buffer) {
    const Instr& i = instr(plan, maker(plan, buffer));
    return plan.exchanges[static_cast<size_t>(i.attrs.integer("id"))].bucket;
  };
  EXPECT_GE(bucket("conv5.b.grad@1"), 0);
  EXPECT_EQ(bucket("conv5.b.grad@1"), bucket("conv5.w.grad@1"));
  EXPECT_NE(bucket("conv4.w.grad@1"), bucket("conv5.w.grad@1"));
}

// Krizhevsky 2014, section 4: while one sub-batch is computed the next one is on its way.
TEST(Schedule, TheNextPassIsFetchedWhileOneIsComputed) {
  const Plan plan = plan_of("alexnet-owt-4.yaml", {"batch=128"}, 4);
  const int fetch = maker(plan, "pool5.pass1");
  EXPECT_EQ(instr(plan, fetch).stream, Stream::kComm);
  EXPECT_LT(fetch, maker(plan, "fc6.pass0"));
  const int back = maker(plan, "pool5.grad.fc6");
  EXPECT_EQ(instr(plan, back).stream, Stream::kComm);
  EXPECT_LT(back, maker(plan, "fc6.pass1"));
  // What was gathered for the forward pass is not sent again for the weight gradient.
  EXPECT_EQ(instr(plan, maker(plan, "drop6")).op, Op::kRowsJoin);
}

// Device 0 gives nothing to the exchange that fetches l2's last row, so it may receive that row
// while it still makes l2: to read nothing of a buffer is no use of it. `verify --random` found
// this network.
TEST(Schedule, WhatIsNotReadNeedNotBeAlive) {
  const auto model = bind_text(R"(
format: 1
name: counted
devices: 2
batch: 17
input: {data: [1, 6, 4], label: {classes: 4}}
layers:
  - {name: l0, type: pool, input: [data], kernel: [3, 2], stride: [1, 2], pad: [1, 0]}
  - {name: l1, type: lrn, input: [l0], size: 3, alpha: 0.5, beta: 0.75, k: 2}
  - {name: l2, type: relu, input: [l0]}
  - {name: last, type: fc, input: [l2], outputs: 4, exchange: owner, passes: 2}
  - {name: loss, type: softmax_loss, input: [last, label]}
train: {rate: {base: 0.125}, steps: 1}
)");
  CompileOptions options;
  options.devices = 2;
  options.verify = false;
  for (const DType dtype : {DType::kF64, DType::kF32}) {
    options.dtype = dtype;
    const Plan plan = compile_model(*model, options);
    for (const auto& fault : verify_plan(plan)) ADD_FAILURE() << fault.str();
  }
}

// Each event taken away, each instruction put on the other stream, each bucket torn.
TEST(Schedule, TheVerifierMissesNoOrder) {
  for (const Plan& plan :
       {plan_of("alexnet.yaml", {"batch=64"}, 2), plan_of("alexnet-owt-2.yaml", {"batch=64"}, 2)}) {
    ASSERT_TRUE(verify_plan(plan).empty());
    int mutants = 0;
    const auto rejected = [&](const Plan& mutant, const std::string& what) {
      ++mutants;
      EXPECT_FALSE(verify_plan(mutant).empty()) << what;
    };
    for (size_t i = 0; i < plan.devices[1].instrs.size(); ++i) {
      const Instr& old = plan.devices[1].instrs[i];
      const std::string at = "instruction " + std::to_string(i);
      Plan mutant = plan;
      Instr& now = mutant.devices[1].instrs[i];
      if (old.wait >= 0) {
        now.wait = -1;
        rejected(mutant, at + " no longer waits");
        if (old.wait > 0) {
          now.wait = old.wait - 1;
          rejected(mutant, at + " waits for an earlier event");
        }
        now.wait = old.wait;
      }
      if (old.signal >= 0) {
        now.signal = -1;
        rejected(mutant, at + " no longer signals");
        now.signal = old.signal;
      }
      if (old.stream == Stream::kComm) {
        now.stream = Stream::kCompute;
        if (old.op == Op::kExchange) rejected(mutant, at + " is on another stream than elsewhere");
      } else if (old.op != Op::kUpdateSgd) {
        now.stream = Stream::kComm;
        rejected(mutant, at + " is beside the computation");
      }
    }
    for (size_t id = 0; id < plan.exchanges.size(); ++id) {
      if (plan.exchanges[id].bucket < 0) continue;
      Plan mutant = plan;
      mutant.exchanges[id].bucket = 1000;
      rejected(mutant, "exchange " + std::to_string(id) + " is in a bucket that is not there");
    }
    EXPECT_GT(mutants, 60);
  }
}

}  // namespace
}  // namespace convnet
