// Scalars of a model file, typed by the schema and by nothing else: integers in decimal digits
// only, numbers finite, `true` and `false` only, the same in every locale.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "framework/model/source_tree.h"

namespace google::protobuf {
class EnumDescriptor;
class FieldDescriptor;
}  // namespace google::protobuf

namespace convnet {

// What is wrong with a value: for a Diagnostic.
struct ScalarError {
  std::string message;
  std::string help;
};

// uint64_t for integers, int for enums (the number).
using Scalar = std::variant<uint64_t, double, bool, int, std::string>;

// The value of a scalar node for a field, checked against the field's range. `name` is what
// messages call the field. `protobuf_text`: strings must be quoted.
std::variant<Scalar, ScalarError> read_scalar(const SourceNode& node,
                                              const google::protobuf::FieldDescriptor& field,
                                              const std::string& name, bool protobuf_text);

// "an integer", "a number", "true or false", "none, relu or tanh", "a map".
std::string type_words(const google::protobuf::FieldDescriptor& field);

// "1 to 65536", "at least 1", "above 0, at most 1"; empty without limits.
std::string range_words(const google::protobuf::FieldDescriptor& field);

// "a", "a or b", "a, b or c"
std::string join_words(const std::vector<std::string>& words, const std::string& conjunction);

std::vector<std::string> enum_names(const google::protobuf::EnumDescriptor& type);

}  // namespace convnet
