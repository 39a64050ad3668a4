// What the parts of the verifier share: the list of faults, and how they name things.
#pragma once

#include <string>
#include <vector>

#include "framework/plan/verify_plan.h"

namespace convnet {

class Faults {
 public:
  explicit Faults(const Plan& plan) : plan_(plan) {}

  void in_plan(const char* rule, std::string message);
  void in_layer(int layer, const char* rule, std::string message);
  void in_device(int device, const char* rule, std::string message);
  // Names the instruction's layer.
  void in_instr(int device, int instr, const char* rule, std::string message);
  // Names the exchange's layer; the message begins with "exchange ID (edge) ".
  void in_exchange(int id, const char* rule, const std::string& message);

  size_t count() const { return all_.size(); }
  std::vector<PlanFault> take() { return std::move(all_); }

 private:
  std::string layer_name(int layer) const;
  const Plan& plan_;
  std::vector<PlanFault> all_;
};

// The parts of a device plan, by index; the plan's structure has been checked.
inline const Buffer& buffer_of(const DevicePlan& device, const Operand& operand) {
  return device.buffers[static_cast<size_t>(operand.buffer)];
}
inline const Tensor& tensor_of(const Plan& plan, const DevicePlan& device, const Operand& operand) {
  return plan.tensors[static_cast<size_t>(buffer_of(device, operand).tensor)];
}

// Boundaries of the canonical shards of a number of channels, rows, columns or classes: the largest
// power of two of shards, at most 8 and at most `extent`. (The batch's are in the plan.)
std::vector<int64_t> expected_shards(int64_t extent);
// The same of a batch of `examples`, in whole blocks: those of a sub-batch.
std::vector<int64_t> expected_batch_shards(int64_t examples);

// "'%conv1.w[0:10,0:1]'".
std::string operand_name(const DevicePlan& device, const Operand& operand);

// The checks. check_structure makes all indices, counts and sizes safe to use for the others; the
// last three rely on check_geometry and check_exchanges as well.
void check_structure(const Plan& plan, Faults& faults);
void check_geometry(const Plan& plan, Faults& faults);
void check_memory(const Plan& plan, Faults& faults);
void check_exchanges(const Plan& plan, Faults& faults);
// False: the events or buckets make no order of the instructions that check_memory could follow.
bool check_streams(const Plan& plan, Faults& faults);
void check_sums(const Plan& plan, Faults& faults);
void check_program(const Plan& plan, Faults& faults);

// Attributes of one instruction against the list of its operation (attributes.cc).
void check_attrs(const Plan& plan, int device, int instr, Faults& faults);

}  // namespace convnet
