// The cpu backend: every plan operation in float, vectorised over the sixteen samples of a block
// and run by a team of threads. Results are the same bits for both instruction sets and any number
// of threads.
#pragma once

#include <memory>

#include "framework/backends/backend.h"

namespace convnet {

enum class CpuIsa { kAvx2, kAvx512 };

// "avx2", "avx512".
const char* cpu_isa_name(CpuIsa isa);

// Whether this machine (processor and operating system) has it.
bool cpu_supports(CpuIsa isa);

// The best one that this machine has. CHECKs that it has any: AVX2 with FMA is needed.
CpuIsa best_cpu_isa();

// REQUIRES: cpu_supports(isa). bind() returns kLimit for what it has no kernel for: float64, and
// examples that are not whole blocks; the reference backend has them all.
std::unique_ptr<Backend> make_cpu_backend(CpuIsa isa);

// The multiply-add peak of one core, GFLOP/s, measured now for about `seconds`.
double measure_cpu_peak(CpuIsa isa, double seconds);

}  // namespace convnet
