// What the rules of a layer say about its operands: axis by axis a state, and for windows the rows,
// columns or channels that the device's own results need.
#include <algorithm>

#include "framework/compiler/passes.h"

namespace convnet {
namespace {

DimState state_of(const ShardRule& rule, const Role& role) {
  const auto of = [&](const std::vector<DimState>& states) {
    CHECK(!states.empty());
    return states[std::min(static_cast<size_t>(role.index), states.size() - 1)];
  };
  switch (role.kind) {
    case RoleKind::kX:
      return rule.x;
    case RoleKind::kY:
      return rule.y;
    case RoleKind::kSum:
      return rule.sum;
    case RoleKind::kWhole:
      return rule.whole;
    case RoleKind::kMetric:
      return rule.metric;
    case RoleKind::kDY:
      return rule.dy;
    case RoleKind::kDX:
      return rule.dx;
    case RoleKind::kParam:
      return of(rule.params);
    case RoleKind::kDParam:
      return of(rule.dparams);
    case RoleKind::kNone:
      break;
  }
  CHECK_MSG(false, "an operand without a role needs a layout from the pass that made it");
  return {};
}

// Boundaries of p pieces of this dimension of a value.
std::vector<int64_t> cuts_of(const GraphLayer& layer, Mode mode, const Value& value, int dim,
                             int p) {
  const int64_t extent = value.shape[dim];
  if (dim == 0 && value.format == Format::kBlocked) return batch_cuts(extent, p);
  const auto units = layer.units.find(mode);
  std::vector<int64_t> cuts = balanced_cuts(units == layer.units.end() ? extent : units->second, p);
  if (units != layer.units.end())
    for (int64_t& c : cuts) c = extent * c / units->second;
  return cuts;
}

// How p parts of a sum lie among its canonical shards.
void note_shards(const Graph& graph, const GraphLayer& layer, const Role& role, const Value& sum,
                 int p, AxisState* axis) {
  if (axis->over == 0) {
    const int64_t examples = sum.examples > 0 ? sum.examples : graph.batch;
    axis->canonical = canonical_tree(examples, p);
    axis->single = static_cast<int>(canonical_shards(examples).size()) - 1 == p;
    return;
  }
  // Over input channels forward, over filters or pixels of the output backward.
  const int value = role.kind == RoleKind::kSum ? layer.inputs[0] : layer.output;
  const int64_t extent = graph.value(value).shape[axis->over];
  axis->canonical = canonical_parts(extent, p);
  axis->single = canonical_count(extent) == p;
}

// ---- windows

// Of a convolution or pooling along rows or columns.
struct Window {
  int64_t kernel, stride, pad, dilation;
  int64_t span() const { return (kernel - 1) * dilation + 1; }

  // Rows of an image of `extent` rows that output rows [lo, hi) read.
  Range inputs(Range out, int64_t extent) const {
    if (out.lo >= out.hi) return {0, 0};
    return {std::clamp<int64_t>(out.lo * stride - pad, 0, extent),
            std::clamp<int64_t>((out.hi - 1) * stride - pad + span(), 0, extent)};
  }
  // Output rows, of `extent`, whose windows reach image rows [lo, hi).
  Range outputs(Range in, int64_t extent) const {
    if (in.lo >= in.hi) return {0, 0};
    const int64_t first = in.lo + pad - span() + 1;
    return {std::clamp<int64_t>(first <= 0 ? 0 : (first + stride - 1) / stride, 0, extent),
            std::clamp<int64_t>((in.hi - 1 + pad) / stride + 1, 0, extent)};
  }
};

Window window_of(const Node& node, int64_t kernel, int dim) {
  const auto i = static_cast<size_t>(dim - 2);
  return {kernel, node.attrs.list("stride")[i], node.attrs.list("pad")[i],
          node.attrs.has("dilation") ? node.attrs.list("dilation")[i] : 1};
}

Range around(Range r, int64_t reach, int64_t extent) {
  if (r.lo >= r.hi) return {0, 0};
  return {std::max<int64_t>(0, r.lo - reach), std::min(extent, r.hi + reach)};
}

// Channels of piece i of a concatenation within the channels [lo, hi) of the whole.
Range piece_of(const Graph& graph, const std::vector<Use>& pieces, size_t i, Range whole) {
  int64_t begin = 0;
  for (size_t k = 0; k < i; ++k) begin += graph.value(pieces[k].value).shape[1];
  const int64_t extent = graph.value(pieces[i].value).shape[1];
  const Range r{std::clamp<int64_t>(whole.lo - begin, 0, extent),
                std::clamp<int64_t>(whole.hi - begin, 0, extent)};
  return r.lo < r.hi ? r : Range{0, 0};
}

// What a node reads of dimension `dim` of operand i where the value that drives it (its result; of
// a weight gradient dy) holds `own`. Nothing: the operand is split for itself.
std::optional<Range> needed(const Graph& graph, const Node& n, size_t i, int dim, Range own) {
  const auto shape = [&](const Use& use) -> const Shape& { return graph.value(use.value).shape; };
  const int64_t extent = shape(n.in[i])[dim];
  const bool pixels = dim == 2 || dim == 3;
  switch (n.op) {
    case Op::kConvFwd:
    case Op::kConvBwdWeight: {
      if (i != 0 || !pixels) return std::nullopt;
      const Shape& w = shape(n.op == Op::kConvFwd ? n.in[1] : n.out[0]);
      return window_of(n, w[dim], dim).inputs(own, extent);
    }
    case Op::kConvBwdData:
      if (i != 0 || !pixels) return std::nullopt;
      return window_of(n, shape(n.in[1])[dim], dim).outputs(own, extent);
    case Op::kPoolMaxFwd:
    case Op::kPoolAvgFwd:
      if (!pixels) return std::nullopt;
      return window_of(n, n.attrs.list("kernel")[static_cast<size_t>(dim - 2)], dim)
          .inputs(own, extent);
    case Op::kPoolMaxBwd:
    case Op::kPoolAvgBwd: {
      if (!pixels) return std::nullopt;
      const Window w = window_of(n, n.attrs.list("kernel")[static_cast<size_t>(dim - 2)], dim);
      const Range outputs = w.outputs(own, shape(n.in.back())[dim]);
      if (i + 1 == n.in.size()) return outputs;
      return w.inputs(outputs, extent);  // where a window's maximum lies shows the whole window
    }
    case Op::kLrnFwd:
    case Op::kLrnBwd:
      if (dim != 1) return std::nullopt;
      return around(own, n.attrs.integer("size") / 2, extent);
    case Op::kConcatFwd:
      if (dim != 1) return std::nullopt;
      return piece_of(graph, n.in, i, own);
    default:
      return std::nullopt;
  }
}

}  // namespace

Layout layout_of(const Graph& graph, const GraphLayer& layer, const Role& role,
                 const Value& value) {
  Layout layout{layer.mesh, {}, {}, value.pass, value.passes};
  for (size_t a = 0; a < layer.rules.size(); ++a) {
    const int p = layer.mesh.extents[a];
    const DimState state = state_of(*layer.rules[a], role);
    AxisState axis;
    axis.kind = state.kind;
    if (state.kind == AxisState::Kind::kSplit) {
      axis.dim = state.dim;
      axis.ranges = ranges_of(cuts_of(layer, layer.rules[a]->mode, value, state.dim, p));
    } else if (state.kind == AxisState::Kind::kPartial) {
      axis.over = state.dim;
      note_shards(graph, layer, role, value, p, &axis);
    }
    layout.axes.push_back(std::move(axis));
  }
  return layout;
}

Layout operand_layout(const Graph& graph, const Node& node, size_t i) {
  const GraphLayer& layer = graph.layer(node.layer);
  const auto of = [&](const Use& use) {
    return layout_of(graph, layer, use.role, graph.value(use.value));
  };
  Layout layout = of(node.in[i]);
  const bool by_dy = node.op == Op::kConvBwdWeight;
  if (node.out.empty() && !by_dy) return layout;
  const Layout own = of(by_dy ? node.in[1] : node.out[0]);
  for (size_t a = 0; a < layout.axes.size(); ++a) {
    AxisState& axis = layout.axes[a];
    const AxisState& driver = own.axes[a];
    if (axis.kind != AxisState::Kind::kSplit || driver.kind != AxisState::Kind::kSplit ||
        axis.dim != driver.dim)
      continue;
    for (size_t k = 0; k < axis.ranges.size(); ++k)
      if (const auto range = needed(graph, node, i, axis.dim, driver.ranges[k]))
        axis.ranges[k] = *range;
  }
  return layout;
}

Layout result_layout(const Graph& graph, const Node& node, size_t i) {
  const GraphLayer& layer = graph.layer(node.layer);
  if (node.op == Op::kSum) {
    Layout layout = node.in_layout[0];
    layout.pass = 0;
    layout.passes = 1;
    return layout;
  }
  Layout layout = layout_of(graph, layer, node.out[i].role, graph.value(node.out[i].value));
  if (node.op != Op::kConcatBwd) return layout;
  // The pieces lie where the channels of the whole are.
  const Layout whole = operand_layout(graph, node, 0);
  for (size_t a = 0; a < layout.axes.size(); ++a) {
    AxisState& axis = layout.axes[a];
    if (axis.kind != AxisState::Kind::kSplit || axis.dim != 1) continue;
    for (size_t k = 0; k < axis.ranges.size(); ++k)
      axis.ranges[k] = piece_of(graph, node.out, i, whole.axes[a].ranges[k]);
  }
  return layout;
}

}  // namespace convnet
