// If this fails, a plan of a shipped or tiny model is not what it was: its text, memory or counts.
// Files plans/NAME.yaml are compiled for each NAME.K.plan beside them (K devices); UPDATE_GOLDEN=1
// rewrites those. That the same plans compute the right thing is equivalence_test's matter.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "framework/plan/plan.h"
#include "layers/registry.h"
#include "parsers/model_file.h"
#include "tests/support/model_run.h"

namespace convnet {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

Plan plan_of(const fs::path& file, const std::vector<std::string>& sets, int devices,
             Plan::Phase phase = Plan::Phase::kTrain) {
  Diagnostics diagnostics;
  auto model = load_model(file.string(), sets, diagnostics);
  CHECK_MSG(model != nullptr, diagnostics.render());
  CompileOptions options;
  options.devices = devices;
  options.phase = phase;
  return compile_model(*model, options);
}

TEST(GoldenPlans, AreUnchanged) {
  int files = 0;
  for (const auto& entry : fs::directory_iterator(CONVNET_SOURCE_DIR "/tests/compiler/plans")) {
    if (entry.path().extension() != ".plan") continue;
    ++files;
    const std::string stem = entry.path().stem().string();  // NAME.K
    const auto dot = stem.rfind('.');
    const fs::path yaml = entry.path().parent_path() / (stem.substr(0, dot) + ".yaml");
    Plan plan = plan_of(yaml, {}, std::atoi(stem.c_str() + dot + 1));
    plan.source = yaml.filename().string();
    const std::string text = print_plan(plan);
    if (std::getenv("UPDATE_GOLDEN") != nullptr) std::ofstream(entry.path()) << text;
    EXPECT_EQ(text, read(entry.path())) << entry.path();
    const auto parsed = parse_plan(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_EQ(*parsed, plan);
  }
  EXPECT_GE(files, 2);
}

// Every model file that is shipped: plans for several numbers of devices, both phases, memory at
// the lower bound.
TEST(ShippedModels, PlanWithMemoryAtTheBound) {
  int files = 0;
  for (const auto& entry : fs::directory_iterator(CONVNET_SOURCE_DIR "/model-defs")) {
    if (entry.path().extension() != ".yaml") continue;
    ++files;
    for (int devices : {1, 2, 3, 4, 8})
      for (Plan::Phase phase : {Plan::Phase::kTrain, Plan::Phase::kTest}) {
        SCOPED_TRACE(entry.path().string() + " on " + std::to_string(devices));
        const Plan plan = plan_of(entry.path(), {}, devices, phase);
        for (const DevicePlan& d : plan.devices) {
          EXPECT_GE(d.arena_bytes, d.arena_bound);
          EXPECT_LE(static_cast<double>(d.arena_bytes), 1.02 * static_cast<double>(d.arena_bound));
        }
      }
  }
  EXPECT_GE(files, 3);
}

// The one tower of Krizhevsky 2014 ('One weird trick') has 61,100,840 parameters; and
// data parallelism sends 2 W (p-1)/p bytes per device and parameter.
TEST(AlexNet, HasThePublishedSizeAndTheTablesBytes) {
  const Plan plan = plan_of(CONVNET_SOURCE_DIR "/model-defs/alexnet.yaml", {"batch=512"}, 4);
  int64_t parameters = 0;
  for (const Tensor& t : plan.tensors)
    if (t.kind == TensorKind::kParameter) parameters += t.shape.count();
  EXPECT_EQ(parameters, 61100840);

  int64_t bytes = 0;
  int64_t reduced = 0, gathered = 0;
  for (const Exchange& e : plan.exchanges) {
    const Tensor& t = plan.tensors[static_cast<size_t>(e.tensor)];
    if (t.kind == TensorKind::kMetric) continue;
    EXPECT_EQ(e.bytes, t.shape.count() * 4 * 3 / 4) << t.name;
    bytes += e.bytes;
    reduced += e.kind == Exchange::Kind::kReduceScatter;
    gathered += e.kind == Exchange::Kind::kAllGather;
    EXPECT_TRUE(e.kind != Exchange::Kind::kReduceScatter || e.order == Exchange::Order::kTree);
  }
  EXPECT_EQ(bytes, 2 * 61100840 * 4LL * 3 / 4);
  EXPECT_EQ(reduced, 16);
  EXPECT_EQ(gathered, 16);
}

}  // namespace
}  // namespace convnet
