// The binder: a source tree (of any spelling) to schema messages by reflection, with a place for
// every field. It reports everything that is wrong: unknown and repeated keys with the nearest
// name, wrong types, values out of range, missing fields.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "framework/base/diagnostics.h"
#include "framework/base/source.h"
#include "framework/model/source_tree.h"

namespace google::protobuf {
class Message;
}

namespace convnet {

namespace schema {
class Model;
class Layer;
}  // namespace schema

// Where each field of a bound message was written. Keys are message objects, which must not move.
class FieldSpans {
 public:
  void set(const google::protobuf::Message& message, int field, int index, Span key, Span value);
  // Place of the value of a field (index: item of a list, -1 the whole list or a single value); if
  // the field was not written, the place of the message itself (for a layer: its name or type).
  Span value(const google::protobuf::Message& message, int field, int index = -1) const;
  Span key(const google::protobuf::Message& message, int field) const;
  // Whether the field was written (or came from `defaults`), even if its value was wrong.
  bool has(const google::protobuf::Message& message, int field) const;
  void set_message(const google::protobuf::Message& message, Span span);
  Span message(const google::protobuf::Message& message) const;
  // Gives `to`'s field, and all that is beneath it, the places of `from`'s: for a field that was
  // copied.
  void copy_field(const google::protobuf::Message& from, const google::protobuf::Message& to,
                  int field);

 private:
  void copy_message(const google::protobuf::Message& from, const google::protobuf::Message& to);

  std::map<std::tuple<const google::protobuf::Message*, int, int>, std::pair<Span, Span>> fields_;
  std::map<const google::protobuf::Message*, Span> messages_;
};

// A model file after parsing, overrides, binding and the merging of `defaults` into the layers.
struct BoundModel {
  BoundModel();
  ~BoundModel();
  BoundModel(const BoundModel&) = delete;
  BoundModel& operator=(const BoundModel&) = delete;

  std::shared_ptr<const SourceText> source;
  std::unique_ptr<schema::Model> model;
  FieldSpans spans;
};

// Null if there are errors in `diagnostics` (its own and earlier ones). The root must be a map.
std::unique_ptr<BoundModel> bind_model(const SourceNode& root, Diagnostics& diagnostics);

}  // namespace convnet
