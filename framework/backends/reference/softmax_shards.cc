// Softmax with cross-entropy over classes that are split: what each canonical shard of the classes
// knows of an example (largest score, sum of exp(score - largest), the label's score), then all
// shards together. Sums within a shard run over its classes in ascending order, then as the tree
// over the shards.
#include <algorithm>
#include <limits>

#include "framework/backends/reference/access.h"
#include "framework/backends/reference/kernels.h"
#include "framework/backends/reference/require.h"
#include "framework/backends/reference/tree_sum.h"
#include "framework/base/exact_math.h"

namespace convnet::reference {
namespace {

template <typename T>
T exponential(T x) {
  return static_cast<T>(exact_exp(static_cast<double>(x)));
}

// The number of shards that stats [N, 3 S, 1, 1] are of.
int64_t shards_of(const View& stats) { return stats.shape[1] / 3; }

// The first shard of the classes from `lo` on, of `classes` in `shards` balanced shards.
int64_t first_shard(int64_t lo, int64_t classes, int64_t shards) {
  int64_t s = 0;
  while (s < shards && classes * s / shards < lo) ++s;
  return s;
}

// The statistics of all shards of an example.
template <typename T>
struct Whole {
  T largest, sum, label;
};
template <typename T>
Whole<T> together(const Access<T>& stats, int64_t n) {
  const int64_t shards = stats.hi(1) / 3;
  Whole<T> all{stats(n, 0), 0, stats(n, 2)};
  for (int64_t s = 0; s < shards; ++s) {
    all.largest = std::max(all.largest, stats(n, 3 * s));
    all.label = std::max(all.label, stats(n, 3 * s + 2));
  }
  std::vector<int64_t> each;
  for (int64_t s = 0; s <= shards; ++s) each.push_back(s);
  all.sum = tree_sum<T>(each, [&](int64_t s, int64_t) {
    return stats(n, 3 * s + 1) * exponential(stats(n, 3 * s) - all.largest);
  });
  return all;
}

void check(Require& require, const View& x, const View& label, const View& stats, DType dtype) {
  require.activation(x, "x", dtype);
  require.label(label);
  require.activation(stats, "stats", dtype);
  if (!require.ok()) return;
  require.that(stats.shape[1] % 3 == 0 && stats.shape[1] >= 3 && stats.shape[0] == x.shape[0],
               "x " + x.shape.str() + " and stats " + stats.shape.str() + " do not agree");
  require.covers(label, "label", 0, x.box.lo(0), x.box.hi(0));
}

}  // namespace

template <typename T>
KernelResult softmax_stats(const Binding& binding) {
  Require require(binding);
  if (!require.ok()) return require.status();
  const View& in = binding.in[0];
  const View& out = binding.out[0];
  check(require, in, binding.in[1], out, DTypeOf<T>::value);
  const std::vector<int64_t> cuts = require.cuts("class_cuts", in.box, 1);
  if (!require.ok()) return require.status();
  require.covers(in, "x", 0, out.box.lo(0), out.box.hi(0));
  const int64_t first = first_shard(in.box.lo(1), in.shape[1], shards_of(out));
  require.that(out.box.lo(1) == 3 * first &&
                   out.box.hi(1) == 3 * (first + static_cast<int64_t>(cuts.size()) - 1),
               "stats " + out.box.str() + " are not those of the classes of x " + in.box.str());
  if (!require.ok()) return require.status();
  return loop_kernel([cuts, first, x = Access<T>(in), label = Access<int32_t>(binding.in[1]),
                      stats = Access<T>(out)] {
    for (int64_t n = stats.lo(0); n < stats.hi(0); ++n)
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        T largest = x(n, cuts[i]), sum = 0, score = -std::numeric_limits<T>::infinity();
        for (int64_t c = cuts[i]; c < cuts[i + 1]; ++c) {
          largest = std::max(largest, x(n, c));
          if (c == label(n)) score = x(n, c);
        }
        for (int64_t c = cuts[i]; c < cuts[i + 1]; ++c) sum += exponential(x(n, c) - largest);
        const int64_t at = 3 * (first + static_cast<int64_t>(i));
        stats(n, at) = largest;
        stats(n, at + 1) = sum;
        stats(n, at + 2) = score;
      }
  });
}

template <typename T>
KernelResult softmax_norm(const Binding& binding) {
  Require require(binding);
  if (!require.ok()) return require.status();
  const View& in = binding.in[0];
  const View& stats_view = binding.in[2];
  const View& out = binding.out[0];
  const View& rank_view = binding.out[1];
  check(require, in, binding.in[1], stats_view, DTypeOf<T>::value);
  require.activation(out, "prob", DTypeOf<T>::value);
  require.activation(rank_view, "rank", DTypeOf<T>::value);
  const std::vector<int64_t> cuts = require.cuts("class_cuts", in.box, 1);
  if (!require.ok()) return require.status();
  require.covers(in, "x", out);
  require.covers(stats_view, "stats", 0, out.box.lo(0), out.box.hi(0));
  require.covers(stats_view, "stats", 1, 0, stats_view.shape[1]);
  const int64_t first = first_shard(in.box.lo(1), in.shape[1], shards_of(stats_view));
  require.that(rank_view.box.lo(1) == first &&
                   rank_view.box.hi(1) == first + static_cast<int64_t>(cuts.size()) - 1,
               "rank " + rank_view.box.str() + " is not that of the classes of x " + in.box.str());
  if (!require.ok()) return require.status();
  return loop_kernel([cuts, first, x = Access<T>(in), label = Access<int32_t>(binding.in[1]),
                      stats = Access<T>(stats_view), prob = Access<T>(out),
                      rank = Access<T>(rank_view)] {
    for (int64_t n = prob.lo(0); n < prob.hi(0); ++n) {
      const Whole<T> all = together(stats, n);
      for (int64_t c = prob.lo(1); c < prob.hi(1); ++c)
        prob(n, c) = exponential(x(n, c) - all.largest) / all.sum;
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        int64_t higher = 0;
        for (int64_t c = cuts[i]; label(n) >= 0 && c < cuts[i + 1]; ++c)
          higher += x(n, c) > all.label || (x(n, c) == all.label && c < label(n));
        rank(n, first + static_cast<int64_t>(i)) = static_cast<T>(higher);
      }
    }
  });
}

template <typename T>
KernelResult softmax_metrics(const Binding& binding) {
  Require require(binding);
  if (!require.ok()) return require.status();
  const View& stats_view = binding.in[0];
  const View& rank_view = binding.in[1];
  require.activation(stats_view, "stats", DTypeOf<T>::value);
  require.activation(rank_view, "rank", DTypeOf<T>::value);
  require.label(binding.in[2]);
  const std::vector<int64_t> top = require.list("top");
  const int64_t classes = require.integer("classes", 1);
  require.metrics(binding.out[0], 2 + static_cast<int64_t>(top.size()));
  const std::vector<int64_t> cuts = require.cuts(stats_view.box);
  if (!require.ok()) return require.status();
  require.covers(stats_view, "stats", 1, 0, stats_view.shape[1]);
  require.covers(rank_view, "rank", 1, 0, rank_view.shape[1]);
  require.covers(rank_view, "rank", 0, stats_view.box.lo(0), stats_view.box.hi(0));
  require.covers(binding.in[2], "label", 0, stats_view.box.lo(0), stats_view.box.hi(0));
  if (!require.ok()) return require.status();
  return loop_kernel([cuts, top, classes, stats = Access<T>(stats_view),
                      rank = Access<T>(rank_view), label = Access<int32_t>(binding.in[2]),
                      metrics = Access<double>(binding.out[0])] {
    const auto total = [&](const auto& f) {
      return tree_sum<double>(cuts, [&](int64_t n_lo, int64_t n_hi) {
        double sum = 0;
        for (int64_t n = n_lo; n < n_hi; ++n)
          if (label(n) >= 0) sum += f(n);
        return sum;
      });
    };
    metrics(0) = total([&](int64_t n) {
      if (label(n) >= classes) return std::numeric_limits<double>::infinity();
      const Whole<T> all = together(stats, n);
      return exact_log(static_cast<double>(all.sum)) -
             (static_cast<double>(all.label) - static_cast<double>(all.largest));
    });
    metrics(1) = total([&](int64_t) { return 1.0; });
    const auto ranked = [&](int64_t n) {
      int64_t higher = 0;
      for (int64_t s = 0; s < rank.hi(1); ++s) higher += static_cast<int64_t>(rank(n, s));
      return higher;
    };
    for (size_t i = 0; i < top.size(); ++i)
      metrics(2 + static_cast<int64_t>(i)) =
          total([&](int64_t n) { return label(n) < classes && ranked(n) < top[i] ? 1.0 : 0.0; });
  });
}

template KernelResult softmax_stats<float>(const Binding&);
template KernelResult softmax_stats<double>(const Binding&);
template KernelResult softmax_norm<float>(const Binding&);
template KernelResult softmax_norm<double>(const Binding&);
template KernelResult softmax_metrics<float>(const Binding&);
template KernelResult softmax_metrics<double>(const Binding&);

}  // namespace convnet::reference
