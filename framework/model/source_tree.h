// SourceNode: what a model file says, before anyone asks whether it makes sense. YAML and protobuf
// text both become this tree; every key and value knows its place.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "framework/base/source.h"

namespace convnet {

struct SourceNode {
  enum class Kind { kNull, kScalar, kList, kMap };
  struct Entry;

  Kind kind = Kind::kNull;
  Span span;
  std::string text;     // kScalar
  bool quoted = false;  // kScalar: was written in quotes, so it is a string and nothing else
  std::vector<SourceNode> items;  // kList
  std::vector<Entry> entries;     // kMap, in the order written; keys may repeat (see repeats)
  // kMap: protobuf text, where a repeated field is a repeated key. In YAML a repeated key is an
  // error.
  bool repeats = false;
};

struct SourceNode::Entry {
  std::string key;
  Span key_span;
  SourceNode value;
};

}  // namespace convnet
