#include "framework/comm/ordered_sum.h"

#include <algorithm>
#include <cstring>

#include "framework/base/check.h"

namespace convnet {
namespace {

constexpr int kDestination = -1;
constexpr int kNothing = 1 << 30;
// Temporaries of a tree over 64 leaves are 7 deep; with a chunk of 512 doubles all of them stay in
// the first-level cache, so a sum runs at the speed at which its sources are read.
constexpr int kSlots = 8;
constexpr int64_t kChunk = 512;

// out is a, b, or apart from both.
template <typename T>
void add(T* out, const T* a, const T* b, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}

}  // namespace

OrderedSum::OrderedSum(Exchange::Order order, std::span<const int> source_of) {
  if (order == Exchange::Order::kRank) {
    int sum = kNothing;
    for (int source : source_of) {
      if (source < 0) continue;
      if (sum == kNothing) {
        sum = source;
      } else {
        adds_.push_back({sum, source, 0});
        sum = ~0;
      }
    }
    only_ = sum;
  } else {
    only_ = tree(source_of, 0, source_of.size(), 0);
  }
  CHECK(only_ != kNothing);
  if (!adds_.empty()) adds_.back().out = kDestination;
}

// Emits the additions for k = lo .. hi-1 with temporaries from `slot` on; returns the operand that
// holds the sum, kNothing without sources.
int OrderedSum::tree(std::span<const int> source_of, size_t lo, size_t hi, int slot) {
  if (lo == hi) return kNothing;
  if (hi - lo == 1) return source_of[lo] >= 0 ? source_of[lo] : kNothing;
  const size_t mid = lo + (hi - lo) / 2;
  const int left = tree(source_of, lo, mid, slot);
  const int right = tree(source_of, mid, hi, left < 0 ? slot + 1 : slot);
  if (left == kNothing) return right;
  if (right == kNothing) return left;
  CHECK(slot < kSlots);
  adds_.push_back({left, right, slot});
  return ~slot;
}

template <typename T>
void OrderedSum::run_typed(T* dst, const void* const* sources, int64_t n) const {
  T slots[kSlots][kChunk];
  const auto whole = [&](int source) { return static_cast<const T*>(sources[source]); };
  if (adds_.size() == 1) {
    add(dst, whole(adds_[0].left), whole(adds_[0].right), n);
    return;
  }
  for (int64_t at = 0; at < n; at += kChunk) {
    const int64_t count = std::min(kChunk, n - at);
    const auto operand = [&](int which) {
      return which >= 0 ? whole(which) + at : static_cast<const T*>(slots[~which]);
    };
    for (const Add& a : adds_) {
      T* out = a.out == kDestination ? dst + at : slots[a.out];
      add(out, operand(a.left), operand(a.right), count);
    }
  }
}

void OrderedSum::run(DType dtype, void* dst, const void* const* sources, int64_t n) const {
  if (adds_.empty()) {
    if (dst != sources[only_])
      std::memcpy(dst, sources[only_], static_cast<size_t>(n * dtype_size(dtype)));
    return;
  }
  switch (dtype) {
    case DType::kF32:
      return run_typed(static_cast<float*>(dst), sources, n);
    case DType::kF64:
      return run_typed(static_cast<double*>(dst), sources, n);
    // Unsigned, because its overflow is defined; the bits are those of the signed sum.
    case DType::kI32:
      return run_typed(static_cast<uint32_t*>(dst), sources, n);
  }
}

}  // namespace convnet
