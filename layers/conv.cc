#include "framework/graph/layer_def.h"
#include "layers/conv.pb.h"
#include "layers/product.h"
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
  if (groups > 1) {
    const std::string why =
        "its filters see only their own of " + std::to_string(groups) + " groups; use 'group'";
    b.refuse(Mode::kModel, why);
    b.refuse(Mode::kModelIn, why);
  } else {
    b.refuse(Mode::kGroup, "it has 1 group");
  }
  b.set_units(Mode::kGroup, groups);
  const int64_t fan_in = channels / groups * taps, fan_out = filters / groups * taps;
  const Use w =
      b.param("w", Shape{filters, channels / groups, kernel[0], kernel[1]}, false, fan_in, fan_out);
  emit_product(b, Op::kConvFwd, w, y, a.bias(), a.act(), fan_in, fan_out,
               Attrs()
                   .set("stride", list_of(stride))
                   .set("pad", list_of(pad))
                   .set("dilation", list_of(dilation))
                   .set("groups", groups));
}

void grad(GradBuilder& g) {
  const A& a = g.attrs<A>();
  Attrs geometry;
  for (const char* name : {"stride", "pad", "dilation", "groups"})
    geometry.set(name, *g.forward_attrs().find(name));
  emit_product_gradients(g, Op::kConvBwdWeight, Op::kConvBwdData, a.bias(), a.act(), geometry);
}

std::vector<ShardRule> rules() {
  std::vector<ShardRule> rules = product_rules();
  // mode               x     y     sum   whole metric dy    dx    params dparams
  rules.push_back({Mode::kSpatial, S(2), S(2), S(2), S(2), P(2), S(2), S(2), {R()}, {P(2)}});
  rules.push_back({Mode::kColumns, S(3), S(3), S(3), S(3), P(3), S(3), S(3), {R()}, {P(3)}});
  rules.push_back({Mode::kGroup, S(1), S(1), S(1), R(), R(), S(1), S(1), {S(0)}, {S(0)}});
  return rules;
}

}  // namespace

extern const LayerDef kConvLayer;
const LayerDef kConvLayer = {
    .type = "conv",
    .build = build,
    .grad = grad,
    .rules = rules(),
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
