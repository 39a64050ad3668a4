// All layers, in the order of layers.proto's oneof.
#pragma once

#include <span>

namespace convnet {

struct LayerDef;

std::span<const LayerDef* const> all_layers();

}  // namespace convnet
