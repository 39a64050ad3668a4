#include "framework/plan/verify/faults.h"

#include <fmt/format.h>

#include <algorithm>
namespace convnet {

std::string PlanFault::str() const {
  std::string place;
  if (device >= 0) place += fmt::format("device {}, ", device);
  if (instr >= 0) place += fmt::format("instruction {}, ", instr);
  if (!layer.empty()) place += fmt::format("layer '{}', ", layer);
  if (place.empty()) return rule + ": " + message;
  place.resize(place.size() - 2);
  return fmt::format("{}: {}: {}", place, rule, message);
}

std::string Faults::layer_name(int layer) const {
  const auto i = static_cast<size_t>(layer);
  return layer >= 0 && i < plan_.layers.size() ? plan_.layers[i].name : "";
}

void Faults::in_plan(const char* rule, std::string message) {
  all_.push_back({-1, -1, "", rule, std::move(message)});
}

void Faults::in_layer(int layer, const char* rule, std::string message) {
  all_.push_back({-1, -1, layer_name(layer), rule, std::move(message)});
}

void Faults::in_device(int device, const char* rule, std::string message) {
  all_.push_back({device, -1, "", rule, std::move(message)});
}

void Faults::in_instr(int device, int instr, const char* rule, std::string message) {
  const Instr& i = plan_.devices[static_cast<size_t>(device)].instrs[static_cast<size_t>(instr)];
  all_.push_back({device, instr, layer_name(i.layer), rule,
                  std::string(op_info(i.op).text) + ": " + std::move(message)});
}

void Faults::in_exchange(int id, const char* rule, const std::string& message) {
  const Exchange& e = plan_.exchanges[static_cast<size_t>(id)];
  all_.push_back(
      {-1, -1, layer_name(e.layer), rule, fmt::format("exchange {} ({}) {}", id, e.edge, message)});
}

std::vector<int64_t> expected_shards(int64_t extent) {
  int64_t count = 8;
  while (count > extent) count /= 2;
  std::vector<int64_t> bounds;
  for (int64_t i = 0; i <= count; ++i) bounds.push_back(extent * i / count);
  return bounds;
}

std::vector<int64_t> expected_batch_shards(int64_t examples) {
  std::vector<int64_t> bounds = expected_shards((examples + kLanes - 1) / kLanes);
  for (int64_t& b : bounds) b = std::min(examples, b * kLanes);
  return bounds;
}

std::string operand_name(const DevicePlan& device, const Operand& operand) {
  const Buffer& b = buffer_of(device, operand);
  return "'%" + b.name + (operand.box == b.part.box ? "" : operand.box.str()) + "'";
}

}  // namespace convnet
