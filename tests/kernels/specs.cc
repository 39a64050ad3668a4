#include "tests/kernels/specs.h"

#include <algorithm>
#include <cmath>

#include "framework/plan/rows.h"

namespace convnet::kernels {
namespace {

std::vector<int64_t> list(const Pair& p) { return {p[0], p[1]}; }

int64_t batch(Rng& rng, int64_t n) { return n > 0 ? n : pick(rng, {1, 15, 16, 17, 33}); }
int64_t channels(Rng& rng) { return pick(rng, {1, 2, 3, 7, 8, 9, 24, 25}); }

std::string random_act(Rng& rng, Fill fill) {
  // With integers only what keeps them integers.
  if (fill == Fill::kIntegers) return rng() % 2 ? "none" : "relu";
  const char* acts[] = {"none", "relu", "tanh", "sigmoid"};
  return acts[rng() % 4];
}

// Values within 3 of each other, as an activation's output: sigmoid's lie in (0, 1).
Array activated(Rng& rng, const Shape& shape, const std::string& act, Fill fill) {
  Array y = random_array(rng, shape, fill);
  for (double& v : y.values) {
    if (act == "relu") v = std::max(v, 0.0);
    if (act == "tanh") v = v / 4;
    if (act == "sigmoid") v = 0.5 + v / 8;
  }
  return y;
}

Array random_labels(Rng& rng, int64_t n, int64_t classes) {
  Array labels(Shape{n});
  for (double& v : labels.values)
    v = rng() % 5 == 0 ? -1 : static_cast<double>(between(rng, 0, classes - 1));
  return labels;
}

int64_t conv_outputs(int64_t in, int64_t pad, int64_t kernel, int64_t stride, int64_t dilation) {
  return (in + 2 * pad - dilation * (kernel - 1) - 1) / stride + 1;
}

Case pool_case(Op op, Rng& rng, Fill fill, int64_t examples) {
  const PoolSpec s = random_pool(rng, examples);
  Case c;
  c.op = op;
  c.attrs = s.attrs();
  if (op != Op::kPoolAvgBwd) c.activation("x", random_array(rng, s.x(), fill));
  if (op == Op::kPoolMaxBwd || op == Op::kPoolAvgBwd)
    c.activation("dy", random_array(rng, s.y(), fill));
  const bool forward = op == Op::kPoolMaxFwd || op == Op::kPoolAvgFwd;
  c.result(forward ? "y" : "dx", forward ? s.y() : s.x());
  return c;
}

Case lrn_case(Op op, Rng& rng, Fill fill, int64_t examples) {
  const Shape x{batch(rng, examples), channels(rng), between(rng, 1, 5), between(rng, 1, 5)};
  Case c;
  c.op = op;
  c.attrs.set("size", pick(rng, {1, 3, 5, 9}))
      .set("alpha", rng() % 2 ? 1e-4 : 0.5)
      .set("beta", rng() % 2 ? 0.75 : 0.6)
      .set("k", rng() % 2 ? 1.0 : 2.0);
  c.activation("x", random_array(rng, x, fill));
  if (op == Op::kLrnFwd) {
    c.result("y", x);
    c.result("scale", x);
    return c;
  }
  c.activation("y", random_array(rng, x, fill));
  Array scale = random_array(rng, x, fill);
  for (double& v : scale.values) v = 1 + std::fabs(v);
  c.activation("scale", std::move(scale));
  c.activation("dy", random_array(rng, x, fill));
  c.result("dx", x);
  return c;
}

Case concat_case(Op op, Rng& rng, Fill fill, int64_t examples) {
  const Shape whole{batch(rng, examples), 0, between(rng, 1, 4), between(rng, 1, 4)};
  Case c;
  c.op = op;
  Shape y = whole;
  for (int64_t parts = between(rng, 1, 4); parts > 0; --parts) {
    Shape x = whole;
    x.set(1, channels(rng));
    y.set(1, y[1] + x[1]);
    const std::string name = "part" + std::to_string(parts);
    if (op == Op::kConcatFwd)
      c.activation(name, random_array(rng, x, fill));
    else
      c.result(name, x);
  }
  if (op == Op::kConcatFwd)
    c.result("y", y);
  else
    c.activation("dy", random_array(rng, y, fill));
  return c;
}

// Element by element: the result may lie in the memory of operand `alias`.
Case elementwise_case(Op op, Rng& rng, Fill fill, int64_t examples) {
  const Shape shape{batch(rng, examples), channels(rng), between(rng, 1, 4), between(rng, 1, 4)};
  const std::string act = random_act(rng, fill);
  Case c;
  c.op = op;
  int alias = 0;
  if (op == Op::kActBwd) {
    c.activation("y", activated(rng, shape, act, fill));
    alias = 1;
  }
  c.activation("x", random_array(rng, shape, fill));
  if (op == Op::kAdd)
    for (int64_t terms = between(rng, 1, 3); terms > 0; --terms)
      c.activation("x" + std::to_string(terms), random_array(rng, shape, fill));
  if (op == Op::kDropoutFwd || op == Op::kDropoutBwd) {
    c.attrs.set("rate", pick(rng, {25, 50, 30}) / 100.0).set("key", static_cast<int64_t>(rng()));
    c.step = between(rng, 0, 1000);
    c.seed = rng();
  } else {
    c.attrs.set("act", act);
  }
  c.result("y", shape).alias = rng() % 2 ? alias : -1;
  return c;
}

Case softmax_case(Op op, Rng& rng, Fill fill, int64_t examples) {
  const int64_t n = batch(rng, examples), classes = pick(rng, {1, 2, 7, 10, 33});
  const Shape x{n, classes, 1, 1};
  Case c;
  c.op = op;
  if (op == Op::kSoftmaxLossFwd) {
    c.activation("x", random_array(rng, x, fill));
    c.label(random_labels(rng, n, classes));
    c.attrs.set("top", std::vector<int64_t>{1, 5}).set("cuts", random_cuts(rng, n));
    c.result("prob", x);
    c.metrics(4);
  } else {
    Array prob = random_array(rng, x, fill);
    for (double& v : prob.values) v = 0.5 + v / 8;
    c.activation("prob", std::move(prob));
    c.label(random_labels(rng, n, classes));
    c.attrs.set("scale", fill == Fill::kIntegers ? 0.25 : 1.0 / 48);
    c.result("dx", x).alias = rng() % 2 ? 0 : -1;
  }
  return c;
}

Case bias_case(Op op, Rng& rng, Fill fill, int64_t examples) {
  const Shape shape{batch(rng, examples), channels(rng), between(rng, 1, 9), between(rng, 1, 9)};
  Case c;
  c.op = op;
  if (op == Op::kBiasFwd) {
    c.activation("z", random_array(rng, shape, fill));
    if (rng() % 4) c.parameter("b", random_array(rng, Shape{shape[1]}, fill));
    c.attrs.set("act", random_act(rng, fill));
    c.result("y", shape).alias = rng() % 2 ? 0 : -1;
    return c;
  }
  c.activation("dy", random_array(rng, shape, fill));
  c.attrs.set("cuts", random_cuts(rng, shape[0]));
  c.result("db", Shape{shape[1]}, Format::kPlain);
  return c;
}

// The three operations of the loss over classes that are cut, each on what the one before makes.
Case softmax_shards_case(Op op, Rng& rng, Fill fill, int64_t examples) {
  const int64_t n = batch(rng, examples), classes = pick(rng, {1, 2, 5, 7, 10, 33});
  const std::vector<int64_t> cuts = canonical_cuts(classes);
  const auto shards = static_cast<int64_t>(cuts.size()) - 1;
  const Shape x{n, classes, 1, 1}, each{n, shards, 1, 1}, three{n, 3 * shards, 1, 1};
  const Array labels = random_labels(rng, n, classes);
  Case c;
  c.op = Op::kSoftmaxStats;
  c.activation("x", random_array(rng, x, fill));
  c.label(labels);
  c.attrs.set("class_cuts", cuts);
  c.result("stats", three).may_be_nan = true;
  if (op == Op::kSoftmaxStats) return c;
  const Array stats = run(c, reference(DType::kF32))[0];
  c.op = Op::kSoftmaxNorm;
  c.activation("stats", stats);
  c.out.clear();
  c.result("prob", x);
  c.result("rank", each);
  if (op == Op::kSoftmaxNorm) return c;
  const Array rank = run(c, reference(DType::kF32))[1];
  Case m;
  m.op = op;
  m.activation("stats", stats);
  m.activation("rank", rank);
  m.label(labels);
  m.attrs.set("top", std::vector<int64_t>{1, 5}).set("cuts", random_cuts(rng, n));
  m.attrs.set("classes", classes);
  m.metrics(4);
  return m;
}

Case sum_case(Rng& rng, Fill fill) {
  const Shape shapes[] = {Shape{between(rng, 1, 70)}, Shape{7, between(rng, 1, 40)},
                          Shape{5, 3, between(rng, 1, 5), 3}};
  const Shape& shape = shapes[rng() % 3];
  Case c;
  c.op = Op::kSum;
  for (int64_t terms = between(rng, 2, 9); terms > 0; --terms)
    c.parameter("p" + std::to_string(c.in.size()), random_array(rng, shape, fill));
  c.result("s", shape, Format::kPlain).alias = rng() % 2 ? 0 : -1;
  return c;
}

Case join_case(Rng& rng, Fill fill, int64_t examples) {
  const int64_t parts = between(rng, 2, 4);
  const int64_t n = examples > 0 ? examples : 16 * parts + pick(rng, {0, 1, 47, 64});
  const auto rows = random_sub_batches(rng, n, parts);
  Shape shape{n, channels(rng), between(rng, 1, 4), between(rng, 1, 4)};
  Case c;
  c.op = Op::kRowsJoin;
  for (const std::vector<int64_t>& part : rows) {
    shape.set(0, row_count(part, n));
    c.activation("x" + std::to_string(c.in.size()), random_array(rng, shape, fill)).rows = part;
  }
  const std::vector<int64_t> all = all_rows(rows);
  shape.set(0, row_count(all, n));
  c.result("y", shape).rows = shape[0] == n ? std::vector<int64_t>() : all;
  return c;
}

Case update_case(Rng& rng, Fill fill) {
  const Shape shapes[] = {Shape{between(rng, 1, 70)}, Shape{7, between(rng, 1, 40)},
                          Shape{5, 3, between(rng, 1, 5), 3}};
  const Shape& shape = shapes[rng() % 3];
  Case c;
  c.op = Op::kUpdateSgd;
  for (const char* name : {"dw", "w", "m"}) c.parameter(name, random_array(rng, shape, fill));
  c.attrs.set("rate", 2.0).set("decay", 0.0005).set("momentum", 0.9);
  if (rng() % 2) c.attrs.set("scale", rng() % 2 ? 2.0 : 1.7);
  c.rate = 0.01;
  c.result("w", shape, Format::kPlain).alias = 1;
  c.result("m", shape, Format::kPlain).alias = 2;
  return c;
}

}  // namespace

Shape ConvSpec::y() const {
  return {n, k, conv_outputs(h, pad[0], kernel[0], stride[0], dilation[0]),
          conv_outputs(w, pad[1], kernel[1], stride[1], dilation[1])};
}

Attrs ConvSpec::attrs() const {
  Attrs a;
  a.set("stride", list(stride)).set("pad", list(pad)).set("dilation", list(dilation));
  return a.set("groups", groups);
}

ConvSpec random_conv(Rng& rng, int64_t examples) {
  for (;;) {
    ConvSpec s;
    s.n = batch(rng, examples);
    s.c = channels(rng);
    s.k = channels(rng);
    s.h = between(rng, 1, 15);
    s.w = between(rng, 1, 15);
    const int64_t kind = between(rng, 0, 9);
    if (kind == 0) s.k = s.groups = s.c;           // depthwise
    if (kind == 1) s.k = 2 * s.c, s.groups = s.c;  // two filters a channel
    if (kind == 2) s.groups = 2, s.c = 2 * pick(rng, {1, 4, 8}), s.k = 2 * pick(rng, {1, 7, 12});
    for (size_t axis = 0; axis < 2; ++axis) {
      s.kernel[axis] = rng() % 12 == 0 ? 11 : between(rng, 1, 5);
      s.stride[axis] = rng() % 2 ? 1 : between(rng, 1, 4);
      s.dilation[axis] = rng() % 4 == 0 ? between(rng, 2, 3) : 1;
      s.pad[axis] = between(rng, 0, s.kernel[axis] / 2 + 1);
    }
    if (rng() % 2) {  // square, as most are
      s.kernel[1] = s.kernel[0];
      s.stride[1] = s.stride[0];
      s.dilation[1] = s.dilation[0];
      s.pad[1] = s.pad[0];
    }
    bool fits = true;
    for (size_t axis = 0; axis < 2; ++axis)
      fits &= (axis ? s.w : s.h) + 2 * s.pad[axis] > s.dilation[axis] * (s.kernel[axis] - 1);
    if (!fits) continue;
    const int64_t products = s.y().count() * s.filters().count() / s.k;
    if (products <= 1'000'000) return s;
  }
}

Case conv_case(Op op, const ConvSpec& s, Rng& rng, Fill fill) {
  Case c;
  c.op = op;
  c.attrs = s.attrs();
  if (op != Op::kConvBwdData) c.activation("x", random_array(rng, s.x(), fill));
  if (op == Op::kConvFwd) {
    c.parameter("w", random_array(rng, s.filters(), fill));
    if (rng() % 2) c.parameter("b", random_array(rng, Shape{s.k}, fill));
    c.attrs.set("act", random_act(rng, fill));
    c.result("y", s.y());
    return c;
  }
  c.activation("dy", random_array(rng, s.y(), fill));
  if (op == Op::kConvBwdData) {
    c.parameter("w", random_array(rng, s.filters(), fill));
    c.result("dx", s.x());
    return c;
  }
  c.attrs.set("cuts", random_cuts(rng, s.n));
  c.result("dw", s.filters(), Format::kPlain);
  if (rng() % 2) c.result("db", Shape{s.k}, Format::kPlain);
  return c;
}

Case fc_case(Op op, const Shape& x, int64_t k, Rng& rng, Fill fill) {
  const Shape w{k, x[1] * x[2] * x[3]}, y{x[0], k, 1, 1};
  Case c;
  c.op = op;
  if (op != Op::kFcBwdData) c.activation("x", random_array(rng, x, fill));
  if (op != Op::kFcFwd) c.activation("dy", random_array(rng, y, fill));
  if (op != Op::kFcBwdWeight) c.parameter("w", random_array(rng, w, fill));
  if (op == Op::kFcFwd) {
    if (rng() % 2) c.parameter("b", random_array(rng, Shape{k}, fill));
    c.attrs.set("act", random_act(rng, fill));
    c.result("y", y);
  } else if (op == Op::kFcBwdData) {
    c.result("dx", x);
  } else {
    c.attrs.set("cuts", random_cuts(rng, x[0]));
    c.result("dw", w, Format::kPlain);
    if (rng() % 2) c.result("db", Shape{k}, Format::kPlain);
  }
  return c;
}

Shape PoolSpec::y() const {
  Shape shape = x();
  for (size_t axis = 0; axis < 2; ++axis) {
    const int dim = 2 + static_cast<int>(axis);
    const int64_t room = shape[dim] + 2 * pad[axis] - kernel[axis];
    int64_t outputs = (room + (ceil ? stride[axis] - 1 : 0)) / stride[axis] + 1;
    if ((outputs - 1) * stride[axis] >= shape[dim] + pad[axis]) --outputs;
    shape.set(dim, outputs);
  }
  return shape;
}

Attrs PoolSpec::attrs() const {
  Attrs a;
  return a.set("kernel", list(kernel)).set("stride", list(stride)).set("pad", list(pad));
}

PoolSpec random_pool(Rng& rng, int64_t examples) {
  for (;;) {
    PoolSpec s;
    s.n = batch(rng, examples);
    s.c = pick(rng, {1, 2, 3, 9});
    s.h = between(rng, 1, 15);
    s.w = between(rng, 1, 15);
    for (size_t axis = 0; axis < 2; ++axis) {
      s.kernel[axis] = between(rng, 1, 5);
      s.stride[axis] = between(rng, 1, 4);
      s.pad[axis] = rng() % 2 ? 0 : between(rng, 0, s.kernel[axis] - 1);
    }
    s.ceil = rng() % 2;
    if (s.h + 2 * s.pad[0] >= s.kernel[0] && s.w + 2 * s.pad[1] >= s.kernel[1]) return s;
  }
}

std::vector<int64_t> random_cuts(Rng& rng, int64_t n) {
  std::vector<int64_t> cuts{0};
  const int64_t shards = pick(rng, {1, 2, 3, 4, 8});
  while (static_cast<int64_t>(cuts.size()) < shards)
    cuts.push_back(std::min(n, cuts.back() + (rng() % 3 ? kLanes : 0)));
  cuts.push_back(n);
  return cuts;
}

std::vector<int64_t> canonical_cuts(int64_t extent) {
  int64_t shards = 1;
  while (shards < 8 && 2 * shards <= extent) shards *= 2;
  std::vector<int64_t> cuts;
  for (int64_t i = 0; i <= shards; ++i) cuts.push_back(extent * i / shards);
  return cuts;
}

std::vector<SummedDim> summed_dims(const Case& c) {
  switch (c.op) {
    case Op::kConvFwd:
    case Op::kConvBwdData:
      if (c.attrs.integer("groups") > 1) return {};
      return {{c.op == Op::kConvFwd ? "channel_cuts" : "filter_cuts", 0, 1}};
    case Op::kFcFwd:
      return {{"channel_cuts", 0, 1}};
    case Op::kFcBwdData:
      return {{"filter_cuts", 0, 1}};
    case Op::kConvBwdWeight:
      return {{"row_cuts", 1, 2}, {"column_cuts", 1, 3}};
    case Op::kBiasBwd:
      return {{"row_cuts", 0, 2}, {"column_cuts", 0, 3}};
    default:
      return {};
  }
}

Case with_cuts(Case c, Rng& rng) {
  for (const SummedDim& d : summed_dims(c))
    if (rng() % 4) {
      const Box& box = c.in[d.operand].box;
      c.attrs.set(d.cuts, canonical_cuts(box.hi(d.dim)));
    }
  return c;
}

std::vector<std::vector<int64_t>> random_sub_batches(Rng& rng, int64_t batch, int64_t parts) {
  const int64_t blocks = (batch + kLanes - 1) / kLanes;
  CHECK(blocks >= parts);
  for (;;) {
    std::vector<std::vector<int64_t>> rows(static_cast<size_t>(parts));
    const bool all = rng() % 2;
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t to = between(rng, 0, all ? parts - 1 : parts);
      if (to == parts) continue;
      auto& part = rows[static_cast<size_t>(to)];
      const int64_t lo = b * kLanes, hi = std::min(batch, lo + kLanes);
      if (!part.empty() && part.back() == lo && rng() % 2)
        part.back() = hi;
      else
        part.insert(part.end(), {lo, hi});
    }
    if (std::none_of(rows.begin(), rows.end(), [](const auto& part) { return part.empty(); }))
      return rows;
  }
}

std::vector<int64_t> all_rows(const std::vector<std::vector<int64_t>>& parts) {
  std::vector<std::pair<int64_t, int64_t>> segments;
  for (const auto& part : parts)
    for (size_t i = 0; i < part.size(); i += 2) segments.emplace_back(part[i], part[i + 1]);
  std::sort(segments.begin(), segments.end());
  std::vector<int64_t> rows;
  for (const auto& [lo, hi] : segments) rows.insert(rows.end(), {lo, hi});
  return rows;
}

std::vector<Op> numeric_ops() {
  std::vector<Op> ops;
#define OP(name, text, in_min, in_max, out_min, out_max, inplace, doc) ops.push_back(Op::name);
#include "framework/plan/ops.def"
#undef OP
  std::erase(ops, Op::kGuard);
  std::erase(ops, Op::kExchange);
  return ops;
}

Case random_case(Op op, Rng& rng, Fill fill, int64_t n) {
  switch (op) {
    case Op::kConvFwd:
    case Op::kConvBwdData:
    case Op::kConvBwdWeight:
      return conv_case(op, random_conv(rng, n), rng, fill);
    case Op::kFcFwd:
    case Op::kFcBwdData:
    case Op::kFcBwdWeight: {
      const Shape x{batch(rng, n), channels(rng), between(rng, 1, 3), between(rng, 1, 4)};
      return fc_case(op, x, channels(rng), rng, fill);
    }
    case Op::kPoolMaxFwd:
    case Op::kPoolMaxBwd:
    case Op::kPoolAvgFwd:
    case Op::kPoolAvgBwd:
      return pool_case(op, rng, fill, n);
    case Op::kActFwd:
    case Op::kActBwd:
    case Op::kAdd:
    case Op::kDropoutFwd:
    case Op::kDropoutBwd:
      return elementwise_case(op, rng, fill, n);
    case Op::kLrnFwd:
    case Op::kLrnBwd:
      return lrn_case(op, rng, fill, n);
    case Op::kConcatFwd:
    case Op::kConcatBwd:
      return concat_case(op, rng, fill, n);
    case Op::kSoftmaxLossFwd:
    case Op::kSoftmaxLossBwd:
      return softmax_case(op, rng, fill, n);
    case Op::kBiasFwd:
    case Op::kBiasBwd:
      return bias_case(op, rng, fill, n);
    case Op::kSoftmaxStats:
    case Op::kSoftmaxNorm:
    case Op::kSoftmaxMetrics:
      return softmax_shards_case(op, rng, fill, n);
    case Op::kSum:
      return sum_case(rng, fill);
    case Op::kRowsJoin:
      return join_case(rng, fill, n);
    case Op::kUpdateSgd:
      return update_case(rng, fill);
    case Op::kGuard:
    case Op::kExchange:
      break;
  }
  CHECK_MSG(false, "no cases for this operation");
  return {};
}

Case slice_examples(const Case& c, int64_t lo, int64_t hi, bool own_batch) {
  Case sliced = c;
  const auto slice = [&](Slot& slot) {
    if (slot.format != Format::kBlocked) return;
    if (!own_batch) {
      slot.box.set(0, lo, hi);
      return;
    }
    Shape shape = slot.data.shape;
    shape.set(0, hi - lo);
    Array part(shape);
    const auto inner = static_cast<int64_t>(part.values.size()) / (hi - lo);
    std::copy(slot.data.values.begin() + lo * inner, slot.data.values.begin() + hi * inner,
              part.values.begin());
    slot.data = std::move(part);
    slot.box = slot.stored = Box(shape);
  };
  for (Slot& slot : sliced.in) slice(slot);
  for (Slot& slot : sliced.out) slice(slot);
  if (sliced.attrs.has("cuts"))
    sliced.attrs.set("cuts",
                     own_batch ? std::vector<int64_t>{0, hi - lo} : std::vector<int64_t>{lo, hi});
  return sliced;
}

}  // namespace convnet::kernels
