#include "framework/comm/barrier.h"

#include <thread>

#include "framework/base/check.h"

namespace convnet {
namespace {

// About 5 microseconds on machines where a pause takes 140 cycles: the skew of devices in step with
// each other. Spinning is a loss if the thread that is waited for needs this core.
constexpr int kSpins = 100;

int spins_for(int members) {
  const unsigned cores = std::thread::hardware_concurrency();
  return static_cast<unsigned>(members) <= cores ? kSpins : 0;
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

Barrier::Barrier(int members) : members_(members), spins_(spins_for(members)) {
  CHECK(members >= 1);
}

bool Barrier::wait() {
  // The round is read before the abort flag, and abort() writes them in the other order: whoever
  // misses the flag sees the round change.
  const int round = round_.load(std::memory_order_acquire);
  if (aborted_.load(std::memory_order_acquire)) return false;
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == members_) {
    arrived_.store(0, std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_acq_rel);
    round_.notify_all();
    return !aborted_.load(std::memory_order_acquire);
  }
  for (int i = 0; i < spins_; ++i) {
    if (round_.load(std::memory_order_acquire) != round)
      return !aborted_.load(std::memory_order_acquire);
    pause();
  }
  round_.wait(round, std::memory_order_acquire);
  return !aborted_.load(std::memory_order_acquire);
}

void Barrier::abort() {
  aborted_.store(true, std::memory_order_release);
  round_.fetch_add(1, std::memory_order_acq_rel);
  round_.notify_all();
}

}  // namespace convnet
