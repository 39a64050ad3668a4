#include "framework/comm/codecs/kernels.h"

namespace convnet::codecs {

const Kernels* const* available_kernels(int* count) {
  static const Kernels* const kAll[] = {&kernels_avx512, &kernels_avx2, &kernels_base};
  const int first = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw")
                        ? 0
                    : __builtin_cpu_supports("avx2") ? 1
                                                     : 2;
  *count = 3 - first;
  return kAll + first;
}

}  // namespace convnet::codecs
