#include <charconv>

#include "framework/graph/layer_def.h"
#include "layers/softmax_loss.pb.h"

namespace convnet {
namespace {

using A = schema::SoftmaxLoss;

// The k of "top5"; nothing if the word is of another form.
std::optional<int64_t> parse_top(const std::string& word) {
  if (!word.starts_with("top")) return std::nullopt;
  int64_t k = 0;
  const char* end = word.data() + word.size();
  const auto [at, error] = std::from_chars(word.data() + 3, end, k);
  if (error != std::errc() || at != end) return std::nullopt;
  return k;
}

void build(LayerBuilder& b) {
  const A& a = b.attrs<A>();
  const Shape x = b.x_shape(0);
  const int64_t classes = b.classes();
  if (x[1] != classes || x[2] != 1 || x[3] != 1) {
    b.error(0, "softmax_loss '" + b.name() + "' reads '" + b.x_name(0) + "', " + x.str() +
                   ", but the label has " + std::to_string(classes) + " classes, so it takes " +
                   Shape{x[0], classes, 1, 1}.str());
    return;
  }
  std::vector<int64_t> top;
  for (const std::string& word : a.report()) {
    const auto k = parse_top(word);
    if (!k || *k < 1 || *k > classes) {
      b.error(A::kReportFieldNumber,
              k ? "'" + printable(word) + "' asks for the best " + std::to_string(*k) + " of " +
                      std::to_string(classes) + " classes"
                : "'" + printable(word) + "' is no report; reports are top1, top5, ...");
      return;
    }
    top.push_back(*k);
  }
  if (a.report().empty()) top.push_back(1);
  const auto count = static_cast<int64_t>(top.size()) + 2;
  const Use metrics =
      b.metrics(Attrs().set("metric", "loss").set("weight", a.weight()).set("top", top), count);
  const std::vector<int64_t> later;  // known once the work is divided
  const Use label = b.whole(b.x(1));
  if (!b.has_mode(Mode::kModel)) {
    b.emit(Op::kSoftmaxLossFwd, {b.x(0), label}, {b.saved("prob", x), metrics},
           Attrs().set("top", top).set("cuts", later));
    return;
  }
  // Split over classes: what every shard of the classes knows, then all of it together.
  const auto shards = static_cast<int64_t>(canonical_cuts(classes).size()) - 1;
  b.set_units(Mode::kModel, shards);
  const Use stats = b.saved("stats", Shape{x[0], 3 * shards, 1, 1});
  b.emit(Op::kSoftmaxStats, {b.x(0), label}, {stats}, Attrs().set("class_cuts", later));
  const Use prob = b.saved("prob", x), rank = b.saved("rank", Shape{x[0], shards, 1, 1});
  b.emit(Op::kSoftmaxNorm, {b.x(0), label, b.whole(stats)}, {prob, rank},
         Attrs().set("class_cuts", later));
  b.emit(Op::kSoftmaxMetrics, {b.whole(stats), b.whole(rank), label}, {metrics},
         Attrs().set("top", top).set("cuts", later).set("classes", classes));
}

void grad(GradBuilder& g) {
  if (!g.wants(0)) return;
  const Use dx = g.new_dx(0);
  const double scale = g.attrs<A>().weight() / static_cast<double>(g.batch());
  g.emit(Op::kSoftmaxLossBwd, {g.saved("prob"), g.whole(g.x(1))}, {dx},
         Attrs().set("scale", scale));
  g.set_dx(0, dx);
}

std::vector<ShardRule> rules() {
  std::vector<ShardRule> rules = example_wise_rules();
  // mode               x     y     sum   whole metric dy    dx    params dparams
  rules.push_back({Mode::kModel, S(1), S(1), S(1), R(), R(), S(1), S(1), {R()}, {R()}});
  return rules;
}

}  // namespace

extern const LayerDef kSoftmaxLossLayer;
const LayerDef kSoftmaxLossLayer = {
    .type = "softmax_loss",
    .min_inputs = 2,
    .max_inputs = 2,
    .takes_label = true,
    .follows_input = true,
    .build = build,
    .grad = grad,
    .rules = rules(),
    .samples =
        {
            {{Shape{10, 1, 1}}, ""},
            {{Shape{10, 1, 1}}, "report: [top1, top5], weight: 0.5"},
        },
    .illegal = {"report: [top0]", "report: [top11]", "report: [best]"},
};

}  // namespace convnet
