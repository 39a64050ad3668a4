#include "layers/product.h"

namespace convnet {

void emit_product(LayerBuilder& b, Op op, Use w, const Shape& y, bool bias, schema::Act act,
                  int64_t fan_in, int64_t fan_out, Attrs attrs) {
  std::vector<Use> in{b.x(0), w};
  std::vector<Use> biases;
  if (bias) biases.push_back(b.param("b", Shape{y[1]}, true, fan_in, fan_out));
  const std::string act_name = schema::Act_Name(act);
  if (!b.has_mode(Mode::kModelIn)) {
    in.insert(in.end(), biases.begin(), biases.end());
    b.emit(op, in, {b.output(y)}, attrs.set("act", act_name));
    return;
  }
  attrs.set("act", schema::Act_Name(schema::none));
  if (!bias && act == schema::none) {
    b.emit(op, in, {b.output_sum(y)}, attrs);
    return;
  }
  const Use z = b.sum("sum", y);
  b.emit(op, in, {z}, attrs);
  std::vector<Use> rest{Use{z.value, Role{RoleKind::kY, 0}}};
  rest.insert(rest.end(), biases.begin(), biases.end());
  if (bias)
    b.emit(Op::kBiasFwd, rest, {b.output(y)}, Attrs().set("act", act_name));
  else
    b.emit(Op::kActFwd, rest, {b.output(y)}, Attrs().set("act", act_name));
}

void emit_product_gradients(GradBuilder& g, Op weight, Op data, bool bias, schema::Act act,
                            const Attrs& geometry) {
  Use dz = g.dy();
  if (act != schema::none) {
    dz = g.new_dy("act");
    g.emit(Op::kActBwd, {g.y(), g.dy()}, {dz}, Attrs().set("act", schema::Act_Name(act)));
  }
  Attrs sum = geometry;
  sum.set("cuts", std::vector<int64_t>{});
  std::vector<Use> gradients{g.new_dparam(0)};
  if (bias && g.has_mode(Mode::kModelIn))
    g.emit(Op::kBiasBwd, {dz}, {g.new_dparam(1)}, Attrs().set("cuts", std::vector<int64_t>{}));
  else if (bias)
    gradients.push_back(g.new_dparam(1));
  g.emit(weight, {g.x(0), dz}, gradients, sum);
  if (!g.wants(0)) return;
  const Use dx = g.new_dx(0);
  g.emit(data, {dz, g.param(0)}, {dx}, geometry);
  g.set_dx(0, dx);
}

std::vector<ShardRule> product_rules() {
  std::vector<ShardRule> rules = example_wise_rules();
  // mode               x     y     sum   whole metric dy    dx    params dparams
  rules.push_back({Mode::kModel, R(), S(1), S(1), R(), R(), S(1), P(1), {S(0)}, {S(0)}});
  rules.push_back({Mode::kModelIn, S(1), R(), P(1), R(), R(), R(), S(1), {S(1), R()}, {S(1), R()}});
  return rules;
}

}  // namespace convnet
