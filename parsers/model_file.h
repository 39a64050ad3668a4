// Reading a model file: from a name or a text to a bound model.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "framework/base/diagnostics.h"
#include "framework/model/binder.h"

namespace convnet {

// Reads a model file, applies `sets` (each PATH=VALUE, see framework/model/overrides.h), binds and
// checks it. The spelling is told by the name: .yaml, .yml; .prototxt, .pbtxt, .txtpb. Only regular
// files of at most 16 MiB are read. Null if anything is wrong; everything that is wrong is in
// `diagnostics`.
std::unique_ptr<BoundModel> load_model(const std::string& path,
                                       const std::vector<std::string>& sets,
                                       Diagnostics& diagnostics);

// The same for a text that is at hand, for instance from a checkpoint; `name` stands for the path
// in messages and tells the spelling.
std::unique_ptr<BoundModel> load_model_text(const std::string& name, std::string text,
                                            const std::vector<std::string>& sets,
                                            Diagnostics& diagnostics);

// Reports text that is not UTF-8 or has control characters other than tab and line ends.
bool check_text(const std::shared_ptr<const SourceText>& source, Diagnostics& diagnostics);

}  // namespace convnet
