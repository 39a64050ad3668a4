#include "framework/graph/layer_def.h"
#include "layers/fc.pb.h"
#include "layers/product.h"

namespace convnet {
namespace {

using A = schema::Fc;

void build(LayerBuilder& b) {
  const A& a = b.attrs<A>();
  const Shape x = b.x_shape(0);
  const auto features = Shape{x[1], x[2], x[3]}.checked_count();
  const int64_t outputs = a.outputs();
  CHECK(features.has_value());  // a smaller product than the input's own size
  // The columns of the weights go with the channels of the input.
  b.set_units(Mode::kModelIn, x[1]);
  const Use w = b.param("w", Shape{outputs, *features}, false, *features, outputs);
  emit_product(b, Op::kFcFwd, w, Shape{x[0], outputs, 1, 1}, a.bias(), a.act(), *features, outputs,
               Attrs());
}

void grad(GradBuilder& g) {
  const A& a = g.attrs<A>();
  emit_product_gradients(g, Op::kFcBwdWeight, Op::kFcBwdData, a.bias(), a.act(), Attrs());
}

}  // namespace

extern const LayerDef kFcLayer;
const LayerDef kFcLayer = {
    .type = "fc",
    .build = build,
    .grad = grad,
    .rules = product_rules(),
    .samples =
        {
            {{Shape{3, 4, 5}}, "outputs: 7"},
            {{Shape{11, 1, 1}}, "outputs: 9, act: tanh, bias: false"},
            {{Shape{5, 2, 1}}, "outputs: 1, act: sigmoid"},
        },
    .illegal = {"outputs: 0"},
};

}  // namespace convnet
