// What convolution and the fully-connected layer have in common: weights times input, a bias, an
// activation, and how the product can be split.
#pragma once

#include "framework/graph/layer_def.h"
#include "layers/activation.pb.h"

namespace convnet {

// Emits y = act(w x + b) and declares the bias. In mode `model_in` devices hold partial sums over
// the input's channels, so that bias and activation follow once these are added up.
void emit_product(LayerBuilder& b, Op op, Use w, const Shape& y, bool bias, schema::Act act,
                  int64_t fan_in, int64_t fan_out, Attrs attrs);

// Its gradients; `geometry`: the attributes that they share with the forward operation.
void emit_product_gradients(GradBuilder& g, Op weight, Op data, bool bias, schema::Act act,
                            const Attrs& geometry);

// data, replicate, model, model_in.
std::vector<ShardRule> product_rules();

}  // namespace convnet
