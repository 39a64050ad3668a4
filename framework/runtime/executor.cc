#include "framework/runtime/executor.h"

#include <signal.h>

#include <cstring>

namespace convnet {

Result<std::unique_ptr<Executor>> Executor::start() {
  std::unique_ptr<Executor> executor(new Executor);
  // The thread inherits the mask, so a signal always finds the thread that waits for the step.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const auto body = [](void* self) -> void* {
    static_cast<Executor*>(self)->serve();
    return nullptr;
  };
  const int error = pthread_create(&executor->thread_, nullptr, body, executor.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0)
    return Status(Code::kLimit, std::string("cannot start a thread: ") + std::strerror(error));
  executor->running_ = true;
  return executor;
}

Executor::~Executor() {
  if (!running_) return;
  stopping_ = true;
  begin(nullptr, nullptr);
  pthread_join(thread_, nullptr);
}

void Executor::begin(void (*job)(void*), void* argument) {
  CHECK(done_.load(std::memory_order_relaxed) == begun_.load(std::memory_order_relaxed));
  job_ = job;
  argument_ = argument;
  begun_.fetch_add(1, std::memory_order_release);
  begun_.notify_one();
}

void Executor::wait() {
  const int begun = begun_.load(std::memory_order_relaxed);
  for (int done; (done = done_.load(std::memory_order_acquire)) != begun;)
    done_.wait(done, std::memory_order_acquire);
}

void Executor::serve() {
  for (int seen = 0;; ++seen) {
    begun_.wait(seen, std::memory_order_acquire);
    if (stopping_) return;
    job_(argument_);
    done_.fetch_add(1, std::memory_order_release);
    done_.notify_one();
  }
}

}  // namespace convnet
