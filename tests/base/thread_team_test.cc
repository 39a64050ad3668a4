// If this fails, kernels lose tasks, run them twice, race with each other, or idle threads burn the
// cores that other devices work on.
#include "framework/base/thread_team.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

namespace {
std::atomic<int64_t> allocations{0};
}

// Counts every allocation of the binary, so that a test can see that run() makes none.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  if (void* p = std::malloc(bytes)) return p;
  std::abort();
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return operator new(bytes);
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace convnet {
namespace {

double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

TEST(ThreadTeam, EachTaskRunsOnceOnItsThread) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadTeam team(threads);
    ASSERT_EQ(team.threads(), threads);
    for (const int64_t tasks : {0, 1, 2, 3, 7, 8, 9, 100}) {
      std::vector<int> runs(static_cast<size_t>(tasks)), by(static_cast<size_t>(tasks), -1);
      team.run(tasks, [&](int64_t task, int thread) {
        ++runs[static_cast<size_t>(task)];
        by[static_cast<size_t>(task)] = thread;
      });
      for (int64_t i = 0; i < tasks; ++i) {
        EXPECT_EQ(runs[static_cast<size_t>(i)], 1) << threads << " threads, task " << i;
        int64_t thread = 0;  // the one with ceil(t * tasks / T) <= i < ceil((t + 1) * tasks / T)
        while (((thread + 1) * tasks + threads - 1) / threads <= i) ++thread;
        EXPECT_EQ(by[static_cast<size_t>(i)], thread) << threads << " threads, task " << i;
      }
    }
  }
}

TEST(ThreadTeam, WritesAreVisibleAfterRunAndBeforeTheNext) {
  ThreadTeam team(4);
  std::vector<int64_t> a(64, 1), b(64);
  for (int round = 0; round < 2000; ++round) {
    team.run(64, [&](int64_t i, int) {
      b[static_cast<size_t>(i)] = a[static_cast<size_t>(63 - i)] + 1;
    });
    team.run(64,
             [&](int64_t i, int) { a[static_cast<size_t>(i)] = b[static_cast<size_t>(63 - i)]; });
  }
  for (const int64_t v : a) EXPECT_EQ(v, 2001);
}

TEST(ThreadTeam, CallerIsThreadZeroAndASingleTaskStaysWithIt) {
  ThreadTeam team(8);
  std::thread::id id;
  int thread = -1;
  team.run(1, [&](int64_t, int t) {
    id = std::this_thread::get_id();
    thread = t;
  });
  EXPECT_EQ(thread, 0);
  EXPECT_EQ(id, std::this_thread::get_id());
}

TEST(ThreadTeam, RunDoesNotAllocate) {
  ThreadTeam team(3);
  std::atomic<int64_t> sum{0};
  team.run(10, [&](int64_t i, int) { sum += i; });
  const int64_t before = allocations;
  for (int round = 0; round < 100; ++round) team.run(10, [&](int64_t i, int) { sum += i; });
  EXPECT_EQ(allocations, before);
  EXPECT_EQ(sum, 101 * 45);
}

TEST(ThreadTeam, WorkersBlockSignalsAndTheCallerKeepsItsMask) {
  sigset_t before, after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  ThreadTeam team(2);
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  EXPECT_EQ(sigismember(&before, SIGTERM), sigismember(&after, SIGTERM));
  EXPECT_EQ(sigismember(&before, SIGINT), sigismember(&after, SIGINT));
  int blocked[2] = {-1, -1};
  team.run(2, [&](int64_t task, int) {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    blocked[task] = sigismember(&mask, SIGTERM) + sigismember(&mask, SIGINT);
  });
  EXPECT_EQ(blocked[0], 0);
  EXPECT_EQ(blocked[1], 2);
}

TEST(ThreadTeam, IdleThreadsSleep) {
  ThreadTeam team(8);
  std::atomic<int> sum{0};
  team.run(8, [&](int64_t, int) { ++sum; });
  timespec pause{0, 50'000'000};
  nanosleep(&pause, nullptr);
  const double before = cpu_seconds();
  pause.tv_nsec = 300'000'000;
  nanosleep(&pause, nullptr);
  EXPECT_LT(cpu_seconds() - before, 0.05);
}

// Four times as many threads as this machine's two cores, most of them with nothing to do: the work
// is one thread's, so the whole must not cost much more than one thread's time.
TEST(ThreadTeam, WaitingThreadsLeaveTheCoresToWorkers) {
  ThreadTeam team(8);
  const double before = cpu_seconds();
  for (int round = 0; round < 20; ++round)
    team.run(8, [&](int64_t task, int) {
      if (task != 7) return;
      const timespec pause{0, 5'000'000};  // stands for a slow task: 100 ms in all
      nanosleep(&pause, nullptr);
    });
  EXPECT_LT(cpu_seconds() - before, 0.05);
}

TEST(ThreadTeam, TeamsComeAndGo) {
  for (int i = 0; i < 50; ++i) {
    ThreadTeam team(1 + i % 5);
    if (i % 2) {
      std::atomic<int> n{0};
      team.run(3, [&](int64_t, int) { ++n; });
      EXPECT_EQ(n, 3);
    }
  }
}

}  // namespace
}  // namespace convnet
