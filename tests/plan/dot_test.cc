// If this fails, the drawing of a plan no longer says who holds what and what crosses.
#include "framework/plan/dot.h"

#include "tests/plan/plan_files.h"

namespace convnet {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Dot, WhoHoldsWhatAndWhatCrosses) {
  const std::string dot = print_dot(read_plan("model_2_devices"));
  EXPECT_THAT(dot, HasSubstr("\"fc1\" [label=\"fc1 (fc)\\n0: C 0:4\\l1: C 4:8\\l"
                             "weights\\l0: K 0:4\\l1: K 4:8\\l\""));
  EXPECT_THAT(dot, HasSubstr("\"fc1\" -> \"fc2\" [label=\"forward: all_gather, 512 B\\n"
                             "backward: reduce_scatter, 512 B\""));
  EXPECT_THAT(dot, HasSubstr("\"data\" -> \"fc1\";\n"));
  EXPECT_THAT(dot, HasSubstr("\"label\" -> \"loss\";\n"));
}

TEST(Dot, OfOneDeviceNothingCrosses) {
  EXPECT_THAT(print_dot(read_plan("train_1_device")), Not(HasSubstr("penwidth")));
}

// Every line is a statement of Graphviz's language: braces and quotes close.
TEST(Dot, IsWellFormed) {
  for (const std::string& name : kAllTrainPlans) {
    const std::string dot = print_dot(read_plan(name));
    int braces = 0;
    bool quoted = false;
    for (size_t i = 0; i < dot.size(); ++i) {
      if (dot[i] == '"' && (i == 0 || dot[i - 1] != '\\')) quoted = !quoted;
      if (quoted) continue;
      braces += dot[i] == '{' ? 1 : dot[i] == '}' ? -1 : 0;
    }
    EXPECT_EQ(braces, 0) << name;
    EXPECT_FALSE(quoted) << name;
    for (const Layer& layer : read_plan(name).layers)
      EXPECT_THAT(dot, HasSubstr("\"" + layer.name + "\" [label=")) << name;
  }
}

}  // namespace
}  // namespace convnet
