// What must hold between the fields of a model beyond each one's own type and range, as far as it
// can be said without knowing what a layer does: names, the length of training, the policy of the
// rate.
#pragma once

#include "framework/base/diagnostics.h"
#include "framework/model/binder.h"

namespace convnet {

// Reports broken rules; silent about fields that could not be bound.
void check_rules(const schema::Model& model, const FieldSpans& spans, Diagnostics& diagnostics);

// Copies the attributes of `defaults` into the layers of that type that do not give them. A message
// (init) is taken whole or not at all. The copied fields have their place in `defaults`.
void merge_defaults(schema::Model& model, FieldSpans& spans);

}  // namespace convnet
