// If this fails, a device takes its result of an exchange from the wrong memory: the wrong partial
// sums, or the rows of other examples.
#include "framework/comm/cells.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <utility>

#include "framework/comm/common_rows.h"

namespace convnet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Box box(std::initializer_list<std::pair<int64_t, int64_t>> ranges) {
  Box b;
  for (const auto& [lo, hi] : ranges) b.append(lo, hi);
  return b;
}

// Passes 0 and 1 of two sums each: the result is pass 1, of partial sums 2 and 3 of 4.
TEST(Cells, TheResultOfAPassIsTheSumOfItsPartialSums) {
  Exchange e;
  e.group = {0, 1};
  const Box all = box({{0, 3}});
  e.from = {Part{all, 3, 4}, Part{all, 2, 4}};
  e.to = {Part{all, 1, 2}, Part{all, 1, 2}};
  const auto cells = make_cells(e, "loss.metrics", 0);
  ASSERT_TRUE(cells.ok()) << cells.status().message();
  ASSERT_EQ(cells->size(), 1u);
  EXPECT_THAT((*cells)[0].source_of, ElementsAre(1, 0));

  e.to[0].of = 3;
  EXPECT_THAT(make_cells(e, "loss.metrics", 0).status().message(),
              HasSubstr("partial sum 1 of 3, which 4 partial sums do not make"));
}

// Examples 16:32 and 48:64 of a batch of 64 as a sub-batch, whose rows 16:32 are wanted.
TEST(CommonRows, MemoryIsFoundByExample) {
  Plan plan;
  plan.batch = 64;
  plan.devices.resize(1);
  Tensor whole{"x", TensorKind::kActivation, DType::kF32, Format::kBlocked, {}, {}};
  whole.shape = Shape{64, 1, 1, 1};
  Tensor part = whole;
  part.name = "x.pass1";
  part.shape = Shape{32, 1, 1, 1};
  part.attrs.set("rows", std::vector<int64_t>{16, 32, 48, 64});
  plan.tensors = {whole, part};
  Exchange e;
  e.tensor = 0;
  e.into = 1;
  e.group = {0};
  e.from = {Part{box({{48, 64}, {0, 1}, {0, 1}, {0, 1}}), 0, 1}};
  e.to = {Part{box({{16, 32}, {0, 1}, {0, 1}, {0, 1}}), 0, 1}};
  const CommonRows rows(plan, e);
  EXPECT_EQ(rows.tensor().name, "x.pass1");
  EXPECT_EQ(rows.exchange().from[0].box, e.to[0].box);

  View in, out;
  for (View* view : {&in, &out}) {
    view->dtype = DType::kF32;
    view->format = Format::kBlocked;
  }
  in.box = e.from[0].box;
  in.stored = Box(whole.shape);
  out.box = e.to[0].box;
  out.stored = Box(part.shape);
  const Status status = rows.renumber(0, in, out);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(in.box, out.box);
  // The memory of example 0 lies 32 rows before that of row 0.
  EXPECT_EQ(in.stored.lo(0), -32);
  EXPECT_EQ(in.stored.hi(0), 32);
  EXPECT_EQ(out.stored, Box(part.shape));
}

}  // namespace
}  // namespace convnet
