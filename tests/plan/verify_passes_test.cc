// If this fails, the verifier takes passes over sub-batches for one step that are none.
#include <functional>
#include <string>

#include "tests/plan/plan_files.h"

namespace convnet {
namespace {

using ::testing::HasSubstr;

Plan damaged(const std::string& name, const std::function<void(std::string&)>& edit) {
  std::string text = plan_text(name);
  edit(text);
  return parsed(text);
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  ASSERT_NE(text.find(from), std::string::npos) << from;
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

// The faults of a plan in which `from` is `to` everywhere.
std::string faults_of(const std::string& name, const std::string& from, const std::string& to) {
  return fault_text(
      verify_plan(damaged(name, [&](std::string& text) { replace_all(text, from, to); })));
}

// Removes all lines with these words.
std::string faults_without(const std::string& name, const std::string& words) {
  return fault_text(verify_plan(damaged(name, [&](std::string& text) {
    size_t at = text.find(words);
    ASSERT_NE(at, std::string::npos) << words;
    for (; at != std::string::npos; at = text.find(words)) {
      const size_t begin = text.rfind('\n', at), end = text.find('\n', at);
      text.erase(begin, end - begin);
    }
  })));
}

TEST(VerifyPasses, UpdatesScaleTheirExamples) {
  EXPECT_THAT(faults_of("updates_in_passes_2_devices", "scale=2.0", "scale=1.0"),
              HasSubstr("update-scale: update.sgd: scales the gradient of 32 examples by 1, the "
                        "batch of 64 is 2 times as many"));
  EXPECT_THAT(faults_of("owners_2_devices", "momentum=0.9", "momentum=0.9 scale=2.0"),
              HasSubstr("update-scale: "));
}

TEST(VerifyPasses, EachUpdateHasAGradientOfItsOwnExamples) {
  // The second pass is applied twice, the first never.
  EXPECT_THAT(faults_of("updates_in_passes_2_devices", "update.sgd %fc1.w.grad.pass0",
                        "update.sgd %fc1.w.grad.pass1"),
              HasSubstr("use-before-definition"));
  EXPECT_THAT(faults_without("updates_in_passes_2_devices", "update.sgd %fc1.w.grad.pass1"),
              HasSubstr("read-after-update: fc.fwd: reads '%fc1.w' for the examples 16:32, 48:64, "
                        "which lead to no update of it"));
}

TEST(VerifyPasses, GuardsStandBeforeTheUpdatesOfTheirPass) {
  EXPECT_THAT(faults_without("updates_in_passes_2_devices", "guard %loss.metrics.pass1"),
              HasSubstr("guard: update.sgd: updates a parameter before a guard of 'loss.metrics' "
                        "of the examples 16:32, 48:64"));
  // Those of all passes make that of the step unnecessary, not the other way round.
  EXPECT_EQ(faults_without("updates_in_passes_2_devices", "guard %loss.metrics @"), "");
  EXPECT_THAT(faults_without("owners_2_devices", "guard %loss.metrics @"), HasSubstr("guard: "));
}

TEST(VerifyPasses, MetricsAddAllPasses) {
  EXPECT_THAT(faults_of("owners_2_devices", "= loss.metrics 1/2", "= loss.metrics 0/2"),
              HasSubstr("partial: "));
  EXPECT_THAT(faults_of("updates_in_data_passes_2_devices", "0/4 -> [0:3] 0/2", "0/4 -> [0:3] 1/2"),
              HasSubstr("cover: exchange 2 (loss.metrics.pass0) brings device 0 nothing for the "
                        "elements [0:3] of partial sum 2 of 4"));
}

TEST(VerifyPasses, OneLayerHasOneKey) {
  const std::string text = plan_text("owners_2_devices");
  const size_t at = text.find("key=") + 4;
  const std::string key = text.substr(at, text.find(' ', at) - at);
  EXPECT_THAT(faults_of("owners_2_devices", "key=" + key + " rows=[16,32]", "key=5 rows=[16,32]"),
              HasSubstr("dropout-key: dropout.fwd: the 'key' is not that of the examples 0:16 of "
                        "the same layer"));
}

TEST(VerifyPasses, PassesOfALayerAreTheSameComputation) {
  const Plan plan = damaged("owners_2_devices", [](std::string& text) {
    replace_all(text, "-> %fc1.pass1 act=relu", "-> %fc1.pass1 act=tanh");
    replace_all(text, "-> %fc1.grad.act.pass1 act=relu", "-> %fc1.grad.act.pass1 act=tanh");
  });
  EXPECT_THAT(fault_text(verify_plan(plan)),
              HasSubstr("passes: fc.fwd: the 'act' is not that of the examples 0:16 of the same "
                        "layer"));
}

TEST(VerifyPasses, JoinedRowsAreThoseOfOneValue) {
  // fc1's results in the place of what dropout makes of them.
  EXPECT_THAT(faults_of("owners_2_devices", "rows.join %fc1.grad.act.pass0 ",
                        "rows.join %fc1.grad.drop1.pass0 "),
              HasSubstr("fc1"));
}

}  // namespace
}  // namespace convnet
