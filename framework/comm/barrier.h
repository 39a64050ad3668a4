// Barrier between the threads of a group: spins for a few microseconds, then sleeps, so that it
// works with more devices than cores. Can be aborted for good.
#pragma once

#include <atomic>

namespace convnet {

class Barrier {
 public:
  explicit Barrier(int members);
  Barrier(const Barrier&) = delete;
  Barrier& operator=(const Barrier&) = delete;

  // Blocks until every member has called it; what each wrote before is then visible to all. False
  // if the barrier was aborted, before or while waiting: nothing then follows from it.
  bool wait();

  // Wakes all that wait; every later wait() returns false at once.
  void abort();
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }

 private:
  const int members_;
  const int spins_;
  // int is what a futex takes, so waiting needs no table of the library's.
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> round_{0};
  std::atomic<bool> aborted_{false};
};

}  // namespace convnet
