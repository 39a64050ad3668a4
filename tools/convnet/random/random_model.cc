#include "tools/convnet/random/random_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "framework/compiler/compile.h"
#include "framework/graph/layer_def.h"
#include "layers/registry.h"
#include "parsers/model_file.h"

namespace convnet::cli {
namespace {

int below(std::mt19937& random, size_t n) { return static_cast<int>(random() % n); }

bool accepted(const RandomModel& model) {
  Diagnostics diagnostics;
  const auto bound = load_model_text("random.yaml", model.text(false), {}, diagnostics);
  CompileOptions options;
  options.devices = 1;
  return bound != nullptr && compile(*bound, all_layers(), options, diagnostics).has_value();
}

}  // namespace

bool RandomModel::updates_in_passes() const {
  return std::ranges::any_of(
      layers, [](const RandomLayer& l) { return l.in_passes && l.update_period > 0; });
}

std::string RandomModel::text(bool placed) const {
  std::string s = fmt::format(
      "format: 1\nname: random\ndevices: {}\nbatch: {}\n"
      "input: {{data: [{}, {}, {}], label: {{classes: 4}}}}\nlayers:\n",
      placed ? devices : 1, batch, channels, height, width);
  for (const RandomLayer& l : layers) {
    s += fmt::format("  - {{name: {}, type: {}, input: [{}]", l.name, l.type,
                     fmt::join(l.inputs, ", "));
    if (!l.attributes.empty()) s += ", " + l.attributes;
    if (!l.parallel.empty()) s += ", parallel: " + l.parallel;
    if (placed && !l.devices.empty()) {
      s += fmt::format(", devices: [{}]", fmt::join(l.devices, ", "));
      if (l.rows > 0) s += fmt::format(", device_rows: {}", l.rows);
    }
    if (l.in_passes && (placed || updates_in_passes())) {
      s += fmt::format(", exchange: {}, passes: {}", exchange, passes);
      if (l.update_period > 0) s += fmt::format(", update_period: {}", l.update_period);
    }
    s += "}\n";
  }
  return s + "train: {" + train + "steps: 3, rate: {base: 0.125}}\n";
}

RandomModel random_network(std::mt19937& random,
                           const std::function<bool(const RandomModel&)>& keeps_integers) {
  RandomModel model;
  model.batch = 8 + below(random, 63);
  model.channels = 1 + below(random, 4);
  model.height = 3 + below(random, 7);
  model.width = 3 + below(random, 7);
  model.train = below(random, 2) ? "momentum: 0.5, decay: 0.0625, " : "momentum: 0, ";
  model.integer = below(random, 2) == 0;
  // Passes of the same size have gradients whose mean has a whole factor.
  if (model.integer && below(random, 2) == 0) model.batch = 16 * (1 + below(random, 4));
  model.test = !model.integer && below(random, 3) == 0;
  model.layers.push_back({"last", "fc", "outputs: 4, init: {xavier: 1}", {"data"}, {}, 0, ""});
  model.layers.push_back({"loss", "softmax_loss", "", {"last", "label"}, {}, 0, ""});
  const int wanted = below(random, 7);
  std::vector<std::string> values{"data"};
  for (int tries = 0, made = 0; made < wanted && tries < 60; ++tries) {
    const LayerDef& def = *all_layers()[static_cast<size_t>(below(random, all_layers().size()))];
    if (def.takes_label) continue;
    const auto& sample = def.samples[static_cast<size_t>(below(random, def.samples.size()))];
    RandomLayer layer{
        fmt::format("l{}", made), std::string(def.type), sample.attributes, {}, {}, 0, ""};
    for (size_t i = 0; i < sample.inputs.size(); ++i) {
      const size_t recent = std::min<size_t>(values.size(), i == 0 ? 2 : values.size());
      layer.inputs.push_back(
          values[values.size() - 1 - static_cast<size_t>(below(random, recent))]);
    }
    RandomModel longer = model;
    longer.layers.insert(longer.layers.end() - 2, layer);
    longer.layers[longer.layers.size() - 2].inputs = {layer.name};
    if (!accepted(longer) || (model.integer && !keeps_integers(longer))) continue;
    model = longer;
    values.push_back(layer.name);
    ++made;
  }
  return model;
}

namespace {

// All layers behind one come in passes, some are updated before the last one.
void pass_at_random(RandomModel& model, std::mt19937& random) {
  model.exchange = below(random, 2) ? "owner" : "stripe";
  model.passes = 1 + below(random, 4);
  const bool early = below(random, 2) == 0;
  std::set<std::string> behind;
  const auto first = static_cast<size_t>(below(random, model.layers.size() - 1));
  for (size_t i = first; i < model.layers.size(); ++i) {
    RandomLayer& layer = model.layers[i];
    if (i > first && std::ranges::none_of(layer.inputs, [&](const std::string& input) {
          return behind.contains(input);
        }))
      continue;
    behind.insert(layer.name);
    layer.in_passes = true;
    if (early && below(random, 3) > 0)
      layer.update_period = 1 + below(random, static_cast<size_t>(model.passes));
  }
}

}  // namespace

void place_at_random(RandomModel& model, std::mt19937& random) {
  model.devices = 1 + below(random, 8);
  for (RandomLayer& layer : model.layers) {
    layer.devices.clear();
    layer.rows = 0;
    layer.parallel.clear();
    layer.in_passes = false;
    layer.update_period = 0;
    if (below(random, 2) == 0) continue;
    std::vector<int> all(static_cast<size_t>(model.devices));
    std::iota(all.begin(), all.end(), 0);
    for (size_t i = all.size(); i > 1; --i)
      std::swap(all[i - 1], all[static_cast<size_t>(below(random, i))]);
    all.resize(static_cast<size_t>(1 + below(random, all.size())));
    if (below(random, 2) == 0) std::sort(all.begin(), all.end());
    layer.devices = all;
    const LayerDef* def = nullptr;
    for (const LayerDef* d : all_layers())
      if (d->type == layer.type) def = d;
    const auto mode = [&] {
      return std::string(
          mode_name(def->rules[static_cast<size_t>(below(random, def->rules.size()))].mode));
    };
    const auto count = static_cast<int>(all.size());
    if (count >= 4 && count % 2 == 0 && below(random, 2)) {
      layer.rows = below(random, 2) ? 2 : count / 2;
      layer.parallel = "[" + mode() + ", " + mode() + "]";
    } else {
      layer.parallel = mode();
    }
  }
  if (below(random, 2) == 0) pass_at_random(model, random);
}

std::vector<RandomModel> smaller_models(const RandomModel& model) {
  std::vector<RandomModel> all;
  const auto with = [&](auto change) {
    RandomModel copy = model;
    change(copy);
    if (copy.text(true) != model.text(true)) all.push_back(std::move(copy));
  };
  for (size_t i = 0; i + 1 < model.layers.size(); ++i) {  // without a layer
    if (model.layers[i].name == "last") continue;
    with([&](RandomModel& m) {
      const RandomLayer gone = m.layers[i];
      m.layers.erase(m.layers.begin() + static_cast<std::ptrdiff_t>(i));
      for (RandomLayer& l : m.layers)
        std::replace(l.inputs.begin(), l.inputs.end(), gone.name, gone.inputs[0]);
    });
  }
  with([](RandomModel& m) {
    for (RandomLayer& l : m.layers) l.in_passes = false;
  });
  with([](RandomModel& m) { m.passes = std::max(1, m.passes - 1); });
  for (size_t i = 0; i < model.layers.size(); ++i) {  // with fewer annotations and devices
    with([&](RandomModel& m) {
      m.layers[i].devices.clear();
      m.layers[i].rows = 0;
      m.layers[i].parallel.clear();
    });
    with([&](RandomModel& m) { m.layers[i].in_passes = false; });
    with([&](RandomModel& m) { m.layers[i].update_period = 0; });
    with([&](RandomModel& m) { m.layers[i].parallel.clear(); });
    for (size_t d = 0; d < model.layers[i].devices.size() && model.layers[i].devices.size() > 1;
         ++d)
      with([&](RandomModel& m) {
        auto& list = m.layers[i].devices;
        list.erase(list.begin() + static_cast<std::ptrdiff_t>(d));
      });
  }
  with([](RandomModel& m) { m.devices = std::max(1, m.devices - 1); });
  with([](RandomModel& m) { m.batch = std::max(1, m.batch / 2); });
  with([](RandomModel& m) { m.batch = std::max(1, m.batch - 1); });
  with([](RandomModel& m) { m.channels = 1; });
  with([](RandomModel& m) { m.height = std::max(1, m.height - 1); });
  with([](RandomModel& m) { m.width = std::max(1, m.width - 1); });
  with([](RandomModel& m) { m.train = "momentum: 0, "; });
  return all;
}

}  // namespace convnet::cli
