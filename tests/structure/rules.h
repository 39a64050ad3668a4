// The rules of the source tree: which folder may include which, and where a library may be seen.
#pragma once

#include <string>
#include <vector>

namespace convnet {

struct SourceFile {
  std::string path;  // from the root of the repository, "framework/base/status.h"
  std::string text;
};

struct Violation {
  std::string path;
  int line = 0;
  std::string rule;     // "floor", "never", "library", ...
  std::string message;  // what is included, and what the rule says
  std::string str() const;
};

// Violations in the order of the files and lines. An include of a project file that is not among
// `files` is one, unless it is generated from a .proto that is.
std::vector<Violation> check_source_tree(const std::vector<SourceFile>& files);

}  // namespace convnet
