// Offsets from lifetimes. An arena buffer lives from the first instruction that writes it to the
// last that uses any of it; a metric lives to the end of the step, where the host reads it. Two
// buffers may share memory if all uses of one have ended for certain when the other's begin,
// whatever the streams do meanwhile. Greedy best fit over four orders of the buffers, the smallest
// arena wins; the bound is the largest live sum in any order in which the streams may run. Greedy
// reaches it on the usual networks; where it does not, the buffer that ends highest is placed
// earlier, again and again.
#include <algorithm>
#include <numeric>

#include "framework/compiler/passes.h"

namespace convnet {
namespace {

// One place in the arena: a buffer, or several that take each other's place.
struct Slot {
  std::vector<int> buffers;
  int begin = -1, end = -1;   // instructions, both inclusive
  Clock begins, first, ends;  // what has ended before all its uses; its uses in each stream
  int64_t bytes = 0;
  int64_t offset = -1;
  int64_t lifetime() const { return end - begin + 1; }
};

// Placements per order of the buffers.
constexpr int kTries = 32;

class DeviceMemory {
 public:
  DeviceMemory(const Plan& plan, DevicePlan& device)
      : plan_(plan), device_(device), clocks_(clocks(plan, device)) {}

  void run() {
    find_lifetimes();
    merge_in_place();
    collect_slots();
    device_.arena_bound = bound();
    place_best();
  }

 private:
  struct Life {
    int begin = -1, end = -1;
    Clock begins, first, ends;
    bool arena = false;
  };

  Life& life(const Operand& o) { return lives_[static_cast<size_t>(o.buffer)]; }

  void find_lifetimes() {
    lives_.resize(device_.buffers.size());
    slot_of_.resize(device_.buffers.size());
    std::iota(slot_of_.begin(), slot_of_.end(), 0);
    const int last = static_cast<int>(device_.instrs.size()) - 1;
    for (int i = 0; i <= last; ++i) {
      const Instr& instr = device_.instrs[static_cast<size_t>(i)];
      for (const std::vector<Operand>* operands : {&instr.in, &instr.out})
        for (const Operand& o : *operands)
          if (!o.box.empty()) touch(life(o), i);
    }
    for (size_t b = 0; b < device_.buffers.size(); ++b) {
      const Buffer& buffer = device_.buffers[b];
      lives_[b].arena = buffer.region == Buffer::Region::kArena && buffer.bytes > 0;
      if (plan_.tensors[static_cast<size_t>(buffer.tensor)].kind == TensorKind::kMetric) {
        lives_[b].end = last;
        lives_[b].ends.ended = {last, last};
      }
    }
  }

  void touch(Life& life, int i) {
    const Clock& now = clocks_[static_cast<size_t>(i)];
    const Stream stream = device_.instrs[static_cast<size_t>(i)].stream;
    if (life.begin < 0) {
      life.begin = i;
      life.begins = now;
    }
    life.end = i;
    life.begins = earlier(life.begins, now);
    if (life.first[stream] < 0) life.first[stream] = begin_of_bucket(plan_, device_, i);
    life.ends[stream] = std::max(life.ends[stream], end_of_bucket(plan_, device_, i));
  }
  static Clock earlier(Clock a, const Clock& b) {
    for (size_t s = 0; s < a.ended.size(); ++s) a.ended[s] = std::min(a.ended[s], b.ended[s]);
    return a;
  }
  // Whether what ends with `ends` has ended for certain when what begins with `begins` does.
  static bool before(const Clock& ends, const Clock& begins) {
    return ends.ended[0] <= begins.ended[0] && ends.ended[1] <= begins.ended[1];
  }

  int root(int buffer) const {
    while (slot_of_[static_cast<size_t>(buffer)] != buffer)
      buffer = slot_of_[static_cast<size_t>(buffer)];
    return buffer;
  }

  // A result takes its operand's place where the operation allows it, the operand dies there, with
  // nothing in the other stream that may still use it, and both are whole buffers of one size.
  void merge_in_place() {
    for (size_t i = 0; i < device_.instrs.size(); ++i) {
      const Instr& instr = device_.instrs[i];
      const int k = op_info(instr.op).inplace;
      if (k < 0) continue;
      const Operand& in = instr.in[static_cast<size_t>(k)];
      const Operand& out = instr.out[0];
      const Buffer& a = device_.buffers[static_cast<size_t>(in.buffer)];
      const Buffer& b = device_.buffers[static_cast<size_t>(out.buffer)];
      if (!life(in).arena || !life(out).arena || a.bytes != b.bytes || in.buffer == out.buffer ||
          !(in.box == a.part.box) || !(out.box == b.part.box) ||
          life(in).end != static_cast<int>(i) || life(out).begin != static_cast<int>(i))
        continue;
      Clock own_end = clocks_[i];
      own_end[instr.stream] = static_cast<int>(i);
      if (!before(life(in).ends, own_end)) continue;
      // An operand that the instruction reads twice has another reader: itself.
      const auto readers = std::count_if(instr.in.begin(), instr.in.end(), [&](const Operand& o) {
        return root(o.buffer) == root(in.buffer);
      });
      if (readers > 1) continue;
      slot_of_[static_cast<size_t>(out.buffer)] = root(in.buffer);
    }
  }

  void collect_slots() {
    std::vector<int> index(device_.buffers.size(), -1);
    for (size_t b = 0; b < device_.buffers.size(); ++b) {
      if (!lives_[b].arena) continue;
      const int r = root(static_cast<int>(b));
      int& at = index[static_cast<size_t>(r)];
      if (at < 0) {
        at = static_cast<int>(slots_.size());
        slots_.push_back(Slot{{},
                              lives_[b].begin,
                              lives_[b].end,
                              lives_[b].begins,
                              lives_[b].first,
                              lives_[b].ends,
                              device_.buffers[b].bytes,
                              -1});
      }
      Slot& slot = slots_[static_cast<size_t>(at)];
      slot.buffers.push_back(static_cast<int>(b));
      slot.begin = std::min(slot.begin, lives_[b].begin);
      slot.end = std::max(slot.end, lives_[b].end);
      slot.begins = earlier(slot.begins, lives_[b].begins);
      for (const Stream s : {Stream::kCompute, Stream::kComm}) {
        slot.ends[s] = std::max(slot.ends[s], lives_[b].ends[s]);
        if (lives_[b].first[s] >= 0 && (slot.first[s] < 0 || lives_[b].first[s] < slot.first[s]))
          slot.first[s] = lives_[b].first[s];
      }
    }
  }

  int64_t bound() const {
    std::vector<int64_t> change(device_.instrs.size() + 1, 0);
    for (const Slot& s : slots_) {
      change[static_cast<size_t>(s.begin)] += s.bytes;
      change[static_cast<size_t>(s.end) + 1] -= s.bytes;
    }
    int64_t live = 0, most = 0;
    for (int64_t c : change) most = std::max(most, live += c);
    // Beside each instruction of one stream, those of the other that may run at the same time.
    std::array<std::vector<int>, 2> streams;
    for (size_t i = 0; i < device_.instrs.size(); ++i)
      streams[static_cast<size_t>(device_.instrs[i].stream)].push_back(static_cast<int>(i));
    for (int a : streams[0]) {
      const Clock& known = clocks_[static_cast<size_t>(a)];
      const auto first = std::ranges::upper_bound(streams[1], known.ended[1]);
      for (auto b = first; b != streams[1].end(); ++b) {
        if (clocks_[static_cast<size_t>(*b)].ended[0] >= a) break;
        most = std::max(most, live_beside({a, *b}));
      }
    }
    return most;
  }

  // Bytes alive while these instructions run, one of each stream.
  int64_t live_beside(const std::array<int, 2>& now) const {
    int64_t live = 0;
    for (const Slot& s : slots_) {
      bool begun = false, ended = true;
      for (size_t k = 0; k < now.size(); ++k) {
        begun |= s.first.ended[k] >= 0 && s.first.ended[k] <= now[k];
        ended &= s.ends.ended[k] < now[k];
      }
      if (begun && !ended) live += s.bytes;
    }
    return live;
  }

  void place_best() {
    using Less = bool (*)(const Slot&, const Slot&);
    const Less orders[] = {
        [](const Slot& a, const Slot& b) { return a.bytes > b.bytes; },
        [](const Slot& a, const Slot& b) { return a.lifetime() > b.lifetime(); },
        [](const Slot& a, const Slot& b) {
          return static_cast<double>(a.bytes) * static_cast<double>(a.lifetime()) >
                 static_cast<double>(b.bytes) * static_cast<double>(b.lifetime());
        },
        [](const Slot& a, const Slot& b) { return a.begin < b.begin; },
    };
    std::vector<Slot> best;
    for (const Less less : orders) {
      std::vector<Slot> slots = slots_;
      std::stable_sort(slots.begin(), slots.end(), less);
      for (int tries = 0; tries < kTries; ++tries) {
        const int64_t size = place_in_order(slots);
        if (best.empty() || size < device_.arena_bytes) {
          device_.arena_bytes = size;
          best = slots;
        }
        if (device_.arena_bytes == device_.arena_bound || slots.empty()) break;
        const auto top = std::max_element(
            slots.begin(), slots.end(),
            [](const Slot& a, const Slot& b) { return a.offset + a.bytes < b.offset + b.bytes; });
        std::rotate(slots.begin() + (top - slots.begin()) / 2, top, top + 1);
      }
      if (device_.arena_bytes == device_.arena_bound) break;
    }
    if (slots_.empty()) device_.arena_bytes = 0;
    for (const Slot& s : best)
      for (int b : s.buffers) device_.buffers[static_cast<size_t>(b)].offset = s.offset;
    for (Buffer& b : device_.buffers)
      if (b.region == Buffer::Region::kArena && b.bytes == 0) b.offset = 0;
  }

  // Each slot into the smallest gap between placed slots that live at the same time. Returns the
  // size.
  static int64_t place_in_order(std::vector<Slot>& slots) {
    int64_t size = 0;
    std::vector<const Slot*> placed;  // by offset
    for (Slot& slot : slots) {
      int64_t at = 0, best = -1, best_gap = 0;
      for (const Slot* other : placed) {
        if (before(other->ends, slot.begins) || before(slot.ends, other->begins)) continue;
        const int64_t gap = other->offset - at;
        if (gap >= slot.bytes && (best < 0 || gap < best_gap)) {
          best = at;
          best_gap = gap;
        }
        at = std::max(at, other->offset + other->bytes);
      }
      slot.offset = best >= 0 ? best : at;
      size = std::max(size, slot.offset + slot.bytes);
      placed.insert(
          std::upper_bound(placed.begin(), placed.end(), &slot,
                           [](const Slot* a, const Slot* b) { return a->offset < b->offset; }),
          &slot);
    }
    return size;
  }

  const Plan& plan_;
  DevicePlan& device_;
  const std::vector<Clock> clocks_;
  std::vector<Life> lives_;
  std::vector<int> slot_of_;
  std::vector<Slot> slots_;
};

}  // namespace

void assign_memory(Plan& plan) {
  for (DevicePlan& device : plan.devices) DeviceMemory(plan, device).run();
}

}  // namespace convnet
