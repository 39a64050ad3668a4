// Protobuf text to a source tree, with the tokens of protobuf's own tokenizer. The whole syntax but
// extensions and Any ([name] { ... }), and bounded nesting.
#pragma once

#include <memory>
#include <optional>

#include "framework/base/diagnostics.h"
#include "framework/base/source.h"
#include "framework/model/source_tree.h"

namespace convnet {

// The text is valid UTF-8 without control characters (see check_text). The root is a map, whose
// keys may repeat. Nothing if there were errors; several are reported where it is clear how to go
// on.
std::optional<SourceNode> parse_prototxt(std::shared_ptr<const SourceText> source,
                                         Diagnostics& diagnostics);

}  // namespace convnet
