// If this fails, some network computes something else on many devices than on one, or the proof
// would not notice. The failure prints the smallest such model file and the seed that repeats it.
#include "tools/convnet/random/proof.h"

#include <gtest/gtest.h>

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
  EXPECT_GT(result.exact, 0);
  if (const char* report = std::getenv("CONVNET_TEST_REPORT")) {
    std::ofstream(report, std::ios::app)
        << "random graphs: " << result.run << " run, " << result.exact << " bit for bit, "
        << result.failures.size() << " differ; " << result.refused << " placements refused\n";
  }
}

// Updates at another rate than the plan's, which no verifier can object to.
TEST(RandomGraphs, ADamagedPlanIsFoundAndShrunk) {
  ProofOptions options;
  options.graphs = 8;
  options.processes = 2;
  options.shrink_seconds = 10;
  options.damage = [](Plan& plan) {
    for (auto& device : plan.devices)
      for (auto& instr : device.instrs)
        if (instr.op == Op::kUpdateSgd) instr.attrs.set("rate", 3.0);
  };
  const ProofResult result = prove(options);
  ASSERT_FALSE(result.failures.empty());
  const ProofFailure& first = result.failures[0];
  EXPECT_NE(first.model.find("batch: 1\n"), std::string::npos) << first.model;
  EXPECT_EQ(first.model.find("name: l0"), std::string::npos) << first.model;
}

}  // namespace
}  // namespace convnet::cli
