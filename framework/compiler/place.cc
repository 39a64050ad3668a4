#include <algorithm>
#include <cmath>
#include <numeric>

#include "framework/compiler/passes.h"
#include "framework/model/model.pb.h"

namespace convnet {
namespace {

using L = schema::Layer;

// "1 row", "2 rows".
std::string count_of(int64_t n, const std::string& what) {
  return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

class Placer {
 public:
  Placer(Graph& graph, const BoundModel& model, Diagnostics& diagnostics)
      : g_(graph), model_(model), diagnostics_(diagnostics) {}

  bool run() {
    const int errors_before = diagnostics_.errors();
    for (GraphLayer& layer : g_.layers) {
      if (find_mesh(layer) && find_rules(layer)) leave_idle(layer);
      find_wire(layer);
    }
    return diagnostics_.errors() == errors_before;
  }

 private:
  Span place(const GraphLayer& layer, int field) const {
    return model_.spans.has(*layer.common, field) ? model_.spans.value(*layer.common, field)
                                                  : layer.span;
  }

  bool check_devices(const GraphLayer& layer) {
    const auto& devices = layer.common->devices();
    for (int i = 0; i < devices.size(); ++i) {
      const Span span = model_.spans.value(*layer.common, L::kDevicesFieldNumber, i);
      const auto d = static_cast<int64_t>(devices[i]);
      if (d >= g_.devices) {
        diagnostics_.error(
            span,
            "layer '" + layer.name + "' names device " + std::to_string(d) + ", but there " +
                (g_.devices == 1 ? "is only device 0"
                                 : "are only devices 0 to " + std::to_string(g_.devices - 1)));
        return false;
      }
      for (int k = 0; k < i; ++k)
        if (devices[k] == devices[i]) {
          diagnostics_.error(
              span, "layer '" + layer.name + "' names device " + std::to_string(d) + " twice");
          return false;
        }
    }
    return true;
  }

  // The devices and their arrangement, one axis a mode.
  bool find_mesh(GraphLayer& layer) {
    if (!check_devices(layer)) return false;
    Mesh& mesh = layer.mesh;
    mesh.devices.assign(layer.common->devices().begin(), layer.common->devices().end());
    if (mesh.devices.empty()) return default_mesh(layer);
    const int count = mesh.size();
    const int rows =
        layer.common->has_device_rows() ? static_cast<int>(layer.common->device_rows()) : 1;
    if (count % rows != 0) {
      diagnostics_.error(place(layer, L::kDeviceRowsFieldNumber),
                         "layer '" + layer.name + "' has " + count_of(count, "device") +
                             ", which make no " + count_of(rows, "row"));
      return false;
    }
    const bool two_axes = layer.common->has_device_rows();
    if (two_axes && layer.modes == std::vector<Mode>{Mode::kSpatial})
      layer.modes.push_back(Mode::kColumns);
    if (two_axes && layer.modes.size() == 1) {
      diagnostics_
          .error(place(layer, L::kParallelFieldNumber),
                 "the devices of layer '" + layer.name + "' are " + count_of(rows, "row") + " of " +
                     std::to_string(count / rows) + ", but 'parallel' gives 1 mode")
          .help = "give two, the first for the rows: parallel: [data, model]";
      return false;
    }
    if (!two_axes && layer.modes.size() == 2 && count > 1) {
      diagnostics_
          .error(place(layer, L::kDevicesFieldNumber),
                 "layer '" + layer.name + "' has 2 modes, but its " + count_of(count, "device") +
                     " are one list")
          .help = "give them in rows, as [[0, 1], [2, 3]]: the first mode splits over the rows";
      return false;
    }
    mesh.extents = {count};
    if (layer.modes.size() == 2) mesh.extents = {rows, count / rows};
    return true;
  }

  // Where its first input is, or all devices: with two modes as square as they can be.
  bool default_mesh(GraphLayer& layer) {
    const int producer = g_.value(layer.inputs[0]).layer;
    if (layer.def->follows_input && producer >= 0) {
      const GraphLayer& source = g_.layer(producer);
      if (source.mesh.devices.empty()) return false;  // its mistake has been reported
      if (source.mesh.extents.size() == layer.modes.size()) {
        layer.mesh = source.mesh;
        return true;
      }
      layer.mesh.devices = source.mesh.devices;
    } else {
      layer.mesh = g_.all_devices();
    }
    const int count = layer.mesh.size();
    layer.mesh.extents = {count};
    if (layer.modes.size() == 2) {
      int rows = static_cast<int>(std::ceil(std::sqrt(count)));
      while (count % rows != 0) ++rows;
      layer.mesh.extents = {rows, count / rows};
    }
    return true;
  }

  bool find_rules(GraphLayer& layer) {
    layer.rules.clear();
    for (const Mode mode : layer.modes) {
      const auto rule = std::ranges::find_if(layer.def->rules,
                                             [&](const ShardRule& r) { return r.mode == mode; });
      const auto refused = layer.refused.find(mode);
      if (rule == layer.def->rules.end() || refused != layer.refused.end()) {
        std::string modes;
        for (const ShardRule& r : layer.def->rules)
          if (!layer.refused.contains(r.mode))
            modes += (modes.empty() ? "" : ", ") + std::string(mode_name(r.mode));
        Diagnostic& d = diagnostics_.error(
            place(layer, L::kParallelFieldNumber),
            layer.type + " '" + layer.name + "' cannot be parallelised as '" + mode_name(mode) +
                "'" + (refused != layer.refused.end() ? ": " + refused->second : ""));
        d.help = "it can be: " + modes;
        layer.rules.clear();
        return false;
      }
      layer.rules.push_back(&*rule);
    }
    return layer.rules.size() < 2 || check_combination(layer);
  }

  // Two axes must not cut the same dimension of a tensor, nor make sums of the same terms.
  bool check_combination(const GraphLayer& layer) {
    const ShardRule &a = *layer.rules[0], &b = *layer.rules[1];
    const auto clash = [](const DimState& s, const DimState& t) {
      return s.kind != AxisState::Kind::kReplicated && s.kind == t.kind && s.dim == t.dim;
    };
    bool bad = clash(a.x, b.x) || clash(a.y, b.y) || clash(a.sum, b.sum) || clash(a.dx, b.dx) ||
               clash(a.whole, b.whole);
    const auto state = [](const std::vector<DimState>& states, size_t i) {
      return states[std::min(i, states.size() - 1)];
    };
    for (size_t i = 0; i < layer.params.size(); ++i)
      bad |= clash(state(a.params, i), state(b.params, i)) ||
             clash(state(a.dparams, i), state(b.dparams, i));
    if (!bad) return true;
    diagnostics_.error(place(layer, L::kParallelFieldNumber),
                       layer.type + " '" + layer.name + "' cannot be parallelised as '" +
                           mode_name(a.mode) + "' and '" + mode_name(b.mode) +
                           "' together: both cut the same dimension");
    return false;
  }

  void find_wire(GraphLayer& layer) {
    layer.wire = parse_wire(schema::Wire_Name(layer.common->wire())).value();
    if (layer.wire != Wire::kOnebit) return;
    const Span span = place(layer, L::kWireFieldNumber);
    // A default is a mistake of all layers that have it, in one place.
    if (std::ranges::any_of(diagnostics_.all(), [&](const Diagnostic& d) {
          return d.span.source == span.source && d.span.begin == span.begin;
        }))
      return;
    diagnostics_
        .error(span,
               "layer '" + layer.name +
                   "' has wire: onebit, which needs what it leaves out of a step in the next one; "
                   "this version does not keep it")
        .help = "8 bits an element are there: wire: u8tree";
  }

  // Devices beyond what there is to deal out stay out of the layer.
  void leave_idle(GraphLayer& layer) {
    Mesh& mesh = layer.mesh;
    for (size_t a = 0; a < mesh.extents.size(); ++a) {
      const auto [units, what] = units_of(layer, layer.rules[a]->mode);
      if (units < 0 || mesh.extents[a] <= units) continue;
      warn(layer, layer.rules[a]->mode, units, what, mesh.extents[a]);
      mesh.keep(a, static_cast<int>(units));
    }
  }

  void warn(const GraphLayer& layer, Mode mode, int64_t units, const std::string& what,
            int devices) {
    const std::string work =
        "so only " + std::to_string(units) + " of " + count_of(devices, "device") + " have work";
    if (mode != Mode::kData) {
      diagnostics_.warning(place(layer, L::kParallelFieldNumber),
                           "'" + layer.name + "' has " + count_of(units, what) + ", " + work);
      return;
    }
    if (warned_of_batch_) return;
    warned_of_batch_ = true;
    diagnostics_.warning(model_.spans.value(*model_.model, schema::Model::kBatchFieldNumber),
                         "a batch of " + std::to_string(g_.batch) + " is " +
                             count_of(units, "block") + " of 16 examples, " + work);
  }

  // How many pieces there can be along this axis at most; -1: any number.
  std::pair<int64_t, std::string> units_of(const GraphLayer& layer, Mode mode) const {
    switch (mode) {
      case Mode::kData:  // a block of sixteen examples is the smallest share of a batch
        return {(g_.batch + kLanes - 1) / kLanes, "block"};
      case Mode::kReplicate:
        return {-1, ""};
      case Mode::kModel:
      case Mode::kModelIn:
      case Mode::kGroup: {
        const char* what = mode == Mode::kGroup     ? "group"
                           : mode == Mode::kModelIn ? "input channel"
                           : !layer.params.empty()  ? "output"
                           : layer.output < 0       ? "class shard"
                                                    : "channel";
        if (const auto units = layer.units.find(mode); units != layer.units.end())
          return {units->second, what};
        const bool in = mode == Mode::kModelIn || layer.output < 0;
        return {g_.value(in ? layer.inputs[0] : layer.output).shape[1], what};
      }
      case Mode::kSpatial:
      case Mode::kColumns: {
        const int dim = mode == Mode::kSpatial ? 2 : 3;
        int64_t units = g_.value(layer.output).shape[dim];
        for (int input : layer.inputs) units = std::min(units, g_.value(input).shape[dim]);
        return {units, mode == Mode::kSpatial ? "row" : "column"};
      }
    }
    return {-1, ""};
  }

  Graph& g_;
  const BoundModel& model_;
  Diagnostics& diagnostics_;
  bool warned_of_batch_ = false;
};

}  // namespace

bool place(Graph& graph, const BoundModel& model, Diagnostics& diagnostics) {
  return Placer(graph, model, diagnostics).run();
}

}  // namespace convnet
