// Model file -> forward graph: which layer reads which, in what order, each checked and built.
#include <algorithm>
#include <map>
#include <unordered_map>

#include "framework/graph/layer_def.h"
#include "framework/model/model.pb.h"

namespace convnet {
namespace {

const LayerDef* find_def(std::span<const LayerDef* const> defs, std::string_view type) {
  for (const LayerDef* def : defs)
    if (def->type == type) return def;
  return nullptr;
}

// The member of Layer.type that is set, as (type name, message); nulls if none is.
std::pair<std::string, const google::protobuf::Message*> type_of(const schema::Layer& layer) {
  const auto* oneof = layer.GetDescriptor()->FindOneofByName("type");
  const auto* reflection = layer.GetReflection();
  const auto* field = reflection->GetOneofFieldDescriptor(layer, oneof);
  if (field == nullptr) return {"", nullptr};
  return {field->name(), &reflection->GetMessage(layer, field)};
}

class Builder {
 public:
  Builder(const BoundModel& model, std::span<const LayerDef* const> defs, Graph& graph,
          Diagnostics& diagnostics)
      : model_(model), defs_(defs), graph_(graph), diagnostics_(diagnostics) {}

  bool run() {
    const schema::Model& m = *model_.model;
    const int errors_before = diagnostics_.errors();
    if (!add_inputs()) return false;
    resolve_inputs();
    order_layers();
    for (int index : order_) build(index);
    warn_about_unused();
    if (graph_.phase == Plan::Phase::kTrain && diagnostics_.errors() == errors_before &&
        !has_loss_) {
      diagnostics_
          .error(model_.spans.key(m, schema::Model::kLayersFieldNumber),
                 "model '" + m.name() + "' has no loss layer, so there is nothing to train")
          .help = "end it with {name: loss, type: softmax_loss, input: [LAYER, label]}";
    }
    return diagnostics_.errors() == errors_before;
  }

 private:
  bool add_inputs() {
    const schema::Model& m = *model_.model;
    Shape shape{graph_.batch};
    for (uint32_t extent : m.input().data()) shape.append(extent);
    Value data;
    data.name = "data";
    data.kind = TensorKind::kInput;
    data.dtype = graph_.dtype;
    data.format = Format::kBlocked;
    data.shape = shape;
    data.attrs.set("input", "data");
    if (!check_size(shape, model_.spans.value(m.input(), schema::Inputs::kDataFieldNumber), "data"))
      return false;
    values_["data"] = graph_.add_value(std::move(data));
    if (m.input().has_label()) {
      Value label;
      label.name = "label";
      label.kind = TensorKind::kInput;
      label.dtype = DType::kI32;
      label.format = Format::kBlocked;
      label.shape = Shape{graph_.batch};
      label.attrs.set("input", "label").set("classes", int64_t{m.input().label().classes()});
      values_["label"] = graph_.add_value(std::move(label));
    }
    return true;
  }

  // Fills reads_: per layer of the file, the names it reads with their places.
  void resolve_inputs() {
    const schema::Model& m = *model_.model;
    for (int i = 0; i < m.layers_size(); ++i) by_name_[m.layers(i).name()] = i;
    reads_.resize(static_cast<size_t>(m.layers_size()));
    failed_.assign(static_cast<size_t>(m.layers_size()), false);
    for (int i = 0; i < m.layers_size(); ++i) {
      const schema::Layer& layer = m.layers(i);
      auto& reads = reads_[static_cast<size_t>(i)];
      if (layer.input_size() == 0) {
        reads.push_back({i == 0 ? "data" : m.layers(i - 1).name(), model_.spans.message(layer)});
        continue;
      }
      for (int k = 0; k < layer.input_size(); ++k) {
        const Span span = model_.spans.value(layer, schema::Layer::kInputFieldNumber, k);
        const std::string& read = layer.input(k);
        if (values_.contains(read) || by_name_.contains(read)) {
          reads.push_back({read, span});
          continue;
        }
        failed_[static_cast<size_t>(i)] = true;
        if (read == "label") {
          diagnostics_
              .error(span, "layer '" + layer.name() +
                               "' reads 'label', but the model's input has no label")
              .help = "add label: {classes: N} to input";
          continue;
        }
        std::vector<std::string> names{"data", "label"};
        for (const schema::Layer& other : m.layers()) names.push_back(other.name());
        Diagnostic& d =
            diagnostics_.error(span, "layer '" + layer.name() + "' reads '" + printable(read) +
                                         "', but there is no layer or input of that name");
        if (const std::string near = nearest(read, names); !near.empty())
          d.help = "did you mean '" + near + "'?";
      }
    }
  }

  // Inputs first, otherwise as in the file; a circle is reported with its names.
  void order_layers() {
    const int count = static_cast<int>(reads_.size());
    std::vector<int> missing(static_cast<size_t>(count), 0);
    std::vector<std::vector<int>> readers(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i)
      for (const auto& [read, span] : reads_[static_cast<size_t>(i)])
        if (const auto it = by_name_.find(read); it != by_name_.end()) {
          ++missing[static_cast<size_t>(i)];
          readers[static_cast<size_t>(it->second)].push_back(i);
        }
    std::map<int, bool> ready;  // ordered: the earliest layer of the file first
    for (int i = 0; i < count; ++i)
      if (missing[static_cast<size_t>(i)] == 0) ready[i] = true;
    while (!ready.empty()) {
      const int i = ready.begin()->first;
      ready.erase(ready.begin());
      order_.push_back(i);
      for (int reader : readers[static_cast<size_t>(i)])
        if (--missing[static_cast<size_t>(reader)] == 0) ready[reader] = true;
    }
    if (static_cast<int>(order_.size()) == count) return;
    report_circle(missing);
  }

  void report_circle(const std::vector<int>& missing) {
    // From a layer that waits, follow inputs that wait too until one comes again.
    int at = 0;
    while (missing[static_cast<size_t>(at)] == 0) ++at;
    std::vector<int> path;
    while (std::find(path.begin(), path.end(), at) == path.end()) {
      path.push_back(at);
      for (const auto& [read, span] : reads_[static_cast<size_t>(at)]) {
        const auto it = by_name_.find(read);
        if (it == by_name_.end() || missing[static_cast<size_t>(it->second)] == 0) continue;
        at = it->second;
        break;
      }
    }
    path.erase(path.begin(), std::find(path.begin(), path.end(), at));
    std::string text;
    for (auto it = path.rbegin(); it != path.rend(); ++it)
      text += "'" + model_.model->layers(*it).name() + "' -> ";
    text += "'" + model_.model->layers(path.back()).name() + "'";
    diagnostics_.error(reads_[static_cast<size_t>(path.back())].front().second,
                       "layers read each other in a circle: " + text);
  }

  void build(int index) {
    const schema::Layer& layer = model_.model->layers(index);
    const auto [type, attrs] = type_of(layer);
    CHECK_MSG(attrs != nullptr, "the binder lets no layer pass without a type");
    const LayerDef* def = find_def(defs_, type);
    CHECK_MSG(def != nullptr, "no code for layer type '" + type + "'");

    GraphLayer g;
    g.name = layer.name();
    g.type = type;
    g.span = model_.spans.message(layer);
    g.def = def;
    g.common = &layer;
    g.attrs = attrs;
    bool silent = failed_[static_cast<size_t>(index)];
    for (const auto& [read, span] : reads_[static_cast<size_t>(index)]) {
      const auto it = values_.find(read);
      if (it == values_.end()) {  // the layer that makes it failed
        silent = true;
      } else if (it->second < 0) {
        diagnostics_.error(span, "layer '" + g.name + "' reads '" + read +
                                     "', a loss, which has no output to read");
        silent = true;
      } else {
        g.inputs.push_back(it->second);
        used_[read] = true;
      }
    }
    if (silent || !check_inputs(g, index)) return;

    g.modes = modes_of(g);
    graph_.layers.push_back(g);
    const int id = static_cast<int>(graph_.layers.size()) - 1;
    const int errors_before = diagnostics_.errors();
    LayerBuilder b(graph_, id, model_, diagnostics_);
    def->build(b);
    if (diagnostics_.errors() > errors_before) return;
    const GraphLayer& built = graph_.layer(id);
    check_parameter_attributes(built);
    for (int p : built.params) check_size(graph_.value(p).shape, built.span, graph_.value(p).name);
    if (built.output >= 0 && !check_size(graph_.value(built.output).shape, built.span, built.name))
      return;
    values_[built.name] = built.output;
    if (built.output < 0) has_loss_ = true;
  }

  // What the file says; else, of a layer that follows its input, what the producer of the input
  // has, where the layer can have it, too.
  std::vector<Mode> modes_of(const GraphLayer& g) const {
    std::vector<Mode> modes;
    for (int mode : g.common->parallel()) modes.push_back(static_cast<Mode>(mode));
    if (!modes.empty()) return modes;
    const int producer = g.inputs.empty() ? -1 : graph_.value(g.inputs[0]).layer;
    if (g.def->follows_input && producer >= 0 && g.common->devices().empty()) {
      modes = graph_.layer(producer).modes;
      for (Mode& mode : modes) {
        const auto has = [&](Mode m) {
          return std::ranges::any_of(g.def->rules, [&](const ShardRule& r) { return r.mode == m; });
        };
        // What was summed over split channels is whole on every device.
        if (mode == Mode::kModelIn) mode = Mode::kReplicate;
        if (!has(mode)) return {Mode::kData};
      }
      return modes;
    }
    return {Mode::kData};
  }

  bool check_inputs(const GraphLayer& g, int index) {
    const LayerDef& def = *g.def;
    const int count = static_cast<int>(g.inputs.size());
    const auto& reads = reads_[static_cast<size_t>(index)];
    const auto inputs_word = [](int n) {
      return std::to_string(n) + (n == 1 ? " input" : " inputs");
    };
    if (count < def.min_inputs || (def.max_inputs >= 0 && count > def.max_inputs)) {
      std::string wants = inputs_word(def.min_inputs);
      if (def.max_inputs < 0) wants = "at least " + wants;
      Diagnostic& d =
          diagnostics_.error(reads.front().second, g.type + " '" + g.name + "' takes " + wants +
                                                       ", but has " + std::to_string(count));
      if (def.takes_label && count == 1)
        d.help = "name both: input: [" + reads.front().first + ", label]";
      return false;
    }
    for (int k = 0; k < count; ++k) {
      const bool is_label = reads[static_cast<size_t>(k)].first == "label";
      const bool wants_label = def.takes_label && k == count - 1;
      if (is_label == wants_label) continue;
      diagnostics_.error(
          reads[static_cast<size_t>(k)].second,
          is_label ? g.type + " '" + g.name + "' cannot read 'label' as input " + std::to_string(k)
                   : g.type + " '" + g.name + "' takes 'label' as its last input");
      return false;
    }
    return true;
  }

  // init, decay and the like make sense for layers with parameters only.
  void check_parameter_attributes(const GraphLayer& g) {
    if (!g.params.empty()) return;
    using L = schema::Layer;
    const L& c = *g.common;
    const std::pair<bool, int> given[] = {{c.has_init(), L::kInitFieldNumber},
                                          {c.has_bias_init(), L::kBiasInitFieldNumber},
                                          {c.has_rate_factor(), L::kRateFactorFieldNumber},
                                          {c.has_bias_rate_factor(), L::kBiasRateFactorFieldNumber},
                                          {c.has_decay(), L::kDecayFieldNumber},
                                          {c.has_bias_decay(), L::kBiasDecayFieldNumber},
                                          {c.has_decay_factor(), L::kDecayFactorFieldNumber}};
    for (const auto& [has, field] : given)
      if (has)
        diagnostics_.error(model_.spans.key(c, field),
                           g.type + " '" + g.name + "' has no parameters, so '" +
                               L::descriptor()->FindFieldByNumber(field)->name() +
                               "' means nothing");
  }

  bool check_size(const Shape& shape, const Span& span, const std::string& what) {
    constexpr int64_t kMaxElements = int64_t{1} << 42;
    const auto count = shape.checked_count();
    if (count && *count <= kMaxElements) return true;
    Diagnostic& d = diagnostics_.error(
        span, "'" + what + "' is " + shape.str() + ", too large: the limit is 2^42 elements");
    d.code = Code::kLimit;
    return false;
  }

  void warn_about_unused() {
    if (diagnostics_.has_errors()) return;
    for (const GraphLayer& g : graph_.layers)
      if (g.output >= 0 && !used_.contains(g.name) && graph_.phase == Plan::Phase::kTrain)
        diagnostics_.warning(g.span, "nothing reads layer '" + g.name + "'");
  }

  const BoundModel& model_;
  std::span<const LayerDef* const> defs_;
  Graph& graph_;
  Diagnostics& diagnostics_;
  std::unordered_map<std::string, int> by_name_;  // layer of the file
  std::unordered_map<std::string, int> values_;   // built layers and inputs; -1: a loss
  std::unordered_map<std::string, bool> used_;
  std::vector<std::vector<std::pair<std::string, Span>>> reads_;
  std::vector<bool> failed_;
  std::vector<int> order_;
  bool has_loss_ = false;
};

}  // namespace

bool build_graph(const BoundModel& model, std::span<const LayerDef* const> layers,
                 Plan::Phase phase, DType dtype, int devices, Graph& graph,
                 Diagnostics& diagnostics) {
  const schema::Model& m = *model.model;
  graph.model = m.name();
  graph.source = model.source ? model.source->name() : "";
  graph.phase = phase;
  graph.dtype = dtype;
  graph.batch = m.batch();
  graph.devices = devices > 0 ? devices : static_cast<int>(m.devices());
  graph.seed = m.train().seed();
  graph.momentum = m.train().momentum();
  if (m.train().has_scaling()) {
    using Scaling = schema::Scaling;
    const Scaling& scaling = m.train().scaling();
    const double powers[] = {1, 0.5, 0};  // linear, sqrt, keep_rate
    graph.scaling = {int64_t{scaling.batch()}, powers[scaling.rate()],
                     scaling.decay() == Scaling::adjusted, m.train().rate().base()};
  }
  return Builder(model, layers, graph, diagnostics).run();
}

}  // namespace convnet
