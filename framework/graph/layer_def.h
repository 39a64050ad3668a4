// LayerDef: everything the program knows of a layer type. A layer checks its attributes and shapes,
// emits the operations of its forward and backward pass on whole logical tensors, and states in
// table rows how each operand may be split. It never sees a device, a box or a communication.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "framework/base/diagnostics.h"
#include "framework/graph/graph.h"
#include "framework/model/binder.h"

namespace convnet {

// Along one axis of a layer's mesh.
struct DimState {
  AxisState::Kind kind = AxisState::Kind::kReplicated;
  int dim = 0;  // kSplit: of the tensor; kPartial: what is summed, as AxisState::over
};
constexpr DimState R() { return {AxisState::Kind::kReplicated, 0}; }
constexpr DimState S(int dim) { return {AxisState::Kind::kSplit, dim}; }
constexpr DimState P(int over) { return {AxisState::Kind::kPartial, over}; }

// One row: what the layer needs and makes in one mode. An operation whose
// result is a partial sum takes that sum by canonical shards.
struct ShardRule {
  Mode mode;
  DimState x, y, sum, whole, metric, dy, dx;
  std::vector<DimState> params,
      dparams;  // in the order of declaration; the last one counts for more
};

// Rows of layers without parameters: `data` and `replicate`; those too whose channels do not see
// each other's parameters (`model` and `group` split channels); those too that work on images
// (`spatial`, `columns`).
std::vector<ShardRule> example_wise_rules();
std::vector<ShardRule> channel_wise_rules();
std::vector<ShardRule> pixel_wise_rules();

// A small case of the layer for the conformance tests: its attributes as YAML, and its inputs'
// shapes.
struct LayerSample {
  std::vector<Shape> inputs;  // [C, H, W]
  std::string attributes;     // "filters: 6, kernel: 3"
};

class LayerBuilder;
class GradBuilder;

struct LayerDef {
  std::string_view type;
  int min_inputs = 1;
  int max_inputs = 1;        // -1: any number
  bool takes_label = false;  // its last input is the label
  // Without parameters of its own it goes where its first input is, split in the same way, unless
  // the file says otherwise.
  bool follows_input = false;
  void (*build)(LayerBuilder& b) = nullptr;
  void (*grad)(GradBuilder& g) = nullptr;
  std::vector<ShardRule> rules;
  std::vector<LayerSample> samples;
  // Attributes, as YAML, that the layer must refuse for its first sample's inputs.
  std::vector<std::string> illegal;
};

// What build() works with. After error() the layer counts as failed and what depends on it is
// silent.
class LayerBuilder {
 public:
  LayerBuilder(Graph& graph, int layer, const BoundModel& model, Diagnostics& diagnostics);

  template <typename M>
  const M& attrs() const {
    return static_cast<const M&>(*layer().attrs);
  }
  bool training() const { return graph_.phase == Plan::Phase::kTrain; }
  int64_t batch() const { return graph_.batch; }
  // Whether the layer is split like this along some axis of its mesh.
  bool has_mode(Mode mode) const;
  // In this mode so many units are dealt out to the devices.
  void set_units(Mode mode, int64_t count) { layer().units[mode] = count; }
  // The layer cannot be split like this: "it has 1 group".
  void refuse(Mode mode, std::string why) { layer().refused[mode] = std::move(why); }
  int inputs() const { return static_cast<int>(layer().inputs.size()); }
  Use x(int i) const;
  Use whole(Use use) const { return Use{use.value, Role{RoleKind::kWhole, 0}}; }
  // [N, C, H, W]; a label is [N]. By value: values move when new ones are declared.
  Shape x_shape(int i) const { return graph_.value(x(i).value).shape; }
  std::string x_name(int i) const { return graph_.value(x(i).value).name; }
  int64_t classes() const;  // of the model's label
  const std::string& name() const { return layer().name; }

  // Declares a parameter NAME.suffix. Its first values come from the model file's init (bias_init
  // for a bias), with these fans.
  Use param(const char* suffix, const Shape& shape, bool is_bias, int64_t fan_in, int64_t fan_out);
  // The layer's output, named as the layer; or with a suffix a value saved for the backward pass.
  Use output(const Shape& shape);
  // The output, or a value on the way to it, of which devices may hold partial sums.
  Use output_sum(const Shape& shape);
  Use sum(const char* suffix, const Shape& shape);
  Use saved(const char* suffix, const Shape& shape);
  Use metrics(const Attrs& attrs, int64_t count);
  // The layer does nothing in this phase: its output is its input.
  void pass_through();

  void emit(Op op, std::vector<Use> in, std::vector<Use> out, Attrs attrs = {});

  // A mistake in the attribute of this field number (of the layer's own message, or with `common`
  // of schema::Layer), or in the layer as a whole (field 0).
  Diagnostic& error(int field, std::string message);
  Diagnostic& error_common(int field, std::string message);
  Span place(int field) const;
  bool failed() const { return failed_; }

 private:
  GraphLayer& layer() const;
  Use add(std::string name, TensorKind kind, const Shape& shape, RoleKind role);

  Graph& graph_;
  int layer_;
  const BoundModel& model_;
  Diagnostics& diagnostics_;
  bool failed_ = false;
};

// What grad() works with: the layer as it was built, the gradient of its output, and where to put
// the gradients of inputs and parameters.
class GradBuilder {
 public:
  GradBuilder(Graph& graph, int layer, Use dy, std::vector<bool> wanted);

  template <typename M>
  const M& attrs() const {
    return static_cast<const M&>(*layer().attrs);
  }
  const Attrs& forward_attrs() const;  // of the layer's first forward node
  int64_t batch() const { return graph_.batch; }
  bool has_mode(Mode mode) const;
  int inputs() const { return static_cast<int>(layer().inputs.size()); }
  Use x(int i) const;
  Use y() const;
  Use whole(Use use) const { return Use{use.value, Role{RoleKind::kWhole, 0}}; }
  Use param(int i) const;
  int params() const { return static_cast<int>(layer().params.size()); }
  Use saved(std::string_view suffix) const;
  Use dy() const { return dy_; }  // value -1 for a loss
  bool wants(int input) const { return wanted_[static_cast<size_t>(input)]; }

  // New values: gradient of input i, of parameter i, and a gradient on the way (shape of y).
  Use new_dx(int i);
  Use new_dparam(int i);
  Use new_dy(const char* suffix);

  void emit(Op op, std::vector<Use> in, std::vector<Use> out, Attrs attrs = {});
  // The gradient of input i is this value (new_dx, or dy itself where the layer passes it on).
  void set_dx(int i, Use value);

  // Per input, the value set, or -1.
  const std::vector<int>& dx() const { return dx_; }

 private:
  const GraphLayer& layer() const { return graph_.layer(layer_); }
  Graph& graph_;
  int layer_;
  Use dy_;
  std::vector<bool> wanted_;
  std::vector<int> dx_;
};

// The forward graph of a model file: resolves inputs, orders layers, checks and builds each. False
// if there were mistakes (all of them in `diagnostics`).
bool build_graph(const BoundModel& model, std::span<const LayerDef* const> layers,
                 Plan::Phase phase, DType dtype, int devices, Graph& graph,
                 Diagnostics& diagnostics);

}  // namespace convnet
