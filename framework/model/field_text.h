// How a field of the schema is described in help texts and in the language reference.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace google::protobuf {
class Descriptor;
class FieldDescriptor;
}  // namespace google::protobuf

namespace convnet {

// Members of Layer.type, and the other fields of Layer.
std::vector<const google::protobuf::FieldDescriptor*> layer_type_fields();
std::vector<const google::protobuf::FieldDescriptor*> common_layer_fields();
std::vector<const google::protobuf::FieldDescriptor*> fields_of(
    const google::protobuf::Descriptor& message);

// "integer, 1 to 1048576", "integer or list of up to 2, 1 to 65536 pixels", "list of 3 integers",
// "map with one of"
std::string value_text(const google::protobuf::FieldDescriptor& field);

// As it would be written in a model file; empty if the schema states none.
std::string default_text(const google::protobuf::FieldDescriptor& field);

bool is_required_field(const google::protobuf::FieldDescriptor& field);
std::string doc_text(const google::protobuf::FieldDescriptor& field);

// The text in lines of at most `width` columns, each after `indent` spaces.
std::string wrapped(std::string_view text, size_t indent, size_t width);

}  // namespace convnet
