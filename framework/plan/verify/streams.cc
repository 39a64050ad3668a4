// The two streams of a device. The other checks follow the order in which the instructions are
// written; here it is shown that no other order in which they may run makes a difference: two of
// them that are not ordered by their stream or by events share no memory that one of them writes.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <vector>

#include "framework/plan/verify/faults.h"
#include "framework/plan/verify/stream_order.h"

namespace convnet {
namespace {

bool share_bucket(const Plan& plan, const DevicePlan& device, size_t i, size_t k) {
  const auto bucket = [&](size_t n) {
    const Instr& instr = device.instrs[n];
    if (instr.op != Op::kExchange) return -1;
    return plan.exchanges[static_cast<size_t>(instr.attrs.integer("id"))].bucket;
  };
  return bucket(i) >= 0 && bucket(i) == bucket(k);
}

class Streams {
 public:
  Streams(const Plan& plan, int device, Faults& faults)
      : plan_(plan),
        device_(plan.devices[static_cast<size_t>(device)]),
        index_(device),
        faults_(faults) {}

  // False if there is no order.
  bool run() {
    if (!events()) return false;
    const StreamOrder order(plan_, device_);
    for (size_t i = 0; i < device_.instrs.size(); ++i) {
      for (size_t k = 0; k < i; ++k)
        if (!order.before(k, i) && !pair(k, i)) break;
    }
    return true;
  }

 private:
  const Instr& at(size_t i) const { return device_.instrs[i]; }

  // Every event is signalled once, and waited for later in the other stream.
  bool events() {
    std::vector<int> by;
    std::vector<bool> waited;
    bool sound = true;
    const auto fault = [&](size_t i, const std::string& message) {
      faults_.in_instr(index_, static_cast<int>(i), "event", message);
      sound = false;
    };
    for (size_t i = 0; i < device_.instrs.size(); ++i) {
      const Instr& instr = at(i);
      if (instr.stream == Stream::kComm && instr.op != Op::kExchange && instr.op != Op::kUpdateSgd)
        faults_.in_instr(index_, static_cast<int>(i), "stream",
                         "is on the stream of exchanges and updates");
      if (const int e = instr.wait; e != -1) {
        if (e < 0 || static_cast<size_t>(e) >= by.size()) {
          fault(i, fmt::format("waits for event {}, which no instruction before it signals", e));
        } else {
          if (at(static_cast<size_t>(by[static_cast<size_t>(e)])).stream == instr.stream)
            fault(i, fmt::format("waits for event {} of its own stream", e));
          waited[static_cast<size_t>(e)] = true;
        }
        if (i > 0 && in_bucket_with(i - 1, i))
          fault(i, "waits for an event in the midst of its bucket");
      }
      if (const int e = instr.signal; e != -1) {
        if (e < 0 || static_cast<size_t>(e) != by.size())
          fault(i, fmt::format("signals event {} where event {} should follow", e, by.size()));
        by.push_back(static_cast<int>(i));
        waited.push_back(false);
        if (i + 1 < device_.instrs.size() && in_bucket_with(i, i + 1))
          fault(i, "signals an event in the midst of its bucket");
      }
    }
    for (size_t e = 0; e < waited.size(); ++e)
      if (!waited[e])
        fault(static_cast<size_t>(by[e]),
              fmt::format("signals event {}, which nobody waits for", e));
    return sound;
  }

  bool in_bucket_with(size_t i, size_t k) const { return share_bucket(plan_, device_, i, k); }

  // False, and a fault, if two instructions may not run at the same time.
  bool pair(size_t k, size_t i) {
    if (at(k).op == Op::kGuard) {
      faults_.in_instr(index_, static_cast<int>(i), "guard-order",
                       fmt::format("may begin before the guard, instruction {}, has ended", k));
      return false;
    }
    for (const auto* first : {&at(k).in, &at(k).out})
      for (const auto* second : {&at(i).in, &at(i).out}) {
        if (first == &at(k).in && second == &at(i).in) continue;
        for (const Operand& a : *first)
          for (const Operand& b : *second)
            if (meet(a, b)) {
              faults_.in_instr(
                  index_, static_cast<int>(i), "race",
                  fmt::format("{} {} while instruction {}, {}, may still {} {}",
                              second == &at(i).in ? "reads" : "writes", operand_name(device_, b), k,
                              op_info(at(k).op).text, first == &at(k).in ? "read" : "write",
                              operand_name(device_, a)));
              return false;
            }
      }
    return true;
  }

  bool meet(const Operand& a, const Operand& b) const {
    if (a.box.empty() || b.box.empty()) return false;
    if (a.buffer == b.buffer) return !intersect(a.box, b.box).empty();
    const Buffer &x = buffer_of(device_, a), &y = buffer_of(device_, b);
    if (x.region != Buffer::Region::kArena || y.region != Buffer::Region::kArena) return false;
    return x.offset < y.offset + y.bytes && y.offset < x.offset + x.bytes;
  }

  const Plan& plan_;
  const DevicePlan& device_;
  int index_;
  Faults& faults_;
};

// Exchanges that are carried out as one have the same members, on one stream of all of them.
class Buckets {
 public:
  Buckets(const Plan& plan, Faults& faults) : plan_(plan), faults_(faults) {}

  bool run() {
    const size_t before = faults_.count();
    std::vector<std::vector<int>> buckets;
    for (size_t id = 0; id < plan_.exchanges.size(); ++id) {
      one_stream(static_cast<int>(id));
      const int b = plan_.exchanges[id].bucket;
      if (b == -1) continue;
      const auto next = static_cast<int>(buckets.size());
      if (b < 0 || b > next) {
        faults_.in_exchange(static_cast<int>(id), "bucket",
                            fmt::format("is in bucket {} where bucket {} should follow", b, next));
        return false;
      }
      if (b == next) buckets.emplace_back();
      buckets[static_cast<size_t>(b)].push_back(static_cast<int>(id));
    }
    for (const std::vector<int>& ids : buckets) bucket(ids);
    return faults_.count() == before;
  }

 private:
  const Exchange& exchange(int id) const { return plan_.exchanges[static_cast<size_t>(id)]; }

  // Where each device that issues the exchange does: device, instruction.
  std::vector<std::pair<int, size_t>> places(int id) const {
    std::vector<std::pair<int, size_t>> found;
    for (int d : exchange(id).group) {
      const auto& instrs = plan_.devices[static_cast<size_t>(d)].instrs;
      for (size_t i = 0; i < instrs.size(); ++i)
        if (instrs[i].op == Op::kExchange && instrs[i].attrs.integer("id") == id)
          found.emplace_back(d, i);
    }
    return found;
  }

  void one_stream(int id) {
    std::set<Stream> streams;
    for (const auto& [d, i] : places(id))
      streams.insert(plan_.devices[static_cast<size_t>(d)].instrs[i].stream);
    if (streams.size() > 1)
      faults_.in_exchange(id, "stream", "is not on the same stream of all its members");
  }

  void bucket(const std::vector<int>& ids) {
    if (ids.size() < 2) faults_.in_exchange(ids[0], "bucket", "is alone in its bucket");
    for (size_t n = 1; n < ids.size(); ++n) {
      const auto before = places(ids[n - 1]), here = places(ids[n]);
      bool same =
          exchange(ids[n - 1]).group == exchange(ids[n]).group && before.size() == here.size();
      for (size_t m = 0; same && m < here.size(); ++m) {
        const auto& instrs = plan_.devices[static_cast<size_t>(here[m].first)].instrs;
        same = before[m].first == here[m].first && before[m].second + 1 == here[m].second &&
               instrs[before[m].second].stream == instrs[here[m].second].stream;
      }
      if (!same)
        faults_.in_exchange(ids[n], "bucket",
                            fmt::format("is not issued right after exchange {} of its bucket by "
                                        "the same devices, on the same stream",
                                        ids[n - 1]));
    }
  }

  const Plan& plan_;
  Faults& faults_;
};

}  // namespace

StreamOrder::StreamOrder(const Plan& plan, const DevicePlan& device) {
  std::array<int, kStreams> count{};
  std::array<std::array<int, kStreams>, kStreams> known{};  // at the end of each stream so far
  std::vector<std::array<int, kStreams>> signalled;
  for (size_t i = 0; i < device.instrs.size(); ++i) {
    const Instr& instr = device.instrs[i];
    const auto s = static_cast<size_t>(instr.stream);
    const bool begins = i == 0 || !share_bucket(plan, device, i - 1, i);
    std::array<int, kStreams>& mine = known[s];
    if (begins) mine[s] = count[s];
    if (instr.wait >= 0) {
      const auto& theirs = signalled[static_cast<size_t>(instr.wait)];
      for (size_t k = 0; k < kStreams; ++k) mine[k] = std::max(mine[k], theirs[k]);
    }
    known_.push_back(mine);
    number_.push_back(++count[s]);
    stream_.push_back(s);
    if (instr.signal >= 0) {
      signalled.push_back(mine);
      signalled.back()[s] = count[s];
    }
    first_.push_back(begins ? i : first_.back());
  }
  last_.resize(first_.size());
  for (size_t i = first_.size(); i-- > 0;)
    last_[i] = i + 1 < first_.size() && first_[i + 1] == first_[i] ? last_[i + 1] : i;
}

bool check_streams(const Plan& plan, Faults& faults) {
  bool sound = Buckets(plan, faults).run();
  for (size_t d = 0; d < plan.devices.size(); ++d)
    sound &= Streams(plan, static_cast<int>(d), faults).run();
  return sound;
}

}  // namespace convnet
