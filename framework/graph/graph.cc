#include "framework/graph/graph.h"

#include "framework/base/exact_math.h"

#include <numeric>

namespace convnet {

double Graph::Scaling::rate_factor(int64_t examples) const {
  if (batch == 0) return 1;
  return exact_pow(static_cast<double>(examples) / static_cast<double>(batch), rate_power);
}

// One step at rate' = factor * rate shrinks weights as k steps at `rate` do:
// 1 - rate' decay' = (1 - rate decay)^k.
double Graph::Scaling::decay(double decay, double rate, int64_t examples) const {
  const double each = base_rate * rate;
  if (batch == 0 || !adjust_decay || each == 0 || decay == 0) return decay;
  const double k = static_cast<double>(examples) / static_cast<double>(batch);
  return (1 - exact_pow(1 - each * decay, k)) / (each * rate_factor(examples));
}

int Graph::add_value(Value value) {
  CHECK_MSG(names_.insert(value.name).second, "two values named '" + value.name + "'");
  const int id = static_cast<int>(values.size());
  if (value.tensor < 0) value.tensor = id;
  if (value.memory < 0) value.memory = id;
  values.push_back(std::move(value));
  return id;
}

int Graph::add_node(Node node) {
  const int id = static_cast<int>(nodes.size());
  for (const Use& use : node.out) value(use.value).producer = id;
  nodes.push_back(std::move(node));
  return id;
}

void Graph::renumber() {
  for (Value& v : values) v.producer = -1;
  for (size_t i = 0; i < nodes.size(); ++i)
    for (const Use& use : nodes[i].out) value(use.value).producer = static_cast<int>(i);
}

Mesh Graph::all_devices() const {
  std::vector<int> ids(static_cast<size_t>(devices));
  std::iota(ids.begin(), ids.end(), 0);
  return Mesh::line(std::move(ids));
}

}  // namespace convnet
