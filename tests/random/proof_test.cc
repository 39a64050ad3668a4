// If this fails, some network computes something else on many devices than on one, or the proof
// would not notice. The failure prints the smallest such model file and the seed that repeats it.
#include "tools/convnet/random/proof.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

namespace convnet::cli {
namespace {

TEST(RandomGraphs, ComputeTheSameOnManyDevices) {
  ProofOptions options;
  options.graphs = 500;
  options.processes = 2;
  const ProofResult result = prove(options);
  for (const ProofFailure& f : result.failures)
    ADD_FAILURE() << f.difference << "\n"
                  << f.model << "convnet verify --random 1 --seed " << f.seed;
  EXPECT_EQ(result.run + result.unplaced, options.graphs);
  // Every level and every kind of placement has had its share.
  EXPECT_GT(result.integer, 150);
  EXPECT_GT(result.exact, 300);
  EXPECT_GT(result.rounded, 50);
  EXPECT_EQ(result.single, result.exact);
  EXPECT_GT(result.meshes, 50);
  EXPECT_GT(result.update_periods, 50);
  EXPECT_GT(result.odd_devices, 150);
  if (const char* report = std::getenv("CONVNET_TEST_REPORT"))
    std::ofstream(report, std::ios::app) << "random graphs: " << levels_text(result) << "\n";
}

// Damage to the plan of many devices that computes something else: each kind must be found by the
// comparison, though the verifier's objections are not asked for, and shrunk to the layers that
// every network has.
struct Damage {
  const char* name;
  void (*apply)(Plan& plan);
};

const Part& part_of(const DevicePlan& device, const Operand& operand) {
  return device.buffers[static_cast<size_t>(operand.buffer)].part;
}

// No verifier can object: another rate is another model.
void change_rate(Plan& plan) {
  for (DevicePlan& device : plan.devices)
    for (Instr& instr : device.instrs)
      if (instr.op == Op::kUpdateSgd) instr.attrs.set("rate", 3.0);
}

// Sums two canonical shards as one: the same terms in another order.
void remove_cut(Plan& plan) {
  for (DevicePlan& device : plan.devices)
    for (Instr& instr : device.instrs) {
      if (instr.op != Op::kFcBwdWeight) continue;
      std::vector<int64_t> cuts = instr.attrs.list("cuts");
      if (cuts.size() < 3) continue;
      cuts.erase(cuts.begin() + 1);
      instr.attrs.set("cuts", cuts);
      return;
    }
}

// Leaves out what one device adds to a gradient.
void drop_partial_sum(Plan& plan) {
  for (DevicePlan& device : plan.devices) {
    const auto at = std::ranges::find_if(device.instrs, [&](const Instr& instr) {
      return instr.op == Op::kFcBwdWeight && part_of(device, instr.out[0]).of > 1;
    });
    if (at == device.instrs.end()) continue;
    device.instrs.erase(at);
    return;
  }
}

// Takes the gradient of some of the examples only.
void shrink_box(Plan& plan) {
  for (DevicePlan& device : plan.devices)
    for (Instr& instr : device.instrs) {
      if (instr.op != Op::kFcBwdWeight) continue;
      std::vector<int64_t> cuts = instr.attrs.list("cuts");
      if (cuts.size() < 3) continue;
      cuts.pop_back();
      instr.attrs.set("cuts", cuts);
      for (Operand& operand : instr.in) operand.box.set(0, cuts.front(), cuts.back());
      return;
    }
}

// Takes the pictures of one pass for those of another.
void swap_rows(Plan& plan) {
  const auto of_pictures = [](const Tensor& t) {
    return t.kind == TensorKind::kInput && t.dtype != DType::kI32 && t.attrs.has("rows");
  };
  for (Tensor& a : plan.tensors)
    for (Tensor& b : plan.tensors) {
      if (!of_pictures(a) || !of_pictures(b) || a.shape != b.shape) continue;
      const std::vector<int64_t> rows = a.attrs.list("rows");
      if (rows == b.attrs.list("rows")) continue;
      a.attrs.set("rows", b.attrs.list("rows"));
      b.attrs.set("rows", rows);
      return;
    }
}

class RandomGraphsDamage : public testing::TestWithParam<Damage> {};

TEST_P(RandomGraphsDamage, IsFoundAndShrunk) {
  ProofOptions options;
  options.graphs = 200;
  options.most_failures = 3;
  options.processes = 2;
  options.shrink_seconds = 10;
  options.damage = GetParam().apply;
  const ProofResult result = prove(options);
  ASSERT_FALSE(result.failures.empty());
  for (const ProofFailure& f : result.failures) {
    EXPECT_NE(f.difference.find("on one device"), std::string::npos)
        << "found by running it, not by comparing: " << f.difference;
    EXPECT_EQ(f.model.find("name: l0"), std::string::npos) << f.model;
  }
}

INSTANTIATE_TEST_SUITE_P(All, RandomGraphsDamage,
                         testing::Values(Damage{"Rate", change_rate}, Damage{"Cut", remove_cut},
                                         Damage{"PartialSum", drop_partial_sum},
                                         Damage{"Box", shrink_box}, Damage{"Rows", swap_rows}),
                         [](const testing::TestParamInfo<Damage>& p) {
                           return std::string(p.param.name);
                         });

}  // namespace
}  // namespace convnet::cli
