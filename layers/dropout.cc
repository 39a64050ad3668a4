#include "framework/base/random.h"
#include "framework/graph/layer_def.h"
#include "layers/dropout.pb.h"

namespace convnet {
namespace {

using A = schema::Dropout;

void build(LayerBuilder& b) {
  const A& a = b.attrs<A>();
  if (!b.training() || a.rate() == 0) {
    b.pass_through();
    return;
  }
  b.emit(Op::kDropoutFwd, {b.x(0)}, {b.output(b.x_shape(0))},
         Attrs().set("rate", a.rate()).set("key", static_cast<int64_t>(name_key(b.name()))));
}

void grad(GradBuilder& g) {
  if (!g.wants(0)) return;
  const Use dx = g.new_dx(0);
  g.emit(Op::kDropoutBwd, {g.dy()}, {dx}, g.forward_attrs());
  g.set_dx(0, dx);
}

}  // namespace

extern const LayerDef kDropoutLayer;
const LayerDef kDropoutLayer = {
    .type = "dropout",
    .follows_input = true,
    .build = build,
    .grad = grad,
    .rules = pixel_wise_rules(),
    .samples = {{{Shape{3, 4, 5}}, ""},
                {{Shape{30, 1, 1}}, "rate: 0.25"},
                {{Shape{2, 2, 2}}, "rate: 0"}},
    .illegal = {"rate: 1"},
};

}  // namespace convnet
