#include "framework/model/overrides.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "framework/model/model.pb.h"

namespace convnet {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::OneofDescriptor;
using Kind = SourceNode::Kind;
using Entry = SourceNode::Entry;

// A step of a path: a key, or an index in brackets.
struct Step {
  std::string text;
  Span span;
  std::optional<size_t> index;
};

bool is_layer_type(const std::string& name) {
  const OneofDescriptor* types = schema::Layer::descriptor()->FindOneofByName("type");
  const FieldDescriptor* field = schema::Layer::descriptor()->FindFieldByName(name);
  return field != nullptr && field->containing_oneof() == types;
}

class Change {
 public:
  Change(const Override& change, SourceNode& root, Diagnostics& diagnostics)
      : change_(change), root_(root), diagnostics_(diagnostics) {}

  void apply() {
    if (!split()) return;
    SourceNode* at = &root_;
    for (size_t i = 0; i < steps_.size() && at != nullptr; ++i) {
      const bool last = i + 1 == steps_.size();
      at = steps_[i].index ? item_at(*at, i) : step_into(*at, i, last);
      if (at != nullptr && last) *at = change_.value;
    }
  }

 private:
  Span piece(size_t begin, size_t end) const {
    return {change_.path.source, change_.path.begin + begin, change_.path.begin + end};
  }

  // "layers[3].kernel" -> layers, [3], kernel
  bool split() {
    const std::string_view path =
        std::string_view(change_.path.source->text())
            .substr(change_.path.begin, change_.path.end - change_.path.begin);
    size_t i = 0;
    while (true) {
      const size_t begin = i;
      while (i < path.size() && path[i] != '.' && path[i] != '[') ++i;
      if (i == begin) {
        diagnostics_.error(piece(begin, std::min(begin + 1, path.size())),
                           "a name is missing in the path");
        return false;
      }
      steps_.push_back({std::string(path.substr(begin, i - begin)), piece(begin, i), std::nullopt});
      while (i < path.size() && path[i] == '[') {
        const size_t open = i;
        size_t index = 0;
        const char* const first = path.data() + open + 1;
        const char* const end = path.data() + path.size();
        const auto parsed = std::from_chars(first, end, index);
        if (parsed.ec != std::errc() || parsed.ptr == end || *parsed.ptr != ']') {
          diagnostics_.error(piece(open, path.size()), "an index must be a number in brackets");
          return false;
        }
        i = static_cast<size_t>(parsed.ptr - path.data()) + 1;
        steps_.push_back({std::string(path.substr(open, i - open)), piece(open, i), index});
      }
      if (i == path.size()) return true;
      if (path[i] != '.') {
        diagnostics_.error(piece(i, i + 1), "expected '.' or '=' after the index");
        return false;
      }
      ++i;
    }
  }

  std::string path_before(size_t step) const {
    std::string out;
    for (size_t i = 0; i < step; ++i) {
      if (!out.empty() && !steps_[i].index) out += '.';
      out += printable(steps_[i].text, 60);
    }
    return out;
  }

  // The nodes that a list consists of: in protobuf text, of all entries of its key.
  std::vector<SourceNode*> items_of(SourceNode& node, size_t step) {
    std::vector<SourceNode*> items;
    const auto add = [&](SourceNode& value) {
      if (value.kind == Kind::kList) {
        for (SourceNode& item : value.items) items.push_back(&item);
      } else {
        items.push_back(&value);
      }
    };
    if (parent_ != nullptr && parent_->repeats) {
      for (Entry& entry : parent_->entries) {
        if (entry.key == steps_[step - 1].text) add(entry.value);
      }
    } else {
      add(node);
    }
    return items;
  }

  SourceNode* item_at(SourceNode& node, size_t step) {
    const std::vector<SourceNode*> items = items_of(node, step);
    const size_t index = *steps_[step].index;
    if (index >= items.size()) {
      diagnostics_.error(steps_[step].span,
                         fmt::format("{} has {} {}, counted from [0]", path_before(step),
                                     items.size(), items.size() == 1 ? "item" : "items"));
      return nullptr;
    }
    parent_ = nullptr;
    return items[index];
  }

  // Into a map by key, or into a list by the name of an item.
  SourceNode* step_into(SourceNode& node, size_t step, bool last) {
    const bool of_list = node.kind == Kind::kList || is_repeated_message(step);
    if (of_list && step > 0 && !steps_[step - 1].index) return item_named(node, step);
    if (node.kind == Kind::kNull) {
      node.kind = Kind::kMap;
      node.repeats = root_.repeats;
      node.span = steps_[step - 1].span;
    }
    if (node.kind != Kind::kMap) {
      diagnostics_.error(steps_[step].span,
                         fmt::format("{} is not a map, so it has no '{}'", path_before(step),
                                     printable(steps_[step].text, 60)));
      return nullptr;
    }
    SourceNode& map = owner_of(node, steps_[step].text, step);
    parent_ = &map;
    return entry_of(map, steps_[step], last);
  }

  // `layers` and `defaults` in protobuf text: entries of one key in the root.
  bool is_repeated_message(size_t step) const {
    return root_.repeats && step == 1 &&
           (steps_[0].text == "layers" || steps_[0].text == "defaults");
  }

  SourceNode* item_named(SourceNode& node, size_t step) {
    const std::string& wanted = steps_[step].text;
    const bool by_type = steps_[0].text == "defaults";
    std::vector<std::string> names;
    for (SourceNode* item : items_of(node, step)) {
      for (const Entry& entry : item->entries) {
        const bool is_name = by_type ? is_layer_type(entry.key) : entry.key == "name";
        const std::string& name = by_type ? entry.key : entry.value.text;
        if (!is_name) continue;
        if (name == wanted) {
          parent_ = nullptr;
          return item;
        }
        names.push_back(name);
      }
    }
    if (by_type) return new_defaults(step);
    const std::string near = nearest(wanted, names);
    Diagnostic& error = diagnostics_.error(
        steps_[step].span,
        fmt::format("{} has no item named '{}'", path_before(step), printable(wanted, 60)));
    if (!near.empty()) error.help = "did you mean '" + near + "'?";
    return nullptr;
  }

  // Protobuf text without defaults of this type yet: `defaults { conv {} }`. A name that is no type
  // is left to the binder.
  SourceNode* new_defaults(size_t step) {
    SourceNode type, item;
    type.kind = item.kind = Kind::kMap;
    type.repeats = item.repeats = true;
    type.span = item.span = steps_[step].span;
    item.entries.push_back({steps_[step].text, steps_[step].span, std::move(type)});
    for (Entry& entry : root_.entries) {
      if (entry.key == "defaults" && entry.value.kind == Kind::kNull) {
        entry.value = std::move(item);
        return &entry.value;
      }
    }
    root_.entries.push_back({"defaults", steps_[0].span, std::move(item)});
    return &root_.entries.back().value;
  }

  // The map that an attribute belongs in: in protobuf text, an attribute of a layer's type stands
  // in the message of the type.
  SourceNode& owner_of(SourceNode& node, const std::string& key, size_t step) {
    const bool in_layer =
        step > 0 && (steps_[0].text == "layers" || steps_[0].text == "defaults") && step == 2;
    if (!in_layer || !node.repeats) return node;
    if (schema::Layer::descriptor()->FindFieldByName(key) != nullptr) return node;
    for (Entry& entry : node.entries) {
      if (is_layer_type(entry.key) && entry.value.kind == Kind::kMap) return entry.value;
    }
    return node;
  }

  // The value of a key, made if it is not there. The last step of a path replaces all of a repeated
  // key's entries by one.
  SourceNode* entry_of(SourceNode& map, const Step& step, bool last) {
    Entry* found = nullptr;
    for (size_t i = 0; i < map.entries.size();) {
      Entry& entry = map.entries[i];
      if (entry.key != step.text) {
        ++i;
      } else if (found == nullptr) {
        found = &entry;
        ++i;
      } else if (last) {
        map.entries.erase(map.entries.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        break;
      }
    }
    if (found == nullptr) {
      SourceNode empty;
      empty.span = step.span;
      map.entries.push_back({step.text, step.span, std::move(empty)});
      found = &map.entries.back();
    }
    if (last) found->key_span = step.span;
    return &found->value;
  }

  const Override& change_;
  SourceNode& root_;
  Diagnostics& diagnostics_;
  std::vector<Step> steps_;
  SourceNode* parent_ = nullptr;  // the map that the last step looked into
};

}  // namespace

void apply_override(const Override& change, SourceNode& root, Diagnostics& diagnostics) {
  Change(change, root, diagnostics).apply();
}

}  // namespace convnet
