// The kernel files of one instruction set, as seen from its table.
#pragma once

#include "framework/backends/cpu/kernels.h"

namespace convnet::cpu::CONVNET_ISA {

// Each fills in the entries that its file defines.
void describe_mac(CpuKernels* table);
void describe_weight_gradient(CpuKernels* table);
void describe_pool(CpuKernels* table);
void describe_normalise(CpuKernels* table);
void describe_elementwise(CpuKernels* table);
void describe_softmax(CpuKernels* table);
void describe_peak(CpuKernels* table);

}  // namespace convnet::cpu::CONVNET_ISA
