// If this fails, a layer of the registry computes a wrong gradient, accepts what it must refuse, or
// is wrong under some sharding. It iterates over the registry: a new layer needs no code here.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "framework/graph/layer_def.h"
#include "framework/model/model.pb.h"
#include "layers/registry.h"
#include "parsers/model_file.h"
#include "tests/support/model_run.h"

namespace convnet {
namespace {

constexpr int64_t kBatch = 64;  // four canonical shards

// A network around one layer: each of the layer's inputs comes from a 1x1 convolution, so that the
// gradients of its inputs show in parameters; its output goes through a fully-connected layer to
// the loss (unless it is the loss).
std::string network(const LayerDef& def, const LayerSample& sample, const std::string& attributes,
                    const std::string& mode) {
  const Shape& first = sample.inputs[0];
  const bool loss = def.takes_label;
  std::string text = "format: 1\nname: conformance\nbatch: " + std::to_string(kBatch) +
                     "\ninput: {data: [2, " + std::to_string(first[1]) + ", " +
                     std::to_string(first[2]) +
                     "], label: {classes: " + std::to_string(loss ? first[0] : 3) + "}}\nlayers:\n";
  std::string inputs;
  for (size_t i = 0; i < sample.inputs.size(); ++i) {
    const std::string name = "in" + std::to_string(i);
    text += "  - {name: " + name + ", type: conv, input: data, kernel: 1, filters: " +
            std::to_string(sample.inputs[i][0]) + ", init: {normal: 1}}\n";
    inputs += (i ? ", " : "") + name;
  }
  if (loss) inputs += ", label";
  text += "  - {name: under_test, type: " + std::string(def.type) + ", input: [" + inputs +
          "], parallel: " + mode + (attributes.empty() ? "" : ", " + attributes) + "}\n";
  if (!loss) {
    text += "  - {name: out, type: fc, outputs: 3, init: {xavier: 1}}\n";
    text += "  - {name: loss, type: softmax_loss, input: [out, label]}\n";
  }
  text += "train: {momentum: 0, steps: 1, rate: {base: 1}}\n";
  return text;
}

std::unique_ptr<BoundModel> bind_network(const LayerDef& def, const LayerSample& sample,
                                         const std::string& mode = "data") {
  return bind_text(network(def, sample, sample.attributes, mode));
}

class Conformance : public testing::TestWithParam<const LayerDef*> {};

TEST_P(Conformance, SchemaIsDocumented) {
  const LayerDef& def = *GetParam();
  const auto* oneof = schema::Layer::descriptor()->FindOneofByName("type");
  const google::protobuf::FieldDescriptor* field = nullptr;
  for (int i = 0; i < oneof->field_count(); ++i)
    if (oneof->field(i)->name() == def.type) field = oneof->field(i);
  ASSERT_NE(field, nullptr) << def.type << " is not in layers.proto";
  const auto* message = field->message_type();
  EXPECT_FALSE(message->options().GetExtension(schema::summary).empty());
  for (int i = 0; i < message->field_count(); ++i)
    EXPECT_FALSE(message->field(i)->options().GetExtension(schema::doc).empty())
        << message->field(i)->full_name() << " has no doc";
  EXPECT_FALSE(def.samples.empty());
  EXPECT_FALSE(def.rules.empty());
}

TEST_P(Conformance, RefusesIllegalAttributes) {
  const LayerDef& def = *GetParam();
  const auto refused = [&](const std::string& text) {
    Diagnostics diagnostics;
    auto model = load_model_text("model.yaml", text, {}, diagnostics);
    if (model) compile(*model, all_layers(), CompileOptions{}, diagnostics);
    for (const Diagnostic& d : diagnostics.all()) {
      if (d.severity != Diagnostic::Severity::kError) continue;
      EXPECT_NE(d.span.source, nullptr) << d.message;
      EXPECT_LT(d.span.begin, d.span.end) << d.message;
      EXPECT_LE(d.span.end, text.size()) << d.message;
    }
    return diagnostics.has_errors();
  };
  for (const std::string& attributes : def.illegal)
    EXPECT_TRUE(refused(network(def, def.samples[0], attributes, "data"))) << attributes;

  // Each number just outside its range, in the first sample that does not give it.
  const auto* message =
      schema::Layer::descriptor()->FindFieldByName(std::string(def.type))->message_type();
  for (int i = 0; i < message->field_count(); ++i) {
    const auto* field = message->field(i);
    const auto& options = field->options();
    std::vector<std::string> outside;
    const auto number = [](double x) {
      std::string s = std::to_string(x);
      return x == std::floor(x) ? s.substr(0, s.find('.')) : s;
    };
    if (options.HasExtension(schema::min))
      outside.push_back(number(options.GetExtension(schema::min) - 1));
    if (options.HasExtension(schema::max))
      outside.push_back(number(options.GetExtension(schema::max) + 1));
    if (options.HasExtension(schema::above))
      outside.push_back(number(options.GetExtension(schema::above)));
    if (options.HasExtension(schema::below))
      outside.push_back(number(options.GetExtension(schema::below)));
    outside.push_back("[]");
    outside.push_back("{}");
    for (const std::string& value : outside) {
      const LayerSample* sample = nullptr;
      for (const LayerSample& s : def.samples)
        if (s.attributes.find(field->name() + ":") == std::string::npos) sample = &s;
      std::string attributes = field->name() + ": " + value;
      if (sample == nullptr) {
        sample = &def.samples[0];  // give the others of the sample only
      } else if (!sample->attributes.empty()) {
        attributes = sample->attributes + ", " + attributes;
      }
      EXPECT_TRUE(refused(network(def, *sample, attributes, "data"))) << attributes;
    }
  }
}

// One step at rate 1 without momentum and decay subtracts the gradient from each parameter; compare
// it with central differences of the loss, in double. A difference quotient that changes with its
// step has a kink (of relu or a maximum) inside: such places are rare and left out.
TEST_P(Conformance, GradientsAgreeWithDifferences) {
  const LayerDef& def = *GetParam();
  for (const LayerSample& sample : def.samples) {
    SCOPED_TRACE(std::string(def.type) + " {" + sample.attributes + "}");
    const auto model = bind_network(def, sample);
    CompileOptions options;
    options.dtype = DType::kF64;
    const Plan plan = compile_model(*model, options);
    const auto session = reference_session(plan);
    const Batch batch = random_batch(plan, 3, kBatch - 5);
    const auto loss = [&] {
      auto result = session->run(batch, 0, 0.0);
      CHECK_MSG(result.ok(), result.status().message());
      double sum = 0;
      for (const MetricValues& m : result->metrics) sum += m.weight * m.loss_sum;
      return sum / static_cast<double>(plan.batch);
    };
    const auto start = read_all(*session);
    ASSERT_TRUE(session->run(batch, 0, 1.0).ok());
    const auto moved = read_all(*session);
    for (const auto& [name, value] : start) ASSERT_TRUE(session->write(name, value).ok());

    int checked = 0, kinks = 0;
    double largest = 0;
    for (const Tensor& t : plan.tensors) {
      if (t.kind != TensorKind::kParameter) continue;
      const HostTensor& w = start.at(t.name);
      const auto step = std::max<size_t>(1, w.values.size() / 7);
      for (size_t i = 0; i < w.values.size(); i += step) {
        const double gradient = w.values[i] - moved.at(t.name).values[i];
        const auto quotient = [&](double h) {
          HostTensor changed = w;
          changed.values[i] = w.values[i] + h;
          CHECK(session->write(t.name, changed).ok());
          const double up = loss();
          changed.values[i] = w.values[i] - h;
          CHECK(session->write(t.name, changed).ok());
          const double down = loss();
          CHECK(session->write(t.name, w).ok());
          return (up - down) / (2 * h);
        };
        const double wide = quotient(1e-5), narrow = quotient(5e-6);
        // Rounding of the loss is about 1e-16, over h: 2e-11; truncation is below 1e-9 here.
        if (std::abs(wide - narrow) > 1e-8 * std::max(1.0, std::abs(narrow))) {
          ++kinks;
          continue;
        }
        ++checked;
        largest = std::max(largest, std::abs(gradient));
        EXPECT_NEAR(gradient, narrow, 1e-8 + 1e-6 * std::abs(narrow)) << t.name << " element " << i;
      }
    }
    EXPECT_GT(checked, 0);
    EXPECT_GT(largest, 1e-6) << "no gradient reaches any parameter";
    EXPECT_LE(kinks, checked / 5);
  }
}

// Whether a sample of a layer can be split in a mode: some need groups, some must have none.
bool possible(const BoundModel& model) {
  Diagnostics diagnostics;
  const auto plan = compile(model, all_layers(), CompileOptions{}, diagnostics);
  return plan.has_value();
}

// Trains two steps in double on the reference backend. `promised`: whether the plan's sums are all
// in the canonical order.
std::map<std::string, HostTensor> train(const BoundModel& model, int devices, bool* promised) {
  CompileOptions options;
  options.dtype = DType::kF64;
  options.devices = devices;
  const Plan plan = compile_model(model, options);
  *promised = true;
  for (const Exchange& e : plan.exchanges) *promised &= e.order != Exchange::Order::kRank;
  const auto session = reference_session(plan);
  for (int step = 0; step < 2; ++step)
    CHECK(
        session->run(random_batch(plan, static_cast<uint64_t>(step), kBatch - 7), step, 0.5).ok());
  return read_all(*session);
}

// A mode may choose an order of sums of its own; it is then the same on any number of devices, and
// within rounding of the plain sums.
void expect_same(const BoundModel& model, const std::map<std::string, HostTensor>& plain,
                 int most_devices) {
  bool promised;
  const auto serial = train(model, 1, &promised);
  ASSERT_TRUE(promised);
  EXPECT_LE(largest_difference(plain, serial), 1e-12);
  for (int devices = 2; devices <= most_devices; ++devices) {
    SCOPED_TRACE("devices: " + std::to_string(devices));
    const auto parallel = train(model, devices, &promised);
    EXPECT_LE(largest_difference(serial, parallel), promised ? 0 : 1e-12);
  }
}

// Every rule, on 1 to 8 devices: the same bits as one device where the plan promises them, else
// equal to 1e-12.
TEST_P(Conformance, EveryShardingRuleComputesTheSame) {
  const LayerDef& def = *GetParam();
  std::set<Mode> seen;
  for (const LayerSample& sample : def.samples) {
    bool promised;
    const auto plain = train(*bind_network(def, sample), 1, &promised);
    for (const ShardRule& rule : def.rules) {
      SCOPED_TRACE(std::string(def.type) + " {" + sample.attributes +
                   "} parallel: " + mode_name(rule.mode));
      const auto model = bind_network(def, sample, mode_name(rule.mode));
      if (!possible(*model)) continue;
      seen.insert(rule.mode);
      expect_same(*model, plain, 8);
    }
  }
  EXPECT_EQ(seen.size(), def.rules.size()) << "a rule that no sample has";
}

// Every two rules on a mesh of two axes, in both orders.
TEST_P(Conformance, EveryPairOfRulesComputesTheSame) {
  const LayerDef& def = *GetParam();
  int pairs = 0;
  for (const LayerSample& sample : def.samples) {
    bool promised;
    const auto plain = train(*bind_network(def, sample), 1, &promised);
    for (const ShardRule& first : def.rules)
      for (const ShardRule& second : def.rules) {
        const std::string modes =
            std::string("[") + mode_name(first.mode) + ", " + mode_name(second.mode) + "]";
        SCOPED_TRACE(std::string(def.type) + " {" + sample.attributes + "} parallel: " + modes);
        const auto model = bind_network(def, sample, modes);
        if (!possible(*model)) continue;
        ++pairs;
        const auto serial = train(*model, 1, &promised);
        EXPECT_LE(largest_difference(plain, serial), 1e-12);
        for (int devices : {4, 6}) {
          SCOPED_TRACE("devices: " + std::to_string(devices));
          const auto parallel = train(*model, devices, &promised);
          EXPECT_LE(largest_difference(serial, parallel), promised ? 0 : 1e-12);
        }
      }
  }
  EXPECT_GE(pairs, 2);
}

INSTANTIATE_TEST_SUITE_P(Registry, Conformance,
                         testing::ValuesIn(all_layers().begin(), all_layers().end()),
                         [](const auto& instance) { return std::string(instance.param->type); });

TEST(Registry, HoldsEveryLayerOfTheSchemaInItsOrder) {
  const auto* oneof = schema::Layer::descriptor()->FindOneofByName("type");
  ASSERT_EQ(static_cast<size_t>(oneof->field_count()), all_layers().size());
  for (int i = 0; i < oneof->field_count(); ++i)
    EXPECT_EQ(oneof->field(i)->name(), all_layers()[static_cast<size_t>(i)]->type);
}

}  // namespace
}  // namespace convnet
