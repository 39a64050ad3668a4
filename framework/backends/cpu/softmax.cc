// The loss: softmax with cross-entropy, of whole scores and by ranges of classes.
#include <limits>
#include <numeric>
#include <optional>

#include "framework/backends/cpu/bind.h"

namespace convnet::cpu {
namespace {

SoftmaxProblem softmax_problem(const View& in, const View& out) {
  const Tensor4 x = tensor_of(in, out.box), y = tensor_of(out, out.box);
  SoftmaxProblem p{};
  p.x = x.data;
  p.y = y.data;
  p.x_block = x.block;
  p.x_channel = x.channel;
  p.y_block = y.block;
  p.y_channel = y.channel;
  p.classes = x.channels;
  p.first = out.box.lo(1);
  return p;
}

const int32_t* labels_of(const View& label, const View& out) {
  return static_cast<const int32_t*>(label.data) + (out.box.lo(0) - label.stored.lo(0));
}

// Sum over shards lo .. hi-1 of f(first, last example), by the tree of ops.def.
template <typename F>
std::optional<double> tree_sum(const std::vector<int64_t>& cuts, size_t lo, size_t hi, const F& f) {
  if (hi - lo == 1) {
    if (cuts[lo] == cuts[hi]) return std::nullopt;
    return f(cuts[lo], cuts[hi]);
  }
  const size_t mid = lo + (hi - lo) / 2;
  const auto left = tree_sum(cuts, lo, mid, f), right = tree_sum(cuts, mid, hi, f);
  if (left && right) return *left + *right;
  return left ? left : right;
}

// Loss and rank of each example, and their sums.
struct SoftmaxWork {
  SoftmaxProblem problem{};
  int64_t classes = 0;
  const int32_t* label;
  double* metrics;
  std::vector<int64_t> top, cuts;
  std::vector<float> loss;
  std::vector<int32_t> rank;

  void sum() const {
    const auto total = [&](const auto& f) {
      return tree_sum(cuts, 0, cuts.size() - 1,
                      [&](int64_t lo, int64_t hi) {
                        double sum = 0;
                        for (int64_t n = lo - cuts[0]; n < hi - cuts[0]; ++n)
                          if (label[n] >= 0) sum += f(static_cast<size_t>(n), label[n]);
                        return sum;
                      })
          .value_or(0.0);
    };
    metrics[0] = total([&](size_t n, int32_t l) {
      return l < classes ? double{loss[n]} : std::numeric_limits<double>::infinity();
    });
    metrics[1] = total([](size_t, int32_t) { return 1.0; });
    for (size_t i = 0; i < top.size(); ++i)
      metrics[2 + i] =
          total([&](size_t n, int32_t l) { return l < classes && rank[n] < top[i] ? 1.0 : 0.0; });
  }
};

}  // namespace

KernelResult bind_softmax(const Context& context, const Binding& binding) {
  const Attrs& attrs = binding.instr.attrs;
  const View& out = binding.out[0];
  const int64_t blocks = ceil_div(out.box.extent(0), kLanes);
  const int32_t* label = labels_of(binding.in[1], out);
  ThreadTeam& team = binding.team;
  if (binding.instr.op == Op::kSoftmaxLossBwd) {
    if (out.box.empty()) return make_kernel([] {});
    return make_kernel([p = softmax_problem(binding.in[0], out), blocks, label,
                        factor = static_cast<float>(attrs.real("scale")),
                        softmax = context.kernels.softmax_bwd, &team] {
      team.run(blocks,
               [&](int64_t block, int) { softmax(p, block, label + block * kLanes, factor); });
    });
  }
  auto work = std::make_shared<SoftmaxWork>();
  if (!out.box.empty()) work->problem = softmax_problem(binding.in[0], out);
  work->classes = binding.in[0].shape[1];
  work->label = label;
  work->metrics = static_cast<double*>(binding.out[1].data);
  work->top = attrs.list("top");
  work->cuts = attrs.list("cuts");
  work->loss.resize(static_cast<size_t>(blocks * kLanes));
  work->rank.resize(static_cast<size_t>(blocks * kLanes));
  return make_kernel([work, blocks, softmax = context.kernels.softmax_fwd, &team] {
    team.run(blocks, [&](int64_t block, int) {
      const auto first = static_cast<size_t>(block * kLanes);
      softmax(work->problem, block, work->label + first, &work->loss[first], &work->rank[first]);
    });
    work->sum();
  });
}

namespace {

struct ShardedWork {
  SoftmaxShards problem{};
  std::vector<int64_t> cuts;
  std::vector<int32_t> merges;
};

// The statistics of all shards, with the examples of `out`.
void set_stats(ShardedWork& work, const View& stats, const View& out) {
  Box box = stats.box;
  box.set(0, out.box.lo(0), out.box.hi(0));
  const Tensor4 t = tensor_of(stats, box);
  SoftmaxShards& s = work.problem;
  s.stats = t.data - box.lo(1) * t.channel;
  s.stats_block = t.block;
  s.stats_channel = t.channel;
  s.all_shards = stats.shape[1] / 3;
  std::vector<int64_t> each(static_cast<size_t>(s.all_shards) + 1);
  std::iota(each.begin(), each.end(), 0);
  for (const Shard& shard : shards_of(each, 0, s.all_shards))
    work.merges.push_back(static_cast<int32_t>(shard.merges));
  s.merges = work.merges.data();
}

void set_classes(ShardedWork& work, const View& x, const View& out,
                 const std::vector<int64_t>& cuts) {
  Box box = x.box;
  box.set(0, out.box.lo(0), out.box.hi(0));
  const Tensor4 t = tensor_of(x, box);
  SoftmaxShards& s = work.problem;
  s.p.x = t.data;
  s.p.x_block = t.block;
  s.p.x_channel = t.channel;
  s.p.classes = t.channels;
  s.p.first = box.lo(1);
  for (const int64_t cut : cuts) work.cuts.push_back(cut - box.lo(1));
  s.cuts = work.cuts.data();
  s.shards = std::ssize(work.cuts) - 1;
}

}  // namespace

KernelResult bind_softmax_stats(const Context& context, const Binding& binding) {
  const View& out = binding.out[0];
  if (out.box.empty()) return make_kernel([] {});
  auto work = std::make_shared<ShardedWork>();
  set_classes(*work, binding.in[0], out, binding.instr.attrs.list("class_cuts"));
  set_stats(*work, out, out);
  work->problem.first_shard = out.box.lo(1) / 3;
  return make_kernel([work, blocks = ceil_div(out.box.extent(0), kLanes),
                      label = labels_of(binding.in[1], out), stats = context.kernels.softmax_stats,
                      &team = binding.team] {
    team.run(blocks, [&](int64_t b, int) { stats(work->problem, b, label + b * kLanes); });
  });
}

KernelResult bind_softmax_norm(const Context& context, const Binding& binding) {
  const View& x = binding.in[0];
  const View& out = binding.out[0];
  const View& rank = binding.out[1];
  if (out.box.empty()) return make_kernel([] {});
  if (out.box.lo(1) != x.box.lo(1) || out.box.hi(1) != x.box.hi(1))
    return Status(Code::kLimit, "the probabilities are of other classes than the scores");
  auto work = std::make_shared<ShardedWork>();
  set_classes(*work, x, out, binding.instr.attrs.list("class_cuts"));
  set_stats(*work, binding.in[2], out);
  SoftmaxShards& s = work->problem;
  const Tensor4 prob = tensor_of(out, out.box), ranks = tensor_of(rank, out);
  s.p.y = prob.data;
  s.p.y_block = prob.block;
  s.p.y_channel = prob.channel;
  s.rank = ranks.data;
  s.rank_block = ranks.block;
  s.rank_channel = ranks.channel;
  return make_kernel([work, blocks = ceil_div(out.box.extent(0), kLanes),
                      label = labels_of(binding.in[1], out), norm = context.kernels.softmax_norm,
                      &team = binding.team] {
    team.run(blocks, [&](int64_t b, int) { norm(work->problem, b, label + b * kLanes); });
  });
}

KernelResult bind_softmax_metrics(const Context& context, const Binding& binding) {
  const Attrs& attrs = binding.instr.attrs;
  const View& stats = binding.in[0];
  const int64_t blocks = ceil_div(stats.box.extent(0), kLanes);
  auto shards = std::make_shared<ShardedWork>();
  if (blocks > 0) {
    set_stats(*shards, stats, stats);
    const Tensor4 ranks = tensor_of(binding.in[1], stats);
    shards->problem.rank = ranks.data;
    shards->problem.rank_block = ranks.block;
    shards->problem.rank_channel = ranks.channel;
  }
  auto work = std::make_shared<SoftmaxWork>();
  work->classes = attrs.integer("classes");
  work->label = labels_of(binding.in[2], stats);
  work->metrics = static_cast<double*>(binding.out[0].data);
  work->top = attrs.list("top");
  work->cuts = attrs.list("cuts");
  work->loss.resize(static_cast<size_t>(blocks * kLanes));
  work->rank.resize(static_cast<size_t>(blocks * kLanes));
  return make_kernel(
      [shards, work, blocks, loss = context.kernels.softmax_loss, &team = binding.team] {
        team.run(blocks, [&](int64_t b, int) {
          const auto first = static_cast<size_t>(b * kLanes);
          loss(shards->problem, b, &work->loss[first], &work->rank[first]);
        });
        work->sum();
      });
}

}  // namespace convnet::cpu
