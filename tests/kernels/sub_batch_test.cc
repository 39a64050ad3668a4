// If this fails, a fully-connected region that runs in several passes computes something else than
// in one: rows of the wrong examples, other masks, or sums in another order.
#include <gtest/gtest.h>

#include <cmath>

#include "framework/base/random.h"
#include "framework/plan/rows.h"
#include "tests/kernels/specs.h"

namespace convnet::kernels {
namespace {

// A number of its own for each element of the whole batch (exact in f32).
Array numbered(const Shape& shape, const std::vector<int64_t>& rows) {
  Array a(shape);
  const RowMap map(rows);
  const int64_t inner = shape.count() / shape[0];
  for (int64_t r = 0; r < shape[0]; ++r)
    for (int64_t i = 0; i < inner; ++i)
      a.values[static_cast<size_t>(r * inner + i)] =
          static_cast<double>(map.example(r) * inner + i + 1);
  return a;
}

// Whole, and of a box of blocks, channels, rows and columns, in memory with room around it.
TEST(SubBatch, JoinedRowsAreThoseOfTheSameExample) {
  Rng rng(1200);
  for (int i = 0; i < 60; ++i) {
    Case c = random_case(Op::kRowsJoin, rng, Fill::kIntegers);
    for (auto* slots : {&c.in, &c.out})
      for (Slot& slot : *slots) slot.data = numbered(slot.data.shape, slot.rows);
    Slot& y = c.out[0];
    const Array want = y.data;
    if (i % 2) {
      const int64_t blocks = (y.data.shape[0] + kLanes - 1) / kLanes;
      const int64_t first = between(rng, 0, blocks - 1), last = between(rng, first + 1, blocks);
      y.box.set(0, first * kLanes, std::min(y.data.shape[0], last * kLanes));
      for (int dim = 1; dim < 4; ++dim) {
        const int64_t lo = between(rng, 0, y.data.shape[dim] - 1);
        const int64_t hi = between(rng, lo + 1, y.data.shape[dim]);
        y.box.set(dim, lo, hi);
        for (Slot& slot : c.in) slot.box.set(dim, lo, hi);
      }
    }
    for (const Engine& engine : engines())
      expect_equal(run(c, engine, 1 + i % 3)[0], want, y.box, c.str() + " on " + engine.name);
  }
}

TEST(SubBatch, JoinRefusesRowsThatAreMissingOrHeldTwice) {
  Case c;
  c.op = Op::kRowsJoin;
  c.activation("x0", Array(Shape{32, 2, 1, 1}, 1)).rows = {0, 32};
  c.activation("x1", Array(Shape{16, 2, 1, 1}, 1)).rows = {48, 64};
  c.result("y", Shape{48, 2, 1, 1}).rows = {0, 32, 48, 64};
  for (const Engine& engine : engines()) {
    EXPECT_TRUE(try_run(c, engine).bound.ok());
    Case missing = c;
    missing.in[1].rows = {32, 48};
    EXPECT_NE(try_run(missing, engine).bound.message().find("32 of the 48 rows"),
              std::string::npos);
    Case twice = c;
    twice.in[1].rows = {16, 32};
    EXPECT_NE(try_run(twice, engine).bound.message().find("both hold rows of y within 16:32"),
              std::string::npos);
    Case narrow = c;
    narrow.in[1].box.set(1, 0, 1);
    EXPECT_EQ(try_run(narrow, engine).bound.code(), Code::kUsage);
  }
}

double tree(const std::vector<double>& terms, size_t lo, size_t hi, bool f32) {
  if (hi - lo == 1) return terms[lo];
  const size_t mid = lo + (hi - lo) / 2;
  const double a = tree(terms, lo, mid, f32), b = tree(terms, mid, hi, f32);
  return f32 ? static_cast<float>(a) + static_cast<float>(b) : a + b;
}

// Bits of the balanced tree: 3 terms are x0 + (x1 + x2), 5 are (x0 + x1) + (x2 + (x3 + x4)).
TEST(SubBatch, SumIsTheBalancedTree) {
  Rng rng(1201);
  for (int i = 0; i < 40; ++i) {
    const Case c = random_case(Op::kSum, rng, Fill::kFloats);
    Array want32(c.out[0].data.shape), want64 = want32;
    for (size_t e = 0; e < want32.values.size(); ++e) {
      std::vector<double> terms;
      for (const Slot& slot : c.in) terms.push_back(slot.data.values[e]);
      want32.values[e] = tree(terms, 0, terms.size(), true);
      want64.values[e] = tree(terms, 0, terms.size(), false);
    }
    for (const Engine& engine : engines())
      expect_equal(run(c, engine, 1 + i % 2)[0], engine.dtype == DType::kF32 ? want32 : want64,
                   c.str() + " on " + engine.name);
  }
}

TEST(SubBatch, MetricsAreAddedInDoubles) {
  Case c;
  c.op = Op::kSum;
  const double tiny = 0x1p-40;
  for (const double v : {1.0, tiny, -1.0}) {
    c.parameter("p", Array(Shape{4}, v)).kind = Slot::Kind::kMetrics;
  }
  c.metrics(4);
  for (const Engine& engine : engines())
    EXPECT_EQ(run(c, engine)[0].values, std::vector<double>(4, tiny)) << engine.name;
}

// A pass draws the mask that its examples have in the whole batch.
TEST(SubBatch, DropoutCountsExamplesOfTheBatch) {
  Rng rng(1202);
  for (int i = 0; i < 20; ++i) {
    const Case whole = random_case(i % 2 ? Op::kDropoutFwd : Op::kDropoutBwd, rng, Fill::kFloats,
                                   pick(rng, {64, 88}));
    const Shape& shape = whole.in[0].data.shape;
    const auto rows = random_sub_batches(rng, shape[0], 2)[0];
    const RowMap map(rows);
    const int64_t inner = shape.count() / shape[0];
    // The elements of `a` that the rows of the sub-batch stand for.
    const auto taken = [&](const Array& a) {
      Shape part = shape;
      part.set(0, row_count(rows, shape[0]));
      Array b(part);
      for (int64_t r = 0; r < part[0]; ++r)
        std::copy_n(a.values.begin() + map.example(r) * inner, inner, b.values.begin() + r * inner);
      return b;
    };
    Case pass = whole;
    pass.attrs.set("rows", rows);
    for (auto* slots : {&pass.in, &pass.out}) {
      Slot& slot = (*slots)[0];
      slot.data = taken(whole.in[0].data);
      slot.rows = rows;
      slot.box = slot.stored = Box(slot.data.shape);
    }
    for (const Engine& engine : engines()) {
      const Array want = taken(run(whole, engine)[0]);
      expect_same_bits(run(pass, engine)[0], want, pass.str() + " on " + engine.name);
      // A box that does not begin with the first block.
      Case part = pass;
      const int64_t blocks = (pass.in[0].data.shape[0] + kLanes - 1) / kLanes;
      const int64_t lo = blocks / 2 * kLanes;
      for (auto* slots : {&part.in, &part.out})
        (*slots)[0].box.set(0, lo, part.in[0].data.shape[0]);
      expect_equal(run(part, engine)[0], want, part.out[0].box, part.str() + " on " + engine.name);
      Case wrong = pass;
      wrong.attrs.set("rows", std::vector<int64_t>{0, pass.in[0].data.shape[0]});
      if (wrong.attrs.list("rows") != rows) {
        EXPECT_EQ(try_run(wrong, engine).bound.code(), Code::kUsage);
      }
    }
  }
}

// The gradient is scaled first, with one rounding of its own.
TEST(SubBatch, UpdateScalesTheGradient) {
  Rng rng(1203);
  const Shape shape{11, 37};
  Case c;
  c.op = Op::kUpdateSgd;
  c.attrs.set("rate", 1.0).set("decay", 0.7).set("momentum", 0.9).set("scale", 1.7);
  c.rate = 0.4;
  for (const char* name : {"dw", "w", "m"})
    c.parameter(name, random_array(rng, shape, Fill::kFloats));
  Case scaled = c;
  scaled.attrs.set("scale", 1.0);
  for (double& v : scaled.in[0].data.values) v = 1.7f * static_cast<float>(v);
  for (Case* each : {&c, &scaled}) {
    each->result("w", shape, Format::kPlain).alias = 1;
    each->result("m", shape, Format::kPlain).alias = 2;
  }
  for (const Engine& engine : engines()) {
    if (engine.dtype != DType::kF32) continue;
    const auto got = run(c, engine), want = run(scaled, engine);
    for (size_t r = 0; r < got.size(); ++r) expect_same_bits(got[r], want[r], engine.name);
  }
}

}  // namespace
}  // namespace convnet::kernels
