#include "framework/graph/layer_def.h"

namespace convnet {
namespace {

void build(LayerBuilder& b) {
  Shape y = b.x_shape(0);
  std::vector<Use> in{b.x(0)};
  for (int i = 1; i < b.inputs(); ++i) {
    const Shape x = b.x_shape(i);
    if (x[2] != y[2] || x[3] != y[3]) {
      b.error(0, "concat '" + b.name() + "' joins '" + b.x_name(0) + "', " + b.x_shape(0).str() +
                     ", and '" + b.x_name(i) + "', " + x.str() +
                     ", which differ in rows or columns");
      return;
    }
    y.set(1, y[1] + x[1]);
    in.push_back(b.x(i));
  }
  b.emit(Op::kConcatFwd, in, {b.output(y)});
}

void grad(GradBuilder& g) {
  std::vector<Use> parts;
  bool any = false;
  for (int i = 0; i < g.inputs(); ++i) any |= g.wants(i);
  if (!any) return;
  for (int i = 0; i < g.inputs(); ++i) {
    parts.push_back(g.new_dx(i));
    if (g.wants(i)) g.set_dx(i, parts.back());
  }
  g.emit(Op::kConcatBwd, {g.dy()}, parts);
}

}  // namespace

extern const LayerDef kConcatLayer;
const LayerDef kConcatLayer = {
    .type = "concat",
    .min_inputs = 1,
    .max_inputs = -1,
    .follows_input = true,
    .build = build,
    .grad = grad,
    .rules = pixel_wise_rules(),
    .samples =
        {
            {{Shape{3, 4, 5}, Shape{2, 4, 5}}, ""},
            {{Shape{1, 1, 1}, Shape{20, 1, 1}, Shape{3, 1, 1}}, ""},
        },
    .illegal = {},
};

}  // namespace convnet
