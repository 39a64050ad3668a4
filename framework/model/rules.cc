#include "framework/model/rules.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "framework/model/model.pb.h"
#include "framework/model/scalars.h"

namespace convnet {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::OneofDescriptor;
using google::protobuf::Reflection;
using schema::Model;
using schema::Rate;
using schema::Source;
using schema::Train;

constexpr size_t kLongestName = 128;

class Rules {
 public:
  Rules(const Model& model, const FieldSpans& spans, Diagnostics& diagnostics)
      : model_(model), spans_(spans), diagnostics_(diagnostics) {}

  void check() {
    if (model_.has_name()) {
      check_name(model_.name(), "model", false, spans_.value(model_, Model::kNameFieldNumber));
    }
    check_layer_names();
    if (model_.has_train()) check_train(model_.train());
    if (model_.data().has_train()) check_source(model_.data().train(), "data.train");
    if (model_.data().has_test()) check_source(model_.data().test(), "data.test");
  }

 private:
  bool written(const Message& message, int field) const { return spans_.has(message, field); }

  void check_name(const std::string& name, const std::string& what, bool slash, Span span) {
    if (name.size() > kLongestName) {
      diagnostics_.error(span, fmt::format("the {} name has {} characters, must have at most {}",
                                           what, name.size(), kLongestName));
      return;
    }
    for (char c : name) {
      const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
      const bool digit = c >= '0' && c <= '9';
      if (letter || digit || c == '_' || c == '-' || (slash && c == '/')) continue;
      diagnostics_.error(span,
                         fmt::format("{} name '{}' may only have letters, digits, '_'{}", what,
                                     printable(name, 60), slash ? ", '-' and '/'" : " and '-'"));
      return;
    }
    if (slash &&
        (name.front() == '/' || name.back() == '/' || name.find("//") != std::string::npos)) {
      diagnostics_.error(span,
                         fmt::format("{} name '{}' has a '/' that divides nothing", what, name));
    }
  }

  void check_layer_names() {
    std::map<std::string_view, const schema::Layer*> first;
    for (const schema::Layer& layer : model_.layers()) {
      if (!layer.has_name()) continue;
      const Span span = spans_.value(layer, schema::Layer::kNameFieldNumber);
      check_name(layer.name(), "layer", true, span);
      if (layer.name() == "data" || layer.name() == "label") {
        diagnostics_.error(span,
                           fmt::format("layer name '{}' is the name of an input", layer.name()));
      }
      const auto [found, inserted] = first.emplace(layer.name(), &layer);
      if (!inserted) {
        Diagnostic& error = diagnostics_.error(
            span, fmt::format("duplicate layer name '{}'", printable(layer.name(), 60)));
        error.notes.push_back(
            {spans_.value(*found->second, schema::Layer::kNameFieldNumber), "first used here"});
      }
    }
  }

  void check_train(const Train& train) {
    const bool epochs = written(train, Train::kEpochsFieldNumber);
    const bool steps = written(train, Train::kStepsFieldNumber);
    if (epochs && steps) {
      exclude(train, Train::kEpochsFieldNumber, Train::kStepsFieldNumber, "train.");
    } else if (!epochs && !steps) {
      diagnostics_.error(spans_.message(train), "train needs 'epochs' or 'steps'");
    }
    if (train.has_rate()) check_rate(train.rate());
  }

  // Two fields that must not be given together; the note is at the one written first.
  void exclude(const Message& message, int a, int b, const std::string& prefix) {
    const auto name = [&](int field) {
      return prefix + message.GetDescriptor()->FindFieldByNumber(field)->name();
    };
    Span first = spans_.key(message, a), second = spans_.key(message, b);
    if (first.source == second.source && first.begin > second.begin) {
      std::swap(first, second);
      std::swap(a, b);
    }
    Diagnostic& error =
        diagnostics_.error(second, fmt::format("{} and {} exclude each other", name(a), name(b)));
    error.notes.push_back({first, fmt::format("{} is given here", name(a))});
  }

  void check_rate(const Rate& rate) {
    struct Use {
      int field;
      std::vector<Rate::Policy> policies;
      bool needed;
    };
    static const std::vector<Use> kUses = {
        {Rate::kGammaFieldNumber, {Rate::step, Rate::multistep}, false},
        {Rate::kEveryFieldNumber, {Rate::step}, true},
        {Rate::kAtFieldNumber, {Rate::multistep}, true},
        {Rate::kFactorFieldNumber, {Rate::exp, Rate::dexp, Rate::linear}, true},
        {Rate::kStepsFieldNumber, {Rate::dexp}, true},
        {Rate::kPowerFieldNumber, {Rate::poly}, false},
    };
    const bool policy_written = written(rate, Rate::kPolicyFieldNumber);
    if (policy_written && !rate.has_policy()) return;  // it is wrong, and so unknown
    const Span policy_span =
        policy_written ? spans_.value(rate, Rate::kPolicyFieldNumber) : spans_.message(rate);
    const std::string policy = Rate::Policy_Name(rate.policy());
    for (const Use& use : kUses) {
      const std::string& name = Rate::descriptor()->FindFieldByNumber(use.field)->name();
      bool used = false;
      std::vector<std::string> users;
      for (Rate::Policy user : use.policies) {
        used = used || user == rate.policy();
        users.push_back(Rate::Policy_Name(user));
      }
      if (used && use.needed && !written(rate, use.field)) {
        diagnostics_.error(policy_span, fmt::format("policy {} needs train.rate.{}", policy, name));
      }
      if (!used && written(rate, use.field)) {
        Diagnostic& error =
            diagnostics_.error(spans_.key(rate, use.field),
                               fmt::format("train.rate.{} is not used by policy {}, only by {}",
                                           name, policy, join_words(users, "and")));
        if (policy_written) error.notes.push_back({policy_span, "the policy is given here"});
      }
    }
    for (int i = 1; i < rate.at_size(); ++i) {
      if (rate.at(i) > rate.at(i - 1)) continue;
      diagnostics_.error(
          spans_.value(rate, Rate::kAtFieldNumber, i),
          fmt::format("train.rate.at must rise, but {} follows {}", rate.at(i), rate.at(i - 1)));
    }
  }

  void check_source(const Source& source, const std::string& name) {
    if (written(source, Source::kMeanFieldNumber) &&
        written(source, Source::kMeanValuesFieldNumber)) {
      exclude(source, Source::kMeanFieldNumber, Source::kMeanValuesFieldNumber, name + ".");
    }
  }

  const Model& model_;
  const FieldSpans& spans_;
  Diagnostics& diagnostics_;
};

// Copies the fields that `to` does not have, but for `except`.
void merge_fields(const Message& from, Message& to, const OneofDescriptor* except,
                  FieldSpans& spans) {
  const Reflection& reflection = *from.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(from, &fields);
  // A field that only says how another one was written goes with it.
  std::set<const FieldDescriptor*> kept;
  for (const FieldDescriptor* field : fields) {
    const FieldDescriptor* rows =
        to.GetDescriptor()->FindFieldByName(field->options().GetExtension(schema::rows));
    if (rows != nullptr && reflection.FieldSize(to, field) > 0) kept.insert(rows);
  }
  for (const FieldDescriptor* field : fields) {
    if (kept.contains(field)) continue;
    const OneofDescriptor* oneof = field->real_containing_oneof();
    if (oneof != nullptr && (oneof == except || reflection.HasOneof(to, oneof))) continue;
    const bool given =
        field->is_repeated() ? reflection.FieldSize(to, field) > 0 : reflection.HasField(to, field);
    if (given) continue;
    // A copy of this field alone, through a message of the same type that has nothing else.
    std::unique_ptr<Message> only(from.New());
    only->CopyFrom(from);
    for (const FieldDescriptor* other : fields) {
      if (other != field) reflection.ClearField(only.get(), other);
    }
    to.MergeFrom(*only);
    spans.copy_field(from, to, field->number());
  }
}

}  // namespace

void check_rules(const Model& model, const FieldSpans& spans, Diagnostics& diagnostics) {
  Rules(model, spans, diagnostics).check();
}

void merge_defaults(Model& model, FieldSpans& spans) {
  const OneofDescriptor* type = schema::Layer::descriptor()->FindOneofByName("type");
  for (const schema::Layer& defaults : model.defaults()) {
    const Reflection& reflection = *defaults.GetReflection();
    const FieldDescriptor* member = reflection.GetOneofFieldDescriptor(defaults, type);
    for (schema::Layer& layer : *model.mutable_layers()) {
      if (reflection.GetOneofFieldDescriptor(layer, type) != member) continue;
      merge_fields(defaults, layer, type, spans);
      merge_fields(reflection.GetMessage(defaults, member),
                   *reflection.MutableMessage(&layer, member), nullptr, spans);
    }
  }
}

}  // namespace convnet
