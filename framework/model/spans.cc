#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <utility>
#include <vector>

#include "framework/model/binder.h"

namespace convnet {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

void FieldSpans::set(const Message& message, int field, int index, Span key, Span value) {
  fields_[{&message, field, index}] = {std::move(key), std::move(value)};
}

Span FieldSpans::value(const Message& message, int field, int index) const {
  auto found = fields_.find({&message, field, index});
  if (found == fields_.end()) found = fields_.find({&message, field, -1});
  return found != fields_.end() ? found->second.second : this->message(message);
}

Span FieldSpans::key(const Message& message, int field) const {
  const auto found = fields_.find({&message, field, -1});
  return found != fields_.end() ? found->second.first : this->message(message);
}

bool FieldSpans::has(const Message& message, int field) const {
  return fields_.count({&message, field, -1}) > 0;
}

void FieldSpans::set_message(const Message& message, Span span) {
  messages_[&message] = std::move(span);
}

Span FieldSpans::message(const Message& message) const {
  const auto found = messages_.find(&message);
  return found != messages_.end() ? found->second : Span{};
}

void FieldSpans::copy_field(const Message& from, const Message& to, int field) {
  std::vector<std::pair<int, std::pair<Span, Span>>> places;
  for (auto at = fields_.lower_bound({&from, field, -1}); at != fields_.end(); ++at) {
    const auto& [owner, number, index] = at->first;
    if (owner != &from || number != field) break;
    places.emplace_back(index, at->second);
  }
  for (const auto& [index, place] : places) set(to, field, index, place.first, place.second);

  const FieldDescriptor* descriptor = from.GetDescriptor()->FindFieldByNumber(field);
  if (descriptor->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) return;
  if (descriptor->is_repeated()) {
    const int count = from.GetReflection()->FieldSize(from, descriptor);
    for (int i = 0; i < count; ++i) {
      copy_message(from.GetReflection()->GetRepeatedMessage(from, descriptor, i),
                   to.GetReflection()->GetRepeatedMessage(to, descriptor, i));
    }
  } else if (from.GetReflection()->HasField(from, descriptor)) {
    copy_message(from.GetReflection()->GetMessage(from, descriptor),
                 to.GetReflection()->GetMessage(to, descriptor));
  }
}

void FieldSpans::copy_message(const Message& from, const Message& to) {
  set_message(to, message(from));
  for (int i = 0; i < from.GetDescriptor()->field_count(); ++i) {
    const int field = from.GetDescriptor()->field(i)->number();
    if (has(from, field)) copy_field(from, to, field);
  }
}

}  // namespace convnet
