// Layers with `exchange: owner` or `stripe` see the batch in passes (Krizhevsky 2014, schemes b and
// c). Their nodes are repeated for each pass on values of their own; the gradients of parameters
// are taken once after the passes of a period, over all its examples in order, so that with one
// period the results have the bits of the whole batch at once.
#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "framework/compiler/passes.h"
#include "framework/model/model.pb.h"

namespace convnet {
namespace {

using L = schema::Layer;
using Segments = std::vector<int64_t>;  // lo, hi, lo, hi, ... of global examples

int64_t examples_of(const Segments& rows) {
  int64_t count = 0;
  for (size_t i = 0; i < rows.size(); i += 2) count += rows[i + 1] - rows[i];
  return count;
}

// Ascending, neighbours made one.
Segments united(const std::vector<Segments>& parts) {
  std::vector<std::pair<int64_t, int64_t>> all;
  for (const Segments& part : parts)
    for (size_t i = 0; i < part.size(); i += 2) all.emplace_back(part[i], part[i + 1]);
  std::sort(all.begin(), all.end());
  Segments rows;
  for (const auto& [lo, hi] : all) {
    if (!rows.empty() && rows.back() == lo)
      rows.back() = hi;
    else
      rows.insert(rows.end(), {lo, hi});
  }
  return rows;
}

// Layers that are computed in the same passes.
struct Region {
  std::set<int> layers;
  std::vector<Segments> rows;  // per pass
};

class Rebatch {
 public:
  Rebatch(Graph& graph, const BoundModel& model, Diagnostics& diagnostics)
      : g_(graph), model_(model), diagnostics_(diagnostics) {}

  bool run() {
    const int errors_before = diagnostics_.errors();
    find_schemes();
    find_regions();
    if (diagnostics_.errors() > errors_before) return false;
    // Tests need no gradients, so the batch can come at once; to the devices of the training, which
    // hold the parameters.
    const bool in_passes = g_.phase == Plan::Phase::kTrain;
    for (Region& region : regions_) {
      find_passes(region);
      if (in_passes && diagnostics_.errors() == errors_before && region.rows.size() > 1)
        repeat(region);
    }
    g_.renumber();
    return diagnostics_.errors() == errors_before;
  }

 private:
  Span place(const GraphLayer& layer, int field) const {
    return model_.spans.value(*layer.common, field);
  }

  // ---- which layers

  void find_schemes() {
    for (const GraphLayer& layer : g_.layers) {
      schema::Scheme scheme = layer.common->exchange();
      const int producer = layer.inputs.empty() ? -1 : g_.value(layer.inputs[0]).layer;
      if (!layer.common->has_exchange() && layer.def->follows_input && producer >= 0)
        scheme = schemes_[static_cast<size_t>(producer)];
      schemes_.push_back(scheme);
      if (scheme != schema::whole) continue;
      for (const int field : {L::kPassesFieldNumber, L::kUpdatePeriodFieldNumber})
        if (model_.spans.has(*layer.common, field))
          diagnostics_
              .error(model_.spans.key(*layer.common, field),
                     "layer '" + layer.name + "' gives '" +
                         L::descriptor()->FindFieldByNumber(field)->name() +
                         "', but gets the whole batch at once")
              .help = "with exchange: owner or stripe it comes in passes";
    }
  }

  void find_regions() {
    std::vector<int> region_of(g_.layers.size(), -1);
    for (size_t l = 0; l < g_.layers.size(); ++l) {
      const GraphLayer& layer = g_.layers[l];
      const schema::Scheme scheme = schemes_[l];
      std::set<int> joined;
      for (int input : layer.inputs) {
        const int producer = g_.value(input).layer;
        if (producer < 0 || schemes_[static_cast<size_t>(producer)] == schema::whole) continue;
        if (schemes_[static_cast<size_t>(producer)] == scheme) {
          joined.insert(region_of[static_cast<size_t>(producer)]);
          continue;
        }
        const GraphLayer& source = g_.layer(producer);
        const std::string word = schema::Scheme_Name(schemes_[static_cast<size_t>(producer)]);
        diagnostics_
            .error(place(layer, L::kExchangeFieldNumber),
                   "layer '" + layer.name + "' reads '" + source.name +
                       "', which is computed in passes (exchange: " + word + "), but " +
                       (scheme == schema::whole ? "takes the whole batch"
                                                : "has exchange: " + schema::Scheme_Name(scheme)))
            .help = "give it exchange: " + word;
      }
      if (scheme == schema::whole) continue;
      if (joined.empty()) {
        joined.insert(static_cast<int>(regions_.size()));
        regions_.emplace_back();
      }
      const int first = *joined.begin();
      for (int other : joined) {
        if (other == first) continue;
        regions_[static_cast<size_t>(first)].layers.merge(
            regions_[static_cast<size_t>(other)].layers);
        for (int& r : region_of) r = r == other ? first : r;
      }
      region_of[l] = first;
      regions_[static_cast<size_t>(first)].layers.insert(static_cast<int>(l));
    }
    std::erase_if(regions_, [](const Region& r) { return r.layers.empty(); });
  }

  // ---- which examples

  void find_passes(Region& region) {
    const GraphLayer* first = nullptr;  // that says how many passes, or the first one
    for (int l : region.layers) {
      const GraphLayer& layer = g_.layer(l);
      if (first == nullptr) first = &layer;
      if (!layer.common->has_passes()) continue;
      if (first->common->has_passes() && first->common->passes() != layer.common->passes()) {
        diagnostics_.error(place(layer, L::kPassesFieldNumber),
                           "layer '" + layer.name + "' has " +
                               std::to_string(layer.common->passes()) + " passes, but '" +
                               first->name + "' has " + std::to_string(first->common->passes()));
        return;
      }
      if (!first->common->has_passes()) first = &layer;
    }
    if (const auto& rows = first->pass_rows; !rows.empty()) {
      region.rows = rows;
    } else if (!find_rows(*first, region)) {
      return;
    }
    const auto count = static_cast<int>(region.rows.size());
    if (count > 1) leave_idle(region);
    for (int l : region.layers) {
      GraphLayer& layer = g_.layers[static_cast<size_t>(l)];
      layer.pass_rows = region.rows;
      const int period =
          layer.common->has_update_period() ? static_cast<int>(layer.common->update_period()) : 0;
      layer.update_period = count > 1 ? period : 0;
      if (count == 1 || period == 0 || count % period == 0) continue;
      diagnostics_.error(place(layer, L::kUpdatePeriodFieldNumber),
                         "layer '" + layer.name + "' is to be updated every " +
                             std::to_string(period) + " passes, which does not divide the " +
                             std::to_string(count) + " passes of a step");
    }
  }

  // From the devices that the batch comes from; `first` is the layer that says how many passes.
  bool find_rows(const GraphLayer& first, Region& region) {
    const std::vector<Range> owners = owners_of(region);
    const bool given = first.common->has_passes();
    const int64_t blocks = (g_.batch + kLanes - 1) / kLanes;
    if (given && first.common->passes() > blocks) {
      diagnostics_.error(place(first, L::kPassesFieldNumber),
                         "layer '" + first.name + "' has " +
                             std::to_string(first.common->passes()) + " passes, but a batch of " +
                             std::to_string(g_.batch) + " is " + std::to_string(blocks) +
                             (blocks == 1 ? " block" : " blocks") + " of 16 examples");
      return false;
    }
    const int passes =
        given ? static_cast<int>(first.common->passes()) : static_cast<int>(owners.size());
    if (schemes_[static_cast<size_t>(*region.layers.begin())] == schema::owner)
      rows_of_owners(owners, passes, region);
    else
      rows_in_stripes(owners, passes, region);
    return true;
  }

  // Each pass is dealt out over the same devices of a layer, in whole blocks; devices beyond the
  // fewest blocks of a pass stay out of it.
  void leave_idle(const Region& region) {
    int64_t fewest = g_.batch;
    for (const Segments& rows : region.rows)
      fewest = std::min(fewest, (examples_of(rows) + kLanes - 1) / kLanes);
    for (int l : region.layers) {
      GraphLayer& layer = g_.layers[static_cast<size_t>(l)];
      for (size_t a = 0; a < layer.mesh.extents.size(); ++a) {
        const int devices = layer.mesh.extents[a];
        if (layer.modes[a] != Mode::kData || devices <= fewest) continue;
        diagnostics_.warning(
            layer.span, "'" + layer.name + "' has passes of " + std::to_string(fewest) +
                            (fewest == 1 ? " block" : " blocks") + " of 16 examples, so only " +
                            std::to_string(fewest) + " of " + std::to_string(devices) +
                            " devices have work");
        layer.mesh.keep(a, static_cast<int>(fewest));
      }
    }
  }

  // The examples of each device of the layers that the region reads.
  std::vector<Range> owners_of(const Region& region) const {
    std::vector<Range> owners;
    for (int l : region.layers)
      for (int input : g_.layer(l).inputs) {
        const Value& value = g_.value(input);
        if (value.layer < 0 || region.layers.contains(value.layer)) continue;
        const Layout layout = layout_of(g_, g_.layer(value.layer), Role{RoleKind::kY, 0}, value);
        for (const Part& part : layout.parts(value.shape)) {
          const Range range{part.box.lo(0), part.box.hi(0)};
          if (range.lo < range.hi && std::ranges::find(owners, range) == owners.end())
            owners.push_back(range);
        }
        return owners;
      }
    return {{0, g_.batch}};
  }

  void rows_of_owners(const std::vector<Range>& owners, int passes, Region& region) const {
    if (passes == static_cast<int>(owners.size())) {
      for (const Range& r : owners) region.rows.push_back({r.lo, r.hi});
      return;
    }
    const std::vector<int64_t> cuts = batch_cuts(g_.batch, passes);
    for (size_t i = 0; i + 1 < cuts.size(); ++i) region.rows.push_back({cuts[i], cuts[i + 1]});
  }

  // Pass m has an equal share of the blocks of every owner. Passes beyond the most blocks that an
  // owner has would be empty.
  void rows_in_stripes(const std::vector<Range>& owners, int passes, Region& region) const {
    const auto blocks_of = [](const Range& r) { return (r.hi - r.lo + kLanes - 1) / kLanes; };
    int64_t most = 1;
    for (const Range& r : owners) most = std::max(most, blocks_of(r));
    passes = static_cast<int>(std::min<int64_t>(passes, most));
    for (int m = 0; m < passes; ++m) {
      std::vector<Segments> parts;
      for (const Range& r : owners) {
        const std::vector<int64_t> cuts = balanced_cuts(blocks_of(r), passes);
        const int64_t lo = r.lo + cuts[static_cast<size_t>(m)] * kLanes;
        const int64_t hi = std::min(r.hi, r.lo + cuts[static_cast<size_t>(m) + 1] * kLanes);
        if (lo < hi) parts.push_back({lo, hi});
      }
      region.rows.push_back(united(parts));
    }
    // An owner of few blocks may begin in a later pass than its neighbour.
    std::ranges::sort(region.rows);
  }

  // ---- the passes

  void repeat(const Region& region) {
    region_ = &region;
    const auto passes = static_cast<int>(region.rows.size());
    slices_.assign(region.rows.size(), {});
    joined_.clear();
    std::vector<Node> before, forward, guards, backward, gradients, after;
    for (Node& n : g_.nodes) {
      const bool inside = region.layers.contains(n.layer);
      const bool of_parameters = !n.out.empty() && n.out[0].role.kind == RoleKind::kDParam;
      if (!inside)  // the passes of another region stay together
        (n.phase == NodePhase::kForward || n.pass >= 0 ? before : after).push_back(std::move(n));
      else if (n.op == Op::kGuard)
        guards.push_back(std::move(n));
      else if (n.phase == NodePhase::kForward)
        forward.push_back(std::move(n));
      else
        (of_parameters ? gradients : backward).push_back(std::move(n));
    }
    g_.nodes = std::move(before);
    for (int m = 0; m < passes; ++m) {
      for (const Node& n : forward) add_clone(n, m);
      add_pass_guards(guards, m);
      for (const Node& n : backward) add_clone(n, m);
      for (const Node& n : gradients) {
        const int period = period_of(n);
        if (period < passes && (m + 1) % period == 0) add_gradient(n, m + 1 - period, m + 1);
      }
    }
    for (const Node& n : forward) add_metric_sums(n);
    for (Node& n : guards) g_.nodes.push_back(std::move(n));
    for (const Node& n : gradients)
      if (period_of(n) == passes) add_gradient(n, 0, passes);
    // Gradients of what the region reads are made up of the passes' where they are read.
    for (const Node& n : backward)
      for (const Use& use : n.out) {
        std::vector<int> parts;
        for (int m = 0; m < passes; ++m)
          parts.push_back(slices_[static_cast<size_t>(m)].at(use.value));
        g_.value(use.value).joined = std::move(parts);
      }
    for (Node& n : after) g_.nodes.push_back(std::move(n));
  }

  int period_of(const Node& n) const {
    const int period = g_.layer(n.layer).update_period;
    return period == 0 ? static_cast<int>(region_->rows.size()) : period;
  }

  // Several regions may read one value, each in passes of its own.
  std::string unique(const std::string& name) {
    if (names_.insert(name).second) return name;
    const std::string other = name + "." + g_.layer(*region_->layers.begin()).name;
    names_.insert(other);
    return other;
  }

  // A copy of a value for some of the examples, a tensor of its own.
  int sub_batch(int value, const Segments& rows, const std::string& suffix) {
    Value v = g_.value(value);
    v.name = unique(v.name + suffix);
    v.shape.set(0, examples_of(rows));
    v.attrs.set("rows", rows);
    v.joined.clear();
    v.tensor = v.memory = -1;
    return g_.add_value(std::move(v));
  }

  // The value of pass m that stands for `value`; parameters stand for themselves.
  int slice(int value, int m) {
    const TensorKind kind = g_.value(value).kind;
    if (kind == TensorKind::kParameter) return value;
    auto& known = slices_[static_cast<size_t>(m)];
    if (const auto at = known.find(value); at != known.end()) return at->second;
    const std::string suffix = ".pass" + std::to_string(m);
    const auto pass = static_cast<size_t>(m);
    if (kind == TensorKind::kMetric) {
      Value v = g_.value(value);
      v.name += suffix;
      v.tensor = value;
      v.pass = m;
      v.passes = static_cast<int>(region_->rows.size());
      v.examples = examples_of(region_->rows[pass]);
      v.memory = -1;
      return known[value] = g_.add_value(std::move(v));
    }
    const bool made_here =
        g_.value(value).layer >= 0 && region_->layers.contains(g_.value(value).layer);
    const int id = sub_batch(value, region_->rows[pass], suffix);
    if (!made_here && kind != TensorKind::kInput) g_.value(id).whole = value;
    return known[value] = id;
  }

  void add_clone(const Node& n, int m) {
    Node clone = n;
    clone.pass = m;
    for (std::vector<Use>* uses : {&clone.in, &clone.out})
      for (Use& use : *uses) use.value = slice(use.value, m);
    if (clone.attrs.has("key")) clone.attrs.set("rows", region_->rows[static_cast<size_t>(m)]);
    g_.nodes.push_back(std::move(clone));
  }

  // Before parameters change within the step, the losses of the pass must be finite.
  void add_pass_guards(const std::vector<Node>& guards, int m) {
    const bool needed = std::ranges::any_of(region_->layers, [&](int l) {
      return g_.layer(l).update_period != 0 &&
             g_.layer(l).update_period < static_cast<int>(region_->rows.size());
    });
    if (!needed) return;
    for (const Node& n : guards) {
      Node guard = n;
      guard.pass = m;
      guard.in[0].value = slice(n.in[0].value, m);
      guard.in_layout[0].pass = m;
      guard.in_layout[0].passes = static_cast<int>(region_->rows.size());
      g_.nodes.push_back(std::move(guard));
    }
  }

  // The loss of the step, from those of its passes.
  void add_metric_sums(const Node& n) {
    for (const Use& use : n.out) {
      if (g_.value(use.value).kind != TensorKind::kMetric) continue;
      Node sum;
      sum.op = Op::kSum;
      sum.out = {use};
      sum.layer = n.layer;
      const auto passes = static_cast<int>(region_->rows.size());
      for (int m = 0; m < passes; ++m) {
        sum.in.push_back({slice(use.value, m), use.role});
        Layout layout = replicated(g_.layer(n.layer).mesh);
        layout.pass = m;
        layout.passes = passes;
        sum.in_layout.push_back(std::move(layout));
      }
      g_.nodes.push_back(std::move(sum));
    }
  }

  // The values of passes [first, end) as one, in the order of the batch.
  int joined(int value, int first, int end) {
    if (g_.value(value).kind == TensorKind::kParameter) return value;
    if (end - first == 1) return slice(value, first);
    const auto key = std::tuple(value, first, end);
    if (const auto at = joined_.find(key); at != joined_.end()) return at->second;
    std::vector<int> parts;
    std::vector<Segments> rows;
    for (int m = first; m < end; ++m) {
      parts.push_back(slice(value, m));
      rows.push_back(region_->rows[static_cast<size_t>(m)]);
    }
    const bool all = end - first == static_cast<int>(region_->rows.size());
    int id = value;
    if (!all) {
      id = sub_batch(value, united(rows),
                     ".passes" + std::to_string(first) + "-" + std::to_string(end - 1));
    } else if (g_.value(value).layer < 0 || !region_->layers.contains(g_.value(value).layer)) {
      if (g_.value(value).kind == TensorKind::kInput) return value;  // the host fills it
      Value copy = g_.value(value);
      copy.name = unique(copy.name + "@joined");
      copy.tensor = value;
      copy.memory = -1;
      id = g_.add_value(std::move(copy));
    }
    g_.value(id).joined = parts;
    g_.value(id).whole = -1;
    return joined_[key] = id;
  }

  void add_gradient(const Node& n, int first, int end) {
    Node node = n;
    const bool all = end - first == static_cast<int>(region_->rows.size());
    if (!all) node.pass = end - 1;
    for (Use& use : node.in) use.value = joined(use.value, first, end);
    if (!all)
      for (Use& use : node.out) {
        Value v = g_.value(use.value);
        v.name += ".pass" + std::to_string(end - 1);
        v.tensor = v.memory = -1;
        std::vector<Segments> rows(region_->rows.begin() + first, region_->rows.begin() + end);
        v.examples = examples_of(united(rows));
        v.scale = static_cast<double>(g_.batch) / static_cast<double>(v.examples);
        use.value = g_.add_value(std::move(v));
      }
    g_.nodes.push_back(std::move(node));
  }

  Graph& g_;
  const BoundModel& model_;
  Diagnostics& diagnostics_;
  std::vector<schema::Scheme> schemes_;  // per layer
  std::vector<Region> regions_;
  const Region* region_ = nullptr;
  std::vector<std::map<int, int>> slices_;           // per pass: of a value, the pass's
  std::map<std::tuple<int, int, int>, int> joined_;  // in this region
  std::set<std::string> names_;                      // of the values made here
};

}  // namespace

bool rebatch(Graph& graph, const BoundModel& model, Diagnostics& diagnostics) {
  return Rebatch(graph, model, diagnostics).run();
}

}  // namespace convnet
