#include "framework/graph/layer_def.h"
#include "layers/conv.pb.h"
#include "layers/window.h"

namespace convnet {
namespace {

using A = schema::Conv;

void build(LayerBuilder& b) {
  const A& a = b.attrs<A>();
  const Shape x = b.x_shape(0);
  const int64_t channels = x[1], filters = a.filters(), groups = a.groups();
  const Pair kernel = pair_of(a.kernel(), 1), stride = pair_of(a.stride(), 1),
             pad = pair_of(a.pad(), 0), dilation = pair_of(a.dilation(), 1);
  if (channels % groups != 0)
    b.error(A::kGroupsFieldNumber, "groups is " + std::to_string(groups) +
                                       ", which does not divide the " + std::to_string(channels) +
                                       " channels of '" + b.x_name(0) + "'");
  else if (filters % groups != 0)
    b.error(A::kGroupsFieldNumber, "groups is " + std::to_string(groups) +
                                       ", which does not divide the " + std::to_string(filters) +
                                       " filters");
  Shape y{x[0], filters};
  for (size_t d = 0; d < 2; ++d) {
    const int64_t image = x[static_cast<int>(d) + 2] + 2 * pad[d];
    const int64_t window = dilation[d] * (kernel[d] - 1) + 1;
    if (window > image) {
      b.error(A::kKernelFieldNumber, "the window is " + std::to_string(window) +
                                         (d == 0 ? " rows" : " columns") +
                                         " with its dilation, but '" + b.x_name(0) + "' has " +
                                         std::to_string(image) + " with its padding");
      return;
    }
    y.append((image - window) / stride[d] + 1);
  }
  if (b.failed()) return;

  const int64_t taps = kernel[0] * kernel[1];
  std::vector<Use> in{b.x(0), b.param("w", Shape{filters, channels / groups, kernel[0], kernel[1]},
                                      false, channels / groups * taps, filters / groups * taps)};
  if (a.bias())
    in.push_back(
        b.param("b", Shape{filters}, true, channels / groups * taps, filters / groups * taps));
  b.emit(Op::kConvFwd, in, {b.output(y)},
         Attrs()
             .set("stride", list_of(stride))
             .set("pad", list_of(pad))
             .set("dilation", list_of(dilation))
             .set("groups", groups)
             .set("act", schema::Act_Name(a.act())));
}

void grad(GradBuilder& g) {
  const A& a = g.attrs<A>();
  Use dz = g.dy();
  if (a.act() != schema::none) {
    dz = g.new_dy("act");
    g.emit(Op::kActBwd, {g.y(), g.dy()}, {dz}, Attrs().set("act", schema::Act_Name(a.act())));
  }
  Attrs geometry;
  for (const char* name : {"stride", "pad", "dilation", "groups"})
    geometry.set(name, *g.forward_attrs().find(name));
  std::vector<Use> gradients{g.new_dparam(0)};
  if (a.bias()) gradients.push_back(g.new_dparam(1));
  Attrs sum = geometry;
  g.emit(Op::kConvBwdWeight, {g.x(0), dz}, gradients, sum.set("cuts", std::vector<int64_t>{}));
  if (!g.wants(0)) return;
  const Use dx = g.new_dx(0);
  g.emit(Op::kConvBwdData, {dz, g.param(0)}, {dx}, geometry);
  g.set_dx(0, dx);
}

}  // namespace

extern const LayerDef kConvLayer;
const LayerDef kConvLayer = {
    .type = "conv",
    .build = build,
    .grad = grad,
    .rules = example_wise_rules(),
    .samples =
        {
            {{Shape{4, 9, 7}}, "filters: 6, kernel: 3"},
            {{Shape{4, 9, 7}},
             "filters: 6, kernel: [3, 2], stride: [2, 1], pad: [1, 0], act: tanh"},
            {{Shape{4, 9, 8}},
             "filters: 6, kernel: 3, pad: 2, dilation: 2, groups: 2, bias: false"},
            {{Shape{6, 5, 5}}, "filters: 6, kernel: 3, pad: 1, groups: 6, act: sigmoid"},
            {{Shape{3, 11, 11}}, "filters: 5, kernel: 1, stride: 3"},
        },
    .illegal =
        {
            "filters: 6, kernel: 3, groups: 4",
            "filters: 5, kernel: 3, groups: 2",
            "filters: 6, kernel: 10",
            "filters: 6, kernel: [3, 8]",
            "filters: 6, kernel: 3, dilation: 5",
        },
};

}  // namespace convnet
