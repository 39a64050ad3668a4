// Parameters through one step: read before the update that their examples lead to, updated once by
// each of their gradients, and new everywhere in the end.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "framework/plan/verify/box_set.h"
#include "framework/plan/verify/program.h"

namespace convnet {
namespace {

// How often each element of a resident buffer was updated in this step.
class Ages {
 public:
  explicit Ages(const Box& whole) {
    if (!whole.empty()) pieces_.push_back({whole, 0});
  }

  struct Piece {
    Box box;
    int age;
  };
  std::vector<Piece> within(const Box& box) const {
    std::vector<Piece> found;
    for (const Piece& p : pieces_)
      if (const Box common = intersect(p.box, box); !common.empty())
        found.push_back({common, p.age});
    return found;
  }
  void set(const Box& box, int age) {
    std::vector<Piece> next;
    for (const Piece& p : pieces_)
      for (const Box& rest : subtract(p.box, box)) next.push_back({rest, p.age});
    next.push_back({box, age});
    pieces_ = std::move(next);
  }
  const std::vector<Piece>& all() const { return pieces_; }

 private:
  std::vector<Piece> pieces_;
};

class ParameterCheck {
 public:
  ParameterCheck(const Plan& plan, const Program& program, Faults& faults)
      : plan_(plan),
        program_(program),
        faults_(faults),
        updates_(plan.tensors.size()),
        at_(plan.devices.size(), 0) {
    for (const DevicePlan& d : plan.devices) {
      ages_.emplace_back();
      for (const Buffer& b : d.buffers) ages_.back().emplace_back(b.part.box);
    }
    for (const LogicalOp& op : program.updates)
      for (int t : op.out) updates_[static_cast<size_t>(t)].push_back(op.in[0]);
  }

  // The devices in step: an exchange happens when all its members have come to it, which
  // check_exchanges has made sure of.
  void run() {
    for (size_t id = 0; id < plan_.exchanges.size(); ++id) {
      const Exchange& e = plan_.exchanges[id];
      for (int d : e.group) run_to(d, static_cast<int64_t>(id));
      exchange(e);
      for (int d : e.group) pass(d, static_cast<int64_t>(id));
    }
    for (size_t d = 0; d < plan_.devices.size(); ++d)
      run_to(static_cast<int>(d), std::numeric_limits<int64_t>::max());
    finish();
    residency();
  }

 private:
  const DevicePlan& device(int d) const { return plan_.devices[static_cast<size_t>(d)]; }

  // Up to, but not including, the device's exchange `id`, if it has that.
  void run_to(int d, int64_t id) {
    size_t& at = at_[static_cast<size_t>(d)];
    for (; at < device(d).instrs.size(); ++at) {
      const Instr& i = device(d).instrs[at];
      if (i.op == Op::kExchange) {
        if (i.attrs.integer("id") >= id) return;
        continue;
      }
      step(d, static_cast<int>(at), i);
    }
  }
  void pass(int d, int64_t id) {
    size_t& at = at_[static_cast<size_t>(d)];
    if (at < device(d).instrs.size() && device(d).instrs[at].op == Op::kExchange &&
        device(d).instrs[at].attrs.integer("id") == id)
      ++at;
  }

  // How many updates must have come before an instruction that reads the parameter or state: those
  // by the gradients before the one that its examples lead to. -1: they lead to no single one.
  int due(const Instr& i, const DevicePlan& device, int tensor) const {
    const std::vector<int>& gradients = updates_[static_cast<size_t>(tensor)];
    if (gradients.empty()) return 0;
    const bool update = i.op == Op::kUpdateSgd;
    const int leads = buffer_of(device, update ? i.in[0] : i.out[0]).tensor;
    for (size_t n = 0; n < gradients.size(); ++n)
      if (update ? gradients[n] == leads : examples(gradients[n]).contains(examples(leads)))
        return static_cast<int>(n);
    return -1;
  }
  const Examples& examples(int tensor) const {
    return program_.examples[static_cast<size_t>(tensor)];
  }

  void step(int d, int index, const Instr& i) {
    const bool update = i.op == Op::kUpdateSgd;
    for (const Operand& o : i.in) {
      const Buffer& b = buffer_of(device(d), o);
      if (b.region != Buffer::Region::kState) continue;
      const int age = due(i, device(d), b.tensor);
      if (age < 0) {
        const Examples& own = examples(buffer_of(device(d), i.out[0]).tensor);
        const bool some = std::any_of(updates_[static_cast<size_t>(b.tensor)].begin(),
                                      updates_[static_cast<size_t>(b.tensor)].end(),
                                      [&](int g) { return examples(g).overlaps(own); });
        faults_.in_instr(
            d, index, "read-after-update",
            fmt::format("reads '%{}' for the examples {}, {}", b.name, own.str(),
                        some ? "between which it changes" : "which lead to no update of it"));
        continue;
      }
      for (const auto& piece : ages(d, o.buffer).within(o.box)) {
        if (piece.age == age) continue;
        const std::string what = fmt::format("'%{}{}'", b.name, piece.box.str());
        if (piece.age < age)
          faults_.in_instr(
              d, index, "stale",
              fmt::format("{} has been updated {} times, must be {} times", what, piece.age, age));
        else if (update)
          faults_.in_instr(d, index, "updated-twice",
                           fmt::format("{} was updated in this step already", what));
        else
          faults_.in_instr(d, index, "read-after-update",
                           fmt::format("reads {}, which was updated before", what));
        break;
      }
    }
    if (update)
      for (const Operand& o : i.out)
        ages(d, o.buffer).set(o.box, due(i, device(d), buffer_of(device(d), o).tensor) + 1);
  }

  void exchange(const Exchange& e) {
    struct Copy {
      int device, buffer;
      Box box;
      int age;
    };
    std::vector<Copy> copies;
    for (size_t to = 0; to < e.group.size(); ++to) {
      const int target = resident(e.group[to], e.tensor);
      if (target < 0 || e.to[to].box.empty()) continue;
      for (size_t from = 0; from < e.group.size(); ++from) {
        const int source = resident(e.group[from], e.tensor);
        if (source < 0 || e.from[from].box.empty()) continue;
        const Box common = intersect(e.from[from].box, e.to[to].box);
        if (common.empty()) continue;
        for (const auto& piece : ages(e.group[from], source).within(common))
          copies.push_back({e.group[to], target, piece.box, piece.age});
      }
    }
    for (const Copy& c : copies) ages(c.device, c.buffer).set(c.box, c.age);
  }

  // The buffer of the state region that holds the tensor; -1: none.
  int resident(int d, int tensor) const {
    for (size_t b = 0; b < device(d).buffers.size(); ++b)
      if (device(d).buffers[b].tensor == tensor &&
          device(d).buffers[b].region == Buffer::Region::kState)
        return static_cast<int>(b);
    return -1;
  }
  Ages& ages(int d, int buffer) {
    return ages_[static_cast<size_t>(d)][static_cast<size_t>(buffer)];
  }

  // What is updated on one device is new on all that hold it.
  void finish() {
    for (size_t t = 0; t < plan_.tensors.size(); ++t)
      if (plan_.tensors[t].kind == TensorKind::kState && updates_[t].empty() &&
          plan_.phase == Plan::Phase::kTrain)
        faults_.in_plan("stale",
                        fmt::format("the state '{}' is never updated", plan_.tensors[t].name));
    for (size_t d = 0; d < plan_.devices.size(); ++d)
      for (size_t b = 0; b < plan_.devices[d].buffers.size(); ++b) {
        const Buffer& buffer = plan_.devices[d].buffers[b];
        const size_t updates = updates_[static_cast<size_t>(buffer.tensor)].size();
        if (buffer.part.box.empty() || buffer.region != Buffer::Region::kState) continue;
        for (const auto& piece : ages_[d][b].all())
          if (piece.age < static_cast<int>(updates)) {
            faults_.in_device(
                static_cast<int>(d), "stale",
                fmt::format("'%{}{}' still holds the old value at the end of the step", buffer.name,
                            piece.box.str()));
            break;
          }
      }
  }

  // Every element of a parameter or its state lives somewhere: checkpoints are made of them.
  void residency() {
    std::vector<BoxSet> held(plan_.tensors.size());
    for (const DevicePlan& d : plan_.devices)
      for (const Buffer& b : d.buffers)
        if (b.region == Buffer::Region::kState) held[static_cast<size_t>(b.tensor)].add(b.part.box);
    for (size_t t = 0; t < plan_.tensors.size(); ++t) {
      const Tensor& tensor = plan_.tensors[t];
      if (tensor.kind != TensorKind::kParameter &&
          !(tensor.kind == TensorKind::kState && plan_.phase == Plan::Phase::kTrain))
        continue;
      const auto missing = held[t].missing(Box(tensor.shape));
      if (!missing.empty())
        faults_.in_plan("residency",
                        fmt::format("no device holds '{}{}'", tensor.name, missing.front().str()));
    }
  }

  const Plan& plan_;
  const Program& program_;
  Faults& faults_;
  std::vector<std::vector<int>> updates_;  // per tensor, the gradients that change it, in order
  std::vector<std::vector<Ages>> ages_;    // per device and buffer
  std::vector<size_t> at_;                 // per device, the next instruction
};

}  // namespace

void check_parameters(const Plan& plan, const Program& program, Faults& faults) {
  ParameterCheck(plan, program, faults).run();
}

}  // namespace convnet
