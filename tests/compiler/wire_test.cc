// If this fails, values are encoded that must not be, or are not where the model file says so; or
// training with encoded exchanges does not learn, or leaves devices with different parameters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <mutex>
#include <set>

#include "layers/registry.h"
#include "parsers/model_file.h"
#include "tests/support/model_run.h"

namespace convnet {
namespace {

constexpr const char* kModel = R"(format: 1
name: small
devices: 4
batch: 128
input: {data: [2, 8, 8], label: {classes: 5}}
defaults:
  conv: {wire: WIRE}
  fc: {parallel: model, EXCHANGE wire: WIRE}
layers:
  - {name: conv1, type: conv, input: data, filters: 8, kernel: 3, act: relu}
  - {name: pool1, type: pool, kind: max, kernel: 2, stride: 2}
  - {name: fc1, type: fc, outputs: 32, act: relu}
  - {name: fc2, type: fc, outputs: 5, wire: LAST}
  - {name: loss, type: softmax_loss, input: [fc2, label]}
train: {steps: 20, momentum: 0.9, rate: {base: 0.02}, seed: 3}
)";

std::string with(std::string text, const std::string& word, const std::string& by) {
  for (size_t at; (at = text.find(word)) != std::string::npos;) text.replace(at, word.size(), by);
  return text;
}

std::string model_text(const std::string& wire, const std::string& exchange = "") {
  return with(with(with(kModel, "WIRE", wire), "LAST", wire), "EXCHANGE", exchange);
}

Plan plan_of(const std::string& text, int devices = 4, DType dtype = DType::kF32) {
  CompileOptions options;
  options.devices = devices;
  options.dtype = dtype;
  return compile_model(*bind_text(text), options);
}

// The tensors that are encoded, each with its codec.
std::set<std::string> encoded(const Plan& plan) {
  std::set<std::string> all;
  for (const Exchange& e : plan.exchanges)
    if (e.wire != Wire::kF32)
      all.insert(plan.tensors[static_cast<size_t>(e.tensor)].name + " " +
                 std::string(to_string(e.wire)));
  return all;
}

TEST(Wire, FollowsTheLayerThatReads) {
  std::string text = with(with(kModel, "EXCHANGE", ""), "LAST", "f16");
  text = with(text, "WIRE", "u8tree");
  // No class statistics, metrics or parameters.
  EXPECT_THAT(encoded(plan_of(text)),
              testing::ElementsAre("conv1.b.grad u8tree", "conv1.w.grad u8tree", "fc1 f16",
                                   "fc1.grad.fc2 f16", "pool1 u8tree", "pool1.grad.fc1 u8tree"));
  EXPECT_THAT(encoded(plan_of(text, 1)), testing::IsEmpty());
  EXPECT_THAT(encoded(plan_of(text, 4, DType::kF64)), testing::IsEmpty()) << "codecs are of f32";
}

TEST(Wire, PartialSumsOfAnOutputAreEncoded) {
  const std::string text = with(model_text("bf16"), "parallel: model,", "parallel: model_in,");
  EXPECT_THAT(encoded(plan_of(text)), testing::IsSupersetOf({"fc1.sum bf16", "fc2.sum bf16"}));
}

TEST(Wire, ReadersOfOneValueEachGetTheirs) {
  const std::string text = R"(format: 1
name: two
devices: 2
batch: 32
input: {data: [4, 1, 1], label: {classes: 3}}
layers:
  - {name: a, type: fc, input: data, outputs: 8}
  - {name: b, type: fc, input: a, outputs: 6, parallel: model, wire: u8tree}
  - {name: c, type: fc, input: a, outputs: 6, parallel: model}
  - {name: sum, type: add, input: [b, c]}
  - {name: last, type: fc, outputs: 3}
  - {name: loss, type: softmax_loss, input: [last, label]}
train: {steps: 1, rate: {base: 0.1}}
)";
  std::multiset<std::string> gathers;
  const Plan plan = plan_of(text, 2);
  for (const Exchange& e : plan.exchanges)
    if (plan.tensors[static_cast<size_t>(e.tensor)].name == "a")
      gathers.insert(e.edge + " " + std::string(to_string(e.wire)));
  EXPECT_THAT(gathers, testing::ElementsAre("a->b u8tree", "a->c f32"));
}

TEST(Wire, OnebitIsRefusedOnceWhereItStands) {
  Diagnostics diagnostics;
  const auto model = load_model_text(
      "model.yaml", with(model_text("u8tree"), "conv: {wire: u8tree}", "conv: {wire: onebit}"),
      {"layers.fc1.wire=onebit"}, diagnostics);
  ASSERT_NE(model, nullptr) << diagnostics.render();
  CompileOptions options;
  EXPECT_FALSE(compile(*model, all_layers(), options, diagnostics).has_value());
  EXPECT_EQ(diagnostics.errors(), 2);
  EXPECT_THAT(
      diagnostics.render(),
      testing::AllOf(testing::HasSubstr("model.yaml:7:16: error: layer 'conv1' has wire: onebit"),
                     testing::HasSubstr("layer 'fc1' has wire: onebit"),
                     testing::HasSubstr("help: 8 bits an element are there: wire: u8tree")));
}

struct Training {
  std::vector<double> losses;
  std::map<std::string, HostTensor> parameters;
};

// Twenty steps on one batch. Every complete value that several devices get from an exchange must
// be the same on all of them.
Training train(const Plan& plan) {
  const auto session = reference_session(plan);
  const Batch batch = random_batch(plan, 7, plan.batch);
  Training run;
  std::mutex mutex;
  std::map<std::pair<int64_t, int64_t>, uint32_t> seen;  // exchange, element
  int64_t different = 0;
  session->observe([&](int device, int index, const std::vector<View>& out) {
    const DevicePlan& program = plan.devices[static_cast<size_t>(device)];
    const Instr& instr = program.instrs[static_cast<size_t>(index)];
    if (instr.op != Op::kExchange || out[0].box.empty() || out[0].dtype != DType::kF32) return;
    const int64_t id = instr.attrs.integer("id");
    const std::lock_guard lock(mutex);
    const View& v = out[0];
    const auto rank = v.box.rank();
    std::vector<int64_t> at;
    for (int d = 0; d < rank; ++d) at.push_back(v.box.lo(d));
    for (int64_t i = 0; i < v.box.count(); ++i) {
      int64_t place = 0, logical = 0;
      for (int d = 0; d < rank; ++d) {
        const int64_t n = at[static_cast<size_t>(d)];
        const bool blocks = d == 0 && v.format == Format::kBlocked;
        place = blocks ? (n - v.stored.lo(0)) / kLanes
                       : place * v.stored.extent(d) + n - v.stored.lo(d);
        logical = logical * v.shape[d] + n;
      }
      if (v.format == Format::kBlocked) place = place * kLanes + at[0] % kLanes;
      const auto bits = std::bit_cast<uint32_t>(static_cast<const float*>(v.data)[place]);
      const auto [first, is_new] = seen.emplace(std::pair(id, logical), bits);
      different += !is_new && first->second != bits;
      for (int d = rank - 1; d >= 0 && ++at[static_cast<size_t>(d)] == v.box.hi(d); --d)
        at[static_cast<size_t>(d)] = v.box.lo(d);
    }
  });
  for (int64_t step = 0; step < 20; ++step) {
    seen.clear();
    const auto result = session->run(batch, step, 0.02);
    CHECK_MSG(result.ok(), result.status().message());
    run.losses.push_back(result->metrics[0].loss_sum);
  }
  EXPECT_EQ(different, 0);
  run.parameters = read_all(*session);
  return run;
}

double distance(const Training& a, const Training& b) {
  double sum = 0;
  for (const auto& [name, x] : a.parameters)
    for (size_t i = 0; i < x.values.size(); ++i) {
      const double d = x.values[i] - b.parameters.at(name).values[i];
      sum += name.ends_with(".momentum") ? 0 : d * d;
    }
  return std::sqrt(sum);
}

struct Case {
  std::string wire, exchange;
  double apart;  // from the weights of f32, as part of the way that these have come
};

// The weights' distance depends on the codec's mean error: measured, and three times that allowed.
TEST(Wire, EveryCodecLearnsWhatF32Learns) {
  const std::string passes = "exchange: stripe, passes: 2,";
  const Plan plain = plan_of(model_text("f32"));
  const Training exact = train(plain);
  Training start;
  start.parameters = read_all(*reference_session(plain));
  const double moved = distance(exact, start);
  ASSERT_LT(exact.losses.back(), 0.8 * exact.losses.front());
  for (const Case& c : std::vector<Case>{{"bf16", "", 0.03},
                                         {"f16", "", 0.01},
                                         {"u8tree", "", 0.1},
                                         {"u8tree", passes, 0.1},
                                         {"u8lin", "", 0.1},
                                         {"u8static", "", 0.5},
                                         {"u8mantissa", "", 0.5}}) {
    SCOPED_TRACE(c.wire + " " + c.exchange);
    const Plan plan = plan_of(model_text(c.wire, c.exchange));
    ASSERT_FALSE(encoded(plan).empty());
    const Training one = train(plan), again = train(plan);
    EXPECT_EQ(one.losses, again.losses);
    EXPECT_EQ(largest_difference(one.parameters, again.parameters), 0);
    EXPECT_LT(one.losses.back(), 0.8 * one.losses.front());
    EXPECT_GT(distance(one, exact), 0);
    EXPECT_LT(distance(one, exact), c.apart * moved);
  }
}

}  // namespace
}  // namespace convnet
