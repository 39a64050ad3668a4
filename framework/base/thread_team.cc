#include "framework/base/thread_team.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <atomic>
#include <vector>

#include "framework/base/check.h"

namespace convnet {
namespace {

// Kernels of a step follow each other within microseconds, and a thread that sleeps takes tens of
// them to wake; but a team may have more threads than there are cores, and then whoever spins takes
// the core from whoever works. So: spin for a few microseconds, offer the core a few times, then
// sleep.
constexpr int kSpins = 100;
constexpr int kYields = 4;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Returns once `value` differs from `old`.
void await_change(const std::atomic<uint32_t>& value, uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  for (int i = 0; i < kYields; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    sched_yield();
  }
  value.wait(old, std::memory_order_acquire);
}

// First task of thread `t` of `threads`: ceil(t * tasks / threads), without overflow.
int64_t first_task(int64_t tasks, int64_t t, int64_t threads) {
  return tasks / threads * t + (tasks % threads * t + threads - 1) / threads;
}

}  // namespace

struct ThreadTeam::Impl {
  // A worker's mailbox, on a cache line of its own. The caller raises `round` after the job is
  // written.
  struct alignas(64) Worker {
    std::atomic<uint32_t> round{0};
    Impl* team = nullptr;
    int number = 0;
    pthread_t handle{};
  };

  explicit Impl(int most) : workers(static_cast<size_t>(most - 1)) {}

  void run_share(int t) {
    const int64_t end = first_task(tasks, t + 1, threads);
    for (int64_t task = first_task(tasks, t, threads); task < end; ++task) call(fn, task, t);
  }

  void serve(Worker& worker) {
    for (uint32_t seen = 0;; ++seen) {
      await_change(worker.round, seen);
      if (stopping) return;
      run_share(worker.number);
      // The last one done wakes the caller, who then sees what all of them wrote.
      if (busy.fetch_sub(1) == 1) busy.notify_one();
    }
  }

  static void start(Worker& worker) {
    worker.round.fetch_add(1);
    worker.round.notify_one();
  }

  int threads = 1;
  std::vector<Worker> workers;
  // The job; written by the caller while all workers wait.
  int64_t tasks = 0;
  void* fn = nullptr;
  Call call = nullptr;
  bool stopping = false;
  alignas(64) std::atomic<uint32_t> busy{0};
};

ThreadTeam::ThreadTeam(int threads) {
  CHECK(threads >= 1);
  impl_ = std::make_unique<Impl>(threads);
  // Workers inherit the mask, so a signal always finds a thread that knows what to do with it.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (Impl::Worker& worker : impl_->workers) {
    worker.team = impl_.get();
    worker.number = impl_->threads;
    const auto body = [](void* p) -> void* {
      auto* w = static_cast<Impl::Worker*>(p);
      w->team->serve(*w);
      return nullptr;
    };
    if (pthread_create(&worker.handle, nullptr, body, &worker) != 0) break;
    ++impl_->threads;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ThreadTeam::~ThreadTeam() {
  impl_->stopping = true;
  for (int t = 1; t < impl_->threads; ++t) Impl::start(impl_->workers[static_cast<size_t>(t - 1)]);
  for (int t = 1; t < impl_->threads; ++t)
    pthread_join(impl_->workers[static_cast<size_t>(t - 1)].handle, nullptr);
}

int ThreadTeam::threads() const { return impl_->threads; }

void ThreadTeam::run_erased(int64_t tasks, void* fn, Call call) {
  if (tasks <= 0) return;
  Impl& team = *impl_;
  team.tasks = tasks;
  team.fn = fn;
  team.call = call;
  // With fewer tasks than threads some have nothing to do, and are not woken.
  const auto has_work = [&](int t) {
    return first_task(tasks, t, team.threads) < first_task(tasks, t + 1, team.threads);
  };
  uint32_t busy = 0;
  for (int t = 1; t < team.threads; ++t) busy += has_work(t);
  team.busy.store(busy, std::memory_order_relaxed);
  if (busy > 0)
    for (int t = 1; t < team.threads; ++t)
      if (has_work(t)) Impl::start(team.workers[static_cast<size_t>(t - 1)]);
  team.run_share(0);
  for (uint32_t left; (left = team.busy.load(std::memory_order_acquire)) != 0;)
    await_change(team.busy, left);
}

}  // namespace convnet
