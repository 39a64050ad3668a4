#include "framework/graph/layer_def.h"
#include "layers/lrn.pb.h"

namespace convnet {
namespace {

using A = schema::Lrn;

void build(LayerBuilder& b) {
  const A& a = b.attrs<A>();
  if (a.size() % 2 == 0) {
    b.error(A::kSizeFieldNumber, "size is " + std::to_string(a.size()) +
                                     ", must be odd: as many channels before as after");
    return;
  }
  const Shape x = b.x_shape(0);
  b.emit(Op::kLrnFwd, {b.x(0)}, {b.output(x), b.saved("scale", x)},
         Attrs()
             .set("size", int64_t{a.size()})
             .set("alpha", a.alpha())
             .set("beta", a.beta())
             .set("k", a.k()));
}

void grad(GradBuilder& g) {
  if (!g.wants(0)) return;
  const Use dx = g.new_dx(0);
  g.emit(Op::kLrnBwd, {g.x(0), g.y(), g.saved("scale"), g.dy()}, {dx}, g.forward_attrs());
  g.set_dx(0, dx);
}

}  // namespace

extern const LayerDef kLrnLayer;
const LayerDef kLrnLayer = {
    .type = "lrn",
    .follows_input = true,
    .build = build,
    .grad = grad,
    .rules = pixel_wise_rules(),
    .samples =
        {
            {{Shape{7, 3, 2}}, ""},
            {{Shape{7, 3, 2}}, "size: 3, alpha: 0.5, beta: 0.75, k: 2"},
            {{Shape{2, 3, 2}}, "size: 5, alpha: 1, beta: 0.5, k: 1"},
        },
    .illegal = {"size: 4"},
};

}  // namespace convnet
