// Executor: the thread of one device. It is made once, blocks all signals, and runs one job after
// the other.
#pragma once

#include <pthread.h>

#include <atomic>
#include <memory>

#include "framework/base/status.h"

namespace convnet {

class Executor {
 public:
  // kLimit if the system gives no thread.
  static Result<std::unique_ptr<Executor>> start();
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Starts job(argument) on the thread and returns. The last job must have been waited for.
  void begin(void (*job)(void*), void* argument);
  // Returns when the job is done; its writes are then visible.
  void wait();

 private:
  Executor() = default;
  void serve();

  pthread_t thread_{};
  bool running_ = false;
  void (*job_)(void*) = nullptr;
  void* argument_ = nullptr;
  bool stopping_ = false;
  std::atomic<int> begun_{0};
  std::atomic<int> done_{0};
};

}  // namespace convnet
