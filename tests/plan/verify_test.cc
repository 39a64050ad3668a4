// If this fails, the verifier refuses good plans or lets one class of broken plans run.
#include "framework/plan/verify_plan.h"

#include "tests/plan/plan_files.h"

namespace convnet {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(VerifyPlan, AcceptsGoodPlans) {
  std::vector<std::string> all = kAllTrainPlans;
  all.push_back("test_1_device");
  for (const std::string& name : all)
    EXPECT_EQ(fault_text(verify_plan(read_plan(name))), "") << name;
}

// A plan with one edit, and the rule that must name it.
struct Case {
  std::string plan, from, to, rule;
  std::string message = "";
  int skip = 0;
};

void expect_fault(const Case& c) {
  const Plan plan = parsed(edited(plan_text(c.plan), c.from, c.to, c.skip));
  const std::string text = fault_text(verify_plan(plan));
  EXPECT_THAT(text, HasSubstr(c.rule + ": ")) << c.from << " -> " << c.to;
  EXPECT_THAT(text, HasSubstr(c.message)) << c.from << " -> " << c.to;
}

TEST(VerifyPlan, Structure) {
  const std::string one = "train_1_device", two = "train_2_devices";
  for (const Case& c : std::vector<Case>{
           {one, "batch 32", "batch 0", "header", "the batch is 0, must be 1 to 16777216"},
           {one, "dtype f32", "dtype i32", "header", "the element type is i32"},
           {one, "shards [0,16,32]", "shards [0,8,32]", "shards",
            "boundary 8 is no multiple of 16"},
           {one, "shards [0,16,32]", "shards [0,16]", "shards",
            "must reach from 0 to the batch, 32"},
           {one, "shards [0,16,32]", "shards [0,16,16,32]", "shards", "boundary 16 follows 16"},
           {one, "fc1 activation f32", "fc1 activation f64", "tensor", "'fc1' is f64"},
           {one, "[3,18] init=uniform lo=-0.5 hi=0.5", "[3,18] init=uniform lo=-0.5", "tensor",
            "init=uniform with lo and hi"},
           {one, "metric f64 plain [3]", "metric f64 plain [4]", "tensor",
            "has 4 entries, needs 2 and one for each of the 1 of top"},
           {one, "pool1 activation f32 blocked [32", "pool1 activation f32 blocked [31", "tensor",
            "has 31 examples, the batch is 32"},
           {one, "fc1 arena offset=", "fc1 state offset=", "region",
            "buffer '%fc1': lies in the region state"},
           {one, "bytes=9216", "bytes=9152", "size", "has 9152 bytes"},
           {one, "fc1.w = fc1.w state", "fc1.w = fc1.w state offset=0", "offset"},
           {one, "device 0 arena=", "device 0 arena=1", "arena"},
           {one, "device 0 arena=20800 bound=20800", "device 0 arena=20800 bound=20736", "arena",
            "the recorded bound is 20736 bytes, at most 20800 are live at once"},
           {one, "guard %loss.metrics", "guard %loss.metrics %loss.metrics", "operands",
            "has 2 operands, takes 1"},
           {one, "%pool1 %fc1.w %fc1.b -> %fc1", "%pool1 %fc1.w.momentum %fc1.b -> %fc1",
            "operand-kind", "operand 1, '%fc1.w.momentum', is state, must be a parameter"},
           {one, " groups=1 act=relu", " act=relu", "attribute", "has no 'groups'"},
           {one, "act=relu @conv1", "act=rely @conv1", "attribute",
            "'act' is 'rely', must be one of: none relu tanh sigmoid"},
           {one, "scale=0.03125", "scale=0.03125 mode=1", "attribute",
            "has 'mode', which this operation does not know"},
           {one, "momentum=0.9 @fc1", "momentum=1.0 @fc1", "attribute",
            "'momentum' is 1, must be at least 0 and below 1"},
           {one, "stride=[2,2] pad", "stride=[2] pad", "attribute", "'stride' has 1 entries"},
           {one, "%data %conv1.w", "%data[0:32,0:1,0:6,0:7] %conv1.w", "box",
            "lies outside its buffer's"},
           {one, "%data %conv1.w", "%data[0:24,0:1,0:6,0:6] %conv1.w", "box",
            "ends at example 24, no multiple of 16"},
           {one, "phase train", "phase test", "phase", "update.sgd: has no place in a test plan"},
           {two, "%loss.metrics = loss.metrics 0/2", "%loss.metrics = loss.metrics 2/2", "part",
            "partial sum 2 of 2"},
           {two, "  0: [0:3] 0/2", "  1: [0:3] 0/2", "group", "names device 1 twice"},
           {two, "  0: [0:3] 0/2", "  7: [0:3] 0/2", "group", "names device 7 of 2"},
           {two, "id=0", "id=9", "index", "exchange 9 of 9"},
       })
    expect_fault(c);
}

TEST(VerifyPlan, Geometry) {
  const std::string one = "train_1_device", two = "train_2_devices";
  for (const Case& c : std::vector<Case>{
           {one, "stride=[1,1] pad=[1,1] dilation=[1,1] groups=1 act=relu",
            "stride=[1,1] pad=[0,1] dilation=[1,1] groups=1 act=relu", "shape",
            "the number of output rows is 6, must be 4"},
           {one, "kernel=[2,2] stride=[2,2]", "kernel=[2,2] stride=[1,2]", "shape",
            "windows of 2 with stride 1 and pad 0 over 6 rows do not give 3"},
           {one, "pool.max.fwd %conv1 ->", "pool.max.fwd %conv1[0:32,0:2,0:5,0:6] ->", "coverage",
            "has the rows 0:5, 0:6 are needed"},
           {one, "%data %conv1.w %conv1.b", "%data %conv1.w[0:1,0:1,0:3,0:3] %conv1.b", "coverage",
            "has the filters 0:1, must have 0:2"},
           {two, "guard %loss.metrics@1", "guard %loss.metrics", "complete",
            "'%loss.metrics' holds partial sum 0 of 2, must be complete"},
           {two, "%loss.metrics = loss.metrics 0/2", "%loss.metrics = loss.metrics", "complete",
            "counts as complete, but sums the examples 0:32 of 64"},
           {one, "-> %fc1.w %fc1.w.momentum", "-> %fc1.w[0:2,0:18] %fc1.w.momentum", "in-place"},
           {"branches", "groups=2 act=none", "groups=3 act=none", "shape"},
           {"branches", "size=3 alpha=0.1 beta=0.75 k=1.0 @norm1",
            "size=4 alpha=0.1 beta=0.75 k=1.0 @norm1", "attribute", "'size' is 4, must be odd"},
           {"branches", "%sum1 %tanh1 -> %cat1", "%sum1 %tanh1 %tanh1 -> %cat1", "shape",
            "the number of channels of the parts is 12, must be 8"},
           {"branches", "classes=4", "classes=5", "shape",
            "the number of classes of the label is 5"},
       })
    expect_fault(c);
}

TEST(VerifyPlan, Memory) {
  const std::string one = "train_1_device";
  for (const Case& c : std::vector<Case>{
           {one, "  pool.max.fwd %conv1 -> %pool1 kernel=[2,2] stride=[2,2] pad=[0,0] @pool1:8\n",
            "", "use-before-definition",
            "reads '%pool1', but '%pool1[0:32,0:2,0:3,0:3]' was not written"},
           {one, "  guard %loss.metrics @loss:10\n",
            "  pool.max.fwd %conv1 -> %pool1 kernel=[2,2] stride=[2,2] pad=[0,0] @pool1:8\n",
            "written-twice", "writes '%pool1', which holds a value already"},
           {one, "  guard %loss.metrics @loss:10\n",
            "  act.bwd %conv1 %conv1 -> %conv1.grad act=relu @conv1:7\n", "written-twice"},
           {one, "%pool1 = pool1 arena",
            "%extra = pool1 arena offset=0 bytes=2304\n  %pool1 = pool1 arena", "unused-buffer",
            "buffer '%extra' is never written"},
       })
    expect_fault(c);
  // Two buffers in one place, one of them needed after the other is written.
  Plan plan = read_plan(one);
  Buffer* pool = nullptr;
  Buffer* conv = nullptr;
  for (Buffer& b : plan.devices[0].buffers) {
    if (b.name == "pool1") pool = &b;
    if (b.name == "conv1") conv = &b;
  }
  pool->offset = conv->offset;
  EXPECT_THAT(fault_text(verify_plan(plan)), HasSubstr("overlap: buffers '%"));
}

// A result may take its operand's place only if the operand is not needed again.
TEST(VerifyPlan, InPlace) {
  Plan plan = read_plan("branches");
  DevicePlan& d = plan.devices[0];
  const auto buffer = [&](const std::string& name) -> Buffer& {
    for (Buffer& b : d.buffers)
      if (b.name == name) return b;
    ADD_FAILURE() << name;
    return d.buffers[0];
  };
  // prob -> fc1.grad is in place in this plan; norm1 is read again after act.fwd.
  EXPECT_EQ(buffer("loss.prob").offset, buffer("fc1.grad").offset);
  buffer("tanh1").offset = buffer("norm1").offset;
  EXPECT_THAT(fault_text(verify_plan(plan)), HasSubstr("overlap: "));
}

TEST(VerifyPlan, Exchanges) {
  const std::string two = "train_2_devices", part = "loss_on_1_of_2";
  for (const Case& c : std::vector<Case>{
           {two, "order=tree bytes=32", "order=none bytes=32", "order",
            "adds 2 parts with order=none"},
           {two, "order=tree bytes=32", "order=rank bytes=32", "order",
            "are subtrees of the canonical tree, so the order is tree"},
           {two, "bytes=144", "bytes=148", "bytes", "records 148 bytes, its boxes take 144"},
           {two, "exchange 1 reduce_scatter", "exchange 1 all_reduce", "pattern",
            "is no all_reduce"},
           {two, "-> [1:3,0:18]", "-> [2:3,0:18]", "exchange-view"},
           {two, "1: [1:3,0:18] ->", "1: [2:3,0:18] ->", "cover",
            "brings device 0 nothing for the elements [1:2,0:18]"},
           {two, "1: [1:3,0:18] ->", "1: [0:3,0:18] ->", "cover",
            "brings device 0 72 elements for the 54 of [0:3,0:18]"},
           {two, "  1: [0:3] 1/2 -> [0:3]", "  1: [0:3] 0/2 -> [0:3]", "cover",
            "of partial sum 1 of 2"},
           {two, "  exchange %loss.metrics -> %loss.metrics@1 id=0 @loss:10\n", "",
            "exchange-issue", "is issued 0 times by device 0, must be 1 times"},
           {two, "id=1", "id=2", "exchange-view",
            "is of the tensor 'fc1.w.grad', the table says 'fc1.w'"},
           {part, "0 gather pool1", "0 all_gather pool1", "pattern", "is no all_gather"},
           {part, "  1: [32:64,0:2,0:3,0:3] -> -", "  1: [32:64,0:2,0:3,0:3] -> [0:16,0:2,0:3,0:3]",
            "exchange-view", "its result is nothing, the table says [0:16,0:2,0:3,0:3]"},
       })
    expect_fault(c);
}

TEST(VerifyPlan, ExchangesInAnotherOrderOnOneDeviceAreADeadlock) {
  Plan plan = read_plan("train_2_devices");
  auto& instrs = plan.devices[1].instrs;
  std::vector<size_t> at;
  for (size_t i = 0; i < instrs.size(); ++i)
    if (instrs[i].op == Op::kExchange) at.push_back(i);
  std::swap(instrs[at[1]], instrs[at[3]]);  // both gradients are there
  const std::string text = fault_text(verify_plan(plan));
  EXPECT_THAT(text, HasSubstr("exchange-order: exchange: issues exchange 2 after exchange 3"));
  EXPECT_THAT(text,
              HasSubstr("deadlock: device 0 waits in exchange 1, device 1 waits in exchange 3"));
}

TEST(VerifyPlan, Meaning) {
  const std::string one = "train_1_device", two = "train_2_devices", part = "loss_on_1_of_2",
                    branches = "branches";
  for (const Case& c : std::vector<Case>{
           {one, "cuts=[0,16,32] @fc1", "cuts=[0,32] @fc1", "cuts",
            "the cuts are [0,32], the canonical shards of the examples 0:32 are [0,16,32]"},
           {one, "scale=0.03125", "scale=0.03", "loss",
            "the scale is 0.03, weight 1 over the batch 32 is"},
           {one, "weight=1.0", "weight=2.0", "loss"},
           {one, "  guard %loss.metrics @loss:10\n", "", "guard",
            "updates a parameter before a guard of 'loss.metrics'"},
           {one,
            "  update.sgd %fc1.b.grad %fc1.b %fc1.b.momentum -> %fc1.b %fc1.b.momentum rate=2.0 "
            "decay=0.0 momentum=0.9 @fc1:9\n",
            "", "stale", "the state 'fc1.b.momentum' is never updated"},
           {one, "%conv1.grad.act act=relu", "%conv1.grad.act act=tanh", "gradient",
            "'conv1.grad' is the gradient of 'conv1', not the gradient of a result of the same "
            "operation"},
           {one, "conv.bwd_weight %data %conv1.grad.act ->", "conv.bwd_weight %data %conv1.grad ->",
            "gradient"},
           {two, "rate=2.0 decay=0.0 momentum=0.9 @conv1", "rate=3.0 decay=0.0 momentum=0.9 @conv1",
            "one-definition", "has another 'rate' here"},
           {branches, "rate=0.5 key=-77 @drop1", "rate=0.5 key=-78 @drop1", "gradient"},
           {branches, "add %tanh1.grad.cat1 %sum1.grad.act",
            "add %tanh1.grad.cat1 %tanh1.grad.cat1", "gradient",
            "they are not different parts of one gradient"},
           {branches, "act.bwd %tanh1 %tanh1.grad ->", "act.bwd %tanh1 %tanh1.grad.cat1 ->",
            "gradient-incomplete",
            "'tanh1.grad.cat1' lacks the part of the gradient of 'tanh1' that comes through layer "
            "'sum1'"},
           {branches, "lrn.bwd %conv1 %norm1 %norm1.scale", "lrn.bwd %norm1 %norm1 %norm1.scale",
            "gradient"},
           {branches, "%norm1.grad.conv2 %norm1.grad.tanh1", "%norm1.grad.conv2 %norm1.grad.conv2",
            "gradient"},
       })
    expect_fault(c);
}

TEST(VerifyPlan, SumsCutInAnyDimension) {
  const std::string model = "model_2_devices", in = "model_in_2_devices",
                    rows = "spatial_2_devices", both = "rows_by_examples_4_devices",
                    groups = "groups_2_devices";
  for (const Case& c : std::vector<Case>{
           {model, "filter_cuts=[0,1,3]", "filter_cuts=[0,3]", "cuts",
            "the filter_cuts are [0,3], the canonical shards of the filters 0:3 are [0,1,3]"},
           {model, "filter_cuts=[0,1,3]", "filter_cuts=[0,2,3]", "cuts"},
           {model, " filter_cuts=[0,1,3]", "", "one-definition", "has 'filter_cuts' only here"},
           {model, " filter_cuts=[3,4,6]", "", "one-definition", "has 'filter_cuts' only there"},
           {in, "channel_cuts=[2,3,4]", "channel_cuts=[2,4]", "cuts",
            "the canonical shards of the channels 2:4 are [2,3,4]"},
           {rows, "row_cuts=[0,1,2,3,4]", "row_cuts=[0,2,4]", "cuts",
            "the canonical shards of the rows 0:4 are [0,1,2,3,4]"},
           {rows, "row_cuts=[4,5,6,7,8]", "row_cuts=[4,5,6,7,8] column_cuts=[0,1,2,3,4]",
            "one-definition", "has 'column_cuts' only here"},
           {groups, "groups=2 act=relu", "groups=2 act=relu channel_cuts=[0,1,2]", "attribute",
            "'channel_cuts' goes with groups=1, not with 2"},
           {groups, "conv0.grad.conv1 stride=[1,1] pad=[1,1] dilation=[1,1] groups=2",
            "conv0.grad.conv1 stride=[1,1] pad=[1,1] dilation=[1,1] groups=2 filter_cuts=[0,1,2]",
            "attribute", "'filter_cuts' goes with groups=1, not with 2"},
           {rows, "%conv2.w.grad = conv2.w.grad 0/2", "%conv2.w.grad = conv2.w.grad", "complete",
            "'%conv2.w.grad' counts as complete, but sums the rows 0:4 of 8"},
           {in, "bias.fwd %fc1.sum@1", "bias.fwd %fc1.sum", "complete",
            "'%fc1.sum' holds partial sum 0 of 2, must be complete"},
           // The parts are subtrees, or the tree over them is not the one of one device.
           {model, "fc1.grad order=tree", "fc1.grad order=rank", "order",
            "the parts [0,3,6] of the filters follow the shards [0,1,3,4,6]"},
           {in, "conv1.sum order=tree", "conv1.sum order=rank", "order",
            "are subtrees of the canonical tree, so the order is tree"},
           {both, "conv2.w.grad order=tree", "conv2.w.grad order=rank", "order",
            "are subtrees of the canonical tree, so the order is tree"},
           {both, "conv1.w.grad order=rank", "conv1.w.grad order=tree", "order",
            "no subtrees of the canonical tree, so the order is rank (the parts [0,2,4] of the "
            "rows "
            "follow the shards [0,1,2,3,4], the parts [0,32,64] of the examples follow the shards "
            "[0,16,32,48,64])"},
           {"added_parts_2_devices", "order=rank", "order=tree", "order",
            "they are sums of the parts of several sums"},
       })
    expect_fault(c);
}

// An uncut sum has no shards, so its parts are no subtrees.
TEST(VerifyPlan, PartsOfUncutSumsAreAddedByRank) {
  for (const auto& [name, cuts, exchange] :
       {std::tuple("model_2_devices",
                   std::vector<std::string>{" filter_cuts=[0,1,3]", " filter_cuts=[3,4,6]"},
                   "reduce_scatter fc1.grad order="),
        std::tuple("model_in_2_devices",
                   std::vector<std::string>{" channel_cuts=[0,1]", " channel_cuts=[1,2]"},
                   "all_reduce fc1.sum order=")}) {
    std::string text = plan_text(name);
    for (const std::string& attr : cuts) text = edited(text, attr + " ", " ");
    EXPECT_THAT(fault_text(verify_plan(parsed(text))), HasSubstr("so the order is rank")) << name;
    const std::string by = exchange;
    text = edited(text, by + "tree", by + "rank");
    EXPECT_EQ(fault_text(verify_plan(parsed(text))), "") << name;
  }
}

// Any sum of one device may follow shards, whole.
TEST(VerifyPlan, AcceptsCutsOfWholeSums) {
  std::string text = plan_text("train_1_device");
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"groups=1 act=relu", "groups=1 act=relu channel_cuts=[0,1]"},
           {"%fc1 act=none", "%fc1 act=none channel_cuts=[0,1,2]"},
           {"-> %pool1.grad", "-> %pool1.grad filter_cuts=[0,1,3]"},
           {"cuts=[0,16,32] @conv1",
            "cuts=[0,16,32] row_cuts=[0,1,3,4,6] column_cuts=[0,1,3,4,6] @conv1"}})
    text = edited(text, from, to);
  EXPECT_EQ(fault_text(verify_plan(parsed(text))), "");
}

// Part k sums the k-th of all combinations of rows and examples.
TEST(VerifyPlan, PartsAreNumberedInOrder) {
  Plan plan = read_plan("rows_by_examples_4_devices");
  const auto swap = [&](const std::string& name, Part* p) {
    const bool is_conv1 = name == "conv1.w.grad" || name == "conv1.b.grad";
    if (is_conv1 && p->of == 4 && (p->k == 1 || p->k == 2)) p->k = 3 - p->k;
  };
  for (DevicePlan& d : plan.devices)
    for (Buffer& b : d.buffers) swap(plan.tensors[static_cast<size_t>(b.tensor)].name, &b.part);
  for (Exchange& e : plan.exchanges)
    for (Part& p : e.from) swap(plan.tensors[static_cast<size_t>(e.tensor)].name, &p);
  EXPECT_THAT(
      fault_text(verify_plan(plan)),
      HasSubstr("partial: conv.bwd_weight: part 1 of 4 of 'conv1.w.grad' sums the rows 2:4, "
                "the columns 0:2, the examples 0:32, must sum the rows 0:2, the columns "
                "0:2, the examples 32:64"));
}

// Each row counts once: a part that sums other rows than its place says is found.
TEST(VerifyPlan, PartsSumEverythingOnce) {
  const std::string text =
      edited(edited(plan_text("spatial_2_devices"), "%conv1@1 %conv2.grad.act ->",
                    "%conv1@1 %conv2.grad.act[0:32,0:2,0:3,0:4] ->"),
             "row_cuts=[0,1,2,3,4] @conv2", "row_cuts=[0,1,2,3] @conv2");
  EXPECT_THAT(
      fault_text(verify_plan(parsed(text))),
      HasSubstr("partial: conv.bwd_weight: part 0 of 2 of 'conv2.w.grad' sums the rows 0:3, "
                "the columns 0:4, the examples 0:32, must sum the rows 0:4"));
}

TEST(VerifyPlan, BandsAndRanges) {
  const std::string rows = "spatial_2_devices", groups = "groups_2_devices",
                    in = "model_in_2_devices";
  for (const Case& c : std::vector<Case>{
           {rows, "conv.fwd %conv1@1 %conv2.w", "conv.fwd %conv1@1[0:32,0:2,0:4,0:4] %conv2.w",
            "coverage", "has the rows 0:4, 0:5 are needed"},
           {rows, "conv.bwd_data %conv2.grad.act@1 %conv2.w -> %conv1.grad",
            "conv.bwd_data %conv2.grad.act@1[0:32,0:2,0:4,0:4] %conv2.w -> %conv1.grad", "coverage",
            "has the rows 0:4, 0:5 are needed"},
           {rows, "conv.bwd_weight %conv1@1 %conv2.grad.act",
            "conv.bwd_weight %conv1@1[0:32,0:2,0:4,0:4] %conv2.grad.act", "coverage",
            "has the rows 0:4, 0:5 are needed"},
           {rows, "%pool1.grad[0:32,0:2,0:2,0:2]", "%pool1.grad[0:32,0:2,0:1,0:2]", "coverage",
            "has the rows 0:1, 0:2 are needed"},
           {groups, "conv.fwd %conv0 %conv1.w", "conv.fwd %conv0[0:32,0:1,0:2,0:2] %conv1.w",
            "coverage", "has the channels 0:1, 0:2 are needed"},
           {groups, "concat.fwd %conv1@1 %conv2", "concat.fwd %conv1@1[0:32,0:2,0:2,0:2] %conv2",
            "coverage", "has the channels 0:2, must have 0:3"},
           {groups, "concat.fwd %conv1@1 %conv2", "concat.fwd %conv1@1[0:0,0:0,0:0,0:0] %conv2",
            "coverage", "is empty, must have the channels 0:3"},
           {groups, "concat.fwd %conv1[0:32,3:4,0:2,0:2] %conv2 -> %cat1",
            "concat.fwd %conv1[0:32,3:4,0:2,0:2] %conv2 -> %cat1[0:32,3:4,0:2,0:2]", "coverage",
            "'%conv2' must be empty: none of its channels is in '%cat1[0:32,3:4,0:2,0:2]'"},
           {groups, "act.bwd %conv1 ", "act.bwd %conv1[0:0,0:0,0:0,0:0] ", "box", "is empty"},
           {in, "bias.fwd %fc1.sum@1 %fc1.b", "bias.fwd %fc1.sum@1 %conv1.b", "shape",
            "the length of the bias is 2, must be 3"},
           {in, "bias.bwd %fc1.grad -> %fc1.b.grad", "bias.bwd %fc1.grad -> %conv1.b.grad", "shape",
            "the length of the bias is 2, must be 3"},
           {in, "bias.bwd %fc1.grad -> %fc1.b.grad",
            "bias.bwd %fc1.grad[0:32,0:2,0:1,0:1] -> %fc1.b.grad", "coverage",
            "has the filters 0:2, 0:3 are needed"},
       })
    expect_fault(c);
}

// fc1.w.grad has 3 rows of 18 elements; one device takes one of them, the other two.
TEST(VerifyPlan, EncodedExchanges) {
  const std::string two = "train_2_devices", groups = "groups_2_devices";
  const std::string gradient = "reduce_scatter fc1.w.grad order=tree bytes=144";
  const auto as = [&](const std::string& wire) {
    return "reduce_scatter fc1.w.grad order=tree wire=" + wire;
  };
  for (const Case& c : std::vector<Case>{
           {two, gradient, as("u8tree") + " bytes=144", "bytes",
            "records 144 bytes, its boxes take 40"},
           {two, gradient, as("bf16") + " bytes=40", "bytes",
            "records 40 bytes, its boxes take 72"},
           {two, gradient, as("onebit") + " bytes=13", "wire",
            "is encoded as onebit, but a plan has no state"},
           {two, "all_reduce loss.metrics order=tree",
            "all_reduce loss.metrics order=tree wire=f16", "wire",
            "is encoded as f16, but 'loss.metrics' is not f32"},
           {two, "all_gather fc1.w order=none", "all_gather fc1.w order=none wire=bf16", "wire",
            "is encoded as bf16, but 'fc1.w' is of kind parameter"},
           {groups, "3 boxes cat1.grad order=none", "3 boxes cat1.grad order=none wire=u8lin",
            "wire", "is encoded as u8lin, but stays on one device"},
       })
    expect_fault(c);
}

// One reshard is a copy on each device, or an exchange in each group.
TEST(VerifyPlan, ExchangesOfOneMemberAndOfGroups) {
  const std::string groups = "groups_2_devices", mesh = "mesh_4_devices";
  for (const Case& c : std::vector<Case>{
           {groups, "3 boxes cat1.grad", "3 all_gather cat1.grad", "pattern", "is no all_gather"},
           {groups, "3 boxes cat1.grad", "3 broadcast cat1.grad", "pattern", "is no broadcast"},
           {groups, "3 boxes cat1.grad order=none bytes=0", "3 boxes cat1.grad order=none bytes=4",
            "bytes", "records 4 bytes, its boxes take 0"},
           {groups, "  0: [0:32,0:6,0:2,0:2] -> [0:32,0:3,0:2,0:2]",
            "  1: [0:32,0:6,0:2,0:2] -> [0:32,0:3,0:2,0:2]", "exchange-issue"},
           {mesh, "0 all_gather fc1 order", "0 reduce_scatter fc1 order", "pattern"},
           {mesh, "  0: [0:16,0:4,0:1,0:1] -> [0:16,0:8,0:1,0:1]",
            "  0: [0:16,0:4,0:1,0:1] -> [0:32,0:8,0:1,0:1]", "cover",
            "brings device 0 nothing for the elements [16:32,0:8,0:1,0:1]"},
       })
    expect_fault(c);
}

TEST(VerifyPlan, LossesOverRangesOfClasses) {
  const std::string model = "model_2_devices";
  for (const Case& c : std::vector<Case>{
           {model, "%fc2 %label -> %loss.stats class_cuts=[0,1,3]",
            "%fc2 %label -> %loss.stats class_cuts=[0,3]", "cuts",
            "the class_cuts are [0,3], the canonical shards of the classes 0:3 are [0,1,3]"},
           {model, "%fc2 %label -> %loss.stats class_cuts=[0,1,3]",
            "%fc2[0:32,0:2,0:1,0:1] %label -> %loss.stats class_cuts=[0,1,2]", "coverage",
            "has the classes 0:2, must have whole canonical shards, which meet at 0, 1, 3, 4, 6"},
           {model, "-> %loss.stats class_cuts=[3,4,6]",
            "-> %loss.stats[0:32,6:9,0:1,0:1] class_cuts=[3,4,6]", "coverage",
            "has the statistics 6:9, must have 6:12"},
           {model, "%label %loss.stats@1 -> %loss.prob",
            "%label %loss.stats@1[0:32,0:6,0:1,0:1] -> %loss.prob", "coverage",
            "has the statistics 0:6, must have 0:12"},
           {model, "%loss.prob %loss.rank class_cuts=[0,1,3]",
            "%loss.prob %loss.rank[0:32,0:1,0:1,0:1] class_cuts=[0,1,3]", "coverage",
            "has the shards 0:1, must have 0:2"},
           {model, "%loss.stats@1 %loss.rank@1 %label",
            "%loss.stats@1 %loss.rank@1[0:32,0:2,0:1,0:1] %label", "coverage",
            "has the shards 0:2, must have 0:4"},
           {model, "classes=6 @loss", "classes=9 @loss", "shape",
            "the number of entries for the shards of the classes is 12, must be 24"},
           {model, "top=[1,2] cuts", "top=[1,7] cuts", "attribute",
            "'top' asks for the best 7 of 6 classes"},
           {model, "top=[1,2] cuts=[0,16,32]", "top=[1,2] cuts=[0,32]", "cuts"},
           {model, "%fc2 %label -> %loss.stats", "%fc2.grad %label -> %loss.stats",
            "use-before-definition"},
       })
    expect_fault(c);
}

// Operations of a loss that each fit by themselves, but not together.
TEST(VerifyPlan, PartsOfALossBelongTogether) {
  // 5 to 7 classes have four shards.
  std::string text = plan_text("model_2_devices");
  for (int d = 0; d < 2; ++d) text = edited(text, "classes=6 @loss", "classes=5 @loss");
  EXPECT_THAT(fault_text(verify_plan(parsed(text))),
              HasSubstr("loss: softmax.metrics: counts 5 classes, 'fc2' has 6"));

  // The probabilities of other scores than those of the statistics.
  text = plan_text("model_2_devices");
  text = edited(text, "tensor fc2 activation f32 blocked [32,6,1,1]\n",
                "tensor fc2 activation f32 blocked [32,6,1,1]\n"
                "tensor other activation f32 blocked [32,6,1,1]\n");
  for (int d = 0; d < 2; ++d) {
    const std::string box = d == 0 ? "[0:32,0:3,0:1,0:1]" : "[0:32,3:6,0:1,0:1]";
    text = edited(text, "  %fc2 = fc2" + box,
                  "  %other = other" + box + " arena offset=65536 bytes=384\n  %fc2 = fc2" + box);
    text = edited(text, "softmax.norm %fc2 %label", "softmax.norm %other %label");
    text = edited(text, "  softmax.stats ",
                  "  act.fwd %fc2 -> %other act=tanh @fc2:8\n  softmax.stats ", d);
  }
  EXPECT_THAT(fault_text(verify_plan(parsed(text))),
              HasSubstr("loss: softmax.norm: 'loss.stats' must be the statistics of 'other' and "
                        "'label'"));

  // Metrics that no one makes: the loss would have no weight.
  Plan plan = read_plan("model_2_devices");
  for (DevicePlan& d : plan.devices)
    std::erase_if(d.instrs,
                  [](const Instr& i) { return i.op == Op::kSoftmaxMetrics || i.op == Op::kGuard; });
  EXPECT_THAT(fault_text(verify_plan(plan)),
              HasSubstr("loss: softmax.norm: its metrics are made 0 times, must be once"));
}

// What the text form cannot say.
TEST(VerifyPlan, Names) {
  Plan plan = read_plan("train_1_device");
  plan.layers[1].name = "";
  plan.tensors[2].name = plan.tensors[3].name;
  plan.devices[0].buffers[0].name = plan.devices[0].buffers[5].name;
  const std::string text = fault_text(verify_plan(plan));
  EXPECT_THAT(text, HasSubstr("name: a layer without a name"));
  EXPECT_THAT(text, HasSubstr("name: two tensors are called 'conv1.b'"));
  EXPECT_THAT(text, HasSubstr("device 0: name: two buffers are called 'fc1.b'"));
}

TEST(VerifyPlan, References) {
  Plan plan = read_plan("train_1_device");
  plan.devices[0].buffers[3].tensor = 99;
  plan.devices[0].instrs[2].in[1].buffer = -1;
  plan.devices[0].instrs[3].layer = 4;
  const std::string text = fault_text(verify_plan(plan));
  EXPECT_THAT(text, HasSubstr("index: buffer '%conv1.b': tensor 99 of 23"));
  EXPECT_THAT(text, HasSubstr("index: fc.fwd: operand 1 is buffer -1 of 23"));
  EXPECT_THAT(text, HasSubstr("index: softmax_loss.fwd: names layer 4 of 4"));
}

// Moves the instruction at `from` on a device to `to`.
void move(DevicePlan& device, size_t from, size_t to) {
  const Instr i = device.instrs[from];
  device.instrs.erase(device.instrs.begin() + static_cast<ptrdiff_t>(from));
  device.instrs.insert(device.instrs.begin() + static_cast<ptrdiff_t>(to), i);
}

size_t find(const DevicePlan& d, Op op, int skip = 0) {
  for (size_t i = 0; i < d.instrs.size(); ++i)
    if (d.instrs[i].op == op && skip-- == 0) return i;
  ADD_FAILURE() << op_info(op).text;
  return 0;
}

TEST(VerifyPlan, OldParametersAreReadBeforeTheirUpdate) {
  Plan plan = read_plan("train_1_device");
  DevicePlan& d = plan.devices[0];
  move(d, find(d, Op::kFcBwdData), find(d, Op::kUpdateSgd));
  EXPECT_THAT(fault_text(verify_plan(plan)),
              HasSubstr("read-after-update: fc.bwd_data: reads '%fc1.w[0:3,0:18]'"));
}

TEST(VerifyPlan, UpdatesHappenOnce) {
  Plan plan = read_plan("train_1_device");
  DevicePlan& d = plan.devices[0];
  const size_t update = find(d, Op::kUpdateSgd);
  d.instrs.insert(d.instrs.begin() + static_cast<ptrdiff_t>(update), d.instrs[update]);
  EXPECT_THAT(fault_text(verify_plan(plan)), HasSubstr("updated-twice: "));
}

// Without the all-gather a device would go on with old weights.
TEST(VerifyPlan, NewParametersReachEveryDevice) {
  Plan plan = read_plan("train_2_devices");
  plan.exchanges.pop_back();
  for (DevicePlan& d : plan.devices) d.instrs.pop_back();
  EXPECT_THAT(fault_text(verify_plan(plan)),
              HasSubstr("device 0: stale: '%conv1.b[1:2]' still holds the old value"));
}

TEST(VerifyPlan, ParametersLiveSomewhere) {
  Plan plan = read_plan("test_1_device");
  Tensor extra = plan.tensors[2];
  extra.name = "extra";
  plan.tensors.push_back(extra);
  EXPECT_THAT(fault_text(verify_plan(plan)), HasSubstr("residency: no device holds 'extra["));
}

// The guard stops all devices between the same two exchanges, or one waits for ever.
TEST(VerifyPlan, GuardsStopAllDevicesAtOnePlace) {
  Plan plan = read_plan("loss_on_1_of_2");
  DevicePlan& d = plan.devices[1];
  move(d, find(d, Op::kGuard), find(d, Op::kPoolMaxBwd) - 1);
  EXPECT_THAT(
      fault_text(verify_plan(plan)),
      HasSubstr("guard-order: exchange 2 (pool1.grad) comes before the guard of 'loss.metrics' "
                "on device 1 and after it on device 0"));
}

TEST(VerifyPlan, LossesAreDifferentiatedOnce) {
  Plan plan = read_plan("train_1_device");
  plan.tensors[14].attrs.set("weight", 0.5);
  DevicePlan& d = plan.devices[0];
  Instr& loss = d.instrs[find(d, Op::kSoftmaxLossBwd)];
  loss.attrs.set("scale", 0.5 / 32);
  EXPECT_EQ(fault_text(verify_plan(plan)), "");
}

TEST(VerifyPlan, DropoutLayersHaveTheirOwnKeys) {
  const std::string twice = edited(
      edited(edited(plan_text("branches"), "tensor drop1 activation",
                    "tensor drop2 activation f32 blocked [32,8,2,2]\ntensor drop1 activation"),
             "  %drop1 = drop1",
             "  %drop2 = drop2 arena offset=1000000 bytes=4096\n  %drop1 = drop1"),
      "  dropout.fwd %avg1 -> %drop1",
      "  dropout.fwd %avg1 -> %drop2 rate=0.5 key=-77 @drop1:12\n  dropout.fwd %avg1 -> %drop1");
  Plan plan = parsed(twice);
  for (int round = 0; round < 2; ++round) {  // take over what the verifier computes of the memory
    int64_t end = 0;
    for (Buffer& b : plan.devices[0].buffers) {
      if (b.name == "drop2") b.offset = 999936;
      end = std::max(end, b.offset + b.bytes);
    }
    plan.devices[0].arena_bytes = end;
  }
  const std::string text = fault_text(verify_plan(plan));
  if (text.find("the recorded bound") != std::string::npos) {
    const size_t at = text.find("at most ") + 8;
    plan.devices[0].arena_bound = std::stoll(text.substr(at));
  }
  EXPECT_THAT(fault_text(verify_plan(plan)),
              HasSubstr("dropout-key: dropout.fwd: the key -77 is that of layer 'drop1' already"));
}

// A layer whose rate is zero has no state and no update; its gradient may stay.
TEST(VerifyPlan, AcceptsFrozenParameters) {
  std::string text = plan_text("train_1_device");
  for (const std::string line :
       {"tensor conv1.b.momentum state f32 plain [2] init=constant value=0.0\n",
        "  %conv1.b.momentum = conv1.b.momentum state bytes=64\n",
        "  update.sgd %conv1.b.grad %conv1.b %conv1.b.momentum -> %conv1.b %conv1.b.momentum "
        "rate=2.0 "
        "decay=0.0 momentum=0.9 @conv1:7\n"})
    text = edited(text, line, "");
  const std::string faults = fault_text(verify_plan(parsed(text)));
  EXPECT_THAT(faults, Not(HasSubstr("stale")));
  EXPECT_THAT(faults, Not(HasSubstr("gradient")));
}

// Windows that reach fewer rows than the image has do not need them.
TEST(VerifyPlan, OperandsMayHoldMoreThanIsNeeded) {
  std::string text = plan_text("test_1_device");
  const Plan plan = parsed(text);
  EXPECT_EQ(fault_text(verify_plan(plan)), "");
  for (const char* message : {"kernel=[1,1] stride=[2,2]"}) {
    const Plan other = parsed(edited(text, "kernel=[2,2] stride=[2,2]", message));
    EXPECT_EQ(fault_text(verify_plan(other)), "");
    const Plan less =
        parsed(edited(edited(text, "kernel=[2,2] stride=[2,2]", message), "pool.max.fwd %conv1 ->",
                      "pool.max.fwd %conv1[0:20,0:2,0:5,0:5] ->"));
    EXPECT_EQ(fault_text(verify_plan(less)), "");
    const Plan too_few =
        parsed(edited(edited(text, "kernel=[2,2] stride=[2,2]", message), "pool.max.fwd %conv1 ->",
                      "pool.max.fwd %conv1[0:20,0:2,0:4,0:5] ->"));
    EXPECT_THAT(fault_text(verify_plan(too_few)), HasSubstr("coverage"));
  }
}

TEST(VerifyPlan, FaultsNameDeviceInstructionAndLayer) {
  const Plan plan = parsed(edited(plan_text("train_2_devices"), "scale=0.015625", "scale=1.0", 1));
  const std::vector<PlanFault> faults = verify_plan(plan);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].device, 1);
  EXPECT_EQ(faults[0].instr, 6);
  EXPECT_EQ(faults[0].layer, "loss");
  EXPECT_EQ(faults[0].rule, "one-definition");
  EXPECT_EQ(
      faults[0].str(),
      "device 1, instruction 6, layer 'loss': one-definition: softmax_loss.bwd: 'fc1.grad' is made "
      "by instruction 6 of device 0 too; the operation has another 'scale' here");
}

}  // namespace
}  // namespace convnet
