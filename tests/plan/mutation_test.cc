// If this fails, there is a way to break a plan that the verifier does not see. Plans are damaged
// in every class of ways at every place; each mutant must be rejected, or be shown to compute the
// very same thing. The score is printed, a line a class and one for all.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <set>
#include <unordered_map>

#include "tests/plan/plan_files.h"

namespace convnet {
namespace {

// Where each value that a device reads was made, element by element: the oracle for damage that
// only moves things. Two plans with the same instructions that read the same values compute the
// same.
class Dataflow {
 public:
  // `identity`: per device, what each instruction is called; the same in both plans.
  Dataflow(const Plan& plan, const std::vector<std::vector<int>>& identity) {
    for (size_t d = 0; d < plan.devices.size(); ++d) {
      std::unordered_map<int64_t, int64_t> writer;  // address -> who wrote it
      const DevicePlan& device = plan.devices[d];
      for (size_t i = 0; i < device.instrs.size(); ++i) {
        const Instr& instr = device.instrs[i];
        const int name = identity[d][i];
        auto& read = reads_[{static_cast<int>(d), name}];
        for (const Operand& o : instr.in)
          for (int64_t a : addresses(plan, device, o)) {
            const auto w = writer.find(a);
            read.push_back(w != writer.end() ? w->second : outside(plan, device, o, a));
          }
        for (size_t r = 0; r < instr.out.size(); ++r) {
          int64_t element = 0;
          for (int64_t a : addresses(plan, device, instr.out[r]))
            writer[a] = (int64_t{name} << 40) + (static_cast<int64_t>(r) << 32) + element++;
        }
      }
      // What the host finds after the step.
      for (size_t b = 0; b < device.buffers.size(); ++b) {
        const Buffer& buffer = device.buffers[b];
        const bool is_metric =
            plan.tensors[static_cast<size_t>(buffer.tensor)].kind == TensorKind::kMetric;
        if (buffer.region != Buffer::Region::kState && !is_metric) continue;
        for (int64_t a : addresses(plan, device, {static_cast<int>(b), buffer.part.box})) {
          const auto w = writer.find(a);
          left_[{static_cast<int>(d), static_cast<int>(b)}].push_back(
              w == writer.end() ? -1 : w->second);
        }
      }
    }
  }
  bool operator==(const Dataflow&) const = default;

 private:
  static int64_t outside(const Plan&, const DevicePlan& device, const Operand& o, int64_t address) {
    // Input and old state are known by buffer and place; memory of the arena holds garbage.
    return device.buffers[static_cast<size_t>(o.buffer)].region == Buffer::Region::kArena
               ? -1
               : -2 - address;
  }

  static std::vector<int64_t> addresses(const Plan& plan, const DevicePlan& device,
                                        const Operand& o) {
    std::vector<int64_t> all;
    if (o.box.empty()) return all;
    const Buffer& b = device.buffers[static_cast<size_t>(o.buffer)];
    const Tensor& t = plan.tensors[static_cast<size_t>(b.tensor)];
    const int64_t size = dtype_size(t.dtype);
    const int64_t base =
        b.region == Buffer::Region::kArena ? b.offset : (int64_t{1} << 40) * (o.buffer + 1);
    std::vector<int64_t> index;
    for (int i = 0; i < o.box.rank(); ++i) index.push_back(o.box.lo(i));
    while (true) {
      int64_t at = 0;
      const bool blocked = t.format == Format::kBlocked;
      const int64_t n = index[0] - b.part.box.lo(0);
      if (blocked) at = n / kLanes;
      for (int i = blocked ? 1 : 0; i < o.box.rank(); ++i)
        at = at * b.part.box.extent(i) + index[static_cast<size_t>(i)] - b.part.box.lo(i);
      if (blocked) at = at * kLanes + n % kLanes;
      // Four bytes at a time, so that shifted memory shows.
      for (int64_t byte = 0; byte < size; byte += 4) all.push_back(base + at * size + byte);
      int i = o.box.rank() - 1;
      while (i >= 0 && ++index[static_cast<size_t>(i)] == o.box.hi(i)) {
        index[static_cast<size_t>(i)] = o.box.lo(i);
        --i;
      }
      if (i < 0) return all;
    }
  }

  std::map<std::pair<int, int>, std::vector<int64_t>> reads_, left_;
};

std::vector<std::vector<int>> in_order(const Plan& plan) {
  std::vector<std::vector<int>> names;
  for (const DevicePlan& d : plan.devices) {
    names.emplace_back();
    for (size_t i = 0; i < d.instrs.size(); ++i) names.back().push_back(static_cast<int>(i));
  }
  return names;
}

struct Counts {
  int mutants = 0, rejected = 0, by_arena = 0, equivalent = 0, missed = 0;
  void print(const std::string& name) const {
    std::printf(
        "%-38s %6d mutants, %6d rejected (%d by the arena's size alone), %4d equivalent, %d "
        "missed\n",
        name.c_str(), mutants, rejected, by_arena, equivalent, missed);
  }
};

// Of all classes that this run has damaged plans by.
class Total : public ::testing::Environment {
 public:
  void TearDown() override { all.print("all mutations"); }
  static Counts all;
};
Counts Total::all;
const auto* const total = ::testing::AddGlobalTestEnvironment(new Total);

// One class of damage over all plans.
class Score {
 public:
  explicit Score(std::string name) : name_(std::move(name)) {}
  ~Score() {
    counts_.print(name_);
    Total::all.mutants += counts_.mutants;
    Total::all.rejected += counts_.rejected;
    Total::all.by_arena += counts_.by_arena;
    Total::all.equivalent += counts_.equivalent;
    Total::all.missed += counts_.missed;
    EXPECT_GT(counts_.mutants, 0) << name_;
    EXPECT_EQ(counts_.missed, 0) << name_;
  }

  // `same`: shows that a plan that was not rejected computes the same.
  void take(const Plan& plan, const std::string& what, const std::function<bool()>& same = {}) {
    ++counts_.mutants;
    const std::vector<PlanFault> faults = verify_plan(plan);
    // That the arena's recorded sizes are off is a cheap way to notice; the damage itself must
    // show.
    const bool beyond_arena = std::any_of(faults.begin(), faults.end(),
                                          [](const PlanFault& f) { return f.rule != "arena"; });
    if (beyond_arena) {
      ++counts_.rejected;
    } else if (same && same()) {
      ++counts_.equivalent;
    } else if (!faults.empty() && arena_counts_) {
      ++counts_.rejected;
      ++counts_.by_arena;
    } else {
      ++counts_.missed;
      ADD_FAILURE() << name_ << " not noticed: " << what;
    }
  }
  void let_arena_count() { arena_counts_ = true; }

 private:
  std::string name_;
  Counts counts_;
  bool arena_counts_ = false;
};

std::string place(const Plan& plan, size_t d, size_t i) {
  return plan.model + " device " + std::to_string(d) + " instruction " + std::to_string(i) + " " +
         std::string(op_info(plan.devices[d].instrs[i].op).text);
}

// Every buffer in a place of its own, so that damage is not noticed for memory that is used again.
Plan roomy(Plan plan) {
  for (DevicePlan& d : plan.devices) {
    d.arena_bytes = 0;
    for (Buffer& b : d.buffers) {
      if (b.region != Buffer::Region::kArena) continue;
      b.offset = d.arena_bytes;
      d.arena_bytes += b.bytes;
    }
  }
  return plan;
}

void for_each_instr(const std::vector<std::string>& plans,
                    const std::function<void(const Plan&, size_t, size_t)>& f) {
  for (const std::string& name : plans)
    for (const Plan& plan : {read_plan(name), roomy(read_plan(name))})
      for (size_t d = 0; d < plan.devices.size(); ++d)
        for (size_t i = 0; i < plan.devices[d].instrs.size(); ++i) f(plan, d, i);
}

void for_each_exchange(const std::vector<std::string>& plans,
                       const std::function<void(const Plan&, size_t)>& f) {
  for (const std::string& name : plans) {
    const Plan plan = read_plan(name);
    for (size_t id = 0; id < plan.exchanges.size(); ++id) f(plan, id);
  }
}

TEST(Mutation, DroppedInstructions) {
  Score score("an instruction dropped");
  for_each_instr(kAllTrainPlans, [&](const Plan& plan, size_t d, size_t i) {
    Plan m = plan;
    m.devices[d].instrs.erase(m.devices[d].instrs.begin() + static_cast<ptrdiff_t>(i));
    score.take(m, place(plan, d, i));
  });
}

TEST(Mutation, RepeatedInstructions) {
  Score score("an instruction twice");
  for_each_instr(kAllTrainPlans, [&](const Plan& plan, size_t d, size_t i) {
    Plan m = plan;
    auto& list = m.devices[d].instrs;
    list.insert(list.begin() + static_cast<ptrdiff_t>(i), list[i]);
    // A guard looks at metrics and changes nothing.
    score.take(m, place(plan, d, i), [&] { return list[i].op == Op::kGuard; });
  });
}

TEST(Mutation, SwappedInstructions) {
  Score score("two instructions swapped");
  std::vector<Plan> plans;
  for (const std::string& name : kTrainPlans) {
    plans.push_back(read_plan(name));
    plans.push_back(roomy(plans.back()));
  }
  for (const Plan& plan : plans) {
    const auto names = in_order(plan);
    const Dataflow good(plan, names);
    for (size_t d = 0; d < plan.devices.size(); ++d)
      for (size_t i = 0; i < plan.devices[d].instrs.size(); ++i)
        for (size_t k = i + 1; k < plan.devices[d].instrs.size(); ++k) {
          Plan m = plan;
          auto moved = names;
          std::swap(m.devices[d].instrs[i], m.devices[d].instrs[k]);
          std::swap(moved[d][i], moved[d][k]);
          score.take(m, place(plan, d, i) + " with " + std::to_string(k),
                     [&] { return Dataflow(m, moved) == good; });
        }
  }
}

TEST(Mutation, ShiftedOffsets) {
  Score score("a buffer elsewhere");
  for (const std::string& name : kTrainPlans) {
    const Plan plan = read_plan(name);
    const Dataflow good(plan, in_order(plan));
    for (size_t d = 0; d < plan.devices.size(); ++d)
      for (size_t b = 0; b < plan.devices[d].buffers.size(); ++b) {
        const Buffer& buffer = plan.devices[d].buffers[b];
        std::set<int64_t> offsets = {buffer.offset + 64, buffer.offset - 64, buffer.offset + 32,
                                     buffer.offset + 4, -1};
        for (const Buffer& other : plan.devices[d].buffers) offsets.insert(other.offset);
        offsets.erase(buffer.offset);
        for (int64_t offset : offsets) {
          Plan m = plan;
          m.devices[d].buffers[b].offset = offset;
          score.take(m, plan.model + " " + buffer.name + " to " + std::to_string(offset), [&] {
            // A buffer of no bytes may lie anywhere.
            return buffer.region == Buffer::Region::kArena && Dataflow(m, in_order(m)) == good;
          });
        }
      }
  }
}

// The box with one side moved by a step; nothing if that leaves nothing.
std::vector<Box> shrunk(const Box& box, bool blocked) {
  std::vector<Box> all;
  for (int i = 0; i < box.rank(); ++i) {
    const int64_t step = blocked && i == 0 ? kLanes : 1;
    if (box.extent(i) <= step) continue;
    Box b = box;
    b.set(i, box.lo(i) + step, box.hi(i));
    all.push_back(b);
    b.set(i, box.lo(i), box.hi(i) - step);
    all.push_back(b);
  }
  return all;
}

bool is_blocked(const Plan& plan, int tensor) {
  return plan.tensors[static_cast<size_t>(tensor)].format == Format::kBlocked;
}

TEST(Mutation, ShrunkOperands) {
  Score score("an operand's box smaller");
  for_each_instr(kTrainPlans, [&](const Plan& plan, size_t d, size_t i) {
    const Instr& instr = plan.devices[d].instrs[i];
    for (size_t n = 0; n < instr.in.size() + instr.out.size(); ++n) {
      const bool is_in = n < instr.in.size();
      const size_t k = is_in ? n : n - instr.in.size();
      const Operand& o = is_in ? instr.in[k] : instr.out[k];
      const int tensor = plan.devices[d].buffers[static_cast<size_t>(o.buffer)].tensor;
      for (const Box& box : shrunk(o.box, is_blocked(plan, tensor))) {
        Plan m = plan;
        (is_in ? m.devices[d].instrs[i].in[k] : m.devices[d].instrs[i].out[k]).box = box;
        score.take(m, place(plan, d, i) + " " + box.str());
      }
    }
  });
}

TEST(Mutation, ShrunkBuffers) {
  Score score("a buffer's box smaller");
  for (const std::string& name : kTrainPlans) {
    const Plan plan = read_plan(name);
    for (size_t d = 0; d < plan.devices.size(); ++d)
      for (size_t b = 0; b < plan.devices[d].buffers.size(); ++b) {
        const Buffer& buffer = plan.devices[d].buffers[b];
        for (const Box& box : shrunk(buffer.part.box, is_blocked(plan, buffer.tensor))) {
          Plan m = plan;
          m.devices[d].buffers[b].part.box = box;
          // Bytes that fit, so that the box itself must be noticed.
          m.devices[d].buffers[b].bytes =
              (stored_count(plan.tensors[static_cast<size_t>(buffer.tensor)].format, box) *
                   dtype_size(plan.tensors[static_cast<size_t>(buffer.tensor)].dtype) +
               63) /
              64 * 64;
          score.take(m, buffer.name + " " + box.str());
        }
      }
  }
}

TEST(Mutation, ChangedBuffers) {
  Score score("a buffer's kind, size or part");
  for (const std::string& name : kTrainPlans) {
    const Plan plan = read_plan(name);
    for (size_t d = 0; d < plan.devices.size(); ++d)
      for (size_t b = 0; b < plan.devices[d].buffers.size(); ++b) {
        const auto change = [&](const std::string& what, auto&& edit) {
          Plan m = plan;
          edit(m.devices[d].buffers[b]);
          if (m == plan) return;
          score.take(m, plan.model + " " + plan.devices[d].buffers[b].name + " " + what);
        };
        for (const auto region :
             {Buffer::Region::kInput, Buffer::Region::kState, Buffer::Region::kArena})
          change("region", [&](Buffer& x) { x.region = region; });
        for (const int64_t more : {-64, 64, 4})
          change("bytes", [&](Buffer& x) { x.bytes += more; });
        if (plan.devices[d].buffers[b].part.box.empty()) continue;  // of what it holds nothing
        change("of + 1", [&](Buffer& x) { x.part.of += 1; });
        change("of - 1", [&](Buffer& x) { x.part = {x.part.box, 0, 1}; });
        change("k", [&](Buffer& x) { x.part.k = (x.part.k + 1) % x.part.of; });
        for (size_t t = 0; t < plan.tensors.size(); ++t)
          change("tensor", [&](Buffer& x) { x.tensor = static_cast<int>(t); });
      }
  }
}

TEST(Mutation, OtherOperands) {
  Score score("an operand replaced");
  for_each_instr(kTrainPlans, [&](const Plan& plan, size_t d, size_t i) {
    const Instr& instr = plan.devices[d].instrs[i];
    for (size_t n = 0; n < instr.in.size() + instr.out.size(); ++n)
      for (size_t b = 0; b < plan.devices[d].buffers.size(); ++b) {
        const bool is_in = n < instr.in.size();
        const size_t k = is_in ? n : n - instr.in.size();
        Plan m = plan;
        Operand& o = (is_in ? m.devices[d].instrs[i].in : m.devices[d].instrs[i].out)[k];
        if (o.buffer == static_cast<int>(b)) continue;
        const Buffer &before = plan.devices[d].buffers[static_cast<size_t>(o.buffer)],
                     &after = plan.devices[d].buffers[b];
        o.buffer = static_cast<int>(b);
        if (o.box.empty()) o.box = after.part.box;
        // Complete copies of one tensor hold the same values.
        score.take(m, place(plan, d, i) + " operand " + std::to_string(n) + " is " + after.name,
                   [&] {
                     return is_in && before.tensor == after.tensor && before.part.of == 1 &&
                            after.part.of == 1;
                   });
      }
  });
}

TEST(Mutation, ChangedAttributes) {
  Score score("an attribute dropped or changed");
  for_each_instr(kAllTrainPlans, [&](const Plan& plan, size_t d, size_t i) {
    const Instr& instr = plan.devices[d].instrs[i];
    // How fast a parameter learns is said in one place only if one device updates it.
    int updates = 0;
    if (instr.op == Op::kUpdateSgd) {
      const auto tensor = [](const DevicePlan& device, const Operand& o) {
        return device.buffers[static_cast<size_t>(o.buffer)].tensor;
      };
      for (const DevicePlan& device : plan.devices)
        for (const Instr& other : device.instrs)
          updates += other.op == Op::kUpdateSgd &&
                     tensor(device, other.in[1]) == tensor(plan.devices[d], instr.in[1]);
    }
    for (const auto& [name, value] : instr.attrs.all()) {
      Plan m = plan;
      Attrs without;
      for (const auto& [other, v] : instr.attrs.all())
        if (other != name) without.set(other, v);
      m.devices[d].instrs[i].attrs = without;
      score.take(m, place(plan, d, i) + " without " + name);
      if (updates == 1) continue;
      std::vector<Attrs::Value> others = {std::string("odd")};
      if (const auto* n = std::get_if<int64_t>(&value)) {
        others.push_back(*n + 1);
        others.push_back(*n - 1);
        others.push_back(-*n - 5);
      }
      if (const auto* r = std::get_if<double>(&value)) {
        others.push_back(*r * 2 + 0.25);
        others.push_back(*r / 2 + 0.125);
        others.push_back(-*r - 1);
      }
      if (std::holds_alternative<std::string>(value))
        for (const char* act : {"none", "relu", "tanh", "sigmoid"})
          others.push_back(std::string(act));
      if (const auto* l = std::get_if<std::vector<int64_t>>(&value)) {
        for (size_t k = 0; k < l->size(); ++k)
          for (const int64_t step : {-1, 1, 16}) {
            auto changed = *l;
            changed[k] += step;
            others.push_back(changed);
          }
        others.push_back(std::vector<int64_t>(l->begin(), l->end() - 1));
        auto longer = *l;
        longer.insert(longer.begin(), l->front());
        others.push_back(longer);
      }
      for (const Attrs::Value& other : others) {
        if (other == value) continue;
        m = plan;
        m.devices[d].instrs[i].attrs.set(name, other);
        score.take(m, place(plan, d, i) + " another " + name);
      }
    }
  });
}

constexpr int kOps = 0
#define OP(...) +1
#include "framework/plan/ops.def"
#undef OP
    ;

TEST(Mutation, OtherOperations) {
  Score score("another operation");
  for_each_instr(kAllTrainPlans, [&](const Plan& plan, size_t d, size_t i) {
    for (int op = 0; op < kOps; ++op) {
      Plan m = plan;
      m.devices[d].instrs[i].op = static_cast<Op>(op);
      if (m == plan) continue;
      // An activation is what a bias of nothing does.
      const std::set<Op> ops = {plan.devices[d].instrs[i].op, static_cast<Op>(op)};
      const bool same = ops == std::set<Op>{Op::kActFwd, Op::kBiasFwd} &&
                        plan.devices[d].instrs[i].in.size() == 1;
      score.take(m, place(plan, d, i) + " as " + std::string(op_info(static_cast<Op>(op)).text),
                 [&] { return same; });
    }
  });
}

TEST(Mutation, ChangedExchanges) {
  Score score("an exchange's pattern, group or bytes");
  for_each_exchange(kTrainPlans, [&](const Plan& plan, size_t id) {
    const auto change = [&](const std::string& what, auto&& edit, bool harmless = false) {
      Plan m = plan;
      edit(m.exchanges[id]);
      if (m == plan) return;
      score.take(m, plan.model + " exchange " + std::to_string(id) + " " + what,
                 [&] { return harmless; });
    };
    for (int kind = 0; kind < 9; ++kind)
      // The plain box copy is what every pattern means.
      change(
          "kind " + std::to_string(kind),
          [&](Exchange& e) { e.kind = static_cast<Exchange::Kind>(kind); }, kind == 0);
    for (int order = 0; order < 3; ++order)
      change("order", [&](Exchange& e) { e.order = static_cast<Exchange::Order>(order); });
    for (const int64_t more : {-4, 4, 1000}) change("bytes", [&](Exchange& e) { e.bytes += more; });
    for (size_t t = 0; t < plan.tensors.size(); ++t)
      change("tensor", [&](Exchange& e) { e.tensor = static_cast<int>(t); });
    const size_t members = plan.exchanges[id].group.size();
    for (size_t m = 0; m < members; ++m) {
      for (int d = 0; d <= static_cast<int>(plan.devices.size()); ++d)
        change("another member", [&](Exchange& e) { e.group[m] = d; });
      change("a member dropped", [&](Exchange& e) {
        const auto at = static_cast<ptrdiff_t>(m);
        e.group.erase(e.group.begin() + at);
        e.from.erase(e.from.begin() + at);
        e.to.erase(e.to.begin() + at);
      });
      for (size_t o = 0; o < members; ++o) {
        change("device roles", [&](Exchange& e) { std::swap(e.group[m], e.group[o]); });
        change("sources swapped", [&](Exchange& e) { std::swap(e.from[m], e.from[o]); });
        change("destinations swapped", [&](Exchange& e) { std::swap(e.to[m], e.to[o]); });
        change("source as another's", [&](Exchange& e) { e.from[m] = e.from[o]; });
        change("destination as another's", [&](Exchange& e) { e.to[m] = e.to[o]; });
      }
      Box nothing;
      for (int i = 0; i < plan.exchanges[id].from[m].box.rank(); ++i) nothing.append(0, 0);
      change("no source", [&](Exchange& e) { e.from[m] = {nothing, 0, 1}; });
      change("no destination", [&](Exchange& e) { e.to[m] = {nothing, 0, 1}; });
      if (!plan.exchanges[id].from[m].box.empty()) {
        change("k", [&](Exchange& e) { e.from[m].k = (e.from[m].k + 1) % e.from[m].of; });
        change("of", [&](Exchange& e) { e.from[m].of += 1; });
      }
      if (!plan.exchanges[id].to[m].box.empty())
        change("to of", [&](Exchange& e) { e.to[m].of += 1; });
      const bool blocked = is_blocked(plan, plan.exchanges[id].tensor);
      for (const Box& box : shrunk(plan.exchanges[id].from[m].box, blocked))
        change("source " + box.str(), [&](Exchange& e) { e.from[m].box = box; });
      for (const Box& box : shrunk(plan.exchanges[id].to[m].box, blocked))
        change("destination " + box.str(), [&](Exchange& e) { e.to[m].box = box; });
    }
  });
}

// The canonical boundaries of a range of so many channels, rows, columns or classes.
std::vector<int64_t> canonical_cuts(int64_t extent, int64_t lo, int64_t hi) {
  const int64_t count = extent >= 8 ? 8 : extent >= 4 ? 4 : extent >= 2 ? 2 : 1;
  std::vector<int64_t> cuts = {lo};
  for (int64_t i = 0; i <= count; ++i)
    if (extent * i / count > lo && extent * i / count < hi) cuts.push_back(extent * i / count);
  cuts.push_back(hi);
  return cuts;
}

// The dimensions that an operation may sum over shard by shard, or not.
struct OptionalCuts {
  const char* name;
  size_t operand;
  int dim;
};
std::vector<OptionalCuts> optional_cuts(Op op) {
  switch (op) {
    case Op::kConvFwd:
    case Op::kFcFwd:
      return {{"channel_cuts", 0, 1}};
    case Op::kConvBwdData:
    case Op::kFcBwdData:
      return {{"filter_cuts", 0, 1}};
    case Op::kConvBwdWeight:
      return {{"row_cuts", 1, 2}, {"column_cuts", 1, 3}};
    case Op::kBiasBwd:
      return {{"row_cuts", 0, 2}, {"column_cuts", 0, 3}};
    default:
      return {};
  }
}

// Two devices do not add up the same sum in two ways, and the tree over parts is claimed only where
// their sums are cut.
TEST(Mutation, ChangedCuts) {
  Score score("a sum cut otherwise");
  for_each_instr(kAllTrainPlans, [&](const Plan& plan, size_t d, size_t i) {
    const Instr& instr = plan.devices[d].instrs[i];
    if (instr.out.empty()) return;
    const auto result = [](const Plan& p, size_t device, const Instr& x) {
      return p.devices[device].buffers[static_cast<size_t>(x.out[0].buffer)].tensor;
    };
    const int tensor = result(plan, d, instr);
    // The same operation wherever it runs.
    const auto everywhere = [&](const std::string& what, auto&& edit) {
      Plan m = plan;
      for (size_t e = 0; e < m.devices.size(); ++e)
        for (Instr& x : m.devices[e].instrs)
          if (x.op == instr.op && result(m, e, x) == tensor) edit(x);
      if (!(m == plan)) score.take(m, place(plan, d, i) + " " + what);
    };
    for (const auto& [attr, value] : instr.attrs.all()) {
      const std::string name = attr;
      if (!name.ends_with("cuts")) continue;
      everywhere("without the inner boundaries of " + name, [&](Instr& x) {
        const auto& cuts = x.attrs.list(name);
        x.attrs.set(name, std::vector<int64_t>{cuts.front(), cuts.back()});
      });
      everywhere("with one more boundary of " + name, [&](Instr& x) {
        auto cuts = x.attrs.list(name);
        for (size_t k = cuts.size() - 1; k > 0; --k)
          if (cuts[k] - cuts[k - 1] > 1)
            cuts.insert(cuts.begin() + static_cast<ptrdiff_t>(k), cuts[k] - 1);
        x.attrs.set(name, cuts);
      });
    }
    const DevicePlan& device = plan.devices[d];
    const bool adds_tree = std::any_of(
        plan.exchanges.begin(), plan.exchanges.end(),
        [&](const Exchange& e) { return e.tensor == tensor && e.order == Exchange::Order::kTree; });
    int makers = 0;
    for (size_t e = 0; e < plan.devices.size(); ++e)
      makers += std::any_of(
          plan.devices[e].instrs.begin(), plan.devices[e].instrs.end(),
          [&](const Instr& x) { return x.op == instr.op && result(plan, e, x) == tensor; });
    for (const auto& [name, operand, dim] : optional_cuts(instr.op)) {
      const Operand& o = instr.in[operand];
      const int64_t extent =
          plan.tensors[static_cast<size_t>(device.buffers[static_cast<size_t>(o.buffer)].tensor)]
              .shape[dim];
      if (!instr.attrs.has(name) && makers > 1) {
        Plan m = plan;
        m.devices[d].instrs[i].attrs.set(name,
                                         canonical_cuts(extent, o.box.lo(dim), o.box.hi(dim)));
        score.take(m, place(plan, d, i) + " alone with " + name);
      }
      // Where a part is a single shard and cut no further, the tree is the same without.
      if (instr.attrs.has(name) && adds_tree)
        everywhere(std::string("without ") + name, [&](Instr& x) {
          Attrs without;
          for (const auto& [other, v] : x.attrs.all())
            if (other != name) without.set(other, v);
          x.attrs = without;
        });
    }
  });
}

// Parts of a sum called by each other's numbers, on all devices alike: they would be added in
// another order. Of one tensor, and of all that are made in so many parts.
TEST(Mutation, RenumberedParts) {
  Score score("parts of a sum numbered otherwise");
  for (const std::string& name : kAllTrainPlans) {
    const Plan plan = read_plan(name);
    for (size_t t = 0; t <= plan.tensors.size(); ++t)
      for (int of = 2; of <= 4; ++of)
        for (int a = 0; a < of; ++a)
          for (int b = a + 1; b < of; ++b) {
            Plan m = plan;
            const auto swap = [&](int tensor, Part* p) {
              if (p->of == of && (tensor == static_cast<int>(t) || t == plan.tensors.size()))
                p->k = p->k == a ? b : p->k == b ? a : p->k;
            };
            for (DevicePlan& d : m.devices)
              for (Buffer& x : d.buffers) swap(x.tensor, &x.part);
            for (Exchange& e : m.exchanges)
              for (Part& p : e.from) swap(e.tensor, &p);
            if (m == plan) continue;
            score.take(m, plan.model + " tensor " + std::to_string(t) + " " + std::to_string(a) +
                              "<->" + std::to_string(b));
          }
    // One part more than is made, or none but the whole.
    for (size_t t = 0; t < plan.tensors.size(); ++t)
      for (const bool more : {true, false}) {
        Plan m = plan;
        const auto change = [&](int tensor, Part* p) {
          if (p->of == 1 || tensor != static_cast<int>(t)) return;
          p->k = more ? p->k : 0;
          p->of = more ? p->of + 1 : 1;
        };
        for (DevicePlan& d : m.devices)
          for (Buffer& x : d.buffers) change(x.tensor, &x.part);
        for (Exchange& e : m.exchanges) {
          for (Part& p : e.from) change(e.tensor, &p);
          if (e.tensor == static_cast<int>(t) && !more) e.order = Exchange::Order::kNone;
        }
        if (m == plan) continue;
        score.take(m, plan.model + " tensor " + std::to_string(t) + (more ? " + 1" : " whole"));
      }
  }
}

// A tensor that moves within several groups at once: a device in another group's exchange.
TEST(Mutation, ExchangesOfOtherGroups) {
  Score score("another group's exchange");
  for_each_instr(kAllTrainPlans, [&](const Plan& plan, size_t d, size_t i) {
    const Instr& instr = plan.devices[d].instrs[i];
    if (instr.op != Op::kExchange) return;
    for (size_t id = 0; id < plan.exchanges.size(); ++id) {
      if (static_cast<int64_t>(id) == instr.attrs.integer("id")) continue;
      Plan m = plan;
      m.devices[d].instrs[i].attrs.set("id", static_cast<int64_t>(id));
      score.take(m, place(plan, d, i) + " in exchange " + std::to_string(id));
    }
  });
}

// Table and instructions shrunk together: the views agree, but something is not moved.
TEST(Mutation, ExchangesOfLess) {
  Score score("an exchange of less, everywhere");
  for_each_exchange(kTrainPlans, [&](const Plan& plan, size_t id) {
    const Exchange& e = plan.exchanges[id];
    for (size_t m = 0; m < e.group.size(); ++m)
      for (const bool source : {true, false}) {
        const Box& whole = source ? e.from[m].box : e.to[m].box;
        for (const Box& box : shrunk(whole, is_blocked(plan, e.tensor))) {
          Plan damaged = plan;
          (source ? damaged.exchanges[id].from[m] : damaged.exchanges[id].to[m]).box = box;
          damaged.exchanges[id].kind = Exchange::Kind::kBoxes;
          for (Instr& i : damaged.devices[static_cast<size_t>(e.group[m])].instrs)
            if (i.op == Op::kExchange && i.attrs.integer("id") == static_cast<int64_t>(id))
              (source ? i.in[0] : i.out[0]).box = box;
          for (int64_t bytes = 0; bytes <= e.bytes * 2; bytes += 4) {
            damaged.exchanges[id].bytes = bytes;
            const auto faults = verify_plan(damaged);
            const bool only_bytes = !faults.empty() && std::all_of(faults.begin(), faults.end(),
                                                                   [](const PlanFault& f) {
                                                                     return f.rule == "bytes";
                                                                   });
            if (!only_bytes) break;  // else the right number of bytes is still to be found
          }
          score.take(
              damaged, plan.model + " exchange " + std::to_string(id) + " " + box.str(), [&] {
                // What is cut off was wanted by no one.
                if (source)
                  return std::all_of(e.to.begin(), e.to.end(), [&](const Part& to) {
                    return to.box.empty() ||
                           intersect(whole, to.box).count() == intersect(box, to.box).count();
                  });
                // A device need not be sent the part of a parameter that it updated itself.
                const bool parameter =
                    plan.tensors[static_cast<size_t>(e.tensor)].kind == TensorKind::kParameter;
                return parameter && box.count() + e.from[m].box.count() -
                                            intersect(box, e.from[m].box).count() ==
                                        e.to[m].box.count();
              });
        }
      }
  });
}

TEST(Mutation, ExchangeTableInAnotherOrder) {
  Score score("the exchange table in another order");
  for_each_exchange(kAllTrainPlans, [&](const Plan& plan, size_t id) {
    if (id + 1 == plan.exchanges.size()) return;
    Plan m = plan;
    std::swap(m.exchanges[id], m.exchanges[id + 1]);
    for (DevicePlan& d : m.devices)
      for (Instr& i : d.instrs)
        if (i.op == Op::kExchange) {
          const int64_t n = i.attrs.integer("id"), first = static_cast<int64_t>(id);
          if (n == first || n == first + 1) i.attrs.set("id", 2 * first + 1 - n);
        }
    // Two that have no device in common may come in any order.
    const auto &a = plan.exchanges[id].group, &b = plan.exchanges[id + 1].group;
    const bool apart = std::none_of(
        a.begin(), a.end(), [&](int d) { return std::find(b.begin(), b.end(), d) != b.end(); });
    score.take(m, plan.model + " exchange " + std::to_string(id), [&] { return apart; });
  });
}

TEST(Mutation, ChangedTensors) {
  Score score("a tensor's kind, type or shape");
  for (const std::string& name : kTrainPlans) {
    const Plan plan = read_plan(name);
    for (size_t t = 0; t < plan.tensors.size(); ++t) {
      const auto change = [&](const std::string& what, auto&& edit) {
        Plan m = plan;
        edit(m.tensors[t]);
        if (m == plan) return;
        score.take(m, plan.model + " " + plan.tensors[t].name + " " + what);
      };
      for (int kind = 0; kind < 6; ++kind)
        change("kind", [&](Tensor& x) { x.kind = static_cast<TensorKind>(kind); });
      for (int dtype = 0; dtype < 3; ++dtype)
        change("dtype", [&](Tensor& x) { x.dtype = static_cast<DType>(dtype); });
      for (int format = 0; format < 2; ++format)
        change("format", [&](Tensor& x) { x.format = static_cast<Format>(format); });
      for (int dim = 0; dim < plan.tensors[t].shape.rank(); ++dim)
        for (const int64_t step : {-1, 1, 16})
          change("shape", [&](Tensor& x) { x.shape.set(dim, x.shape[dim] + step); });
      change("rank", [](Tensor& x) { x.shape.append(1); });
      change("weight", [](Tensor& x) {
        if (x.attrs.has("weight")) x.attrs.set("weight", 0.75);
      });
      change("top", [](Tensor& x) {
        if (x.attrs.has("top")) x.attrs.set("top", std::vector<int64_t>{3});
      });
      change("classes", [](Tensor& x) {
        if (x.attrs.has("classes")) x.attrs.set("classes", 2);
      });
    }
  }
}

TEST(Mutation, ChangedHeader) {
  Score score("the header");
  score.let_arena_count();
  for (const std::string& name : kTrainPlans) {
    const Plan plan = read_plan(name);
    const auto change = [&](const std::string& what, auto&& edit) {
      Plan m = plan;
      edit(m);
      score.take(m, plan.model + " " + what);
    };
    change("phase", [](Plan& p) { p.phase = Plan::Phase::kTest; });
    change("dtype", [](Plan& p) { p.dtype = DType::kF64; });
    change("batch", [](Plan& p) { p.batch += 16; });
    for (size_t i = 0; i < plan.shards.size(); ++i) {
      change("shard dropped",
             [&](Plan& p) { p.shards.erase(p.shards.begin() + static_cast<ptrdiff_t>(i)); });
      change("shard moved", [&](Plan& p) { p.shards[i] += 16; });
    }
    for (size_t d = 0; d < plan.devices.size(); ++d) {
      for (const int64_t more : {-64, 64}) {
        change("arena", [&](Plan& p) { p.devices[d].arena_bytes += more; });
        change("bound", [&](Plan& p) { p.devices[d].arena_bound += more; });
      }
      change("device dropped",
             [&](Plan& p) { p.devices.erase(p.devices.begin() + static_cast<ptrdiff_t>(d)); });
    }
  }
}

}  // namespace
}  // namespace convnet
