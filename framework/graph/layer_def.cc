#include "framework/graph/layer_def.h"

#include <algorithm>
#include <cmath>

#include "framework/model/model.pb.h"

namespace convnet {

const char* mode_name(Mode mode) {
  return schema::Parallel_Name(static_cast<schema::Parallel>(mode)).c_str();
}

std::vector<ShardRule> example_wise_rules() {
  return {
      // mode            x     y     sum   whole metric dy    dx    params dparams
      {Mode::kData, S(0), S(0), S(0), S(0), P(0), S(0), S(0), {R()}, {P(0)}},
      {Mode::kReplicate, R(), R(), R(), R(), R(), R(), R(), {R()}, {R()}},
  };
}

std::vector<ShardRule> channel_wise_rules() {
  std::vector<ShardRule> rules = example_wise_rules();
  rules.push_back({Mode::kModel, S(1), S(1), S(1), R(), R(), S(1), S(1), {S(0)}, {S(0)}});
  rules.push_back({Mode::kGroup, S(1), S(1), S(1), R(), R(), S(1), S(1), {S(0)}, {S(0)}});
  return rules;
}

std::vector<ShardRule> pixel_wise_rules() {
  std::vector<ShardRule> rules = channel_wise_rules();
  rules.push_back({Mode::kSpatial, S(2), S(2), S(2), S(2), P(2), S(2), S(2), {R()}, {P(2)}});
  rules.push_back({Mode::kColumns, S(3), S(3), S(3), S(3), P(3), S(3), S(3), {R()}, {P(3)}});
  return rules;
}

LayerBuilder::LayerBuilder(Graph& graph, int layer, const BoundModel& model,
                           Diagnostics& diagnostics)
    : graph_(graph), layer_(layer), model_(model), diagnostics_(diagnostics) {}

GraphLayer& LayerBuilder::layer() const { return graph_.layers[static_cast<size_t>(layer_)]; }

bool LayerBuilder::has_mode(Mode mode) const {
  return std::ranges::find(layer().modes, mode) != layer().modes.end();
}

Use LayerBuilder::x(int i) const {
  return Use{layer().inputs[static_cast<size_t>(i)], Role{RoleKind::kX, i}};
}

int64_t LayerBuilder::classes() const { return model_.model->input().label().classes(); }

Use LayerBuilder::add(std::string value_name, TensorKind kind, const Shape& shape, RoleKind role) {
  Value v;
  v.name = std::move(value_name);
  v.kind = kind;
  v.dtype = graph_.dtype;
  v.format = kind == TensorKind::kActivation ? Format::kBlocked : Format::kPlain;
  v.shape = shape;
  v.layer = layer_;
  return Use{graph_.add_value(std::move(v)), Role{role, 0}};
}

Use LayerBuilder::param(const char* suffix, const Shape& shape, bool is_bias, int64_t fan_in,
                        int64_t fan_out) {
  Use use = add(name() + "." + suffix, TensorKind::kParameter, shape, RoleKind::kParam);
  use.role.index = static_cast<int>(layer().params.size());
  layer().params.push_back(use.value);

  const schema::Layer& common = *layer().common;
  const schema::Init& init = is_bias ? common.bias_init() : common.init();
  const auto in = static_cast<double>(fan_in);
  const auto out = static_cast<double>(fan_out);
  Attrs attrs;
  const auto constant = [&](double value) { attrs.set("init", "constant").set("value", value); };
  const auto normal = [&](double std) {
    attrs.set("init", "normal").set("mean", 0.0).set("std", std);
  };
  const auto uniform = [&](double a) { attrs.set("init", "uniform").set("lo", -a).set("hi", a); };
  switch (init.kind_case()) {
    case schema::Init::kConstant:
      constant(init.constant());
      break;
    case schema::Init::kNormal:
      normal(init.normal());
      break;
    case schema::Init::kUniform:
      uniform(init.uniform());
      break;
    case schema::Init::kXavier:
      uniform(init.xavier() * std::sqrt(6.0 / (in + out)));
      break;
    case schema::Init::kKaiming:
      normal(init.kaiming() * std::sqrt(2.0 / in));
      break;
    case schema::Init::KIND_NOT_SET:
      is_bias ? constant(0) : normal(std::sqrt(2.0 / in));
      break;
  }
  const double decay = common.has_decay() ? common.decay() : model_.model->train().decay();
  Value& value = graph_.value(use.value);
  value.update.set("rate", is_bias ? common.bias_rate_factor() : common.rate_factor());
  value.update.set("decay", is_bias ? common.bias_decay() : decay * common.decay_factor());
  value.attrs = std::move(attrs);
  return use;
}

Use LayerBuilder::output(const Shape& shape) {
  const Use use = add(name(), TensorKind::kActivation, shape, RoleKind::kY);
  layer().output = use.value;
  return use;
}

Use LayerBuilder::output_sum(const Shape& shape) {
  const Use use = output(shape);
  return Use{use.value, Role{RoleKind::kSum, 0}};
}

Use LayerBuilder::sum(const char* suffix, const Shape& shape) {
  return add(name() + "." + suffix, TensorKind::kActivation, shape, RoleKind::kSum);
}

Use LayerBuilder::saved(const char* suffix, const Shape& shape) {
  const Use use = add(name() + "." + suffix, TensorKind::kActivation, shape, RoleKind::kY);
  layer().saved.emplace_back(suffix, use);
  return use;
}

Use LayerBuilder::metrics(const Attrs& attrs, int64_t count) {
  const Use use = add(name() + ".metrics", TensorKind::kMetric, Shape{count}, RoleKind::kMetric);
  graph_.value(use.value).dtype = DType::kF64;
  graph_.value(use.value).attrs = attrs;
  layer().saved.emplace_back("metrics", use);
  return use;
}

void LayerBuilder::pass_through() { layer().output = x(0).value; }

void LayerBuilder::emit(Op op, std::vector<Use> in, std::vector<Use> out, Attrs attrs) {
  Node node;
  node.op = op;
  node.in = std::move(in);
  node.out = std::move(out);
  node.attrs = std::move(attrs);
  node.layer = layer_;
  node.phase = NodePhase::kForward;
  graph_.add_node(std::move(node));
}

Span LayerBuilder::place(int field) const {
  if (field == 0) return layer().span;
  return model_.spans.value(*layer().attrs, field);
}

Diagnostic& LayerBuilder::error(int field, std::string message) {
  failed_ = true;
  return diagnostics_.error(place(field), std::move(message));
}

Diagnostic& LayerBuilder::error_common(int field, std::string message) {
  failed_ = true;
  return diagnostics_.error(model_.spans.value(*layer().common, field), std::move(message));
}

GradBuilder::GradBuilder(Graph& graph, int layer, Use dy, std::vector<bool> wanted)
    : graph_(graph),
      layer_(layer),
      dy_(dy),
      wanted_(std::move(wanted)),
      dx_(graph.layer(layer).inputs.size(), -1) {}

const Attrs& GradBuilder::forward_attrs() const {
  for (const Node& n : graph_.nodes)
    if (n.layer == layer_ && n.phase == NodePhase::kForward) return n.attrs;
  CHECK_MSG(false, "layer '" + layer().name + "' has no forward node");
  return graph_.nodes[0].attrs;
}

bool GradBuilder::has_mode(Mode mode) const {
  return std::ranges::find(layer().modes, mode) != layer().modes.end();
}

Use GradBuilder::x(int i) const {
  return Use{layer().inputs[static_cast<size_t>(i)], Role{RoleKind::kX, i}};
}

Use GradBuilder::y() const { return Use{layer().output, Role{RoleKind::kY, 0}}; }

Use GradBuilder::param(int i) const {
  return Use{layer().params[static_cast<size_t>(i)], Role{RoleKind::kParam, i}};
}

Use GradBuilder::saved(std::string_view suffix) const {
  for (const auto& [saved_name, use] : layer().saved)
    if (saved_name == suffix) return use;
  CHECK_MSG(false, "layer '" + layer().name + "' saved no '" + std::string(suffix) + "'");
  return {};
}

Use GradBuilder::new_dx(int i) {
  const Value& x_value = graph_.value(x(i).value);
  Value v;
  v.name = x_value.name + ".grad." + layer().name + (i ? "." + std::to_string(i) : "");
  v.dtype = graph_.dtype;
  v.format = Format::kBlocked;
  v.shape = x_value.shape;
  v.layer = layer_;
  return Use{graph_.add_value(std::move(v)), Role{RoleKind::kDX, i}};
}

Use GradBuilder::new_dparam(int i) {
  const Value& w = graph_.value(param(i).value);
  Value v;
  v.name = w.name + ".grad";
  v.kind = TensorKind::kGradient;
  v.gradient_of = param(i).value;
  v.dtype = graph_.dtype;
  v.shape = w.shape;
  v.layer = layer_;
  return Use{graph_.add_value(std::move(v)), Role{RoleKind::kDParam, i}};
}

Use GradBuilder::new_dy(const char* suffix) {
  Value v;
  v.name = layer().name + ".grad." + suffix;
  v.dtype = graph_.dtype;
  v.format = Format::kBlocked;
  v.shape = graph_.value(layer().output).shape;
  v.layer = layer_;
  return Use{graph_.add_value(std::move(v)), Role{RoleKind::kDY, 0}};
}

void GradBuilder::emit(Op op, std::vector<Use> in, std::vector<Use> out, Attrs attrs) {
  Node node;
  node.op = op;
  node.in = std::move(in);
  node.out = std::move(out);
  node.attrs = std::move(attrs);
  node.layer = layer_;
  node.phase = NodePhase::kBackward;
  graph_.add_node(std::move(node));
}

void GradBuilder::set_dx(int i, Use value) { dx_[static_cast<size_t>(i)] = value.value; }

}  // namespace convnet
