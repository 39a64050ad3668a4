// Operations on elements alone: activations, sums, dropout, the parameter update. One pass over
// memory each, sixteen elements at a time; the last few go through a padded copy, so that they get
// the same arithmetic.
//
// Dropout draws its mask by Philox4x32-10 as framework/base/random.h defines it: element i takes
// word i % 4 of block i / 4. Sixteen samples lie H * W * C elements apart; if that is a multiple of
// four, four neighbours share their blocks and one evaluation (ten rounds over Vecs of integers)
// serves all four.
#include "framework/backends/cpu/kernels/table.h"
#include "framework/backends/cpu/kernels/vec.h"
#include "framework/backends/cpu/kernels/vec_math.h"

namespace convnet::cpu::CONVNET_ISA {
namespace {

// Up to sixteen floats, the others zero.
CONVNET_INLINE Vec load_part(const float* p, int64_t n) {
  alignas(64) float whole[kVec] = {};
  for (int64_t i = 0; i < n; ++i) whole[i] = p[i];
  return load(whole);
}

CONVNET_INLINE void store_part(float* p, int64_t n, Vec a) {
  alignas(64) float whole[kVec];
  store(whole, a);
  for (int64_t i = 0; i < n; ++i) p[i] = whole[i];
}

template <int32_t kAct>
void act_fwd_all(const float* x, float* y, int64_t n) {
  int64_t i = 0;
  for (; i + kVec <= n; i += kVec) store(y + i, activate(kAct, load(x + i)));
  if (i < n) store_part(y + i, n - i, activate(kAct, load_part(x + i, n - i)));
}

void act_fwd(const float* x, float* y, int64_t n, int32_t act) {
  switch (act) {
    case kActRelu:
      return act_fwd_all<kActRelu>(x, y, n);
    case kActTanh:
      return act_fwd_all<kActTanh>(x, y, n);
    case kActSigmoid:
      return act_fwd_all<kActSigmoid>(x, y, n);
    default:
      return act_fwd_all<kActNone>(x, y, n);
  }
}

// n is a multiple of sixteen.
template <int32_t kAct>
void bias_fwd_all(const float* z, Vec bias, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i += kVec) store(y + i, activate(kAct, load(z + i) + bias));
}

void bias_fwd(const float* z, float bias, float* y, int64_t n, int32_t act) {
  switch (act) {
    case kActRelu:
      return bias_fwd_all<kActRelu>(z, set1(bias), y, n);
    case kActTanh:
      return bias_fwd_all<kActTanh>(z, set1(bias), y, n);
    case kActSigmoid:
      return bias_fwd_all<kActSigmoid>(z, set1(bias), y, n);
    default:
      return bias_fwd_all<kActNone>(z, set1(bias), y, n);
  }
}

// dy times the derivative, from y. relu's is 0 at 0.
template <int32_t kAct>
CONVNET_INLINE Vec gradient(Vec y, Vec dy) {
  if (kAct == kActRelu) return dy * select(y > zero(), set1(1.0f), zero());
  if (kAct == kActTanh) return dy * fnma(y, y, set1(1.0f));
  if (kAct == kActSigmoid) return dy * (y * (set1(1.0f) - y));
  return dy;
}

template <int32_t kAct>
void act_bwd_all(const float* y, const float* dy, float* dx, int64_t n) {
  int64_t i = 0;
  for (; i + kVec <= n; i += kVec) store(dx + i, gradient<kAct>(load(y + i), load(dy + i)));
  if (i < n)
    store_part(dx + i, n - i, gradient<kAct>(load_part(y + i, n - i), load_part(dy + i, n - i)));
}

void act_bwd(const float* y, const float* dy, float* dx, int64_t n, int32_t act) {
  switch (act) {
    case kActRelu:
      return act_bwd_all<kActRelu>(y, dy, dx, n);
    case kActTanh:
      return act_bwd_all<kActTanh>(y, dy, dx, n);
    case kActSigmoid:
      return act_bwd_all<kActSigmoid>(y, dy, dx, n);
    default:
      return act_bwd_all<kActNone>(y, dy, dx, n);
  }
}

void add(const float* const* x, int64_t terms, float* y, int64_t n, int32_t act) {
  int64_t i = 0;
  for (; i + kVec <= n; i += kVec) {
    Vec sum = load(x[0] + i);
    for (int64_t t = 1; t < terms; ++t) sum = sum + load(x[t] + i);
    store(y + i, activate(act, sum));
  }
  if (i == n) return;
  Vec sum = load_part(x[0] + i, n - i);
  for (int64_t t = 1; t < terms; ++t) sum = sum + load_part(x[t] + i, n - i);
  store_part(y + i, n - i, activate(act, sum));
}

// Sums that wait at the same time: more than the depth of a tree over all operands there may be.
constexpr int kWaiting = 16;

CONVNET_INLINE Vec merge(Vec* waiting, int64_t* count, Vec next, int32_t merges) {
  for (; merges > 0; --merges) next = waiting[--*count] + next;
  waiting[(*count)++] = next;
  return next;
}

void sum(const float* const* x, const int32_t* merges, int64_t terms, float* y, int64_t n) {
  Vec waiting[kWaiting];
  for (int64_t i = 0; i < n; i += kVec) {
    const bool whole = i + kVec <= n;
    int64_t count = 0;
    Vec last = zero();
    for (int64_t t = 0; t < terms; ++t)
      last = merge(waiting, &count, whole ? load(x[t] + i) : load_part(x[t] + i, n - i), merges[t]);
    whole ? store(y + i, last) : store_part(y + i, n - i, last);
  }
}

CONVNET_INLINE void sgd(Vec dw, SgdStep step, Vec* w, Vec* m) {
  const Vec t = fma(set1(step.decay), *w, set1(step.scale) * dw);
  *m = fma(set1(step.momentum), *m, negative(set1(step.rate) * t));
  *w = *w + *m;
}

void update_sgd(const float* dw, const float* w, const float* m, float* new_w, float* new_m,
                int64_t n, SgdStep step) {
  int64_t i = 0;
  for (; i + kVec <= n; i += kVec) {
    Vec weight = load(w + i), moment = load(m + i);
    sgd(load(dw + i), step, &weight, &moment);
    store(new_w + i, weight);
    store(new_m + i, moment);
  }
  if (i == n) return;
  Vec weight = load_part(w + i, n - i), moment = load_part(m + i, n - i);
  sgd(load_part(dw + i, n - i), step, &weight, &moment);
  store_part(new_w + i, n - i, weight);
  store_part(new_m + i, n - i, moment);
}

struct Words {
  IVec word[4];
};

// The blocks with counters low + 2^32 high.
CONVNET_INLINE Words philox(IVec low, IVec high, uint32_t key0, uint32_t key1) {
  Words c = {{low, high, iset1(0), iset1(0)}};
  for (int round = 0; round < 10; ++round) {
    IVec a_high, a_low, b_high, b_low;
    multiply_wide(c.word[0], 0xD2511F53u, &a_high, &a_low);
    multiply_wide(c.word[2], 0xCD9E8D57u, &b_high, &b_low);
    c = {{b_high ^ c.word[1] ^ iset1(static_cast<int32_t>(key0)), b_low,
          a_high ^ c.word[3] ^ iset1(static_cast<int32_t>(key1)), a_low}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c;
}

CONVNET_INLINE Vec dropped(const DropoutProblem& p, IVec word, Vec x) {
  // 24 bits are non-negative numbers, so the signed comparison is right.
  const Mask keep = shift_right_zero<8>(word) > iset1(static_cast<int32_t>(p.threshold) - 1);
  return select(keep, x / set1(p.kept), zero());
}

void dropout(const DropoutProblem& p, const uint32_t key[2], int64_t block, int64_t channel) {
  const float* x = p.x.data + block * p.x.block + channel * p.x.channel;
  float* y = p.y.data + block * p.y.block + channel * p.y.channel;
  const int64_t example = p.channels * p.rows * p.columns;
  uint64_t first[kVec];  // index of each lane's element (c, 0, 0)
  for (int64_t i = 0; i < kVec; ++i)
    first[i] = static_cast<uint64_t>((p.examples[block] + i) * example +
                                     (p.first[0] + channel) * p.rows * p.columns);
  const bool shared = example % 4 == 0;
  for (int64_t h = 0; h < p.y.rows; ++h)
    for (int64_t w = 0; w < p.y.columns;) {
      const uint64_t pixel = static_cast<uint64_t>((p.first[1] + h) * p.columns + p.first[2] + w);
      alignas(64) int32_t low[kVec], high[kVec], word[kVec];
      for (int i = 0; i < kVec; ++i) {
        const uint64_t index = first[i] + pixel;
        low[i] = static_cast<int32_t>(index / 4);
        high[i] = static_cast<int32_t>(index / 4 >> 32);
        word[i] = static_cast<int32_t>(index % 4);
      }
      const Words words = philox(iload(low), iload(high), key[0], key[1]);
      if (shared) {
        // All lanes are at the same word of their blocks; go on to the blocks' last word.
        for (int i = word[0]; i < 4 && w < p.y.columns; ++i, ++w) {
          const int64_t at = w * kVec;
          store(y + h * p.y.row + at, dropped(p, words.word[i], load(x + h * p.x.row + at)));
        }
        continue;
      }
      const IVec which = iload(word);
      IVec chosen = words.word[0];
      for (int i = 1; i < 4; ++i) chosen = select(which == iset1(i), words.word[i], chosen);
      const int64_t at = w * kVec;
      store(y + h * p.y.row + at, dropped(p, chosen, load(x + h * p.x.row + at)));
      ++w;
    }
}

}  // namespace

void describe_elementwise(CpuKernels* table) {
  table->act_fwd = act_fwd;
  table->bias_fwd = bias_fwd;
  table->act_bwd = act_bwd;
  table->add = add;
  table->sum = sum;
  table->update_sgd = update_sgd;
  table->dropout = dropout;
}

}  // namespace convnet::cpu::CONVNET_ISA
