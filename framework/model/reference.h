// The language of model files, told from its schema: for `convnet layers` and model-defs/README.md.
// Nothing here is written twice: attributes, defaults, ranges and texts are the schema's.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace convnet {

// Names of the layer types, in the schema's order.
std::vector<std::string> layer_types();

// For a terminal: what a type does, and its attributes with type, range, default, unit and meaning.
// Empty for a type that is not there.
std::string describe_layer(std::string_view type);

// For a terminal: all types with a line each, and the attributes that all of them have.
std::string describe_layers();

// {"type", "summary", "details", "attributes": [{"name", "value", "list", "required", "default",
// "min", "max", "above", "below", "min_items", "max_items", "unit", "doc", "values": [{"name",
// "doc"}], "attributes": [...]}]}; members that do not apply are left out. "{}" for a type that is
// not there.
std::string layer_json(std::string_view type);

// {"layers": [as layer_json], "attributes": [those of all layers]}
std::string layers_json();

// All of model-defs/README.md, in Markdown.
std::string language_reference();

// The model that the reference begins with, in both spellings.
std::string_view example_yaml();
std::string_view example_prototxt();

}  // namespace convnet
