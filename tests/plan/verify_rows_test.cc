// If this fails, plans with sub-batches are refused though right, or accepted though wrong.
#include "tests/plan/plan_files.h"

namespace convnet {
namespace {

using ::testing::HasSubstr;

// Two passes over halves of the batch, joined for the loss.
constexpr const char* kPasses = R"(plan 1
model passes
source passes.yaml
phase test
dtype f32
batch 32
seed 7
shards [0,16,32]

layer fc1 type=fc line=6
layer loss type=softmax_loss line=7

tensor a input f32 blocked [16,2,1,1] input=data rows=[0,16]
tensor b input f32 blocked [16,2,1,1] input=data rows=[16,32]
tensor label input i32 blocked [32] input=label classes=4
tensor w parameter f32 plain [4,2] init=constant value=0.5
tensor ya activation f32 blocked [16,4,1,1] rows=[0,16]
tensor yb activation f32 blocked [16,4,1,1] rows=[16,32]
tensor y activation f32 blocked [32,4,1,1]
tensor prob activation f32 blocked [32,4,1,1]
tensor metrics metric f64 plain [3] metric=loss weight=1.0 top=[1]

device 0 arena=1600 bound=1088
  %a = a input bytes=128
  %b = b input bytes=128
  %label = label input bytes=128
  %w = w state bytes=64
  %ya = ya arena offset=0 bytes=256
  %yb = yb arena offset=256 bytes=256
  %y = y arena offset=512 bytes=512
  %prob = prob arena offset=1024 bytes=512
  %metrics = metrics arena offset=1536 bytes=64
  fc.fwd %a %w -> %ya act=none @fc1:6
  fc.fwd %b %w -> %yb act=none @fc1:6
  rows.join %ya %yb -> %y @fc1:6
  softmax_loss.fwd %y %label -> %prob %metrics top=[1] cuts=[0,16,32] @loss:7
)";

std::string faults_of(const std::string& text) { return fault_text(verify_plan(parsed(text))); }

TEST(VerifyRows, JoinsPasses) { EXPECT_EQ(faults_of(kPasses), ""); }

TEST(VerifyRows, OperandsMayJoinInAnyOrder) {
  EXPECT_EQ(faults_of(edited(kPasses, "%ya %yb -> %y ", "%yb %ya -> %y ")), "");
}

TEST(VerifyRows, RefusesWrongRows) {
  const struct {
    const char *from, *to, *rule;
    int skip;
  } cases[] = {
      {"rows=[16,32]", "rows=[0,16]", "rows", 0},          // b stands for what yb does not
      {"rows=[16,32]", "rows=[0,16]", "rows", 1},          // yb for what b does not
      {"rows=[16,32]", "rows=[16,24]", "tensor", 0},       // no whole block
      {"rows=[16,32]", "rows=[16,48]", "tensor", 0},       // beyond the batch
      {"rows=[16,32]", "rows=[0,16,16,32]", "tensor", 0},  // more rows than the tensor has
      {"rows=[16,32]", "rows=[16]", "tensor", 0},
      {"rows=[16,32]", "rows=3", "tensor", 0},
      {" rows=[16,32]", "", "tensor", 0},
      {"init=constant", "rows=[0,16] init=constant", "tensor", 0},
      {"%ya %yb -> %y ", "%ya %ya -> %y ", "coverage", 0},  // one half twice, the other never
      {"fc.fwd %b %w -> %yb", "fc.fwd %b %w -> %ya", "rows", 0},
      {"fc.fwd %b %w", "fc.fwd %a %w", "rows", 0},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(c.from) + " -> " + c.to);
    EXPECT_THAT(faults_of(edited(kPasses, c.from, c.to, c.skip)),
                HasSubstr(std::string(c.rule) + ":"));
  }
}

TEST(VerifyRows, RefusesPassesThatOverlap) {
  std::string text = kPasses;
  for (int i = 0; i < 2; ++i) text = edited(text, "rows=[16,32]", "rows=[0,16]");
  EXPECT_THAT(faults_of(text), HasSubstr("coverage: "));
}

TEST(VerifyRows, RefusesScaledUpdates) {
  const std::string text = plan_text("train_1_device");
  const size_t at = text.find("momentum=0", text.find("update.sgd"));
  ASSERT_NE(at, std::string::npos);
  std::string same = text, scaled = text;
  EXPECT_EQ(faults_of(same.insert(at, "scale=1.0 ")), "");
  EXPECT_THAT(faults_of(scaled.insert(at, "scale=2.0 ")), HasSubstr("update-scale: "));
}

}  // namespace
}  // namespace convnet
