#include "framework/graph/layer_def.h"
#include "layers/fc.pb.h"

namespace convnet {
namespace {

using A = schema::Fc;

void build(LayerBuilder& b) {
  const A& a = b.attrs<A>();
  const Shape x = b.x_shape(0);
  const auto features = Shape{x[1], x[2], x[3]}.checked_count();
  const int64_t outputs = a.outputs();
  CHECK(features.has_value());  // a smaller product than the input's own size
  std::vector<Use> in{b.x(0), b.param("w", Shape{outputs, *features}, false, *features, outputs)};
  if (a.bias()) in.push_back(b.param("b", Shape{outputs}, true, *features, outputs));
  b.emit(Op::kFcFwd, in, {b.output(Shape{x[0], outputs, 1, 1})},
         Attrs().set("act", schema::Act_Name(a.act())));
}

void grad(GradBuilder& g) {
  const A& a = g.attrs<A>();
  Use dz = g.dy();
  if (a.act() != schema::none) {
    dz = g.new_dy("act");
    g.emit(Op::kActBwd, {g.y(), g.dy()}, {dz}, Attrs().set("act", schema::Act_Name(a.act())));
  }
  std::vector<Use> gradients{g.new_dparam(0)};
  if (a.bias()) gradients.push_back(g.new_dparam(1));
  g.emit(Op::kFcBwdWeight, {g.x(0), dz}, gradients, Attrs().set("cuts", std::vector<int64_t>{}));
  if (!g.wants(0)) return;
  const Use dx = g.new_dx(0);
  g.emit(Op::kFcBwdData, {dz, g.param(0)}, {dx});
  g.set_dx(0, dx);
}

}  // namespace

extern const LayerDef kFcLayer;
const LayerDef kFcLayer = {
    .type = "fc",
    .build = build,
    .grad = grad,
    .rules = example_wise_rules(),
    .samples =
        {
            {{Shape{3, 4, 5}}, "outputs: 7"},
            {{Shape{11, 1, 1}}, "outputs: 9, act: tanh, bias: false"},
            {{Shape{5, 2, 1}}, "outputs: 1, act: sigmoid"},
        },
    .illegal = {"outputs: 0"},
};

}  // namespace convnet
