// If this fails, boxes are copied from or to the wrong place in memory.
#include "framework/comm/box_runs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace convnet {
namespace {

Box box_of(std::initializer_list<std::pair<int64_t, int64_t>> ranges) {
  Box b;
  for (const auto& [lo, hi] : ranges) b.append(lo, hi);
  return b;
}

// Place of element `at` in a buffer that holds `stored`: the definition of the formats (shape.h).
int64_t place(Format format, const Box& stored, const std::vector<int64_t>& at) {
  int64_t index = 0;
  for (int d = 0; d < stored.rank(); ++d) {
    const auto i = static_cast<size_t>(d);
    if (format == Format::kBlocked && d == 0) {
      index = at[0] / kLanes - stored.lo(0) / kLanes;
    } else {
      index = index * stored.extent(d) + at[i] - stored.lo(d);
    }
  }
  return format == Format::kBlocked ? index * kLanes + at[0] % kLanes : index;
}

// All elements that the runs visit, as pairs of places, in order.
std::vector<std::pair<int64_t, int64_t>> visited(const BoxRuns& runs) {
  std::vector<std::pair<int64_t, int64_t>> all;
  runs.for_each([&](const int64_t* offsets) {
    for (int64_t i = 0; i < runs.run(); ++i) all.emplace_back(offsets[0] + i, offsets[1] + i);
  });
  return all;
}

TEST(BoxRuns, VisitEveryElementOnceInBothBuffers) {
  const Box a = box_of({{0, 48}, {1, 5}, {0, 6}, {2, 9}});
  const Box b = box_of({{16, 64}, {0, 4}, {1, 7}, {0, 9}});
  const Box box = box_of({{16, 48}, {2, 4}, {1, 6}, {3, 8}});
  const Box stored[] = {a, b};
  for (Format format : {Format::kPlain, Format::kBlocked}) {
    std::vector<std::pair<int64_t, int64_t>> expected;
    for (int64_t n = 16; n < 48; ++n)
      for (int64_t c = 2; c < 4; ++c)
        for (int64_t h = 1; h < 6; ++h)
          for (int64_t w = 3; w < 8; ++w)
            expected.emplace_back(place(format, a, {n, c, h, w}), place(format, b, {n, c, h, w}));
    auto all = visited(BoxRuns(format, box, stored));
    std::sort(expected.begin(), expected.end());
    std::sort(all.begin(), all.end());
    EXPECT_EQ(all, expected);
  }
}

TEST(BoxRuns, WholeBuffersAreOneRun) {
  const Box box = box_of({{16, 48}, {0, 3}, {0, 5}, {0, 5}});
  const Box stored[] = {box, box};
  const BoxRuns plain(Format::kPlain, box, stored);
  EXPECT_EQ(plain.runs(), 1);
  EXPECT_EQ(plain.run(), 32 * 3 * 5 * 5);
  const BoxRuns blocked(Format::kBlocked, box, stored);
  EXPECT_EQ(blocked.runs(), 1);
  EXPECT_EQ(blocked.run(), 32 * 3 * 5 * 5);
}

TEST(BoxRuns, LastBlockOfTheBatchIsCopiedWithItsPadding) {
  const Box stored_box = box_of({{0, 20}, {0, 2}});
  const Box stored[] = {stored_box, stored_box};
  const BoxRuns runs(Format::kBlocked, stored_box, stored);
  EXPECT_EQ(runs.run() * runs.runs(), 64);
}

TEST(BoxRuns, NothingForAnEmptyBox) {
  const Box stored_box = box_of({{0, 16}, {0, 2}});
  const Box stored[] = {stored_box, stored_box};
  EXPECT_EQ(BoxRuns(Format::kPlain, box_of({{0, 16}, {1, 1}}), stored).runs(), 0);
}

TEST(BoxRuns, BatchesAreCutBetweenBlocks) {
  EXPECT_TRUE(blocks_aligned(Format::kBlocked, box_of({{16, 32}}), 40));
  EXPECT_TRUE(blocks_aligned(Format::kBlocked, box_of({{32, 40}}), 40));
  EXPECT_FALSE(blocks_aligned(Format::kBlocked, box_of({{16, 40}}), 48));
  EXPECT_FALSE(blocks_aligned(Format::kBlocked, box_of({{8, 32}}), 48));
  EXPECT_TRUE(blocks_aligned(Format::kPlain, box_of({{3, 5}}), 40));
}

}  // namespace
}  // namespace convnet
