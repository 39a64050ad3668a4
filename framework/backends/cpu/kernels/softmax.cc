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
    const Vec target = select(labels == iset1(static_cast<int32_t>(c)), set1(1.0f), zero());
    const Vec value = (load(prob + c * p.x_channel) - target) * set1(factor);
    store(dx + c * p.y_channel, select(there, value, zero()));
  }
}

}  // namespace

void describe_softmax(CpuKernels* table) {
  table->softmax_fwd = softmax_fwd;
  table->softmax_bwd = softmax_bwd;
}

}  // namespace convnet::cpu::CONVNET_ISA
