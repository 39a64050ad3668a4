#include <algorithm>

#include "framework/graph/layer_def.h"
#include "layers/pool.pb.h"
#include "layers/window.h"

namespace convnet {
namespace {

using A = schema::Pool;

void build(LayerBuilder& b) {
  const A& a = b.attrs<A>();
  const Shape x = b.x_shape(0);
  const Pair kernel = pair_of(a.kernel(), 1), stride = pair_of(a.stride(), 1),
             pad = pair_of(a.pad(), 0);
  Shape y{x[0], x[1]};
  for (size_t d = 0; d < 2; ++d) {
    if (pad[d] >= kernel[d]) {
      b.error(A::kPadFieldNumber, "pad is " + std::to_string(pad[d]) +
                                      ", which must be less than the kernel, " +
                                      std::to_string(kernel[d]));
      return;
    }
    const int64_t image = x[static_cast<int>(d) + 2];
    const int64_t room = image + 2 * pad[d] - kernel[d];
    if (room < 0) {
      b.error(A::kKernelFieldNumber, "the window is " + std::to_string(kernel[d]) +
                                         (d == 0 ? " rows" : " columns") + ", but '" + b.x_name(0) +
                                         "' has " + std::to_string(image + 2 * pad[d]) +
                                         " with its padding");
      return;
    }
    int64_t out = room / stride[d] + 1;
    if (a.rounding() == A::ceil) {
      out = (room + stride[d] - 1) / stride[d] + 1;
      // The last window must begin inside the image or its first padding (Caffe's rule).
      if ((out - 1) * stride[d] >= image + pad[d]) --out;
    }
    // A stride beyond the kernel can leave the last window wholly in the padding.
    while (out > 1 && (out - 1) * stride[d] - pad[d] >= image) --out;
    y.append(out);
  }
  b.emit(a.kind() == A::max ? Op::kPoolMaxFwd : Op::kPoolAvgFwd, {b.x(0)}, {b.output(y)},
         Attrs()
             .set("kernel", list_of(kernel))
             .set("stride", list_of(stride))
             .set("pad", list_of(pad)));
}

void grad(GradBuilder& g) {
  if (!g.wants(0)) return;
  const Use dx = g.new_dx(0);
  if (g.attrs<A>().kind() == A::max)
    g.emit(Op::kPoolMaxBwd, {g.x(0), g.dy()}, {dx}, g.forward_attrs());
  else
    g.emit(Op::kPoolAvgBwd, {g.dy()}, {dx}, g.forward_attrs());
  g.set_dx(0, dx);
}

}  // namespace

extern const LayerDef kPoolLayer;
const LayerDef kPoolLayer = {
    .type = "pool",
    .follows_input = true,
    .build = build,
    .grad = grad,
    .rules = pixel_wise_rules(),
    .samples =
        {
            {{Shape{3, 8, 7}}, "kernel: 2, stride: 2"},
            {{Shape{3, 8, 7}}, "kernel: 3, stride: 2, rounding: ceil"},
            {{Shape{3, 8, 7}}, "kernel: [3, 2], stride: [1, 2], pad: [1, 0]"},
            {{Shape{3, 8, 7}}, "kind: average, kernel: 2, stride: 2"},
            {{Shape{3, 8, 7}}, "kind: average, kernel: 3, stride: 2, pad: 1, rounding: ceil"},
        },
    .illegal = {"kernel: 9", "kernel: [2, 8]", "kernel: 2, pad: 2"},
};

}  // namespace convnet
