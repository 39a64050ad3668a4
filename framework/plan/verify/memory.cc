// What each device's memory holds: defined before use, written once, not overwritten while needed.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "framework/plan/names.h"
#include "framework/plan/verify/box_set.h"
#include "framework/plan/verify/faults.h"
#include "framework/plan/verify/stream_order.h"

namespace convnet {
namespace {

// From the instruction that first writes a buffer to the last one that uses any of it.
struct Life {
  int first = -1, last = -1;
  // Of each stream.
  std::array<int, 2> first_of{-1, -1}, last_of{-1, -1};
};

class Memory {
 public:
  Memory(const Plan& plan, int device, Faults& faults)
      : plan_(plan),
        device_(plan.devices[static_cast<size_t>(device)]),
        index_(device),
        faults_(faults),
        order_(plan, device_),
        written_(device_.buffers.size()),
        lives_(device_.buffers.size()) {}

  void run() {
    for (size_t i = 0; i < device_.instrs.size(); ++i) step(static_cast<int>(i));
    for (size_t b = 0; b < device_.buffers.size(); ++b) {
      if (!in_arena(b)) continue;
      if (written_[b].empty() && !device_.buffers[b].part.box.empty())
        faults_.in_device(index_, "unused-buffer",
                          fmt::format("buffer '%{}' is never written", device_.buffers[b].name));
      // The host reads metrics after the last instruction.
      if (kind(b) == TensorKind::kMetric && lives_[b].first >= 0)
        lives_[b].last = lives_[b].last_of[0] = static_cast<int>(device_.instrs.size());
    }
    overlaps();
    arena();
  }

 private:
  bool in_arena(size_t b) const { return device_.buffers[b].region == Buffer::Region::kArena; }
  TensorKind kind(size_t b) const {
    return plan_.tensors[static_cast<size_t>(device_.buffers[b].tensor)].kind;
  }

  void step(int i) {
    const Instr& instr = device_.instrs[static_cast<size_t>(i)];
    for (const Operand& o : instr.in) {
      const auto b = static_cast<size_t>(o.buffer);
      if (!in_arena(b)) continue;
      if (!o.box.empty()) touch(b, i);
      for (const Box& hole : written_[b].missing(o.box)) {
        faults_.in_instr(
            index_, i, "use-before-definition",
            fmt::format("reads {}, but '%{}{}' was not written before", operand_name(device_, o),
                        device_.buffers[b].name, hole.str()));
        break;
      }
    }
    for (const Operand& o : instr.out) {
      const auto b = static_cast<size_t>(o.buffer);
      if (!in_arena(b)) {
        const bool may_write = o.box.empty() || instr.op == Op::kUpdateSgd ||
                               (instr.op == Op::kExchange && kind(b) == TensorKind::kParameter);
        if (!may_write)
          faults_.in_instr(
              index_, i, "region",
              fmt::format("writes {}, which lies in the region {}", operand_name(device_, o),
                          region_name(device_.buffers[b].region)));
        continue;
      }
      if (!o.box.empty()) touch(b, i);
      if (written_[b].overlaps(o.box))
        faults_.in_instr(
            index_, i, "written-twice",
            fmt::format("writes {}, which holds a value already", operand_name(device_, o)));
      written_[b].add(o.box);
    }
  }

  void touch(size_t b, int i) {
    Life& life = lives_[b];
    if (life.first < 0) life.first = i;
    life.last = i;
    const auto s = static_cast<size_t>(device_.instrs[static_cast<size_t>(i)].stream);
    const auto at = static_cast<size_t>(i);
    if (life.first_of[s] < 0) life.first_of[s] = static_cast<int>(order_.first(at));
    life.last_of[s] = static_cast<int>(order_.last(at));
  }

  // Whether buffer b takes over the memory of buffer a at the instruction that uses a last.
  bool in_place(size_t a, size_t b) const {
    if (lives_[a].last != lives_[b].first ||
        static_cast<size_t>(lives_[b].first) >= device_.instrs.size())
      return false;
    const Instr& instr = device_.instrs[static_cast<size_t>(lives_[b].first)];
    const int operand = op_info(instr.op).inplace;
    if (operand < 0 || static_cast<size_t>(operand) >= instr.in.size()) return false;
    const Operand &source = instr.in[static_cast<size_t>(operand)], &result = instr.out[0];
    const Buffer &from = device_.buffers[a], &to = device_.buffers[b];
    return static_cast<size_t>(source.buffer) == a && static_cast<size_t>(result.buffer) == b &&
           from.offset == to.offset && from.part.box == to.part.box && source.box == result.box &&
           format(a) == format(b) && dtype(a) == dtype(b);
  }
  Format format(size_t b) const {
    return plan_.tensors[static_cast<size_t>(device_.buffers[b].tensor)].format;
  }
  DType dtype(size_t b) const {
    return plan_.tensors[static_cast<size_t>(device_.buffers[b].tensor)].dtype;
  }

  // Two buffers of which one is needed while the other is in use may not share a byte.
  void overlaps() {
    std::vector<size_t> order;
    for (size_t b = 0; b < device_.buffers.size(); ++b)
      if (in_arena(b) && lives_[b].first >= 0 && device_.buffers[b].bytes > 0) order.push_back(b);
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return device_.buffers[a].offset < device_.buffers[b].offset;
    });
    for (size_t i = 0; i < order.size(); ++i) {
      const Buffer& a = device_.buffers[order[i]];
      for (size_t j = i + 1; j < order.size(); ++j) {
        const Buffer& b = device_.buffers[order[j]];
        if (b.offset >= a.offset + a.bytes) break;
        const Life &la = lives_[order[i]], &lb = lives_[order[j]];
        if (la.last < lb.first || lb.last < la.first) continue;
        if (in_place(order[i], order[j]) || in_place(order[j], order[i])) continue;
        faults_.in_device(
            index_, "overlap",
            fmt::format("buffers '%{}' at {}+{} (instructions {} to {}) and '%{}' at {}+{} "
                        "(instructions {} to {}) share memory while both are needed",
                        a.name, a.offset, a.bytes, la.first, la.last, b.name, b.offset, b.bytes,
                        lb.first, lb.last));
      }
    }
  }

  // The arena ends with its last buffer; the bound is the largest sum of live buffers in any order
  // in which the streams may run, where a result in the memory of its operand counts once.
  void arena() {
    int64_t end = 0;
    for (const Buffer& b : device_.buffers)
      if (b.region == Buffer::Region::kArena) end = std::max(end, b.offset + b.bytes);
    if (device_.arena_bytes != end)
      faults_.in_device(
          index_, "arena",
          fmt::format("the arena has {} bytes, its buffers end at {}", device_.arena_bytes, end));
    const size_t steps = device_.instrs.size() + 1;
    std::vector<int64_t> change(steps + 1, 0);
    for (size_t b = 0; b < device_.buffers.size(); ++b) {
      if (!in_arena(b) || lives_[b].first < 0) continue;
      change[static_cast<size_t>(lives_[b].first)] += device_.buffers[b].bytes;
      change[static_cast<size_t>(lives_[b].last) + 1] -= device_.buffers[b].bytes;
    }
    int64_t live = 0, most = 0;
    for (size_t i = 0; i < steps; ++i) {
      live += change[i];
      most = std::max(most, live - shared_at(i));
    }
    for (size_t k = 0; k < device_.instrs.size(); ++k)
      for (size_t i = k + 1; i < device_.instrs.size(); ++i)
        if (device_.instrs[k].stream != device_.instrs[i].stream && !order_.before(k, i))
          most = std::max(most, live_beside(k, i) - shared_at(k) - shared_at(i));
    if (device_.arena_bound != most)
      faults_.in_device(index_, "arena",
                        fmt::format("the recorded bound is {} bytes, at most {} are live at once",
                                    device_.arena_bound, most));
  }

  // While instruction a of one stream runs and instruction b of the other.
  int64_t live_beside(size_t a, size_t b) const {
    std::array<int, 2> now{};
    for (const size_t i : {a, b})
      now[static_cast<size_t>(device_.instrs[i].stream)] = static_cast<int>(i);
    int64_t live = 0;
    for (size_t n = 0; n < lives_.size(); ++n) {
      if (!in_arena(n)) continue;
      const Life& life = lives_[n];
      bool begun = false, needed = false;
      for (size_t s = 0; s < now.size(); ++s) {
        begun |= life.first_of[s] >= 0 && life.first_of[s] <= now[s];
        needed |= life.last_of[s] >= now[s];
      }
      if (begun && needed) live += device_.buffers[n].bytes;
    }
    return live;
  }

  // Bytes that instruction i's operand and result have in common.
  int64_t shared_at(size_t i) const {
    if (i >= device_.instrs.size()) return 0;
    const Instr& instr = device_.instrs[i];
    const int operand = op_info(instr.op).inplace;
    if (operand < 0 || static_cast<size_t>(operand) >= instr.in.size() || instr.out.empty())
      return 0;
    const auto a = static_cast<size_t>(instr.in[static_cast<size_t>(operand)].buffer);
    const auto b = static_cast<size_t>(instr.out[0].buffer);
    return a != b && in_arena(a) && in_arena(b) && in_place(a, b) ? device_.buffers[a].bytes : 0;
  }

  const Plan& plan_;
  const DevicePlan& device_;
  int index_;
  Faults& faults_;
  const StreamOrder order_;
  std::vector<BoxSet> written_;
  std::vector<Life> lives_;
};

}  // namespace

void check_memory(const Plan& plan, Faults& faults) {
  for (size_t d = 0; d < plan.devices.size(); ++d) Memory(plan, static_cast<int>(d), faults).run();
}

}  // namespace convnet
