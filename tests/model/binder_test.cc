// If this fails, a model file means something else than it says, or a message about it points
// elsewhere.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <clocale>
#include <set>
#include <string>

#include "framework/model/reference.h"
#include "tests/model/model_text.h"

namespace convnet {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using schema::Conv;
using schema::Layer;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Binder, ReadsEveryKindOfValue) {
  const auto bound = load_good("m.yaml", std::string(kYamlHead) + R"(
devices: 4
layers:
  - {name: a/b-c_1, type: conv, input: [data], filters: 64, kernel: [3, 5], stride: 2, act: relu,
     bias: false, devices: [0, 3], parallel: replicate, init: {normal: 0.01}, decay: 5e-4}
  - {name: n, type: lrn, alpha: .5, k: +2, beta: 3.}
  - {name: l, type: softmax_loss, input: [n, label], report: top1}
train: {steps: 1000000000000000, rate: {base: 1, policy: multistep, at: [5, 6]}, seed: 18446744073709551615}
)");
  ASSERT_NE(bound, nullptr);
  const schema::Model& model = *bound->model;
  EXPECT_EQ(model.devices(), 4u);
  const Layer& layer = model.layers(0);
  EXPECT_EQ(layer.name(), "a/b-c_1");
  EXPECT_THAT(layer.input(), ElementsAre("data"));
  EXPECT_EQ(layer.conv().filters(), 64u);
  EXPECT_THAT(layer.conv().kernel(), ElementsAre(3, 5));
  EXPECT_THAT(layer.conv().stride(), ElementsAre(2));
  EXPECT_EQ(layer.conv().act(), schema::relu);
  EXPECT_FALSE(layer.conv().bias());
  EXPECT_THAT(layer.devices(), ElementsAre(0, 3));
  EXPECT_THAT(layer.parallel(), ElementsAre(schema::replicate));
  EXPECT_EQ(layer.init().normal(), 0.01);
  EXPECT_EQ(layer.decay(), 5e-4);
  EXPECT_EQ(model.layers(1).lrn().alpha(), 0.5f);
  EXPECT_EQ(model.layers(1).lrn().k(), 2.0f);
  EXPECT_EQ(model.layers(1).lrn().beta(), 3.0f);
  EXPECT_THAT(model.layers(2).softmax_loss().report(), ElementsAre("top1"));
  EXPECT_EQ(model.train().steps(), 1000000000000000u);
  EXPECT_EQ(model.train().seed(), 18446744073709551615u);
  EXPECT_THAT(model.train().rate().at(), ElementsAre(5, 6));
}

TEST(Binder, KnowsTheSourcePlaceOfEveryField) {
  const auto bound = load_good(
      "m.yaml", std::string(kYamlHead) +
                    "layers:\n"
                    "  - {name: one, type: conv, input: data, filters: 64, kernel: [3, 5]}\n"
                    "train: {epochs: 1, rate: {base: 0.5}}\n");
  ASSERT_NE(bound, nullptr);
  const schema::Model& model = *bound->model;
  const FieldSpans& spans = bound->spans;
  const Layer& layer = model.layers(0);
  EXPECT_EQ(text_at(spans.value(model, schema::Model::kBatchFieldNumber)), "4");
  EXPECT_EQ(text_at(spans.key(model, schema::Model::kBatchFieldNumber)), "batch");
  EXPECT_EQ(text_at(spans.message(layer)), "one");
  EXPECT_EQ(text_at(spans.message(layer.conv())), "one");
  EXPECT_EQ(text_at(spans.value(layer, Layer::kNameFieldNumber)), "one");
  EXPECT_EQ(text_at(spans.value(layer, Layer::kConvFieldNumber)), "conv");
  EXPECT_EQ(text_at(spans.key(layer, Layer::kConvFieldNumber)), "type");
  EXPECT_EQ(text_at(spans.value(layer.conv(), Conv::kKernelFieldNumber)), "[3, 5]");
  EXPECT_EQ(text_at(spans.value(layer.conv(), Conv::kKernelFieldNumber, 1)), "5");
  EXPECT_EQ(text_at(spans.value(layer.conv(), Conv::kFiltersFieldNumber)), "64");
  EXPECT_EQ(text_at(spans.key(layer.conv(), Conv::kKernelFieldNumber)), "kernel");
  // What is not written has the place of what it is missing in.
  EXPECT_EQ(text_at(spans.value(layer.conv(), Conv::kStrideFieldNumber)), "one");
  EXPECT_EQ(text_at(spans.key(layer.conv(), Conv::kStrideFieldNumber)), "one");
  EXPECT_FALSE(spans.has(layer.conv(), Conv::kStrideFieldNumber));
  EXPECT_TRUE(spans.has(layer.conv(), Conv::kKernelFieldNumber));
  EXPECT_EQ(text_at(spans.message(model.train())), "train");
  EXPECT_EQ(text_at(spans.value(model.train().rate(), schema::Rate::kBaseFieldNumber)), "0.5");
  EXPECT_EQ(bound->source->name(), "m.yaml");
}

TEST(Binder, ReadsTheSameFromBothSpellings) {
  const auto yaml = load_good("m.yaml", std::string(example_yaml()));
  const auto text = load_good("m.prototxt", std::string(example_prototxt()));
  ASSERT_NE(yaml, nullptr);
  ASSERT_NE(text, nullptr);
  EXPECT_EQ(difference(*yaml->model, *text->model), "");
  EXPECT_EQ(yaml->model->layers_size(), 7);
}

TEST(Binder, ReadsProtobufTextAsProtobufDoes) {
  // Everything of the syntax that the two must agree on.
  const std::string text = std::string(kPrototxtHead) + R"(
layers < name: 'a' "b" input: "data"; conv: { filters: 3, kernel: 3 kernel: 5 bias: false } >
layers: [{ name: "c" relu {} }, { name: "\x64\145" fc { outputs: 10 } init { constant: -2 } }]
train { epochs: 1 rate { base: 1.5f policy: multistep at: 3 at: [5, 7] } }
)";
  const auto bound = load_good("m.prototxt", text);
  ASSERT_NE(bound, nullptr);
  schema::Model theirs;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &theirs));
  EXPECT_EQ(difference(theirs, *bound->model), "");
  EXPECT_EQ(bound->model->layers(2).name(), "de");
}

TEST(Binder, WritesWhatItReads) {
  const auto bound = load_good("m.yaml", std::string(example_yaml()));
  std::string text;
  ASSERT_TRUE(google::protobuf::TextFormat::PrintToString(*bound->model, &text));
  const auto again = load_good("m.prototxt", text);
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(difference(*bound->model, *again->model), "");
}

TEST(Binder, MergesDefaultsIntoTheLayersOfTheirType) {
  const auto bound = load_good("m.yaml", std::string(kYamlHead) + R"(
layers:
  - {name: a, type: conv, input: data, filters: 1}
  - {name: b, type: conv, filters: 2, kernel: 7, init: {uniform: 1}, decay: 0, act: none}
  - {name: c, type: pool, kernel: 2}
defaults:
  conv: {kernel: [3, 5], init: {normal: 0.5}, decay: 0.25, act: relu, devices: [0, 1]}
)");
  ASSERT_NE(bound, nullptr);
  const schema::Model& model = *bound->model;
  const Layer &a = model.layers(0), &b = model.layers(1), &c = model.layers(2);
  EXPECT_THAT(a.conv().kernel(), ElementsAre(3, 5));
  EXPECT_EQ(a.conv().act(), schema::relu);
  EXPECT_EQ(a.init().normal(), 0.5f);
  EXPECT_EQ(a.decay(), 0.25f);
  EXPECT_THAT(a.devices(), ElementsAre(0, 1));
  EXPECT_EQ(a.name(), "a");
  // What the layer says itself counts, also if it is the schema's default; maps are taken whole.
  EXPECT_THAT(b.conv().kernel(), ElementsAre(7));
  EXPECT_EQ(b.conv().act(), schema::none);
  EXPECT_EQ(b.init().kind_case(), schema::Init::kUniform);
  EXPECT_EQ(b.decay(), 0.0f);
  EXPECT_TRUE(b.has_decay());
  EXPECT_FALSE(c.has_decay());
  EXPECT_FALSE(c.has_init());
  EXPECT_EQ(c.devices_size(), 0);

  const FieldSpans& spans = bound->spans;
  EXPECT_EQ(text_at(spans.value(a.conv(), Conv::kKernelFieldNumber)), "[3, 5]");
  EXPECT_EQ(text_at(spans.value(a.conv(), Conv::kKernelFieldNumber, 1)), "5");
  EXPECT_EQ(text_at(spans.value(a, Layer::kDecayFieldNumber)), "0.25");
  EXPECT_EQ(text_at(spans.value(a.init(), schema::Init::kNormalFieldNumber)), "0.5");
  EXPECT_EQ(text_at(spans.key(a, Layer::kInitFieldNumber)), "init");
  EXPECT_EQ(text_at(spans.value(b.conv(), Conv::kKernelFieldNumber)), "7");
  EXPECT_EQ(text_at(spans.message(a)), "a");
  EXPECT_EQ(text_at(spans.message(a.conv())), "a");
}

TEST(Binder, MergesDefaultsOfProtobufText) {
  const auto bound =
      load_good("m.prototxt", std::string(kPrototxtHead) +
                                  "layers { name: \"a\" input: \"data\" conv { filters: 1 } }\n"
                                  "defaults { conv { kernel: 3 } decay: 0.5 }\n"
                                  "defaults { fc {} decay: 1 }\n");
  ASSERT_NE(bound, nullptr);
  EXPECT_THAT(bound->model->layers(0).conv().kernel(), ElementsAre(3));
  EXPECT_EQ(bound->model->layers(0).decay(), 0.5f);
}

TEST(Binder, DoesNotAskForWhatWasMisspeltOrWrong) {
  const std::string misspelt =
      errors_of("m.yaml", std::string(kYamlHead) + "layers: [{name: a, type: fc, outpust: 3}]\n");
  EXPECT_THAT(misspelt, HasSubstr("unknown attribute 'outpust' for fc"));
  EXPECT_THAT(misspelt, Not(HasSubstr("missing")));
  const std::string wrong =
      errors_of("m.yaml", std::string(kYamlHead) + "layers: [{name: a, type: fc, outputs: x}]\n");
  EXPECT_THAT(wrong, HasSubstr("outputs is 'x', must be an integer"));
  EXPECT_THAT(wrong, Not(HasSubstr("missing")));
  const std::string unknown = errors_of(
      "m.yaml", std::string(kYamlHead) + "layers: [{name: a, type: fcc, anything: 1, goes: 2}]\n");
  EXPECT_THAT(unknown, HasSubstr("unknown layer type 'fcc'"));
  EXPECT_THAT(unknown, Not(HasSubstr("attribute")));
}

TEST(Binder, ExpandsAliasesWithThePlaceOfTheirAnchor) {
  const auto bound = load_good("m.yaml", std::string(kYamlHead) + R"(
layers:
  - {name: a, type: conv, input: data, filters: &n 7, kernel: &k [3, 5]}
  - {name: b, type: conv, filters: *n, kernel: *k}
)");
  ASSERT_NE(bound, nullptr);
  const Layer& b = bound->model->layers(1);
  EXPECT_EQ(b.conv().filters(), 7u);
  EXPECT_THAT(b.conv().kernel(), ElementsAre(3, 5));
  EXPECT_EQ(text_at(bound->spans.value(b.conv(), Conv::kKernelFieldNumber)), "[3, 5]");
}

TEST(Binder, TakesByteOrderMarksAndOtherLineEnds) {
  const std::string plain = std::string(example_yaml());
  std::string crlf;
  for (char c : plain) crlf += c == '\n' ? "\r\n" : std::string(1, c);
  const auto expected = load_good("m.yaml", plain);
  for (const std::string& text :
       {"\xef\xbb\xbf" + plain, crlf, "\xef\xbb\xbf" + crlf, "---\n" + plain, plain + "...\n"}) {
    const auto bound = load_good("m.yaml", text);
    ASSERT_NE(bound, nullptr);
    EXPECT_EQ(difference(*expected->model, *bound->model), "");
  }
  std::string prototxt = std::string(example_prototxt()), crlf_prototxt;
  for (char c : prototxt) crlf_prototxt += c == '\n' ? "\r\n" : std::string(1, c);
  const auto bound = load_good("m.pbtxt", "\xef\xbb\xbf" + crlf_prototxt);
  ASSERT_NE(bound, nullptr);
  EXPECT_EQ(difference(*expected->model, *bound->model), "");
}

TEST(Binder, ReadsNumbersTheSameInEveryLocale) {
  const auto expected = load_good("m.yaml", std::string(example_yaml()));
  for (const char* locale : {"de_DE.UTF-8", "tr_TR.UTF-8", "fr_FR.UTF-8"}) {
    if (std::setlocale(LC_ALL, locale) == nullptr) continue;  // not on this machine
    const auto bound = load_good("m.yaml", std::string(example_yaml()));
    EXPECT_EQ(difference(*expected->model, *bound->model), "") << locale;
  }
  std::setlocale(LC_ALL, "C");
}

TEST(Binder, KeepsOverridesInPlacesOfTheirOwn) {
  const auto bound =
      load_good("m.yaml", std::string(example_yaml()), {"layers.conv1.kernel=[1, 3]"});
  ASSERT_NE(bound, nullptr);
  const Span span = bound->spans.value(bound->model->layers(0).conv(), Conv::kKernelFieldNumber, 1);
  ASSERT_NE(span.source, nullptr);
  EXPECT_EQ(span.source->name(), "--set");
  EXPECT_EQ(text_at(span), "3");
  EXPECT_EQ(span.column(), 25);
}

// ---- the schema itself

void visit(const Descriptor& message, std::set<const Descriptor*>* seen) {
  if (!seen->insert(&message).second) return;
  for (int i = 0; i < message.field_count(); ++i) {
    if (message.field(i)->message_type() != nullptr) visit(*message.field(i)->message_type(), seen);
  }
}

TEST(Schema, SaysWhatEveryFieldMeans) {
  std::set<const Descriptor*> messages;
  visit(*schema::Model::descriptor(), &messages);
  EXPECT_GT(messages.size(), 20u);
  const auto* types = Layer::descriptor()->FindOneofByName("type");
  for (const Descriptor* message : messages) {
    if (message != Layer::descriptor()) {
      EXPECT_NE(message->options().GetExtension(schema::summary), "") << message->full_name();
    }
    for (int i = 0; i < message->field_count(); ++i) {
      const FieldDescriptor& field = *message->field(i);
      if (field.containing_oneof() == types) continue;
      const auto& options = field.options();
      EXPECT_NE(options.GetExtension(schema::doc), "") << field.full_name();
      EXPECT_FALSE(options.GetExtension(schema::required) && field.has_default_value())
          << field.full_name();
      if (field.is_repeated() && field.message_type() == nullptr) {
        EXPECT_TRUE(options.HasExtension(schema::max_items)) << field.full_name();
      }
      if (field.enum_type() != nullptr) {
        for (int k = 0; k < field.enum_type()->value_count(); ++k) {
          const auto& value = *field.enum_type()->value(k);
          EXPECT_NE(value.options().GetExtension(schema::value_doc), "") << value.full_name();
        }
      }
    }
  }
}

TEST(Schema, HasOnlyFieldsThatTheBinderCanSet) {
  std::set<const Descriptor*> messages;
  visit(*schema::Model::descriptor(), &messages);
  const std::set<FieldDescriptor::CppType> known = {
      FieldDescriptor::CPPTYPE_UINT32, FieldDescriptor::CPPTYPE_UINT64,
      FieldDescriptor::CPPTYPE_FLOAT,  FieldDescriptor::CPPTYPE_DOUBLE,
      FieldDescriptor::CPPTYPE_BOOL,   FieldDescriptor::CPPTYPE_ENUM,
      FieldDescriptor::CPPTYPE_STRING, FieldDescriptor::CPPTYPE_MESSAGE};
  for (const Descriptor* message : messages) {
    for (int i = 0; i < message->field_count(); ++i) {
      const FieldDescriptor& field = *message->field(i);
      EXPECT_EQ(known.count(field.cpp_type()), 1u) << field.full_name();
      EXPECT_FALSE(field.is_required()) << field.full_name() << ": use the option";
      if (field.is_repeated() && field.message_type() != nullptr) {
        EXPECT_EQ(field.message_type(), Layer::descriptor()) << field.full_name();
      }
    }
  }
}

TEST(Schema, HasNoAttributeOfATypeThatAllLayersHave) {
  const Descriptor& layer = *Layer::descriptor();
  const auto* types = layer.FindOneofByName("type");
  for (int i = 0; i < types->field_count(); ++i) {
    const Descriptor& type = *types->field(i)->message_type();
    for (int k = 0; k < type.field_count(); ++k) {
      EXPECT_EQ(layer.FindFieldByName(type.field(k)->name()), nullptr)
          << type.field(k)->full_name();
      EXPECT_NE(type.field(k)->name(), "type") << type.full_name();
    }
  }
  EXPECT_EQ(layer.FindFieldByName("type"), nullptr);
}

}  // namespace
}  // namespace convnet
