#include "framework/model/reference.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "framework/model/field_text.h"
#include "framework/model/model.pb.h"
#include "layers/options.pb.h"

namespace convnet {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using Fields = std::vector<const FieldDescriptor*>;
using Json = nlohmann::ordered_json;

constexpr size_t kWidth = 88;

bool is_map(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
}

const std::string& summary(const FieldDescriptor& field) {
  return field.message_type()->options().GetExtension(schema::summary);
}

const std::string& details(const FieldDescriptor& field) {
  return field.message_type()->options().GetExtension(schema::details);
}

const FieldDescriptor* find_layer_type(std::string_view type) {
  for (const FieldDescriptor* field : layer_type_fields()) {
    if (field->name() == type) return field;
  }
  return nullptr;
}

// ---- for a terminal

size_t longest_name(const Fields& fields) {
  size_t longest = 0;
  for (const FieldDescriptor* field : fields) longest = std::max(longest, field->name().size());
  return longest;
}

void append_fields(const Fields& fields, size_t indent, std::vector<const Descriptor*>* told,
                   std::string* out) {
  const size_t column = indent + longest_name(fields) + 2;
  for (const FieldDescriptor* field : fields) {
    std::string value = value_text(*field);
    if (is_required_field(*field)) value += "; required";
    const std::string standard = default_text(*field);
    if (!standard.empty()) value += "; default " + standard;
    std::string lines = wrapped(value, column, kWidth);
    lines.replace(indent, field->name().size(), field->name());
    *out += lines + wrapped(doc_text(*field), column, kWidth);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
      const EnumDescriptor& type = *field->enum_type();
      for (int i = 0; i < type.value_count(); ++i) {
        *out += wrapped(
            type.value(i)->name() + ": " + type.value(i)->options().GetExtension(schema::value_doc),
            column + 2, kWidth);
      }
    }
    if (!is_map(*field)) continue;
    // init and bias_init are the same map: told once.
    if (std::count(told->begin(), told->end(), field->message_type()) > 0) continue;
    told->push_back(field->message_type());
    append_fields(fields_of(*field->message_type()), column + 2, told, out);
  }
}

void append_common(std::string* out) {
  *out += "\nAttributes of all layers\n";
  std::vector<const Descriptor*> told;
  append_fields(common_layer_fields(), 2, &told, out);
}

// ---- JSON

Json field_json(const FieldDescriptor& field);

Json fields_json(const Fields& fields) {
  Json list = Json::array();
  for (const FieldDescriptor* field : fields) list.push_back(field_json(*field));
  return list;
}

Json default_json(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return field.default_value_bool();
    case FieldDescriptor::CPPTYPE_ENUM:
    case FieldDescriptor::CPPTYPE_STRING:
      return default_text(field);
    // The shortest text of a float, read as JSON, so that 0.9f is 0.9.
    default:
      return Json::parse(default_text(field));
  }
}

Json field_json(const FieldDescriptor& field) {
  const auto& options = field.options();
  Json json;
  json["name"] = field.name();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_UINT64:
      json["value"] = "integer";
      break;
    case FieldDescriptor::CPPTYPE_FLOAT:
    case FieldDescriptor::CPPTYPE_DOUBLE:
      json["value"] = "number";
      break;
    case FieldDescriptor::CPPTYPE_BOOL:
      json["value"] = "boolean";
      break;
    case FieldDescriptor::CPPTYPE_ENUM:
      json["value"] = "name";
      break;
    case FieldDescriptor::CPPTYPE_STRING:
      json["value"] = "string";
      break;
    default:
      json["value"] = "map";
      break;
  }
  json["list"] = field.is_repeated();
  json["required"] = is_required_field(field);
  if (field.has_default_value()) json["default"] = default_json(field);
  const auto limit = [&](const char* name, const auto& option) {
    if (!options.HasExtension(option)) return;
    const double value = options.GetExtension(option);
    json[name] = Json::parse(fmt::format("{}", value));
  };
  limit("min", schema::min);
  limit("max", schema::max);
  limit("above", schema::above);
  limit("below", schema::below);
  if (options.HasExtension(schema::min_items)) {
    json["min_items"] = options.GetExtension(schema::min_items);
  }
  if (options.HasExtension(schema::max_items)) {
    json["max_items"] = options.GetExtension(schema::max_items);
  }
  if (options.HasExtension(schema::unit)) json["unit"] = options.GetExtension(schema::unit);
  json["doc"] = doc_text(field);
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
    const EnumDescriptor& type = *field.enum_type();
    for (int i = 0; i < type.value_count(); ++i) {
      json["values"].push_back({{"name", type.value(i)->name()},
                                {"doc", type.value(i)->options().GetExtension(schema::value_doc)}});
    }
  }
  if (is_map(field)) json["attributes"] = fields_json(fields_of(*field.message_type()));
  return json;
}

Json type_json(const FieldDescriptor& type) {
  return {{"type", type.name()},
          {"summary", summary(type)},
          {"details", details(type)},
          {"attributes", fields_json(fields_of(*type.message_type()))}};
}

// ---- Markdown

std::string cell(std::string text) {
  for (size_t i = text.find('|'); i != std::string::npos; i = text.find('|', i + 2)) {
    text.insert(i, "\\");
  }
  return text;
}

// A heading as links to it are written on the usual hosts of Markdown.
std::string anchor(const std::string& heading) {
  std::string out;
  for (char c : heading) {
    if (c == ' ') {
      out += '-';
    } else if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_') {
      out += c;
    } else if (c >= 'A' && c <= 'Z') {
      out += static_cast<char>(c - 'A' + 'a');
    }
  }
  return out;
}

class Markdown {
 public:
  // A section for each map beneath `message`, deeper ones one level lower.
  void maps_of(const Fields& fields, const std::string& path, int level) {
    for (const FieldDescriptor* field : fields) {
      if (!is_map(*field) || is_layers(*field)) continue;
      if (std::count(told_.begin(), told_.end(), field->message_type()) > 0) continue;
      told_.push_back(field->message_type());
      const std::string here = path + field->name();
      section(heading(*field, fields, path), *field, level);
      maps_of(fields_of(*field->message_type()), here + '.', std::min(level + 1, 4));
    }
  }

  void section(const std::string& title, const FieldDescriptor& map, int level) {
    out_ += fmt::format("{} {}\n\n", std::string(static_cast<size_t>(level), '#'), title);
    if (!summary(map).empty()) out_ += sentence(summary(map)) + "\n\n";
    if (!details(map).empty()) out_ += details(map) + "\n\n";
    table(fields_of(*map.message_type()));
  }

  void table(const Fields& fields) {
    if (fields.empty()) {
      out_ += "No attributes of its own.\n\n";
      return;
    }
    out_ += "| attribute | value | default | meaning |\n|---|---|---|---|\n";
    for (const FieldDescriptor* field : fields) {
      std::string standard = default_text(*field);
      if (!standard.empty()) standard = '`' + standard + '`';
      if (is_required_field(*field)) standard = "required";
      out_ += fmt::format("| `{}` | {} | {} | {} |\n", field->name(), cell(value_text(*field)),
                          standard, cell(doc_text(*field)));
    }
    out_ += '\n';
    for (const FieldDescriptor* field : fields) {
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) values(*field);
    }
  }

  void text(std::string_view markdown) { out_ += markdown; }
  std::string take() { return std::move(out_); }

 private:
  static bool is_layers(const FieldDescriptor& field) {
    return field.message_type() == schema::Layer::descriptor();
  }

  static std::string sentence(std::string text) {
    // Not a formula such as max(x, 0).
    size_t word = 0;
    while (word < text.size() && text[word] >= 'a' && text[word] <= 'z') ++word;
    const bool is_word = word == text.size() || (word > 0 && text[word] != '(');
    if (is_word) text[0] = static_cast<char>(text[0] - 'a' + 'A');
    const bool introduces = text.size() > 6 && text.compare(text.size() - 6, 6, "one of") == 0;
    return text + (introduces ? ':' : '.');
  }

  // `train.test` and `train.checkpoint`, which are the same map, share a section.
  static std::string heading(const FieldDescriptor& field, const Fields& siblings,
                             const std::string& path) {
    std::string out;
    for (const FieldDescriptor* sibling : siblings) {
      if (!is_map(*sibling) || sibling->message_type() != field.message_type()) continue;
      out += (out.empty() ? "`" : ", `") + path + sibling->name() + '`';
    }
    return out;
  }

  void values(const FieldDescriptor& field) {
    out_ += fmt::format("Values of `{}`:\n\n", field.name());
    const EnumDescriptor& type = *field.enum_type();
    for (int i = 0; i < type.value_count(); ++i) {
      out_ += fmt::format("- `{}`: {}\n", type.value(i)->name(),
                          type.value(i)->options().GetExtension(schema::value_doc));
    }
    out_ += '\n';
  }

  std::vector<const Descriptor*> told_;
  std::string out_;
};

constexpr char kExampleYaml[] = R"(format: 1
name: lenet-fashion
devices: 2
batch: 128
input: {data: [1, 28, 28], label: {classes: 10}}

defaults:
  conv: {parallel: data, init: {kaiming: 1}}
  pool: {kernel: 2, stride: 2}

layers:                       # an input that is not named is the layer above
  - {name: conv1, type: conv, input: data, filters: 32, kernel: 5, pad: 2, act: relu}
  - {name: pool1, type: pool}
  - {name: conv2, type: conv, filters: 64, kernel: 5, pad: 2, act: relu}
  - {name: pool2, type: pool}
  - {name: fc1, type: fc, outputs: 256, act: relu}
  - {name: fc2, type: fc, outputs: 10}
  - {name: loss, type: softmax_loss, input: [fc2, label], report: [top1, top5]}

train:
  solver: sgd
  momentum: 0.9
  decay: 0.0005
  epochs: 10
  rate: {base: 0.05, policy: poly, power: 1}
  seed: 1

data:
  train: {idx: fashion-mnist/train, scale: 0.00390625}
  test: {idx: fashion-mnist/t10k}
)";

constexpr char kExamplePrototxt[] = R"(format: 1
name: "lenet-fashion"
devices: 2
batch: 128
input { data: [1, 28, 28] label { classes: 10 } }

defaults { conv {} parallel: data init { kaiming: 1 } }
defaults { pool { kernel: 2 stride: 2 } }

layers { name: "conv1" input: "data" conv { filters: 32 kernel: 5 pad: 2 act: relu } }
layers { name: "pool1" pool {} }
layers { name: "conv2" conv { filters: 64 kernel: 5 pad: 2 act: relu } }
layers { name: "pool2" pool {} }
layers { name: "fc1" fc { outputs: 256 act: relu } }
layers { name: "fc2" fc { outputs: 10 } }
layers { name: "loss" input: ["fc2", "label"] softmax_loss { report: ["top1", "top5"] } }

train {
  solver: sgd
  momentum: 0.9
  decay: 0.0005
  epochs: 10
  rate { base: 0.05 policy: poly power: 1 }
  seed: 1
}

data {
  train { idx: "fashion-mnist/train" scale: 0.00390625 }
  test { idx: "fashion-mnist/t10k" }
}
)";

constexpr char kIntroduction[] = R"(# The language of model files

<!-- Made from the schema by: convnet layers --reference > model-defs/README.md -->

A model file says what a network is, how it is split over devices, how it is trained, and on what. The
number of devices is not part of the mathematics: `batch` is the number of examples of a step over all
of them.

)";

constexpr char kSpelling[] = R"(How values are written:

- Integers are written in decimal digits. A leading zero (`0777`), `0x10` and `1_000` are errors.
- Numbers must be finite. Booleans are `true` and `false`, nothing else.
- A text in quotes is a string and nothing else; in YAML, strings need no quotes.
- A list of one item may be written without brackets: `kernel: 5`.
- An attribute must not be given twice, and must have a value.
- `defaults` holds, for each type of layer, attributes for the layers of that type that do not give them
  themselves. A map such as `init` is taken whole.

YAML's anchors and aliases work; merge keys (`<<`), tags and several documents in a file do not.

## Protobuf text

The schema is one of protocol buffers (`framework/model/model.proto` and `layers/*.proto`), so a model may
also be written in protobuf text, in a file whose name ends in `.prototxt`, `.pbtxt` or `.txtpb`. Strings
are in quotes, a list may be several entries, and the type of a layer is a map of its own, in layers and
in `defaults`:

```
)";

constexpr char kOverrides[] = R"(```

## Changes from the command line

`--set PATH=VALUE` changes a value for one run; it may be given several times, and the later one counts.
The value is written as in YAML. A layer is named by its name or by its index from 0, and the same paths
work for both spellings:

```
--set batch=256
--set train.rate.base=0.02
--set layers.conv1.filters=48
--set layers[0].kernel=[3, 5]
--set defaults.conv.decay=0
--set data.train.scale=1
```

## The model

)";

}  // namespace

std::vector<std::string> layer_types() {
  std::vector<std::string> names;
  for (const FieldDescriptor* field : layer_type_fields()) names.push_back(field->name());
  return names;
}

std::string describe_layer(std::string_view type) {
  const FieldDescriptor* field = find_layer_type(type);
  if (field == nullptr) return "";
  std::string out = field->name() + ": " + summary(*field) + '\n';
  if (!details(*field).empty()) out += '\n' + wrapped(details(*field), 0, kWidth);
  const Fields own = fields_of(*field->message_type());
  if (!own.empty()) {
    out += "\nAttributes of " + field->name() + '\n';
    std::vector<const Descriptor*> told;
    append_fields(own, 2, &told, &out);
  }
  append_common(&out);
  return out;
}

std::string describe_layers() {
  const Fields types = layer_type_fields();
  const size_t column = longest_name(types) + 4;
  std::string out = "Types of layers\n";
  for (const FieldDescriptor* type : types) {
    std::string lines = wrapped(summary(*type), column, kWidth);
    out += lines.replace(2, type->name().size(), type->name());
  }
  append_common(&out);
  return out;
}

std::string layer_json(std::string_view type) {
  const FieldDescriptor* field = find_layer_type(type);
  return field == nullptr ? "{}" : type_json(*field).dump(2);
}

std::string layers_json() {
  Json json;
  json["layers"] = Json::array();
  for (const FieldDescriptor* type : layer_type_fields())
    json["layers"].push_back(type_json(*type));
  json["attributes"] = fields_json(common_layer_fields());
  return json.dump(2);
}

std::string language_reference() {
  Markdown page;
  page.text(kIntroduction);
  page.text("```yaml\n");
  page.text(kExampleYaml);
  page.text("```\n\n");
  page.text(kSpelling);
  page.text(kExamplePrototxt);
  page.text(kOverrides);
  const Fields model = fields_of(*schema::Model::descriptor());
  page.table(model);

  page.text("## Layers\n\nThe types of layers:\n\n| type | what it does |\n|---|---|\n");
  for (const FieldDescriptor* type : layer_type_fields()) {
    page.text(fmt::format("| [`{}`](#{}) | {} |\n", type->name(), anchor(type->name()),
                          cell(summary(*type))));
  }
  page.text(
      "\n### Attributes of all layers\n\nIn YAML, `type` says which type a layer has, and the "
      "type's own "
      "attributes stand beside these.\n\n");
  page.table(common_layer_fields());
  page.maps_of(common_layer_fields(), "", 4);
  for (const FieldDescriptor* type : layer_type_fields()) {
    page.section('`' + type->name() + '`', *type, 3);
    page.maps_of(fields_of(*type->message_type()), "", 4);
  }
  page.maps_of(model, "", 2);
  std::string out = page.take();
  out.pop_back();  // the blank line after the last table
  return out;
}

std::string_view example_yaml() { return kExampleYaml; }
std::string_view example_prototxt() { return kExamplePrototxt; }

}  // namespace convnet
