#include "framework/runtime/events.h"

#include <limits>

#include "framework/base/check.h"

namespace convnet {

void Events::resize(int count) {
  signalled_ = std::make_unique<std::atomic<int>[]>(static_cast<size_t>(count));
  count_ = count;
}

void Events::begin_step() {
  ++step_;
  last_.store(std::numeric_limits<int>::max(), std::memory_order_relaxed);
}

void Events::signal(int event) {
  std::atomic<int>& e = signalled_[static_cast<size_t>(event)];
  e.store(step_, std::memory_order_release);
  e.notify_one();
}

void Events::wait(int event) {
  std::atomic<int>& e = signalled_[static_cast<size_t>(event)];
  for (int seen; (seen = e.load(std::memory_order_acquire)) != step_;)
    e.wait(seen, std::memory_order_acquire);
}

void Events::end_step(int last) {
  int before = last_.load(std::memory_order_relaxed);
  while (last < before && !last_.compare_exchange_weak(before, last, std::memory_order_release)) {
  }
  for (int e = 0; e < count_; ++e) signal(e);
}

}  // namespace convnet
