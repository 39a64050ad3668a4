// If this fails, there is a way to break a plan that the verifier does not see. Plans are damaged
// in every class of ways at every place; each mutant must be rejected, or be shown to compute the
// very same thing. The score is printed, a line a class and one for all.
#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <unordered_map>

#include "tests/plan/mutation.h"

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

const auto* const total = ::testing::AddGlobalTestEnvironment(new Total);

TEST(Mutation, DroppedInstructions) {
  Score score("an instruction dropped", 3);
  for_each_instr(kAllTrainPlans, [&](const Plan& plan, size_t d, size_t i) {
    if (score.skips()) return;
    Plan m = plan;
    m.devices[d].instrs.erase(m.devices[d].instrs.begin() + static_cast<ptrdiff_t>(i));
    score.take(m, place(plan, d, i));
  });
}

TEST(Mutation, RepeatedInstructions) {
  Score score("an instruction twice", 3);
  for_each_instr(kAllTrainPlans, [&](const Plan& plan, size_t d, size_t i) {
    if (score.skips()) return;
    Plan m = plan;
    auto& list = m.devices[d].instrs;
    list.insert(list.begin() + static_cast<ptrdiff_t>(i), list[i]);
    // A guard looks at metrics and changes nothing.
    score.take(m, place(plan, d, i), [&] { return list[i].op == Op::kGuard; });
  });
}

TEST(Mutation, SwappedInstructions) {
  Score score("two instructions swapped", 80);
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
          if (score.skips()) continue;
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
  Score score("a buffer elsewhere", 40);
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
          if (score.skips()) continue;
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

TEST(Mutation, ShrunkOperands) {
  Score score("an operand's box smaller", 8);
  for_each_instr(kTrainPlans, [&](const Plan& plan, size_t d, size_t i) {
    const Instr& instr = plan.devices[d].instrs[i];
    for (size_t n = 0; n < instr.in.size() + instr.out.size(); ++n) {
      const bool is_in = n < instr.in.size();
      const size_t k = is_in ? n : n - instr.in.size();
      const Operand& o = is_in ? instr.in[k] : instr.out[k];
      const int tensor = plan.devices[d].buffers[static_cast<size_t>(o.buffer)].tensor;
      for (const Box& box : shrunk(o.box, is_blocked(plan, tensor))) {
        if (score.skips()) continue;
        Plan m = plan;
        (is_in ? m.devices[d].instrs[i].in[k] : m.devices[d].instrs[i].out[k]).box = box;
        score.take(m, place(plan, d, i) + " " + box.str());
      }
    }
  });
}

TEST(Mutation, ShrunkBuffers) {
  Score score("a buffer's box smaller", 4);
  for (const std::string& name : kTrainPlans) {
    const Plan plan = read_plan(name);
    for (size_t d = 0; d < plan.devices.size(); ++d)
      for (size_t b = 0; b < plan.devices[d].buffers.size(); ++b) {
        const Buffer& buffer = plan.devices[d].buffers[b];
        for (const Box& box : shrunk(buffer.part.box, is_blocked(plan, buffer.tensor))) {
          if (score.skips()) continue;
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
  Score score("a buffer's kind, size or part", 40);
  for (const std::string& name : kTrainPlans) {
    const Plan plan = read_plan(name);
    for (size_t d = 0; d < plan.devices.size(); ++d)
      for (size_t b = 0; b < plan.devices[d].buffers.size(); ++b) {
        const auto change = [&](const std::string& what, auto&& edit) {
          if (score.skips()) return;
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
  Score score("an operand replaced", 160);
  for_each_instr(kTrainPlans, [&](const Plan& plan, size_t d, size_t i) {
    const Instr& instr = plan.devices[d].instrs[i];
    for (size_t n = 0; n < instr.in.size() + instr.out.size(); ++n)
      for (size_t b = 0; b < plan.devices[d].buffers.size(); ++b) {
        const bool is_in = n < instr.in.size();
        const size_t k = is_in ? n : n - instr.in.size();
        if (score.skips()) continue;
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
  Score score("an attribute dropped or changed", 16);
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
      if (!score.skips()) {
        Plan m = plan;
        Attrs without;
        for (const auto& [other, v] : instr.attrs.all())
          if (other != name) without.set(other, v);
        m.devices[d].instrs[i].attrs = without;
        score.take(m, place(plan, d, i) + " without " + name);
      }
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
        if (other == value || score.skips()) continue;
        Plan m = plan;
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
  Score score("another operation", 40);
  for_each_instr(kAllTrainPlans, [&](const Plan& plan, size_t d, size_t i) {
    for (int op = 0; op < kOps; ++op) {
      if (score.skips()) continue;
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

TEST(Mutation, ChangedTensors) {
  Score score("a tensor's kind, type or shape", 8);
  for (const std::string& name : kTrainPlans) {
    const Plan plan = read_plan(name);
    for (size_t t = 0; t < plan.tensors.size(); ++t) {
      const auto change = [&](const std::string& what, auto&& edit) {
        if (score.skips()) return;
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
      if (score.skips()) return;
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
