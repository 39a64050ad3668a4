#include "framework/model/field_text.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>

#include "framework/model/model.pb.h"
#include "framework/model/scalars.h"
#include "layers/options.pb.h"

namespace convnet {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

namespace {

std::string noun(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_UINT64:
      return "integer";
    case FieldDescriptor::CPPTYPE_FLOAT:
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return "number";
    case FieldDescriptor::CPPTYPE_STRING:
      return "string";
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return "map";
    default:
      return type_words(field);
  }
}

// A message that is nothing but a choice of one field.
bool is_choice(const Descriptor& message) {
  return message.real_oneof_decl_count() == 1 &&
         message.oneof_decl(0)->field_count() == message.field_count();
}

}  // namespace

std::vector<const FieldDescriptor*> layer_type_fields() {
  const auto* oneof = schema::Layer::descriptor()->FindOneofByName("type");
  std::vector<const FieldDescriptor*> fields;
  for (int i = 0; i < oneof->field_count(); ++i) fields.push_back(oneof->field(i));
  return fields;
}

std::vector<const FieldDescriptor*> common_layer_fields() {
  const auto* oneof = schema::Layer::descriptor()->FindOneofByName("type");
  std::vector<const FieldDescriptor*> fields;
  for (const FieldDescriptor* field : fields_of(*schema::Layer::descriptor())) {
    if (field->containing_oneof() != oneof) fields.push_back(field);
  }
  return fields;
}

std::vector<const FieldDescriptor*> fields_of(const Descriptor& message) {
  std::vector<const FieldDescriptor*> fields;
  for (int i = 0; i < message.field_count(); ++i) fields.push_back(message.field(i));
  return fields;
}

std::string value_text(const FieldDescriptor& field) {
  std::string out = noun(field);
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && is_choice(*field.message_type())) {
    out += " with one attribute";
  }
  if (field.is_repeated()) {
    const auto least = field.options().GetExtension(schema::min_items);
    const auto most = field.options().GetExtension(schema::max_items);
    if (least == most && most > 0) {
      out = fmt::format("list of {} {}s", most, out);
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      out = most > 0 ? fmt::format("list of up to {} maps", most) : "map of maps";
    } else {
      out = fmt::format("{} or list of up to {}", out, most);
    }
  }
  const std::string range = range_words(field);
  const std::string& unit = field.options().GetExtension(schema::unit);
  if (!range.empty()) out += ", " + range;
  if (!unit.empty()) out += (range.empty() ? ", in " : " ") + unit;
  return out;
}

std::string default_text(const FieldDescriptor& field) {
  if (!field.has_default_value()) return "";
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      return fmt::format("{}", field.default_value_uint32());
    case FieldDescriptor::CPPTYPE_UINT64:
      return fmt::format("{}", field.default_value_uint64());
    case FieldDescriptor::CPPTYPE_FLOAT:
      return fmt::format("{}", field.default_value_float());
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return fmt::format("{}", field.default_value_double());
    case FieldDescriptor::CPPTYPE_BOOL:
      return field.default_value_bool() ? "true" : "false";
    case FieldDescriptor::CPPTYPE_ENUM:
      return field.default_value_enum()->name();
    case FieldDescriptor::CPPTYPE_STRING:
      return field.default_value_string();
    default:
      return "";
  }
}

bool is_required_field(const FieldDescriptor& field) {
  return field.options().GetExtension(schema::required);
}

std::string doc_text(const FieldDescriptor& field) {
  return field.options().GetExtension(schema::doc);
}

std::string wrapped(std::string_view text, size_t indent, size_t width) {
  std::string out, line;
  const auto flush = [&] {
    if (!line.empty()) out += std::string(indent, ' ') + line + '\n';
    line.clear();
  };
  for (size_t i = 0; i < text.size();) {
    const size_t end = std::min(text.find(' ', i), text.size());
    const std::string_view word = text.substr(i, end - i);
    if (!line.empty() && indent + line.size() + 1 + word.size() > width) flush();
    if (!word.empty()) line += (line.empty() ? "" : " ") + std::string(word);
    i = end + 1;
  }
  flush();
  return out;
}

}  // namespace convnet
