// YAML to a source tree. A subset on purpose: one document, plain keys, each key once, no tags but
// the core ones, no merge keys, bounded nesting, bounded aliases. Scalars stay text; the schema
// types them.
#pragma once

#include <memory>
#include <optional>

#include "framework/base/diagnostics.h"
#include "framework/base/source.h"
#include "framework/model/source_tree.h"

namespace convnet {

// The text from byte `begin` on, valid UTF-8 without control characters (see check_text). Nothing
// if no tree could be made; kNull for a text without a value. A repeated key is an error and leaves
// a tree without the second one, so that the rest can be looked at.
std::optional<SourceNode> parse_yaml(std::shared_ptr<const SourceText> source,
                                     Diagnostics& diagnostics, size_t begin = 0);

}  // namespace convnet
