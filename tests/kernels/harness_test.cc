// If this fails, the harness of the kernel tests no longer sees kernels that break the rules of
// memory, or the reference backend takes instructions that it cannot run.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "framework/backends/reference/reference.h"
#include "tests/kernels/specs.h"

namespace convnet::kernels {
namespace {

using Damage = void (*)(const Binding& binding);

// The reference's kernels, each followed by some damage.
class FaultyBackend final : public Backend {
 public:
  explicit FaultyBackend(Damage damage) : damage_(damage) {}
  std::string name() const override { return "faulty"; }
  Result<void*> allocate(int64_t bytes) override { return right_->allocate(bytes); }
  void free_memory(void* memory, int64_t bytes) override { right_->free_memory(memory, bytes); }
  Result<std::unique_ptr<Kernel>> bind(const Binding& binding) override {
    auto kernel = right_->bind(binding);
    if (!kernel.ok()) return kernel.status();
    class Faulty final : public Kernel {
     public:
      Faulty(std::unique_ptr<Kernel> right, const Binding& b, Damage damage)
          : right_(std::move(right)), binding_(b), damage_(damage) {}
      void run() override {
        right_->run();
        damage_(binding_);
      }

     private:
      std::unique_ptr<Kernel> right_;
      Binding binding_;
      Damage damage_;
    };
    return std::unique_ptr<Kernel>(std::make_unique<Faulty>(*std::move(kernel), binding, damage_));
  }

 private:
  std::unique_ptr<Backend> right_ = make_reference_backend();
  Damage damage_;
};

float* floats(const View& view) { return static_cast<float*>(view.data); }

Case small_case() {
  Rng rng(1);
  Case c;
  c.op = Op::kActFwd;
  c.attrs.set("act", "none");
  c.activation("x", random_array(rng, Shape{17, 2, 1, 3}, Fill::kFloats));
  c.result("y", Shape{17, 2, 1, 3});
  c.in[0].box.set(1, 1, 2);
  c.out[0].box.set(1, 1, 2);
  return c;
}

Engine faulty(Damage damage) {
  return {"faulty", DType::kF32, std::make_shared<FaultyBackend>(damage), false};
}

TEST(Harness, SeesWhatFaultyKernelsDo) {
  static Case c = small_case();
  const Engine right = faulty([](const Binding&) {});
  run(c, right);
  static const Engine* engine;
  const Engine after = faulty([](const Binding& b) { floats(b.out[0])[2 * 2 * 3 * 16] = 0; });
  engine = &after;
  EXPECT_NONFATAL_FAILURE(run(c, *engine), "wrote around y");
  const Engine before = faulty([](const Binding& b) { floats(b.out[0])[-1] = 0; });
  engine = &before;
  EXPECT_NONFATAL_FAILURE(run(c, *engine), "wrote around y");
  const Engine beside = faulty([](const Binding& b) { floats(b.out[0])[3] = 0; });
  engine = &beside;
  EXPECT_NONFATAL_FAILURE(run(c, *engine), "wrote beside the box of y");
  const Engine incomplete =
      faulty([](const Binding& b) { floats(b.out[0])[3 * 16] = __builtin_nanf(""); });
  engine = &incomplete;
  EXPECT_NONFATAL_FAILURE(run(c, *engine), "nothing written in y");
  const Engine operand = faulty([](const Binding& b) { floats(b.in[0])[3 * 16] += 1; });
  engine = &operand;
  EXPECT_NONFATAL_FAILURE(run(c, *engine), "changed x");
  // Lanes past the last example of the box's last block are free.
  const Engine lanes = faulty([](const Binding& b) { floats(b.out[0])[9 * 16 + 5] = 3; });
  run(c, lanes);
}

TEST(Harness, ComparisonsSeeOneWrongElement) {
  static Array a(Shape{2, 3}, 1), b = a;
  static const Array bound(Shape{2, 3}, 0.25);
  b.values[4] = 1.5;
  EXPECT_NONFATAL_FAILURE(expect_equal(a, b, "x"), "first element 4");
  EXPECT_NONFATAL_FAILURE(expect_near(a, b, bound, "x"), "element 4");
  b.values[4] = __builtin_nan("");
  EXPECT_NONFATAL_FAILURE(expect_near(a, b, bound, "x"), "element 4");
  a.values[4] = 0.0;
  b.values[4] = -0.0;
  expect_equal(a, b, "x");
  EXPECT_NONFATAL_FAILURE(expect_same_bits(a, b, "x"), "first element 4");
}

// The reason for which the reference refuses a damaged instruction.
std::string refusal(Op op, const std::function<void(Case&)>& damage) {
  Rng rng(3);
  Case c = random_case(op, rng, Fill::kIntegers, 17);
  if (op == Op::kPoolMaxFwd) {
    c = Case();
    c.op = op;
    c.attrs.set("kernel", std::vector<int64_t>{3, 3})
        .set("stride", std::vector<int64_t>{2, 2})
        .set("pad", std::vector<int64_t>{0, 0});
    c.activation("x", Array(Shape{2, 1, 7, 7}));
    c.result("y", Shape{2, 1, 3, 3});
  }
  damage(c);
  const Outcome outcome = try_run(c, reference(DType::kF32));
  EXPECT_EQ(outcome.bound.ok() ? Code::kOk : outcome.bound.code(), Code::kUsage) << c.str();
  return outcome.bound.message();
}

TEST(Bind, RefusesWithTheReason) {
  const auto has = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  has(refusal(Op::kConvFwd, [](Case& c) { c.in.resize(1); }), "has 1 operands, takes 2 to 3");
  has(refusal(Op::kConvFwd, [](Case& c) { c.attrs.set("stride", 1); }), "'stride' is not a list");
  has(refusal(Op::kConvFwd,
              [](Case& c) {
                c.attrs.set("stride", std::vector<int64_t>{1, 0});
              }),
      "'stride' is not two numbers of at least 1");
  has(refusal(Op::kConvFwd, [](Case& c) { c.attrs.set("act", "gelu"); }), "'act' is not");
  has(refusal(Op::kConvFwd, [](Case& c) { c.attrs = Attrs(); }), "attribute 'stride' is missing");
  has(refusal(Op::kConvFwd, [](Case& c) { c.in[0].format = Format::kPlain; }), "x is not blocked");
  has(refusal(Op::kConvFwd, [](Case& c) { c.in[1].kind = Slot::Kind::kMetrics; }),
      "w is f64, f32 is needed");
  has(refusal(Op::kConvFwd, [](Case& c) { c.out[0].data = Array(Shape{17, 1, 1, 1}); }), "y ");
  has(refusal(Op::kConvFwd, [](Case& c) { c.in[0].box.set(0, 0, 16); }),
      "lacks some of 0:17 in dimension 0");
  has(refusal(Op::kConvFwd,
              [](Case& c) {
                c.in[0].box.set(0, 8, 17);
                c.in[0].stored = c.in[0].box;
              }),
      "not from a multiple of 16");
  has(refusal(Op::kConvFwd, [](Case& c) { c.in[0].stored.set(2, 0, 0); }), "is stored");
  has(refusal(Op::kConvBwdWeight,
              [](Case& c) {
                c.attrs.set("cuts", std::vector<int64_t>{0, 16});
              }),
      "'cuts' does not go from 0 up to 17");
  has(refusal(Op::kPoolMaxFwd, [](Case& c) { c.in[0].box.set(2, 0, 6); }),
      "lacks some of 0:7 in dimension 2");
  has(refusal(Op::kDropoutFwd, [](Case& c) { c.attrs.set("rate", 1.0); }), "'rate'");
  has(refusal(Op::kSoftmaxLossFwd, [](Case& c) { c.out[1].data = Array(Shape{3}); }), "metrics");
  has(refusal(Op::kActFwd, [](Case& c) { c.op = Op::kExchange; }), "has no kernel for exchange");
}

}  // namespace
}  // namespace convnet::kernels
