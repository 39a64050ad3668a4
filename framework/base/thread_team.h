// A fixed team of threads that runs numbered tasks. Which thread runs which task is fixed by the
// numbers alone, so a team never changes a result; it only must not be used to split one sum.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace convnet {

class ThreadTeam {
 public:
  // `threads` >= 1, the calling thread included: threads - 1 are started, with all signals blocked.
  // If the system refuses one the team is smaller, which changes no result.
  explicit ThreadTeam(int threads);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int threads() const;

  // Calls fn(task, thread) for task = 0..tasks-1 and returns when all are done. Thread t of T gets
  // the contiguous tasks [ceil(t * tasks / T), ceil((t + 1) * tasks / T)), so that a single task
  // runs on the caller, thread 0, and wakes nobody. Does not allocate. Not reentrant; one caller at
  // a time.
  template <typename F>
  void run(int64_t tasks, F&& fn) {
    run_erased(tasks, const_cast<void*>(static_cast<const void*>(&fn)),
               [](void* f, int64_t task, int thread) {
                 (*static_cast<std::remove_reference_t<F>*>(f))(task, thread);
               });
  }

 private:
  using Call = void (*)(void* fn, int64_t task, int thread);
  void run_erased(int64_t tasks, void* fn, Call call);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace convnet
