#include "layers/registry.h"

#include "framework/graph/layer_def.h"

namespace convnet {

// One line a layer, in the order of layers.proto's oneof.
extern const LayerDef kConvLayer;
extern const LayerDef kPoolLayer;
extern const LayerDef kFcLayer;
extern const LayerDef kReluLayer;
extern const LayerDef kTanhLayer;
extern const LayerDef kSigmoidLayer;
extern const LayerDef kLrnLayer;
extern const LayerDef kDropoutLayer;
extern const LayerDef kConcatLayer;
extern const LayerDef kAddLayer;
extern const LayerDef kSoftmaxLossLayer;

std::span<const LayerDef* const> all_layers() {
  static constexpr const LayerDef* kAll[] = {
      &kConvLayer, &kPoolLayer,    &kFcLayer,     &kReluLayer, &kTanhLayer,        &kSigmoidLayer,
      &kLrnLayer,  &kDropoutLayer, &kConcatLayer, &kAddLayer,  &kSoftmaxLossLayer,
  };
  return kAll;
}

}  // namespace convnet
