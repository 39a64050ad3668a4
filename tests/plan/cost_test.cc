// If this fails, reports show wrong bytes or FLOPs, and the compiler records wrong bytes in plans.
#include "framework/plan/cost.h"

#include <nlohmann/json.hpp>

#include "framework/plan/summary.h"
#include "tests/plan/plan_files.h"

namespace convnet {
namespace {

using ::testing::HasSubstr;
using Kind = Exchange::Kind;

Part range(int64_t lo, int64_t hi, int k = 0, int of = 1) {
  Part p;
  p.box.append(lo, hi);
  p.k = k;
  p.of = of;
  return p;
}

int64_t bytes(Kind kind, std::vector<Part> from, std::vector<Part> to, DType dtype = DType::kF32) {
  Exchange e;
  e.kind = kind;
  for (size_t m = 0; m < from.size(); ++m) e.group.push_back(static_cast<int>(m));
  e.from = std::move(from);
  e.to = std::move(to);
  Tensor t;
  t.dtype = dtype;
  return wire_bytes(e, t, t);
}

// T = 480 bytes over p = 4 (T(p-1)/p, 2T(p-1)/p, T).
TEST(WireBytes, EqualPieces) {
  std::vector<Part> pieces, all, sums, root(4, range(0, 0)), last(4, range(0, 0));
  for (int m = 0; m < 4; ++m) {
    pieces.push_back(range(30 * m, 30 * m + 30));
    all.push_back(range(0, 120));
    sums.push_back(range(0, 120, m, 4));
  }
  root[0] = range(0, 120);
  last[3] = range(0, 120);
  EXPECT_EQ(bytes(Kind::kAllGather, pieces, all), 360);
  EXPECT_EQ(bytes(Kind::kReduceScatter, sums, pieces), 360);
  EXPECT_EQ(bytes(Kind::kAllReduce, sums, all), 720);
  EXPECT_EQ(bytes(Kind::kBroadcast, root, all), 480);
  EXPECT_EQ(bytes(Kind::kBroadcast, last, all), 480);
  EXPECT_EQ(bytes(Kind::kReduce, sums, last), 480);
  EXPECT_EQ(bytes(Kind::kGather, pieces, root), 360);
  EXPECT_EQ(bytes(Kind::kScatter, last, pieces), 360);
  EXPECT_EQ(bytes(Kind::kAllGather, pieces, all, DType::kF64), 720);
  // As a plain box copy everyone sends his piece to each of the others.
  EXPECT_EQ(bytes(Kind::kBoxes, pieces, all), 360);
  EXPECT_EQ(bytes(Kind::kBoxes, root, all), 3 * 480);
}

TEST(WireBytes, UnequalPiecesCountTheBusiestMember) {
  const std::vector<Part> pieces = {range(0, 10), range(10, 13), range(13, 20)};
  const std::vector<Part> all(3, range(0, 20));
  const std::vector<Part> sums = {range(0, 20, 0, 3), range(0, 20, 1, 3), range(0, 20, 2, 3)};
  EXPECT_EQ(bytes(Kind::kAllGather, pieces, all), (20 - 3) * 4);
  EXPECT_EQ(bytes(Kind::kReduceScatter, sums, pieces), (20 - 3) * 4);
  EXPECT_EQ(bytes(Kind::kAllReduce, sums, all), 2 * (20 - 6) * 4);
}

// Planning, row 17: 4 -> 3 devices, T = 12 elements: at most 0.25 T a device.
TEST(WireBytes, BoxesAreIntersected) {
  const std::vector<Part> four = {range(0, 3), range(3, 6), range(6, 9), range(9, 12)};
  const std::vector<Part> three = {range(0, 4), range(4, 8), range(8, 12), range(0, 0)};
  EXPECT_EQ(bytes(Kind::kBoxes, four, three), 3 * 4);
}

// A copy on one device takes no wire.
TEST(WireBytes, OneMember) { EXPECT_EQ(bytes(Kind::kBoxes, {range(0, 10)}, {range(2, 5)}), 0); }

// A group that moves half of a tensor pays for that half alone: eight devices in two rows of four.
TEST(WireBytes, GroupsCountTheirOwnBoxes) {
  std::vector<Part> sums, pieces;
  for (int m = 0; m < 4; ++m) {
    sums.push_back(range(120, 240, m, 4));
    pieces.push_back(range(120 + 30 * m, 150 + 30 * m));
  }
  EXPECT_EQ(bytes(Kind::kReduceScatter, sums, pieces), 360);
  EXPECT_EQ(bytes(Kind::kAllGather, pieces, std::vector<Part>(4, range(120, 240))), 360);
}

TEST(WireBytes, TrafficOfEachMember) {
  const Plan plan = read_plan("loss_on_1_of_2");
  const auto traffic = [&](size_t id) {
    const Exchange& e = plan.exchanges[id];
    return wire_traffic(e, plan.tensors[static_cast<size_t>(e.tensor)],
                        plan.tensors[static_cast<size_t>(e.target())]);
  };
  EXPECT_EQ(traffic(0)[0].sent, 0);  // gather to device 0
  EXPECT_EQ(traffic(0)[0].received, 2304);
  EXPECT_EQ(traffic(0)[1].sent, 2304);
  EXPECT_EQ(traffic(1)[0].sent, 24);  // broadcast from device 0
  EXPECT_EQ(traffic(1)[0].received, 0);
  EXPECT_EQ(traffic(1)[1].received, 24);
  EXPECT_EQ(traffic(2)[0].sent, 2304);  // scatter from device 0
  EXPECT_EQ(traffic(2)[1].received, 2304);
  EXPECT_EQ(traffic(3)[1].sent, 72);  // all_reduce
}

int64_t total_flops(const Plan& plan, Op op) {
  int64_t sum = 0;
  for (const DevicePlan& d : plan.devices)
    for (const Instr& i : d.instrs)
      if (i.op == op) sum += flops(plan, d, i);
  return sum;
}

TEST(Flops, OfEachOperation) {
  const Plan plan = read_plan("train_1_device");
  const int64_t conv = 2 * 32 * 2 * 6 * 6 * 1 * 3 * 3, fc = 2 * 32 * 3 * 18;
  EXPECT_EQ(total_flops(plan, Op::kConvFwd), conv);
  EXPECT_EQ(total_flops(plan, Op::kConvBwdWeight), conv);
  EXPECT_EQ(total_flops(plan, Op::kFcFwd), fc);
  EXPECT_EQ(total_flops(plan, Op::kFcBwdData), fc);
  EXPECT_EQ(total_flops(plan, Op::kFcBwdWeight), fc);
  EXPECT_EQ(total_flops(plan, Op::kPoolMaxFwd), 32 * 2 * 3 * 3 * 4);
  const Plan other = read_plan("branches");
  const int64_t grouped = 2 * 32 * 4 * 5 * 5 * 2 * 3 * 3;  // 2 groups of 2 channels
  EXPECT_EQ(total_flops(other, Op::kConvBwdData), grouped);
}

// The parts of a layer on two devices add up to the layer.
TEST(Flops, DoNotDependOnTheSplit) {
  const std::string one = plan_text("train_1_device");
  const Plan single = read_plan("train_1_device"), two = read_plan("train_2_devices");
  for (const Op op : {Op::kConvFwd, Op::kConvBwdWeight, Op::kFcFwd, Op::kFcBwdData,
                      Op::kFcBwdWeight, Op::kPoolMaxFwd, Op::kPoolMaxBwd, Op::kActBwd})
    EXPECT_EQ(total_flops(two, op), 2 * total_flops(single, op))
        << op_info(op).text;  // twice the batch
}

TEST(Summary, CountsWhatThePlanHolds) {
  const PlanSummary s = summarise(read_plan("train_2_devices"));
  EXPECT_EQ(s.parameters, 2 * 9 + 2 + 3 * 18 + 3);
  ASSERT_EQ(s.devices.size(), 2u);
  EXPECT_EQ(s.devices[0].parameters, 128 + 64 + 256 + 64);
  EXPECT_EQ(s.devices[0].state, 64 + 64 + 128 + 64);
  EXPECT_EQ(s.devices[1].state, 64 + 64 + 192 + 64);
  EXPECT_EQ(s.devices[0].inputs, 4608 + 128);
  EXPECT_EQ(s.devices[0].arena, s.devices[0].arena_bound);
  EXPECT_EQ(s.edges.size(), 9u);
  EXPECT_EQ(s.edges[0].direction, PlanSummary::Direction::kForward);
  EXPECT_EQ(s.edges[1].direction, PlanSummary::Direction::kSync);
  EXPECT_EQ(s.bytes_sync, 2 * (144 + 8 + 36 + 4));
  EXPECT_EQ(s.bytes_forward, 32);
  EXPECT_EQ(s.bytes_backward, 0);
  EXPECT_EQ(s.devices[0].sent + s.devices[1].sent, s.devices[0].received + s.devices[1].received);
  EXPECT_EQ(s.flops_forward, s.devices[0].flops_forward + s.devices[1].flops_forward);
  const PlanSummary gathered = summarise(read_plan("loss_on_1_of_2"));
  EXPECT_EQ(gathered.edges[2].direction, PlanSummary::Direction::kBackward);
  EXPECT_EQ(gathered.bytes_backward, 2304);
}

TEST(Summary, PrintsForPeople) {
  PlanSummary s = summarise(read_plan("train_2_devices"));
  s.parameters = 61100840;
  const std::string text = print_summary(s);
  EXPECT_THAT(text, HasSubstr("tiny, train plan for 2 devices, batch 64, f32\n"));
  EXPECT_THAT(text, HasSubstr("61,100,840\n"));
  EXPECT_THAT(text, HasSubstr("1.00x"));
  EXPECT_THAT(text, HasSubstr("reduce_scatter"));
  EXPECT_THAT(print_summary(summarise(read_plan("test_1_device"))),
              HasSubstr("1 device, batch 20"));
}

TEST(Summary, JsonHoldsTheSameNumbers) {
  PlanSummary s = summarise(read_plan("loss_on_1_of_2"));
  s.model = "bad \xff \" utf-8";
  const auto json = nlohmann::json::parse(summary_json(s));
  EXPECT_EQ(json["parameters"], s.parameters);
  EXPECT_EQ(json["devices"].size(), 2u);
  EXPECT_EQ(json["devices"][1]["arena_bytes"], s.devices[1].arena);
  EXPECT_EQ(json["edges"][0]["tensor"], "pool1");
  EXPECT_EQ(json["edges"][0]["kind"], "gather");
  EXPECT_EQ(json["edges"][0]["bytes"], 2304);
  EXPECT_EQ(json["edges"][2]["direction"], "backward");
}

}  // namespace
}  // namespace convnet
