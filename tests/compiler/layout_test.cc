// If this fails, the meaning of a layout is wrong: which device holds which box, and how a batch is
// cut.
#include "framework/graph/layout.h"

#include <gtest/gtest.h>

namespace convnet {
namespace {

Box box(std::initializer_list<std::pair<int64_t, int64_t>> ranges) {
  Box b;
  for (const auto& [lo, hi] : ranges) b.append(lo, hi);
  return b;
}

TEST(Layout, SplitReplicatedAndPartial) {
  const Mesh mesh = Mesh::line({4, 2, 7});
  const Shape shape{10, 3};
  const auto rows = split(mesh, 0, balanced_cuts(10, 3)).parts(shape);
  EXPECT_EQ(rows[0], (Part{box({{0, 3}, {0, 3}}), 0, 1}));
  EXPECT_EQ(rows[1], (Part{box({{3, 6}, {0, 3}}), 0, 1}));
  EXPECT_EQ(rows[2], (Part{box({{6, 10}, {0, 3}}), 0, 1}));
  for (const Part& p : replicated(mesh).parts(shape)) EXPECT_EQ(p, (Part{Box(shape), 0, 1}));
  const auto sums = partial(mesh).parts(shape);
  EXPECT_EQ(sums[2], (Part{Box(shape), 2, 3}));
  EXPECT_TRUE(partial(mesh).has_partial());
  EXPECT_FALSE(partial(Mesh::line({5})).has_partial());
}

TEST(Layout, TwoAxes) {
  // Devices 0..5 as 2 x 3: rows split over the first axis, partial sums over the second.
  Mesh mesh{{0, 1, 2, 3, 4, 5}, {2, 3}};
  const AxisState rows{.kind = AxisState::Kind::kSplit, .dim = 0, .ranges = {{0, 4}, {4, 10}}};
  const AxisState sums{.kind = AxisState::Kind::kPartial, .ranges = {}};
  const Layout layout{mesh, {rows, sums}, {}, 0, 1};
  const auto parts = layout.parts(Shape{10});
  EXPECT_EQ(parts[1], (Part{box({{0, 4}}), 1, 3}));
  EXPECT_EQ(parts[5], (Part{box({{4, 10}}), 2, 3}));
  EXPECT_EQ(layout.str(), "[0,1,2,3,4,5]{S(0),P}");
}

TEST(Layout, HalosOverlapAndSumsNestFromRowsToExamples) {
  Mesh mesh{{0, 1, 2, 3}, {2, 2}};
  const AxisState halo{.kind = AxisState::Kind::kSplit, .dim = 2, .ranges = {{0, 6}, {4, 10}}};
  const AxisState all{.ranges = {}};
  const Layout rows{mesh, {all, halo}, {}, 0, 1};
  EXPECT_EQ(rows.str(), "[0,1,2,3]{R,S(2)+halo}");
  EXPECT_EQ(rows.parts(Shape{1, 1, 10, 1})[3].box, box({{0, 1}, {0, 1}, {4, 10}, {0, 1}}));
  // Examples over the first axis, rows over the second: of one row range all examples follow on
  // each other.
  const AxisState examples{.kind = AxisState::Kind::kPartial, .ranges = {}, .over = 0};
  const AxisState over_rows{.kind = AxisState::Kind::kPartial, .ranges = {}, .over = 2};
  const auto parts = Layout{mesh, {examples, over_rows}, {}, 0, 1}.parts(Shape{3});
  EXPECT_EQ(parts[0].k, 0);
  EXPECT_EQ(parts[1].k, 2);  // the first examples, the second rows
  EXPECT_EQ(parts[2].k, 1);
  EXPECT_EQ(parts[3].k, 3);
}

TEST(Canonical, ShardsOfAnExtentAreAPowerOfTwo) {
  EXPECT_EQ(canonical_cuts(4096).size(), 9u);
  EXPECT_EQ(canonical_cuts(5), (std::vector<int64_t>{0, 1, 2, 3, 5}));
  EXPECT_EQ(canonical_cuts(1), (std::vector<int64_t>{0, 1}));
  EXPECT_TRUE(canonical_parts(5, 4));
  EXPECT_FALSE(canonical_parts(5, 3));
  EXPECT_FALSE(canonical_parts(4, 8));
  for (int64_t extent = 1; extent < 300; ++extent)
    for (int p : {1, 2, 4, 8})
      if (canonical_parts(extent, p))
        for (int64_t cut : balanced_cuts(extent, p)) {
          const auto shards = canonical_cuts(extent);
          EXPECT_NE(std::find(shards.begin(), shards.end(), cut), shards.end());
        }
}

TEST(Batch, CanonicalShardsAreWholeBlocksAndAPowerOfTwo) {
  EXPECT_EQ(canonical_shards(128), (std::vector<int64_t>{0, 16, 32, 48, 64, 80, 96, 112, 128}));
  EXPECT_EQ(canonical_shards(10), (std::vector<int64_t>{0, 10}));
  EXPECT_EQ(canonical_shards(40), (std::vector<int64_t>{0, 16, 40}));
  EXPECT_EQ(canonical_shards(100), (std::vector<int64_t>{0, 16, 48, 80, 100}));
  for (int64_t batch = 1; batch <= 600; ++batch) {
    const auto shards = canonical_shards(batch);
    const auto count = shards.size() - 1;
    EXPECT_EQ(count & (count - 1), 0u);
    EXPECT_LE(count, 8u);
    EXPECT_EQ(shards.front(), 0);
    EXPECT_EQ(shards.back(), batch);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_LT(shards[i], shards[i + 1]);
      EXPECT_EQ(shards[i] % kLanes, 0);
    }
  }
}

TEST(Batch, DevicesOwnWholeCanonicalShardsWhereThereAreEnough) {
  for (int64_t batch : {16, 40, 64, 100, 128, 500, 1024}) {
    const auto shards = canonical_shards(batch);
    const int blocks = static_cast<int>((batch + kLanes - 1) / kLanes);
    for (int p = 1; p <= std::min(blocks, 20); ++p) {
      const auto cuts = batch_cuts(batch, p);
      ASSERT_EQ(cuts.size(), static_cast<size_t>(p) + 1);
      EXPECT_EQ(cuts.front(), 0);
      EXPECT_EQ(cuts.back(), batch);
      for (int i = 0; i < p; ++i) {
        EXPECT_LT(cuts[static_cast<size_t>(i)], cuts[static_cast<size_t>(i) + 1]);
        EXPECT_EQ(cuts[static_cast<size_t>(i)] % kLanes, 0);
      }
      if (p >= static_cast<int>(shards.size())) continue;
      for (int64_t c : cuts)
        EXPECT_NE(std::find(shards.begin(), shards.end(), c), shards.end())
            << batch << " over " << p;
    }
  }
  EXPECT_TRUE(canonical_tree(128, 8));
  EXPECT_TRUE(canonical_tree(128, 2));
  EXPECT_FALSE(canonical_tree(128, 3));
  EXPECT_FALSE(canonical_tree(1024, 16));
}

}  // namespace
}  // namespace convnet
