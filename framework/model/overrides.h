// --set PATH=VALUE: changes a model file's source tree before it is bound, so that every check and
// every message is the same as if the file said it.
//
//   train.rate.base=0.02   layers.conv1.filters=32   layers[3].kernel=[5, 3] defaults.conv.decay=0
//
// An item of a list is named by its `name` or its index (from 0), defaults by their type. Maps that
// are not there are made. In protobuf text the same paths work: an attribute of a layer's type is
// found inside the type's message.
#pragma once

#include <string>
#include <vector>

#include "framework/base/diagnostics.h"
#include "framework/model/source_tree.h"

namespace convnet {

struct Override {
  Span path;         // the text before '=' in its option
  SourceNode value;  // the text after it, parsed; its spans point into the option
};

// Changes the root, which is a map. A path that leads nowhere is an error at its step.
void apply_override(const Override& change, SourceNode& root, Diagnostics& diagnostics);

}  // namespace convnet
