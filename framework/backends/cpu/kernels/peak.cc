// The machine's multiply-add peak, in the same registers that the kernels use.
#include "framework/backends/cpu/kernels/table.h"
#include "framework/backends/cpu/kernels/vec.h"

namespace convnet::cpu::CONVNET_ISA {
namespace {

// 24 accumulators of AVX-512 or 12 registers of AVX2, nothing but multiply-adds.
int64_t peak(int64_t iterations, float* sink) {
#if defined(__AVX512F__)
  constexpr int kSums = 24;
#else
  constexpr int kSums = 6;
#endif
  Vec sum[kSums];
#pragma GCC unroll 24
  for (int i = 0; i < kSums; ++i) sum[i] = set1(static_cast<float>(i));
  const Vec a = set1(0.999999f), b = set1(1e-9f);
  for (int64_t n = 0; n < iterations; ++n)
#pragma GCC unroll 24
    for (int i = 0; i < kSums; ++i) sum[i] = fma(sum[i], a, b);
  Vec all = zero();
#pragma GCC unroll 24
  for (int i = 0; i < kSums; ++i) all = all + sum[i];
  *sink = sum_lanes(all);
  return iterations * kSums * kVec * 2;
}

}  // namespace

void describe_peak(CpuKernels* table) { table->peak = peak; }

}  // namespace convnet::cpu::CONVNET_ISA
