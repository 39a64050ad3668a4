#include "framework/graph/layer_def.h"
#include "layers/add.pb.h"

namespace convnet {
namespace {

using A = schema::Add;

void build(LayerBuilder& b) {
  const Shape first = b.x_shape(0);
  std::vector<Use> in;
  for (int i = 0; i < b.inputs(); ++i) {
    if (b.x_shape(i) != first) {
      b.error(0, "add '" + b.name() + "' sums '" + b.x_name(0) + "', " + first.str() + ", and '" +
                     b.x_name(i) + "', " + b.x_shape(i).str() + ", which differ in shape");
      return;
    }
    in.push_back(b.x(i));
  }
  b.emit(Op::kAdd, in, {b.output(first)}, Attrs().set("act", schema::Act_Name(b.attrs<A>().act())));
}

void grad(GradBuilder& g) {
  Use dz = g.dy();
  const schema::Act act = g.attrs<A>().act();
  if (act != schema::none) {
    dz = g.new_dy("act");
    g.emit(Op::kActBwd, {g.y(), g.dy()}, {dz}, Attrs().set("act", schema::Act_Name(act)));
  }
  for (int i = 0; i < g.inputs(); ++i)
    if (g.wants(i)) g.set_dx(i, dz);
}

}  // namespace

extern const LayerDef kAddLayer;
const LayerDef kAddLayer = {
    .type = "add",
    .min_inputs = 2,
    .max_inputs = -1,
    .follows_input = true,
    .build = build,
    .grad = grad,
    .rules = pixel_wise_rules(),
    .samples =
        {
            {{Shape{3, 4, 5}, Shape{3, 4, 5}}, ""},
            {{Shape{2, 1, 1}, Shape{2, 1, 1}, Shape{2, 1, 1}}, "act: tanh"},
        },
    .illegal = {},
};

}  // namespace convnet
