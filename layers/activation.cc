#include "framework/graph/layer_def.h"

namespace convnet {
namespace {

// Relu, Tanh and Sigmoid differ in the word alone; it is the layer's type.
template <const char* kAct>
void build(LayerBuilder& b) {
  b.emit(Op::kActFwd, {b.x(0)}, {b.output(b.x_shape(0))}, Attrs().set("act", kAct));
}

template <const char* kAct>
void grad(GradBuilder& g) {
  if (!g.wants(0)) return;
  const Use dx = g.new_dx(0);
  g.emit(Op::kActBwd, {g.y(), g.dy()}, {dx}, Attrs().set("act", kAct));
  g.set_dx(0, dx);
}

template <const char* kAct>
LayerDef definition() {
  return LayerDef{
      .type = kAct,
      .follows_input = true,
      .build = build<kAct>,
      .grad = grad<kAct>,
      .rules = pixel_wise_rules(),
      .samples = {{{Shape{3, 4, 5}}, ""}, {{Shape{9, 1, 1}}, ""}},
      .illegal = {},
  };
}

constexpr char kReluName[] = "relu";
constexpr char kTanhName[] = "tanh";
constexpr char kSigmoidName[] = "sigmoid";

}  // namespace

extern const LayerDef kReluLayer, kTanhLayer, kSigmoidLayer;
const LayerDef kReluLayer = definition<kReluName>();
const LayerDef kTanhLayer = definition<kTanhName>();
const LayerDef kSigmoidLayer = definition<kSigmoidName>();

}  // namespace convnet
