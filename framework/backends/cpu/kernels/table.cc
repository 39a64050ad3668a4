#include "framework/backends/cpu/kernels/table.h"

namespace convnet::cpu {
namespace CONVNET_ISA {
namespace {

CpuKernels make_table() {
  CpuKernels table;
  describe_mac(&table);
  describe_weight_gradient(&table);
  describe_pool(&table);
  describe_normalise(&table);
  describe_elementwise(&table);
  describe_softmax(&table);
  describe_peak(&table);
  return table;
}

}  // namespace
}  // namespace CONVNET_ISA

// Called only on a machine that has the instruction set.
const CpuKernels& CONVNET_KERNELS() {
  static const CpuKernels table = CONVNET_ISA::make_table();
  return table;
}

}  // namespace convnet::cpu
