// Events: how the two streams of a device wait for each other within a step.
#pragma once

#include <atomic>
#include <memory>

namespace convnet {

class Events {
 public:
  // Room for events 0 .. count-1; before the first step.
  void resize(int count);

  // Begins a step, before the streams do: no event has been signalled.
  void begin_step();
  // What the thread wrote before is visible to the one that waits.
  void signal(int event);
  // Blocks until the event is signalled, or the step is ended.
  void wait(int event);

  // Ends the step behind instruction `last`: all waiting ends, and whoever finds itself behind it
  // stops. The last instruction that all streams run is the least that anyone has given.
  void end_step(int last);
  bool ended_before(int instr) const { return instr > last_.load(std::memory_order_acquire); }

 private:
  // The number of the step in which it was last signalled. int is what a futex takes.
  std::unique_ptr<std::atomic<int>[]> signalled_;
  int count_ = 0;
  int step_ = 0;
  std::atomic<int> last_{0};
};

}  // namespace convnet
