#include <algorithm>
#include <numeric>

#include "framework/compiler/passes.h"
#include "framework/model/model.pb.h"

namespace convnet {
namespace {

using L = schema::Layer;

bool check_devices(const GraphLayer& layer, const Graph& graph, const BoundModel& model,
                   Diagnostics& diagnostics) {
  const auto& devices = layer.common->devices();
  for (int i = 0; i < devices.size(); ++i) {
    const Span span = model.spans.value(*layer.common, L::kDevicesFieldNumber, i);
    const auto d = static_cast<int64_t>(devices[i]);
    if (d >= graph.devices) {
      diagnostics.error(
          span,
          "layer '" + layer.name + "' names device " + std::to_string(d) + ", but there " +
              (graph.devices == 1 ? "is only device 0"
                                  : "are only devices 0 to " + std::to_string(graph.devices - 1)));
      return false;
    }
    for (int k = 0; k < i; ++k)
      if (devices[k] == devices[i]) {
        diagnostics.error(
            span, "layer '" + layer.name + "' names device " + std::to_string(d) + " twice");
        return false;
      }
  }
  return true;
}

}  // namespace

bool place(Graph& graph, const BoundModel& model, Diagnostics& diagnostics) {
  const int errors_before = diagnostics.errors();
  const auto blocks = static_cast<int>((graph.batch + kLanes - 1) / kLanes);
  bool warned = false;
  for (GraphLayer& layer : graph.layers) {
    if (!check_devices(layer, graph, model, diagnostics)) continue;
    std::vector<int> devices(layer.common->devices().begin(), layer.common->devices().end());
    if (devices.empty()) devices = graph.all_devices().devices;
    const Mode mode = static_cast<Mode>(layer.common->parallel());
    for (const ShardRule& rule : layer.def->rules)
      if (rule.mode == mode) layer.rule = &rule;
    if (layer.rule == nullptr) {
      diagnostics.error(
          model.spans.value(*layer.common, L::kParallelFieldNumber),
          layer.type + " '" + layer.name + "' cannot be parallelised as '" + mode_name(mode) + "'");
      continue;
    }
    // A block of sixteen examples is the smallest share of a batch; further devices stay out of it.
    if (mode == Mode::kData && static_cast<int>(devices.size()) > blocks) {
      if (!warned) {
        warned = true;
        diagnostics.warning(model.spans.value(*model.model, schema::Model::kBatchFieldNumber),
                            "a batch of " + std::to_string(graph.batch) + " is " +
                                std::to_string(blocks) + (blocks == 1 ? " block" : " blocks") +
                                " of 16 examples, so only " + std::to_string(blocks) + " of " +
                                std::to_string(devices.size()) + " devices have work");
      }
      devices.resize(static_cast<size_t>(blocks));
    }
    layer.mesh = Mesh::line(std::move(devices));
  }
  return diagnostics.errors() == errors_before;
}

}  // namespace convnet
