#include <algorithm>

#include "framework/compiler/passes.h"

namespace convnet {
namespace {

Stream other(Stream s) { return s == Stream::kCompute ? Stream::kComm : Stream::kCompute; }

int bucket_of(const Plan& plan, const Instr& instr) {
  if (instr.op != Op::kExchange) return -1;
  return plan.exchanges[static_cast<size_t>(instr.attrs.integer("id"))].bucket;
}

// Goes through the instructions of a device in order.
class ClockRun {
 public:
  ClockRun(const Plan& plan, const DevicePlan& device) : plan_(plan), device_(device) {}

  // The next instruction, with the event that it waits for.
  void advance() {
    const auto i = static_cast<int>(clocks_.size());
    const Instr& instr = device_.instrs[static_cast<size_t>(i)];
    const auto s = static_cast<size_t>(instr.stream);
    const int bucket = bucket_of(plan_, instr);
    Clock clock;
    if (last_[s] >= 0) {
      clock = clocks_[static_cast<size_t>(last_[s])];
      if (bucket < 0 || bucket != bucket_of(plan_, device_.instrs[static_cast<size_t>(last_[s])]))
        clock.ended[s] = last_[s];
    }
    if (instr.wait >= 0) {
      const int from = signalled_[static_cast<size_t>(instr.wait)];
      const Clock& then = clocks_[static_cast<size_t>(from)];
      for (size_t k = 0; k < clock.ended.size(); ++k)
        clock.ended[k] = std::max(clock.ended[k], then.ended[k]);
      int& seen = clock[device_.instrs[static_cast<size_t>(from)].stream];
      seen = std::max(seen, from);
    }
    clocks_.push_back(clock);
    last_[s] = i;
    if (instr.signal >= 0) note_signal(i);
  }
  // Again, after its event has changed.
  void repeat(int previous) {
    last_[static_cast<size_t>(device_.instrs[clocks_.size() - 1].stream)] = previous;
    clocks_.pop_back();
    advance();
  }
  int last(Stream s) const { return last_[static_cast<size_t>(s)]; }
  void note_signal(int i) {
    const auto event = static_cast<size_t>(device_.instrs[static_cast<size_t>(i)].signal);
    if (signalled_.size() <= event) signalled_.resize(event + 1, -1);
    signalled_[event] = i;
  }
  const std::vector<Clock>& clocks() const { return clocks_; }

 private:
  const Plan& plan_;
  const DevicePlan& device_;
  std::vector<Clock> clocks_;
  std::array<int, 2> last_{-1, -1};  // instruction of each stream
  std::vector<int> signalled_;       // by event
};

class Events {
 public:
  Events(const Plan& plan, DevicePlan& device)
      : plan_(plan), device_(device), uses_(device.buffers.size()) {}

  void run() {
    ClockRun clocks(plan_, device_);
    const auto n = static_cast<int>(device_.instrs.size());
    for (int i = 0; i < n; ++i) {
      const Stream s = at(i).stream;
      const int previous = clocks.last(s);
      clocks.advance();
      const bool begins = previous < 0 || end_of_bucket(plan_, device_, previous) < i;
      if (begins) {
        // All of a bucket begins when its first exchange does.
        int needed = -1;
        for (int k = i; k <= end_of_bucket(plan_, device_, i); ++k)
          needed = std::max(needed, last_conflict(k, s));
        if (s == Stream::kCompute) needed = std::max(needed, left_behind(i));
        if (needed > clocks.clocks().back()[other(s)]) {
          Instr& from = at(needed);
          if (from.signal < 0) {
            from.signal = events_++;
            clocks.note_signal(needed);
          }
          at(i).wait = from.signal;
          clocks.repeat(previous);
        }
      }
      note_uses(i);
    }
    renumber();
  }

 private:
  // In the order in which they are signalled.
  void renumber() {
    std::vector<int> number(static_cast<size_t>(events_));
    int next = 0;
    for (Instr& instr : device_.instrs)
      if (instr.signal >= 0) {
        number[static_cast<size_t>(instr.signal)] = next;
        instr.signal = next++;
      }
    for (Instr& instr : device_.instrs)
      if (instr.wait >= 0) instr.wait = number[static_cast<size_t>(instr.wait)];
  }

  struct Access {
    int instr;
    Box box;
    bool write;
  };
  Instr& at(int i) { return device_.instrs[static_cast<size_t>(i)]; }

  // The last instruction of the other stream that instruction i may not overtake, or the end of its
  // bucket.
  int last_conflict(int i, Stream s) {
    int last = guard_[static_cast<size_t>(other(s))];
    const auto look = [&](const Operand& o, bool write) {
      for (const Access& a : uses_[static_cast<size_t>(o.buffer)])
        if (a.instr > last && at(a.instr).stream != s && (write || a.write) &&
            !intersect(a.box, o.box).empty())
          last = a.instr;
    };
    for (const Operand& o : at(i).in) look(o, false);
    for (const Operand& o : at(i).out) look(o, true);
    return last < 0 ? last : end_of_bucket(plan_, device_, last);
  }

  // Computation runs ahead of what stands last on the stream of communication, but not of what
  // stood there before: else all that is under way would keep its memory to the end of the step,
  // and no time is won by it.
  int left_behind(int i) {
    if (i > 0 && at(i - 1).stream == Stream::kComm) {
      behind_ = ahead_;
      ahead_ = i - 1;
    }
    return behind_;
  }

  void note_uses(int i) {
    if (at(i).op == Op::kGuard) guard_[static_cast<size_t>(at(i).stream)] = i;
    for (const auto& [list, write] : {std::pair(&at(i).in, false), std::pair(&at(i).out, true)})
      for (const Operand& o : *list)
        if (!o.box.empty()) uses_[static_cast<size_t>(o.buffer)].push_back({i, o.box, write});
  }

  const Plan& plan_;
  DevicePlan& device_;
  std::vector<std::vector<Access>> uses_;  // per buffer
  std::array<int, 2> guard_{-1, -1};       // the last of each stream
  int behind_ = -1, ahead_ = -1;           // ends of what was issued together
  int events_ = 0;
};

}  // namespace

int begin_of_bucket(const Plan& plan, const DevicePlan& device, int i) {
  const int bucket = bucket_of(plan, device.instrs[static_cast<size_t>(i)]);
  if (bucket < 0) return i;
  while (i > 0 && bucket_of(plan, device.instrs[static_cast<size_t>(i) - 1]) == bucket) --i;
  return i;
}

int end_of_bucket(const Plan& plan, const DevicePlan& device, int i) {
  const int bucket = bucket_of(plan, device.instrs[static_cast<size_t>(i)]);
  if (bucket < 0) return i;
  const auto n = static_cast<int>(device.instrs.size());
  while (i + 1 < n && bucket_of(plan, device.instrs[static_cast<size_t>(i) + 1]) == bucket) ++i;
  return i;
}

std::vector<Clock> clocks(const Plan& plan, const DevicePlan& device) {
  ClockRun run(plan, device);
  for (size_t i = 0; i < device.instrs.size(); ++i) run.advance();
  return run.clocks();
}

void assign_events(Plan& plan) {
  for (DevicePlan& device : plan.devices) Events(plan, device).run();
}

}  // namespace convnet
