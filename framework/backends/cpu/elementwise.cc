// Activations, biases, sums, concatenation, joined rows and the parameter update: the same element
// of several operands.
#include <array>
#include <numeric>
#include <string>

#include "framework/backends/cpu/bind.h"
#include "framework/plan/rows.h"

namespace convnet::cpu {
namespace {

constexpr int64_t kPieceFloats = 16384;  // a task's share: 64 KB an operand

// The runs of consecutive floats that a box consists of, in several buffers at once.
class Runs {
 public:
  // A view of each operand, all of one format, and the box to walk over in each; the boxes have the
  // same extents.
  Runs(const std::vector<const View*>& views, const std::vector<Box>& boxes) {
    const size_t count = views.size();
    base_.resize(count);
    std::vector<std::vector<int64_t>> steps(count);
    std::vector<int64_t> extents;
    for (size_t v = 0; v < count; ++v) {
      const View& view = *views[v];
      const bool blocked = view.format == Format::kBlocked;
      const int rank = view.stored.rank();
      std::vector<int64_t> step(static_cast<size_t>(rank));
      int64_t next = blocked ? kLanes : 1;
      int64_t offset = 0;
      for (int i = rank - 1; i >= 0; --i) {
        step[static_cast<size_t>(i)] = next;
        int64_t first = boxes[v].lo(i) - view.stored.lo(i);
        if (blocked && i == 0) first /= kLanes;
        offset += first * next;
        next *= view.stored.extent(i);
      }
      base_[v] = static_cast<float*>(view.data) + offset;
      steps[v] = step;
      if (v > 0) continue;
      for (int i = 0; i < rank; ++i) extents.push_back(boxes[v].extent(i));
      if (blocked) extents[0] = ceil_div(extents[0], kLanes);
    }
    // From the innermost dimension outwards: a run goes on while all operands go on in step.
    length_ = views[0]->format == Format::kBlocked ? kLanes : 1;
    size_t dim = extents.size();
    while (dim > 0) {
      bool joined = true;
      for (size_t v = 0; v < count; ++v)
        joined &= extents[dim - 1] == 1 || steps[v][dim - 1] == length_;
      if (!joined) break;
      length_ *= extents[--dim];
    }
    for (size_t d = 0; d < dim; ++d) {
      extents_.push_back(extents[d]);
      for (size_t v = 0; v < count; ++v) steps_.push_back(steps[v][d]);
      rounds_ *= extents[d];
    }
    pieces_ = std::max<int64_t>(1, ceil_div(length_, kPieceFloats));
  }

  // Calls f(pointers, n) for pieces of runs; together they are the box.
  template <typename F>
  void for_each(ThreadTeam& team, F&& f) const {
    if (length_ == 0) return;
    team.run(rounds_ * pieces_, [&](int64_t task, int) {
      std::array<float*, kMaxOperands> at;
      const size_t count = base_.size();
      std::copy(base_.begin(), base_.end(), at.begin());
      int64_t round = task / pieces_;
      for (size_t d = extents_.size(); d-- > 0; round /= extents_[d])
        for (size_t v = 0; v < count; ++v) at[v] += round % extents_[d] * steps_[d * count + v];
      // Pieces begin at multiples of sixteen.
      const int64_t vecs = ceil_div(length_, kLanes), piece = task % pieces_;
      const int64_t lo = part_begin(piece, pieces_, vecs) * kLanes;
      const int64_t hi = std::min(length_, part_begin(piece + 1, pieces_, vecs) * kLanes);
      for (size_t v = 0; v < count; ++v) at[v] += lo;
      f(at.data(), hi - lo);
    });
  }

  static constexpr size_t kMaxOperands = 64;

 private:
  std::vector<float*> base_;
  std::vector<int64_t> extents_, steps_;
  int64_t length_ = 0, rounds_ = 1, pieces_ = 1;
};

// The operands of an instruction over the box of its first result.
Result<Runs> runs_of(const Binding& binding) {
  const View& out = binding.out[0];
  std::vector<const View*> views;
  for (const View& v : binding.out) views.push_back(&v);
  for (const View& v : binding.in) views.push_back(&v);
  if (views.size() > Runs::kMaxOperands)
    return Status(Code::kLimit, std::to_string(views.size()) + " operands are more than " +
                                    std::to_string(Runs::kMaxOperands));
  for (const View* v : views)
    if (v->format != out.format) return Status(Code::kLimit, "operands of different formats");
  return Runs(views, std::vector<Box>(views.size(), out.box));
}

}  // namespace

KernelResult bind_activation(const Context& context, const Binding& binding) {
  if (binding.out[0].box.empty()) return make_kernel([] {});
  CONVNET_ASSIGN_OR_RETURN(Runs runs, runs_of(binding));
  const int32_t act = act_of(binding.instr);
  ThreadTeam& team = binding.team;
  if (binding.instr.op == Op::kActFwd)
    return make_kernel([runs, act, act_fwd = context.kernels.act_fwd, &team] {
      runs.for_each(team, [&](float* const* at, int64_t n) { act_fwd(at[1], at[0], n, act); });
    });
  return make_kernel([runs, act, act_bwd = context.kernels.act_bwd, &team] {
    runs.for_each(team, [&](float* const* at, int64_t n) { act_bwd(at[1], at[2], at[0], n, act); });
  });
}

KernelResult bind_bias(const Context& context, const Binding& binding) {
  const View& out = binding.out[0];
  if (out.box.empty()) return make_kernel([] {});
  const Tensor4 z = tensor_of(binding.in[0], out.box), y = tensor_of(out, out.box);
  const float* bias = nullptr;
  if (binding.in.size() == 2)
    bias = static_cast<const float*>(binding.in[1].data) +
           (out.box.lo(1) - binding.in[1].stored.lo(0));
  return make_kernel([z, y, bias, act = act_of(binding.instr), add = context.kernels.bias_fwd,
                      copy = context.kernels.act_fwd, &team = binding.team] {
    team.run(y.blocks * y.channels, [&](int64_t task, int) {
      const int64_t block = task / y.channels, channel = task % y.channels;
      const float* from = z.data + block * z.block + channel * z.channel;
      float* to = y.data + block * y.block + channel * y.channel;
      for (int64_t row = 0; row < y.rows; ++row, from += z.row, to += y.row) {
        if (bias != nullptr)
          add(from, bias[channel], to, y.columns * kLanes, act);
        else
          copy(from, to, y.columns * kLanes, act);
      }
    });
  });
}

KernelResult bind_add(const Context& context, const Binding& binding) {
  if (binding.out[0].box.empty()) return make_kernel([] {});
  CONVNET_ASSIGN_OR_RETURN(Runs runs, runs_of(binding));
  return make_kernel([runs, act = act_of(binding.instr), terms = std::ssize(binding.in),
                      add = context.kernels.add, &team = binding.team] {
    runs.for_each(team, [&](float* const* at, int64_t n) { add(at + 1, terms, at[0], n, act); });
  });
}

KernelResult bind_concat(const Context& context, const Binding& binding) {
  const bool forward = binding.instr.op == Op::kConcatFwd;
  const View& whole = forward ? binding.out[0] : binding.in[0];
  std::vector<Runs> parts;
  int64_t first = 0;
  for (const View& part : forward ? binding.in : binding.out) {
    // What the result takes of this part, in the part's channels and in the whole's.
    Box box = forward ? whole.box : part.box;
    if (forward) {
      box.set(1, box.lo(1) - first, box.hi(1) - first);
      box = intersect(box, Box(part.shape));
    }
    Box in_whole = box;
    in_whole.set(1, box.lo(1) + first, box.hi(1) + first);
    first += part.shape[1];
    if (box.empty()) continue;
    if (forward)
      parts.emplace_back(std::vector{&whole, &part}, std::vector{in_whole, box});
    else
      parts.emplace_back(std::vector{&part, &whole}, std::vector{box, in_whole});
  }
  return make_kernel([parts, copy = context.kernels.act_fwd, &team = binding.team] {
    for (const Runs& runs : parts)
      runs.for_each(team, [&](float* const* at, int64_t n) { copy(at[1], at[0], n, kActNone); });
  });
}

KernelResult bind_rows_join(const Context& context, const Binding& binding) {
  const View& out = binding.out[0];
  std::vector<Runs> parts;
  for (const View& in : binding.in)
    for (const RowRun& run :
         common_rows(RowMap(in.rows), in.box.lo(0), in.box.hi(0), RowMap(out.rows))) {
      const int64_t lo = std::max(run.to, out.box.lo(0));
      const int64_t hi = std::min(run.to + run.count, out.box.hi(0));
      Box to = out.box, from = out.box;
      to.set(0, lo, hi);
      from.set(0, lo + run.from - run.to, hi + run.from - run.to);
      if (!to.empty()) parts.emplace_back(std::vector{&out, &in}, std::vector{to, from});
    }
  return make_kernel([parts, copy = context.kernels.act_fwd, &team = binding.team] {
    for (const Runs& runs : parts)
      runs.for_each(team, [&](float* const* at, int64_t n) { copy(at[1], at[0], n, kActNone); });
  });
}

KernelResult bind_sum(const Context& context, const Binding& binding) {
  if (binding.out[0].box.empty()) return make_kernel([] {});
  CONVNET_ASSIGN_OR_RETURN(Runs runs, runs_of(binding));
  std::vector<int64_t> terms(binding.in.size() + 1);
  std::iota(terms.begin(), terms.end(), 0);
  std::vector<int32_t> merges;
  for (const Shard& term : shards_of(terms, 0, terms.back()))
    merges.push_back(static_cast<int32_t>(term.merges));
  return make_kernel([runs, merges, sum = context.kernels.sum, &team = binding.team] {
    runs.for_each(team, [&](float* const* at, int64_t n) {
      sum(at + 1, merges.data(), std::ssize(merges), at[0], n);
    });
  });
}

KernelResult bind_update(const Context& context, const Binding& binding) {
  if (binding.out[0].box.empty()) return make_kernel([] {});
  const Attrs& attrs = binding.instr.attrs;
  CONVNET_ASSIGN_OR_RETURN(Runs runs, runs_of(binding));
  return make_kernel([runs, factor = attrs.real("rate"),
                      scale = attrs.has("scale") ? static_cast<float>(attrs.real("scale")) : 1.0f,
                      decay = static_cast<float>(attrs.real("decay")),
                      momentum = static_cast<float>(attrs.real("momentum")),
                      update = context.kernels.update_sgd, &state = binding.state,
                      &team = binding.team] {
    const SgdStep step{static_cast<float>(state.rate * factor), scale, decay, momentum};
    runs.for_each(team, [&](float* const* at, int64_t n) {
      update(at[2], at[3], at[4], at[0], at[1], n, step);
    });
  });
}

}  // namespace convnet::cpu
