// If this fails, `convnet verify` would call a wrong plan right, or a right one wrong, or blame the
// wrong layer. Faults are planted in a pass or in the finished plan.
#include "tools/convnet/compare_plans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "framework/backends/reference/reference.h"
#include "framework/graph/graph.h"
#include "tests/support/model_run.h"

namespace convnet {
namespace {

using cli::Comparison;
using cli::ComparisonOptions;
using testing::HasSubstr;

constexpr const char* kModel = R"(format: 1
name: small
batch: 128
input: {data: [2, 8, 8], label: {classes: 5}}
layers:
  - {name: conv1, type: conv, input: data, filters: 4, kernel: 3, act: relu}
  - {name: conv2, type: conv, filters: 8, kernel: 3, act: tanh}
  - {name: drop, type: dropout}
  - {name: fc1, type: fc, outputs: 5}
  - {name: loss, type: softmax_loss, input: [fc1, label], report: [top1, top2]}
train: {steps: 4, momentum: 0.9, decay: 0.01, rate: {base: 0.05}}
)";
constexpr int kLineOfConv2 = 7;

class Batches : public BatchSource {
 public:
  explicit Batches(const Plan& plan) : plan_(plan) {}
  Shape example_shape() const override { return {2, 8, 8}; }
  int64_t examples() const override { return 1000; }
  Result<const Batch*> get(int64_t index) override {
    // The second batch is not full.
    batch_ = random_batch(plan_, static_cast<uint64_t>(index) + 1, index == 1 ? 70 : 128);
    return &batch_;
  }

 private:
  const Plan& plan_;
  Batch batch_;
};

class ComparePlans : public testing::Test {
 protected:
  Plan plan(int devices) {
    CompileOptions options;
    options.devices = devices;
    return compile_model(*model_, options);
  }

  Plan damaged(std::function<void(const std::string&, Graph&)> graph,
               std::function<void(Plan&)> plan) {
    CompileOptions options;
    options.devices = 4;
    options.verify = false;
    options.damage_graph = std::move(graph);
    options.damage_plan = std::move(plan);
    return compile_model(*model_, options);
  }

  Comparison compare(const Plan& parallel) {
    const Plan serial = plan(1);
    Batches batches(serial);
    ComparisonOptions options;
    options.steps = 3;
    options.serial.backend = options.parallel.backend =
        [](int) -> Result<std::unique_ptr<Backend>> { return make_reference_backend(); };
    options.rate = [](int64_t step) { return 0.05 / static_cast<double>(step + 1); };
    Result<Comparison> result = cli::compare_plans(serial, parallel, batches, options);
    EXPECT_TRUE(result.ok()) << result.status().message();
    return result.ok() ? *result : Comparison();
  }

  void expect_blamed(const Plan& parallel, const std::string& layer, int64_t step) {
    const Comparison comparison = compare(parallel);
    ASSERT_TRUE(comparison.mismatch.has_value());
    EXPECT_EQ(comparison.mismatch->layer, layer);
    EXPECT_EQ(comparison.mismatch->step, step);
    EXPECT_GT(comparison.mismatch->different, 0);
    EXPECT_NE(comparison.mismatch->serial, comparison.mismatch->parallel);
  }

  std::unique_ptr<BoundModel> model_ = bind_text(kModel);
};

// The node that makes the value which `reader` (an operation of `layer`) reads as operand 0.
size_t exchange_before(const Graph& graph, Op reader, const std::string& parameter) {
  for (const Node& node : graph.nodes) {
    if (node.op != reader || graph.value(node.in[1].value).name != parameter) continue;
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      const Node& maker = graph.nodes[i];
      if (maker.op == Op::kExchange && maker.out[0].value == node.in[0].value) return i;
    }
  }
  ADD_FAILURE() << "no exchange before the update of " << parameter;
  return 0;
}

int tensor_of(const Plan& plan, int device, int buffer) {
  return plan.devices[static_cast<size_t>(device)].buffers[static_cast<size_t>(buffer)].tensor;
}

// The exchange that adds the partial sums of a tensor.
Exchange& reduction_of(Plan& plan, const std::string& tensor) {
  for (Exchange& exchange : plan.exchanges) {
    if (plan.tensors[static_cast<size_t>(exchange.tensor)].name == tensor &&
        exchange.order != Exchange::Order::kNone) {
      return exchange;
    }
  }
  ADD_FAILURE() << "no reduction of " << tensor;
  return plan.exchanges[0];
}

TEST_F(ComparePlans, RightPlansAgreeBitForBit) {
  for (int devices : {1, 2, 4, 8}) {
    const Comparison comparison = compare(plan(devices));
    EXPECT_FALSE(comparison.mismatch.has_value())
        << cli::describe(*comparison.mismatch, plan(devices));
    EXPECT_EQ(comparison.steps, 3);
    EXPECT_EQ(comparison.bounded, 0);
    EXPECT_EQ(comparison.skipped, 0);
    // Every activation, at the least.
    EXPECT_GT(comparison.exact, 3 * 128 * (4 * 36 + 8 * 16));
  }
}

TEST_F(ComparePlans, RankOrderAgreesWithinItsBound) {
  const Plan parallel = plan(3);
  const Comparison comparison = compare(parallel);
  EXPECT_FALSE(comparison.mismatch.has_value()) << cli::describe(*comparison.mismatch, parallel);
  EXPECT_EQ(comparison.steps, 3);
  EXPECT_GT(comparison.bounded, 0);
  EXPECT_GT(comparison.exact, comparison.bounded) << "activations do not depend on the order";
  EXPECT_EQ(comparison.skipped, 0);
}

TEST_F(ComparePlans, NamesTheLayerOfADroppedReduction) {
  const Plan parallel = damaged(
      [](const std::string& pass, Graph& graph) {
        if (pass != "sync") return;
        const size_t at = exchange_before(graph, Op::kUpdateSgd, "conv2.w");
        const int partial = graph.nodes[at].in[0].value, sum = graph.nodes[at].out[0].value;
        for (Node& node : graph.nodes) {
          for (Use& use : node.in) {
            if (use.value == sum) use.value = partial;
          }
        }
        graph.nodes.erase(graph.nodes.begin() + static_cast<std::ptrdiff_t>(at));
        graph.renumber();
      },
      nullptr);
  expect_blamed(parallel, "conv2", 0);
  const Comparison comparison = compare(parallel);
  EXPECT_THAT(cli::describe(*comparison.mismatch, parallel),
              testing::AllOf(HasSubstr("layer 'conv2'"),
                             HasSubstr(":" + std::to_string(kLineOfConv2) + ")"),
                             HasSubstr("step 1"), HasSubstr("update.sgd")));
}

TEST_F(ComparePlans, NamesTheLayerOfAForgottenGather) {
  const Plan parallel = damaged(
      [](const std::string& pass, Graph& graph) {
        if (pass != "sync") return;
        const auto gather =
            std::find_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& n) {
              return n.op == Op::kExchange && graph.value(n.in[0].value).name == "conv2.w.new";
            });
        ASSERT_NE(gather, graph.nodes.end());
        graph.nodes.erase(gather);
        graph.renumber();
      },
      nullptr);
  const Comparison comparison = compare(parallel);
  ASSERT_TRUE(comparison.mismatch.has_value());
  EXPECT_EQ(comparison.mismatch->layer, "conv2");
}

TEST_F(ComparePlans, NamesTheLayerOfAWrongSlice) {
  // Device 1 takes the first half of its examples for all of them.
  const Plan parallel = damaged(nullptr, [](Plan& plan) {
    for (Instr& instr : plan.devices[1].instrs) {
      if (instr.op != Op::kConvBwdWeight ||
          plan.layers[static_cast<size_t>(instr.layer)].name != "conv2") {
        continue;
      }
      const int64_t lo = instr.in[0].box.lo(0), hi = instr.in[0].box.hi(0);
      const int64_t middle = lo + (hi - lo) / 2;
      for (Operand& operand : instr.in) operand.box.set(0, lo, middle);
      std::vector<int64_t> cuts = instr.attrs.list("cuts");
      std::erase_if(cuts, [&](int64_t cut) { return cut > middle; });
      instr.attrs.set("cuts", cuts);
    }
  });
  expect_blamed(parallel, "conv2", 0);
}

TEST_F(ComparePlans, NamesTheLayerOfASwappedOrder) {
  // (0 + 2) + (1 + 3) instead of (0 + 1) + (2 + 3): only the last bits differ.
  const Plan parallel = damaged(nullptr, [](Plan& plan) {
    Exchange& exchange = reduction_of(plan, "conv2.w.grad");
    ASSERT_EQ(exchange.order, Exchange::Order::kTree);
    std::swap(exchange.from[1].k, exchange.from[2].k);
    for (size_t member : {1, 2}) {
      const int device = exchange.group[member];
      for (Buffer& buffer : plan.devices[static_cast<size_t>(device)].buffers) {
        if (buffer.tensor == exchange.tensor && buffer.part.of > 1) {
          buffer.part.k = exchange.from[member].k;
        }
      }
    }
  });
  expect_blamed(parallel, "conv2", 0);
}

TEST_F(ComparePlans, ASmallErrorIsOutsideTheBoundOfRankOrder) {
  Plan parallel = plan(3);
  for (Instr& instr : parallel.devices[1].instrs) {
    if (instr.op == Op::kUpdateSgd && tensor_of(parallel, 1, instr.in[1].buffer) >= 0) {
      instr.attrs.set("momentum", 0.899);
    }
  }
  const Comparison comparison = compare(parallel);
  ASSERT_TRUE(comparison.mismatch.has_value());
  EXPECT_EQ(comparison.mismatch->step, 1) << "in the first step there is no momentum yet";
  EXPECT_GT(comparison.mismatch->bound, 0);
}

}  // namespace
}  // namespace convnet
