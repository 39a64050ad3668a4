// If this fails, sub-batches take the wrong examples, or their exchanges are judged wrongly.
#include "framework/plan/rows.h"

#include "framework/plan/cost.h"
#include "tests/plan/plan_files.h"

namespace convnet {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

Box box(std::initializer_list<std::pair<int64_t, int64_t>> ranges) {
  Box b;
  for (const auto& [lo, hi] : ranges) b.append(lo, hi);
  return b;
}

Tensor sub_batch(const std::vector<int64_t>& rows, int64_t batch) {
  Tensor t;
  t.shape = {row_count(rows, batch), 3, 1, 1};
  t.format = Format::kBlocked;
  if (!rows.empty()) t.attrs.set("rows", rows);
  return t;
}

// All maps from rows to examples of a few sub-batches against a list written out by hand.
TEST(Rows, ExampleOfARow) {
  const RowMap map({16, 32, 32, 48, 80, 88});
  std::vector<int64_t> examples;
  for (int64_t e = 16; e < 48; ++e) examples.push_back(e);
  for (int64_t e = 80; e < 88; ++e) examples.push_back(e);
  for (size_t row = 0; row < examples.size(); ++row)
    EXPECT_EQ(map.example(static_cast<int64_t>(row)), examples[row]) << row;
  EXPECT_EQ(map.segments(8, 36), (std::vector<RowMap::Segment>{{8, 24, 24}, {32, 80, 4}}));
  EXPECT_EQ(RowMap().example(5), 5);
  EXPECT_EQ(row_count({16, 32, 80, 88}, 88), 24);
}

// Against a search of every row.
TEST(Rows, CommonRowsAreThoseOfTheSameExample) {
  const std::vector<std::vector<int64_t>> maps = {
      {}, {0, 32, 64, 96}, {32, 64, 96, 104}, {0, 104}, {16, 80}, {0, 16, 32, 48, 64, 80}};
  for (const auto& a : maps)
    for (const auto& b : maps)
      for (const int64_t lo : {int64_t{0}, int64_t{16}})
        for (const int64_t hi : {int64_t{16}, int64_t{32}, row_count(a, 104)}) {
          std::vector<std::pair<int64_t, int64_t>> want, got;
          for (int64_t r = lo; r < hi; ++r)
            for (int64_t s = 0; s < row_count(b, 104); ++s)
              if (RowMap(a).example(r) == RowMap(b).example(s)) want.emplace_back(r, s);
          const auto runs = common_rows(RowMap(a), lo, hi, RowMap(b));
          for (size_t i = 0; i < runs.size(); ++i) {
            if (i > 0) {
              EXPECT_FALSE(runs[i].from == runs[i - 1].from + runs[i - 1].count &&
                           runs[i].to == runs[i - 1].to + runs[i - 1].count);
            }
            for (int64_t j = 0; j < runs[i].count; ++j)
              if (b.empty() ? runs[i].to + j < 104 : true)
                got.emplace_back(runs[i].from + j, runs[i].to + j);
          }
          EXPECT_EQ(got, want);
        }
}

TEST(Rows, BoxesMapIfTheyStayTogether) {
  const RowMap whole, pass({0, 32, 64, 96});
  EXPECT_EQ(map_box(box({{64, 128}, {1, 2}}), whole, pass), box({{32, 64}, {1, 2}}));
  EXPECT_EQ(map_box(box({{32, 64}, {1, 2}}), pass, whole), box({{64, 96}, {1, 2}}));
  EXPECT_TRUE(map_box(box({{32, 64}, {1, 2}}), whole, pass)->empty());
  EXPECT_EQ(map_box(box({{0, 128}, {1, 2}}), whole, pass), std::nullopt);
  EXPECT_EQ(map_box(box({{0, 64}, {1, 2}}), pass, whole), std::nullopt);
  EXPECT_EQ(map_box(box({{0, 64}, {1, 2}}), pass, pass), box({{0, 64}, {1, 2}}));
}

TEST(Rows, FaultsOfTheAttribute) {
  EXPECT_THAT(rows_fault({0, 32, 64, 100}, 68, 100), IsEmpty());
  EXPECT_THAT(rows_fault({0, 32, 64}, 32, 100), HasSubstr("3 boundaries"));
  EXPECT_THAT(rows_fault({}, 100, 100), HasSubstr("0 boundaries"));
  EXPECT_THAT(rows_fault({32, 64, 0, 16}, 48, 100), HasSubstr("0:16 after 64"));
  EXPECT_THAT(rows_fault({-16, 16}, 32, 100), HasSubstr("after 0"));
  EXPECT_THAT(rows_fault({16, 16}, 0, 100), HasSubstr("empty"));
  EXPECT_THAT(rows_fault({0, 112}, 112, 100), HasSubstr("the batch is 100"));
  EXPECT_THAT(rows_fault({8, 32}, 24, 100), HasSubstr("whole blocks"));
  EXPECT_THAT(rows_fault({0, 40}, 40, 100), HasSubstr("whole blocks"));
  EXPECT_THAT(rows_fault({0, 32}, 48, 100), HasSubstr("32 examples, the tensor has 48 rows"));
}

// Two devices hold half of a batch of 128 each; a pass takes 32 examples of each to both.
TEST(Rows, BytesAreCountedInTheNumbersOfTheSubBatch) {
  const Tensor whole = sub_batch({}, 128), pass = sub_batch({0, 32, 64, 96}, 128);
  Exchange e;
  e.kind = Exchange::Kind::kAllGather;
  e.group = {0, 1};
  const auto part = [](int64_t lo, int64_t hi) {
    return Part{box({{lo, hi}, {0, 3}, {0, 1}, {0, 1}}), 0, 1};
  };
  e.from = {part(0, 64), part(64, 128)};  // more than is wanted
  e.to = {part(0, 64), part(0, 64)};
  EXPECT_EQ(wire_bytes(e, whole, pass), 32 * 3 * 4);
  e.kind = Exchange::Kind::kBoxes;
  EXPECT_EQ(wire_bytes(e, whole, pass), 32 * 3 * 4);
  // And back: each gets the rows of its own examples.
  e.from = {part(0, 64), part(0, 0)};
  e.to = {part(0, 32), part(64, 96)};
  EXPECT_EQ(wire_bytes(e, pass, whole), 32 * 3 * 4);
  const std::vector<Traffic> traffic = wire_traffic(e, pass, whole);
  EXPECT_EQ(traffic[0].sent, 32 * 3 * 4);
  EXPECT_EQ(traffic[0].received, 0);
  EXPECT_EQ(traffic[1].received, 32 * 3 * 4);
  e.from = {part(0, 128), part(0, 0)};
  EXPECT_FALSE(in_common_rows(e, whole, pass).has_value());
}

}  // namespace
}  // namespace convnet
