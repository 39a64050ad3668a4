#include "framework/model/binder.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "framework/base/check.h"
#include "framework/model/model.pb.h"
#include "framework/model/rules.h"
#include "framework/model/scalars.h"
#include "layers/options.pb.h"

namespace convnet {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::OneofDescriptor;
using google::protobuf::Reflection;
using schema::Layer;
using schema::Model;
using Kind = SourceNode::Kind;
using Entry = SourceNode::Entry;

// A file with more mistakes than this is not a model file; looking on would only cost time.
constexpr int kMostErrors = 1000;
constexpr size_t kListedNames = 12;

const char* kind_words(Kind kind) {
  switch (kind) {
    case Kind::kNull:
      return "nothing";
    case Kind::kScalar:
      return "a single value";
    case Kind::kList:
      return "a list";
    case Kind::kMap:
      return "a map";
  }
  return "";
}

const Entry* find_entry(const SourceNode& map, const std::string& key) {
  for (const Entry& entry : map.entries) {
    if (entry.key == key) return &entry;
  }
  return nullptr;
}

bool is_message(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
}

bool is_required(const FieldDescriptor& field) {
  return field.options().GetExtension(schema::required);
}

// What a map is bound to: one message, or for a layer in YAML the layer and the message of its
// type, whose attributes stand side by side.
struct Scope {
  std::vector<Message*> messages;
  std::string prefix;        // "train.rate." in the names of attributes; "" in layers
  std::string where;         // "in train.rate", "for conv"
  Span span;                 // what an error about the whole points at
  bool type_beside = false;  // a layer in YAML: 'type' is an attribute, the types' names are not
};

class Binder {
 public:
  Binder(const SourceNode& root, BoundModel& bound, Diagnostics& diagnostics)
      : root_(root), model_(*bound.model), spans_(bound.spans), diagnostics_(diagnostics) {}

  void bind() {
    const Span span = root_.entries.empty() ? root_.span : root_.entries.front().key_span;
    spans_.set_message(model_, span);
    if (!few_layers()) return;
    // First the defaults, wherever they stand: a layer may leave to them what it must have.
    const auto* defaults = Model::descriptor()->FindFieldByNumber(Model::kDefaultsFieldNumber);
    for (const Entry& entry : root_.entries) {
      if (entry.key == defaults->name()) bind_defaults(entry, *defaults);
    }
    bind_map(root_, {{&model_}, "", "in the model", span});
  }

 private:
  // ---- errors

  // An alias binds one text several times; what is wrong with it is said once.
  Diagnostic* error(const Span& span, const std::string& message, std::string help = "") {
    if (!reported_.emplace(span.source.get(), span.begin, message).second) return nullptr;
    Diagnostic& entry = diagnostics_.error(span, message);
    entry.help = std::move(help);
    return &entry;
  }

  bool stop() const { return diagnostics_.errors() >= kMostErrors; }

  void unknown_attribute(const Entry& entry, const Scope& scope) {
    std::vector<std::string> own, all;
    for (const Message* message : scope.messages) {
      const Descriptor& type = *message->GetDescriptor();
      own.clear();
      for (int i = 0; i < type.field_count(); ++i) {
        const FieldDescriptor& field = *type.field(i);
        if (scope.type_beside && is_layer_type(field)) continue;
        all.push_back(field.name());
        own.push_back(field.name());
      }
    }
    if (scope.type_beside) all.push_back("type");
    std::string help;
    const std::string near = nearest(entry.key, all);
    const Message& first = *scope.messages.front();
    const FieldDescriptor* type_field =
        scope.type_beside ? first.GetDescriptor()->FindFieldByName(entry.key) : nullptr;
    if (type_field != nullptr) {
      help = beside(entry.key);
    } else if (first.GetDescriptor() == Layer::descriptor() && entry.key == "type") {
      help = "in protobuf text the type is a message, as in conv { filters: 64 }";
    } else if (!near.empty()) {
      help = "did you mean '" + near + "'?";
      // What was meant is not missing.
      for (const Message* message : scope.messages) {
        const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(near);
        if (field != nullptr) meant_.emplace(message, field->number());
      }
    } else if (scope.messages.size() == 2) {
      const std::string type = layer_type(first)->name();
      if (own.empty()) {
        help = fmt::format(
            "{} has no attributes of its own; those of all layers: convnet layers {}", type, type);
      } else {
        help = fmt::format("{} has {}, and what all layers have: convnet layers {}", type,
                           join_words(own, "and"), type);
      }
    } else if (own.size() <= kListedNames) {
      help = "choose from " + join_words(own, "and");
    }
    error(entry.key_span,
          fmt::format("unknown attribute '{}' {}", printable(entry.key, 60), scope.where), help);
  }

  void duplicate(const Span& second, const Span& first, const std::string& name) {
    Diagnostic* entry = error(second, fmt::format("duplicate attribute '{}'", name));
    if (entry != nullptr) entry->notes.push_back({first, "first given here"});
  }

  // Whether the node is of this kind; says so if not.
  bool expect(const SourceNode& node, Kind kind, const std::string& words, const std::string& name,
              const Span& key) {
    if (node.kind == kind) return true;
    if (node.kind == Kind::kNull) {
      error(key, name + " has no value");
    } else {
      error(node.span, fmt::format("{} is {}, must be {}", name, kind_words(node.kind), words));
    }
    return false;
  }

  // ---- messages

  void bind_map(const SourceNode& map, const Scope& scope) {
    for (Message* message : scope.messages) spans_.set_message(*message, scope.span);
    for (const Entry& entry : map.entries) {
      if (stop()) return;
      bind_entry(map, entry, scope);
    }
    for (Message* message : scope.messages) {
      check_complete(*message, scope);
    }
  }

  void bind_entry(const SourceNode& map, const Entry& entry, const Scope& scope) {
    if (scope.type_beside && entry.key == "type") return;
    for (Message* message : scope.messages) {
      const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(entry.key);
      if (field == nullptr || (scope.type_beside && is_layer_type(*field))) continue;
      if (message == &model_ && field->number() == Model::kDefaultsFieldNumber) return;
      const std::string name = scope.prefix + field->name();
      const bool again = spans_.has(*message, field->number());
      if (again && !(map.repeats && field->is_repeated())) {
        duplicate(entry.key_span, spans_.key(*message, field->number()), name);
        return;
      }
      const OneofDescriptor* oneof = field->real_containing_oneof();
      const FieldDescriptor* other =
          oneof != nullptr && !again ? written_member(*message, *oneof) : nullptr;
      if (!again) spans_.set(*message, field->number(), -1, entry.key_span, entry.value.span);
      if (other != nullptr) {
        Diagnostic* exclusive =
            error(entry.key_span,
                  fmt::format("{} and {} exclude each other", scope.prefix + other->name(), name));
        if (exclusive != nullptr) {
          exclusive->notes.push_back({spans_.key(*message, other->number()),
                                      scope.prefix + other->name() + " is given here"});
        }
        return;
      }
      if (field->is_repeated()) {
        bind_list(entry, *message, *field, name);
      } else if (is_message(*field)) {
        if (!expect(entry.value, Kind::kMap, "a map", name, entry.key_span)) return;
        const std::string where =
            message->GetDescriptor() == Layer::descriptor() && is_layer_type(*field) ? "for " + name
                                                                                     : "in " + name;
        bind_map(entry.value, {{message->GetReflection()->MutableMessage(message, field)},
                               is_layer_type(*field) ? "" : name + ".",
                               where,
                               entry.key_span});
      } else if (expect(entry.value, Kind::kScalar, type_words(*field), name, entry.key_span)) {
        bind_scalar(entry.value, *message, *field, name);
      }
      return;
    }
    // Without its type nobody knows what a layer's attributes are.
    if (!(scope.type_beside && scope.messages.size() == 1)) unknown_attribute(entry, scope);
  }

  // Reports what a message lacks. A layer and its type are looked at later, with the defaults.
  void check_complete(const Message& message, const Scope& scope) {
    const Descriptor& type = *message.GetDescriptor();
    // Protobuf text may write a list in pieces, so its smallest size is known only at the end.
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor& field = *type.field(i);
      const auto found = items_.find({&message, field.number()});
      if (found == items_.end() || found->second == 0) continue;
      if (found->second >= field.options().GetExtension(schema::min_items)) continue;
      error(spans_.value(message, field.number()),
            size_error(field, scope.prefix + field.name(), found->second));
    }
    if (&type == Layer::descriptor() || in_layer_type(type)) return;
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor& field = *type.field(i);
      if (!is_required(field) || mentioned(message, field.number())) continue;
      if (&message == &model_ && field.number() == Model::kLayersFieldNumber) {
        error(scope.span, "the model has no layers");
      } else {
        missing(field, scope.span, scope.where);
      }
    }
    for (int i = 0; i < type.real_oneof_decl_count(); ++i) {
      const OneofDescriptor& oneof = *type.oneof_decl(i);
      if (written_member(message, oneof) != nullptr) continue;
      std::vector<std::string> names;
      for (int k = 0; k < oneof.field_count(); ++k) names.push_back(oneof.field(k)->name());
      const std::string name = scope.prefix.substr(0, scope.prefix.size() - 1);
      error(scope.span, fmt::format("{} must have one of {}", name, join_words(names, "and")));
    }
  }

  void missing(const FieldDescriptor& field, const Span& span, const std::string& where) {
    error(span, fmt::format("missing attribute '{}' {}", field.name(), where),
          fmt::format("add '{}': {}", field.name(), field.options().GetExtension(schema::doc)));
  }

  bool mentioned(const Message& message, int field) const {
    return spans_.has(message, field) || meant_.count({&message, field}) > 0;
  }

  const FieldDescriptor* written_member(const Message& message, const OneofDescriptor& oneof) {
    for (int i = 0; i < oneof.field_count(); ++i) {
      if (spans_.has(message, oneof.field(i)->number())) return oneof.field(i);
    }
    return nullptr;
  }

  // ---- values

  void bind_list(const Entry& entry, Message& message, const FieldDescriptor& field,
                 const std::string& name) {
    const SourceNode& value = entry.value;
    if (value.kind == Kind::kNull) {
      error(entry.key_span, name + " has no value");
      return;
    }
    std::vector<const SourceNode*> items;
    if (is_rows(value, field)) {
      if (!bind_rows(value, message, field, name, items)) return;
    } else if (value.kind == Kind::kList) {
      for (const SourceNode& item : value.items) items.push_back(&item);
    } else {
      items.push_back(&value);
    }
    if (items.empty()) {
      if (is_layers(message, field)) {
        error(value.span, "the model has no layers");
      } else {
        error(value.span, name + " is an empty list, must have at least one item");
      }
      return;
    }
    size_t& count = items_[{&message, field.number()}];
    const size_t before = count;
    count += items.size();
    if (!few_enough(before, count, field, name, value)) return;
    for (size_t i = 0; i < items.size() && !stop(); ++i) {
      const SourceNode& item = *items[i];
      const size_t index = before + i;
      const bool single = items.size() == 1 && before == 0;
      const std::string item_name = single ? name : fmt::format("{}[{}]", name, index);
      if (is_layers(message, field)) {
        bind_layer(item, *model_.add_layers(), fmt::format("{}[{}]", name, index));
      } else if (is_message(field)) {
        CHECK_MSG(false, "the schema has a list of messages that the binder does not know");
      } else if (expect(item, Kind::kScalar, type_words(field), item_name,
                        item.span.begin == item.span.end ? entry.key_span : item.span)) {
        spans_.set(message, field.number(), static_cast<int>(index), entry.key_span, item.span);
        bind_scalar(item, message, field, item_name);
      }
    }
  }

  // [[0, 1], [2, 3]] for a field that may be given so.
  static bool is_rows(const SourceNode& value, const FieldDescriptor& field) {
    return field.options().HasExtension(schema::rows) && value.kind == Kind::kList &&
           !value.items.empty() && value.items[0].kind == Kind::kList;
  }

  // Appends the items of all rows, which must be of one length, and notes the number of rows.
  bool bind_rows(const SourceNode& value, Message& message, const FieldDescriptor& field,
                 const std::string& name, std::vector<const SourceNode*>& items) {
    const size_t length = value.items[0].items.size();
    for (size_t i = 0; i < value.items.size(); ++i) {
      const SourceNode& row = value.items[i];
      if (!expect(row, Kind::kList, "a list", fmt::format("{}[{}]", name, i), row.span))
        return false;
      if (row.items.size() != length) {
        error(row.span,
              fmt::format("row {} of {} has {} items, the first has {}; all must be as long", i,
                          name, row.items.size(), length));
        return false;
      }
      for (const SourceNode& item : row.items) items.push_back(&item);
    }
    const FieldDescriptor& rows =
        *message.GetDescriptor()->FindFieldByName(field.options().GetExtension(schema::rows));
    if (mentioned(message, rows.number())) {
      error(value.span, fmt::format("{} is given in rows, and {} beside it", name, rows.name()));
      return false;
    }
    message.GetReflection()->SetUInt32(&message, &rows, static_cast<uint32_t>(value.items.size()));
    return true;
  }

  bool is_layers(const Message& message, const FieldDescriptor& field) const {
    return &message == &model_ && field.number() == Model::kLayersFieldNumber;
  }

  bool few_enough(size_t before, size_t count, const FieldDescriptor& field,
                  const std::string& name, const SourceNode& value) {
    const size_t most = field.options().GetExtension(schema::max_items);
    if (most == 0 || count <= most) return true;
    if (before > most) return false;  // said already
    error(value.span, size_error(field, name, count));
    return false;
  }

  static std::string size_error(const FieldDescriptor& field, const std::string& name,
                                size_t count) {
    const size_t most = field.options().GetExtension(schema::max_items);
    const size_t least = field.options().GetExtension(schema::min_items);
    const char* bound = least == most ? "" : count > least ? "at most " : "at least ";
    return fmt::format("{} has {} {}, must have {}{}", name, count, count == 1 ? "item" : "items",
                       bound, count > least ? most : least);
  }

  // A limit of its own kind, found before any work is spent on the layers.
  bool few_layers() {
    const auto& field = *Model::descriptor()->FindFieldByNumber(Model::kLayersFieldNumber);
    size_t count = 0;
    const Entry* first = nullptr;
    for (const Entry& entry : root_.entries) {
      if (entry.key != field.name()) continue;
      if (first == nullptr) first = &entry;
      count += entry.value.kind == Kind::kList ? entry.value.items.size() : 1;
    }
    if (count <= field.options().GetExtension(schema::max_items)) return true;
    error(first->key_span, size_error(field, field.name(), count))->code = Code::kLimit;
    return false;
  }

  void bind_scalar(const SourceNode& node, Message& message, const FieldDescriptor& field,
                   const std::string& name) {
    // An override is YAML, also of a model in protobuf text.
    const bool protobuf_text = root_.repeats && node.span.source == root_.span.source;
    auto read = read_scalar(node, field, name, protobuf_text);
    if (auto* wrong = std::get_if<ScalarError>(&read)) {
      error(node.span, wrong->message, wrong->help);
      return;
    }
    set_scalar(std::get<Scalar>(read), message, field);
  }

  void set_scalar(const Scalar& value, Message& message, const FieldDescriptor& field) {
    const Reflection& reflection = *message.GetReflection();
    const bool list = field.is_repeated();
    Message* const to = &message;
    const FieldDescriptor* const f = &field;
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_UINT32: {
        const auto number = static_cast<uint32_t>(std::get<uint64_t>(value));
        list ? reflection.AddUInt32(to, f, number) : reflection.SetUInt32(to, f, number);
        break;
      }
      case FieldDescriptor::CPPTYPE_UINT64: {
        const uint64_t number = std::get<uint64_t>(value);
        list ? reflection.AddUInt64(to, f, number) : reflection.SetUInt64(to, f, number);
        break;
      }
      case FieldDescriptor::CPPTYPE_FLOAT: {
        const auto number = static_cast<float>(std::get<double>(value));
        list ? reflection.AddFloat(to, f, number) : reflection.SetFloat(to, f, number);
        break;
      }
      case FieldDescriptor::CPPTYPE_DOUBLE: {
        const double number = std::get<double>(value);
        list ? reflection.AddDouble(to, f, number) : reflection.SetDouble(to, f, number);
        break;
      }
      case FieldDescriptor::CPPTYPE_BOOL: {
        const bool truth = std::get<bool>(value);
        list ? reflection.AddBool(to, f, truth) : reflection.SetBool(to, f, truth);
        break;
      }
      case FieldDescriptor::CPPTYPE_ENUM: {
        const int number = std::get<int>(value);
        list ? reflection.AddEnumValue(to, f, number) : reflection.SetEnumValue(to, f, number);
        break;
      }
      case FieldDescriptor::CPPTYPE_STRING: {
        const std::string& text = std::get<std::string>(value);
        list ? reflection.AddString(to, f, text) : reflection.SetString(to, f, text);
        break;
      }
      default:
        CHECK_MSG(false, "the schema has a field of a type that the binder cannot set");
    }
  }

  // ---- layers

  static const OneofDescriptor& types() { return *Layer::descriptor()->FindOneofByName("type"); }

  static bool is_layer_type(const FieldDescriptor& field) {
    return field.containing_oneof() == &types();
  }

  static bool in_layer_type(const Descriptor& message_type) {
    for (int i = 0; i < types().field_count(); ++i) {
      if (types().field(i)->message_type() == &message_type) return true;
    }
    return false;
  }

  static const FieldDescriptor* layer_type(const Message& layer) {
    return layer.GetReflection()->GetOneofFieldDescriptor(layer, &types());
  }

  static std::vector<std::string> type_names() {
    std::vector<std::string> names;
    for (int i = 0; i < types().field_count(); ++i) names.push_back(types().field(i)->name());
    return names;
  }

  // The member of Layer.type of this name; reports a name that is not there.
  const FieldDescriptor* find_type(const std::string& name, const Span& span) {
    for (int i = 0; i < types().field_count(); ++i) {
      if (types().field(i)->name() == name) return types().field(i);
    }
    const std::string near = nearest(name, type_names());
    error(span, fmt::format("unknown layer type '{}'", printable(name, 60)),
          near.empty() ? "the types are " + join_words(type_names(), "and")
                       : "did you mean '" + near + "'?");
    return nullptr;
  }

  void bind_layer(const SourceNode& node, Layer& layer, const std::string& path) {
    if (!expect(node, Kind::kMap, "a map", path, node.span)) return;
    const Entry* name = find_entry(node, "name");
    const Entry* type = find_entry(node, "type");
    const auto is_scalar = [](const Entry* entry) {
      return entry != nullptr && entry->value.kind == Kind::kScalar;
    };
    Span span = node.span;
    if (is_scalar(name)) {
      span = name->value.span;
    } else if (is_scalar(type)) {
      span = type->value.span;
    } else if (!node.entries.empty()) {
      span = node.entries.front().key_span;
    }
    const std::string layer_name = is_scalar(name) ? printable(name->value.text, 60) : path;

    const FieldDescriptor* member = nullptr;
    if (node.repeats) {
      bind_map(node, {{&layer}, "", "for layer '" + layer_name + "'", span});
      member = written_member(layer, types());
      if (member == nullptr && find_entry(node, "type") == nullptr) no_type(node, layer_name, span);
    } else {
      if (type == nullptr) {
        no_type(node, layer_name, span);
      } else if (expect(type->value, Kind::kScalar, "the name of a type", "type", type->key_span)) {
        member = find_type(type->value.text, type->value.span);
      }
      bind_flat_layer(node, layer, member, type, span);
    }
    check_layer_complete(layer, member, span);
  }

  void no_type(const SourceNode& node, const std::string& layer_name, const Span& span) {
    std::string help = "the types are " + join_words(type_names(), "and");
    for (const Entry& entry : node.entries) {
      for (const std::string& type : type_names()) {
        if (entry.key == type) help = beside(type);
      }
    }
    error(span, fmt::format("layer '{}' has no type", layer_name), help);
  }

  static std::string beside(const std::string& type) {
    return fmt::format("write 'type: {}', and its attributes beside it", type);
  }

  // A layer of the YAML spelling; without a type only the common attributes are looked at.
  void bind_flat_layer(const SourceNode& node, Layer& layer, const FieldDescriptor* member,
                       const Entry* type, const Span& span) {
    Scope scope{{&layer}, "", "", span, true};
    if (member != nullptr) {
      scope.where = "for " + member->name();
      scope.messages.push_back(layer.GetReflection()->MutableMessage(&layer, member));
      if (type != nullptr) {
        spans_.set(layer, member->number(), -1, type->key_span, type->value.span);
      }
    }
    bind_map(node, scope);
  }

  // Required attributes that neither the layer nor the defaults of its type have.
  void check_layer_complete(const Layer& layer, const FieldDescriptor* member, const Span& span) {
    const std::string where = member != nullptr ? "for " + member->name() : "for the layer";
    if (!mentioned(layer, Layer::kNameFieldNumber)) {
      missing(*Layer::descriptor()->FindFieldByNumber(Layer::kNameFieldNumber), span, where);
    }
    if (member == nullptr || layer_type(layer) != member) return;
    const Message& own = layer.GetReflection()->GetMessage(layer, member);
    const Message* defaults = nullptr;
    for (const Layer& candidate : model_.defaults()) {
      if (layer_type(candidate) == member) {
        defaults = &candidate.GetReflection()->GetMessage(candidate, member);
      }
    }
    const Descriptor& type = *member->message_type();
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor& field = *type.field(i);
      const int number = field.number();
      if (!is_required(field) || mentioned(own, number)) continue;
      if (defaults != nullptr && mentioned(*defaults, number)) continue;
      missing(field, span, where);
    }
  }

  // `defaults` in YAML: {conv: {pad: 1}}; in protobuf text: defaults { conv { pad: 1 } }, repeated.
  void bind_defaults(const Entry& entry, const FieldDescriptor& field) {
    if (!expect(entry.value, Kind::kMap, "a map", field.name(), entry.key_span)) return;
    if (!spans_.has(model_, field.number())) {
      spans_.set(model_, field.number(), -1, entry.key_span, entry.value.span);
    }
    if (entry.value.repeats) {
      Layer& layer = *model_.add_defaults();
      bind_map(entry.value, {{&layer}, "", "in defaults", entry.key_span});
      const FieldDescriptor* member = written_member(layer, types());
      if (member == nullptr) {
        error(entry.key_span, "defaults must have one of " + join_words(type_names(), "and"));
        model_.mutable_defaults()->RemoveLast();
        return;
      }
      finish_defaults(layer, *member, spans_.key(layer, member->number()));
      return;
    }
    for (const Entry& type : entry.value.entries) {
      const FieldDescriptor* member = find_type(type.key, type.key_span);
      const std::string name = field.name() + '.' + printable(type.key, 60);
      if (member == nullptr || !expect(type.value, Kind::kMap, "a map", name, type.key_span)) {
        continue;
      }
      Layer& layer = *model_.add_defaults();
      spans_.set(layer, member->number(), -1, type.key_span, type.value.span);
      bind_flat_layer(type.value, layer, member, nullptr, type.key_span);
      if (const Entry* inner = find_entry(type.value, "type")) {
        error(inner->key_span, "defaults must not have 'type': the key above is the type");
      }
      finish_defaults(layer, *member, type.key_span);
    }
  }

  void finish_defaults(const Layer& layer, const FieldDescriptor& member, const Span& span) {
    if (spans_.has(layer, Layer::kNameFieldNumber)) {
      error(spans_.key(layer, Layer::kNameFieldNumber), "defaults must not have 'name'");
    }
    for (const Layer& other : model_.defaults()) {
      if (&other == &layer || layer_type(other) != &member) continue;
      duplicate(span, spans_.key(other, member.number()), "defaults." + member.name());
    }
  }

  const SourceNode& root_;
  Model& model_;
  FieldSpans& spans_;
  Diagnostics& diagnostics_;
  std::set<std::tuple<const SourceText*, size_t, std::string>> reported_;
  std::set<std::pair<const Message*, int>> meant_;  // fields behind attributes that are misspelt
  std::map<std::pair<const Message*, int>, size_t> items_;  // of lists, in all their pieces
};

}  // namespace

BoundModel::BoundModel() = default;
BoundModel::~BoundModel() = default;

std::unique_ptr<BoundModel> bind_model(const SourceNode& root, Diagnostics& diagnostics) {
  CHECK(root.kind == Kind::kMap);
  auto bound = std::make_unique<BoundModel>();
  bound->source = root.span.source;
  bound->model = std::make_unique<Model>();
  Binder(root, *bound, diagnostics).bind();
  check_rules(*bound->model, bound->spans, diagnostics);
  if (diagnostics.has_errors()) return nullptr;
  merge_defaults(*bound->model, bound->spans);
  return bound;
}

}  // namespace convnet
