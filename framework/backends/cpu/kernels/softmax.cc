// Softmax with cross-entropy, one block of sixteen examples: largest score, sum of exp(score -
// largest) in ascending order of classes, probabilities. An example's loss is log(sum) - (score of
// its label - largest), so that a probability too small for a float still has a finite loss.
#include "framework/backends/cpu/kernels/table.h"
#include "framework/backends/cpu/kernels/vec.h"
#include "framework/backends/cpu/kernels/vec_math.h"

namespace convnet::cpu::CONVNET_ISA {
namespace {

void softmax_fwd(const SoftmaxProblem& p, int64_t block, const int32_t* label, float* loss,
                 int32_t* rank) {
  const float* x = p.x + block * p.x_block;
  float* y = p.y + block * p.y_block;
  const IVec labels = iload(label);
  Vec largest = load(x);
  Vec own = zero();  // the labels' scores
  for (int64_t c = 0; c < p.classes; ++c) {
    const Vec score = load(x + c * p.x_channel);
    largest = max(score, largest);
    own = select(labels == iset1(static_cast<int32_t>(c)), score, own);
  }
  Vec sum = zero();
  IVec higher = iset1(0);
  for (int64_t c = 0; c < p.classes; ++c) {
    const Vec score = load(x + c * p.x_channel);
    const Vec e = exp(score - largest);
    store(y + c * p.y_channel, e);
    sum = sum + e;
    const Mask above = (score > own) | ((score == own) & (labels > iset1(static_cast<int32_t>(c))));
    higher = higher + select(above, iset1(1), iset1(0));
  }
  for (int64_t c = 0; c < p.classes; ++c)
    store(y + c * p.y_channel, load(y + c * p.y_channel) / sum);
  store(loss, log(sum) - (own - largest));
  istore(rank, higher);
}

void softmax_bwd(const SoftmaxProblem& p, int64_t block, const int32_t* label, float factor) {
  const float* prob = p.x + block * p.x_block;
  float* dx = p.y + block * p.y_block;
  const IVec labels = iload(label);
  const Mask there = labels > iset1(-1);
  for (int64_t c = 0; c < p.classes; ++c) {
    const Vec target =
        select(labels == iset1(static_cast<int32_t>(p.first + c)), set1(1.0f), zero());
    const Vec value = (load(prob + c * p.x_channel) - target) * set1(factor);
    store(dx + c * p.y_channel, select(there, value, zero()));
  }
}

// Over classes that are split: what each canonical shard of the classes knows of an example, and
// from that of all shards, by the tree over them, what the whole would give.
void softmax_stats(const SoftmaxShards& s, int64_t block, const int32_t* label) {
  const SoftmaxProblem& p = s.p;
  const float* x = p.x + block * p.x_block;
  const IVec labels = iload(label);
  for (int64_t i = 0; i < s.shards; ++i) {
    Vec largest = load(x + s.cuts[i] * p.x_channel);
    Vec own = negative(infinity());
    for (int64_t c = s.cuts[i]; c < s.cuts[i + 1]; ++c) {
      const Vec score = load(x + c * p.x_channel);
      largest = max(score, largest);
      own = select(labels == iset1(static_cast<int32_t>(p.first + c)), score, own);
    }
    Vec sum = zero();
    for (int64_t c = s.cuts[i]; c < s.cuts[i + 1]; ++c)
      sum = sum + exp(load(x + c * p.x_channel) - largest);
    float* to = s.stats + block * s.stats_block + 3 * (s.first_shard + i) * s.stats_channel;
    store(to, largest);
    store(to + s.stats_channel, sum);
    store(to + 2 * s.stats_channel, own);
  }
}

struct Whole {
  Vec largest, sum, label;
};

constexpr int kMaxWaiting = 64;

CONVNET_INLINE Whole together(const SoftmaxShards& s, int64_t block) {
  const float* stats = s.stats + block * s.stats_block;
  const int64_t step = 3 * s.stats_channel;
  Whole all = {load(stats), zero(), load(stats + 2 * s.stats_channel)};
  for (int64_t i = 1; i < s.all_shards; ++i) {
    all.largest = max(load(stats + i * step), all.largest);
    all.label = max(load(stats + i * step + 2 * s.stats_channel), all.label);
  }
  Vec waiting[kMaxWaiting];
  int64_t depth = 0;
  for (int64_t i = 0; i < s.all_shards; ++i) {
    const float* shard = stats + i * step;
    Vec sum = load(shard + s.stats_channel) * exp(load(shard) - all.largest);
    for (int32_t m = 0; m < s.merges[i]; ++m) sum = waiting[--depth] + sum;
    waiting[depth++] = sum;
  }
  all.sum = waiting[0];
  return all;
}

void softmax_norm(const SoftmaxShards& s, int64_t block, const int32_t* label) {
  const SoftmaxProblem& p = s.p;
  const float* x = p.x + block * p.x_block;
  float* prob = p.y + block * p.y_block;
  const IVec labels = iload(label);
  const Mask there = labels > iset1(-1);
  const Whole all = together(s, block);
  for (int64_t i = 0; i < s.shards; ++i) {
    IVec higher = iset1(0);
    for (int64_t c = s.cuts[i]; c < s.cuts[i + 1]; ++c) {
      const Vec score = load(x + c * p.x_channel);
      const Mask above =
          (score > all.label) |
          ((score == all.label) & (labels > iset1(static_cast<int32_t>(p.first + c))));
      higher = higher + select(above, iset1(1), iset1(0));
      store(prob + c * p.y_channel, exp(score - all.largest) / all.sum);
    }
    store(s.rank + block * s.rank_block + i * s.rank_channel,
          select(there, to_float(higher), zero()));
  }
}

void softmax_loss(const SoftmaxShards& s, int64_t block, float* loss, int32_t* rank) {
  const Whole all = together(s, block);
  store(loss, log(all.sum) - (all.label - all.largest));
  Vec higher = zero();
  for (int64_t i = 0; i < s.all_shards; ++i)
    higher = higher + load(s.rank + block * s.rank_block + i * s.rank_channel);
  istore(rank, to_int(higher));
}

}  // namespace

void describe_softmax(CpuKernels* table) {
  table->softmax_fwd = softmax_fwd;
  table->softmax_bwd = softmax_bwd;
  table->softmax_stats = softmax_stats;
  table->softmax_norm = softmax_norm;
  table->softmax_loss = softmax_loss;
}

}  // namespace convnet::cpu::CONVNET_ISA
