// If this fails, devices run ahead of each other and read values that are not there yet, or a
// failure on one device leaves the others waiting for ever.
#include "framework/comm/barrier.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace convnet {
namespace {

TEST(Barrier, NobodyPassesBeforeAllHaveArrived) {
  for (int members : {1, 2, 3, 8}) {
    Barrier barrier(members);
    constexpr int kRounds = 500;
    // Plain memory: the barrier alone orders the writes and the reads.
    std::vector<int> reached(static_cast<size_t>(members), 0);
    std::vector<int> behind(static_cast<size_t>(members), 0);
    std::vector<std::thread> threads;
    for (int m = 0; m < members; ++m)
      threads.emplace_back([&, m] {
        for (int round = 1; round <= kRounds; ++round) {
          reached[static_cast<size_t>(m)] = round;
          ASSERT_TRUE(barrier.wait());
          for (int other : reached) behind[static_cast<size_t>(m)] += other != round;
          ASSERT_TRUE(barrier.wait());
        }
      });
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(behind, std::vector<int>(static_cast<size_t>(members), 0)) << members << " members";
  }
}

TEST(Barrier, AbortWakesThoseWhoWaitAndStopsThoseWhoCome) {
  for (int repeat = 0; repeat < 50; ++repeat) {
    Barrier barrier(4);
    std::vector<int> passed(3, -1);
    std::vector<std::thread> threads;
    for (size_t m = 0; m < 3; ++m)
      threads.emplace_back([&, m] { passed[m] = barrier.wait() ? 1 : 0; });
    if (repeat % 2 == 0) std::this_thread::yield();
    barrier.abort();
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(passed, std::vector<int>(3, 0));
    EXPECT_FALSE(barrier.wait());
    EXPECT_FALSE(barrier.wait());
  }
}

}  // namespace
}  // namespace convnet
