// If this fails, a layer split over devices computes something else than the whole layer: some
// shard reads, writes or sums the wrong part of its box.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/kernels/specs.h"

namespace convnet::kernels {
namespace {

struct Range {
  int64_t lo, hi;
};

// 0..extent in one to three pieces, cut at multiples of `step`.
std::vector<Range> pieces(Rng& rng, int64_t extent, int64_t step = 1) {
  const int64_t units = (extent + step - 1) / step;
  std::vector<int64_t> cuts{0, extent};
  for (int64_t more = between(rng, 0, 2); more > 0; --more)
    cuts.push_back(std::min(extent, between(rng, 0, units) * step));
  std::sort(cuts.begin(), cuts.end());
  std::vector<Range> ranges;
  for (size_t i = 0; i + 1 < cuts.size(); ++i)
    if (cuts[i] < cuts[i + 1]) ranges.push_back({cuts[i], cuts[i + 1]});
  return ranges;
}

void restrict_to(Slot& slot, int dim, Range range) { slot.box.set(dim, range.lo, range.hi); }

// Runs a shard in memory that holds just its boxes, or in boxes of larger buffers, and adds its
// results to the totals.
void accumulate(Case shard, const Engine& engine, bool own_memory, std::vector<Array>& totals) {
  if (own_memory)
    for (auto* slots : {&shard.in, &shard.out})
      for (Slot& slot : *slots) slot.stored = slot.box;
  const auto results = run(shard, engine);
  for (size_t r = 0; r < results.size(); ++r)
    for_each_position(totals[r].shape, shard.out[r].box,
                      [&](size_t i) { totals[r].values[i] += results[r].values[i]; });
}

using Splitter = std::function<std::vector<Case>(const Case& whole, Rng& rng)>;

// The shards' results, added where they overlap, are the whole's: exactly, on integers. If
// `same_bits`, no sum is split, and shards have the whole's bits on floats too.
void expect_whole(Op op, uint64_t seed, int rounds, const Splitter& split, bool same_bits) {
  Rng rng(seed);
  for (int i = 0; i < rounds; ++i) {
    const Fill fill = same_bits && i % 2 ? Fill::kFloats : Fill::kIntegers;
    Case whole = random_case(op, rng, fill);
    for (Slot& slot : whole.out) slot.alias = -1;
    if (!same_bits && whole.attrs.has("act")) whole.attrs.set("act", "none");
    const std::vector<Case> shards = split(whole, rng);
    for (const Engine& engine : engines()) {
      if (engine.is_reference && engine.dtype == DType::kF32) continue;
      const auto want = run(whole, engine);
      for (const bool own_memory : {false, true}) {
        std::vector<Array> totals;
        for (const Slot& slot : whole.out) totals.emplace_back(slot.data.shape);
        for (const Case& shard : shards) accumulate(shard, engine, own_memory, totals);
        for (size_t r = 0; r < totals.size(); ++r)
          expect_equal(totals[r], want[r],
                       whole.str() + " in " + std::to_string(shards.size()) + " shards, first " +
                           shards[0].str() + ", on " + engine.name);
      }
    }
  }
}

struct Window {
  Pair kernel, stride, pad, dilation;
};

Window window_of(const Case& c) {
  const auto pair = [&](const char* name) {
    const auto& list = c.attrs.list(name);
    return Pair{list[0], list[1]};
  };
  if (c.attrs.has("kernel")) return {pair("kernel"), pair("stride"), pair("pad"), {1, 1}};
  const Slot& w = c.op == Op::kConvBwdWeight ? c.out[0] : c.in[1];
  return {{w.data.shape[2], w.data.shape[3]}, pair("stride"), pair("pad"), pair("dilation")};
}

// Input rows (columns) that outputs [lo, hi) look at, inside the image; perhaps none.
Range inputs_of(const Window& w, size_t axis, Range outputs, int64_t image) {
  const int64_t lo = outputs.lo * w.stride[axis] - w.pad[axis];
  const int64_t hi =
      (outputs.hi - 1) * w.stride[axis] - w.pad[axis] + (w.kernel[axis] - 1) * w.dilation[axis] + 1;
  const int64_t first = std::clamp<int64_t>(lo, 0, image);
  return {first, std::clamp(hi, first, image)};
}

// Outputs that look at some of the input rows (columns) [lo, hi); perhaps none.
Range outputs_of(const Window& w, size_t axis, Range inputs, int64_t outputs) {
  int64_t first = outputs, end = 0;
  for (int64_t p = 0; p < outputs; ++p)
    for (int64_t r = 0; r < w.kernel[axis]; ++r) {
      const int64_t h = p * w.stride[axis] - w.pad[axis] + r * w.dilation[axis];
      if (h < inputs.lo || h >= inputs.hi) continue;
      first = std::min(first, p);
      end = std::max(end, p + 1);
    }
  return end == 0 ? Range{0, 0} : Range{first, end};
}

// Input channels of the groups that filters [lo, hi) belong to.
Range channels_of(const Case& c, Range filters, int64_t all_filters, int64_t per_group) {
  const int64_t size = all_filters / c.attrs.integer("groups");
  return {filters.lo / size * per_group, ((filters.hi - 1) / size + 1) * per_group};
}

// Splits in every direction at once: examples, filters (with groups), rows and columns with halos.
TEST(Boxes, ConvolutionForward) {
  expect_whole(
      Op::kConvFwd, 900, 60,
      [](const Case& whole, Rng& rng) {
        const Shape &y = whole.out[0].data.shape, &x = whole.in[0].data.shape;
        const Window window = window_of(whole);
        std::vector<Case> shards;
        const auto ks = pieces(rng, y[1]), ps = pieces(rng, y[2]), qs = pieces(rng, y[3]);
        for (const Range n : pieces(rng, y[0], kLanes))
          for (const Range k : ks)
            for (const Range p : ps)
              for (const Range q : qs) {
                Case& c = shards.emplace_back(whole);
                restrict_to(c.out[0], 0, n);
                restrict_to(c.out[0], 1, k);
                restrict_to(c.out[0], 2, p);
                restrict_to(c.out[0], 3, q);
                restrict_to(c.in[0], 0, n);
                restrict_to(c.in[0], 1, channels_of(whole, k, y[1], whole.in[1].data.shape[1]));
                restrict_to(c.in[0], 2, inputs_of(window, 0, p, x[2]));
                restrict_to(c.in[0], 3, inputs_of(window, 1, q, x[3]));
                restrict_to(c.in[1], 0, k);
                if (c.in.size() == 3) restrict_to(c.in[2], 0, k);
              }
        return shards;
      },
      true);
}

// Partial sums over input channels (of one group) or over pieces of the image.
TEST(Boxes, ConvolutionForwardPartialSums) {
  expect_whole(
      Op::kConvFwd, 901, 50,
      [](const Case& whole, Rng& rng) {
        const Shape &x = whole.in[0].data.shape, &w = whole.in[1].data.shape;
        const bool one_group = w[1] == x[1];
        std::vector<Case> shards;
        const auto hs = pieces(rng, x[2]), vs = pieces(rng, x[3]);
        for (const Range c : pieces(rng, w[1]))
          for (const Range h : hs)
            for (const Range v : vs) {
              Case& shard = shards.emplace_back(whole);
              // One of the two operands is enough to say which terms are there.
              const bool by_x = one_group && rng() % 2;
              if (!by_x || rng() % 2) restrict_to(shard.in[1], 1, c);
              if (by_x) restrict_to(shard.in[0], 1, c);
              restrict_to(shard.in[0], 2, h);
              restrict_to(shard.in[0], 3, v);
              if (shards.size() > 1) shard.in.resize(2);  // the bias once
            }
        return shards;
      },
      false);
}

TEST(Boxes, ConvolutionBackwardData) {
  expect_whole(
      Op::kConvBwdData, 902, 50,
      [](const Case& whole, Rng& rng) {
        const Shape &dx = whole.out[0].data.shape, &dy = whole.in[0].data.shape;
        const Shape& w = whole.in[1].data.shape;
        const int64_t filters = w[0] / whole.attrs.integer("groups");
        const Window window = window_of(whole);
        std::vector<Case> shards;
        const auto cs = pieces(rng, dx[1]), hs = pieces(rng, dx[2]), vs = pieces(rng, dx[3]);
        for (const Range n : pieces(rng, dx[0], kLanes))
          for (const Range c : cs)
            for (const Range h : hs)
              for (const Range v : vs) {
                Case& shard = shards.emplace_back(whole);
                restrict_to(shard.out[0], 0, n);
                restrict_to(shard.out[0], 1, c);
                restrict_to(shard.out[0], 2, h);
                restrict_to(shard.out[0], 3, v);
                // The filters of the channels' groups, and within one group only their rows of w.
                const Range groups{c.lo / w[1], (c.hi - 1) / w[1] + 1};
                const Range k{groups.lo * filters, groups.hi * filters};
                restrict_to(shard.in[0], 0, n);
                restrict_to(shard.in[0], 1, k);
                restrict_to(shard.in[0], 2, outputs_of(window, 0, h, dy[2]));
                restrict_to(shard.in[0], 3, outputs_of(window, 1, v, dy[3]));
                restrict_to(shard.in[1], 0, k);
                if (groups.hi - groups.lo == 1)
                  restrict_to(shard.in[1], 1, {c.lo - groups.lo * w[1], c.hi - groups.lo * w[1]});
              }
        return shards;
      },
      true);
}

// Partial sums over filters (parallel: model), and over output rows and columns (spatial), where
// each shard writes only the inputs that its outputs look at.
TEST(Boxes, ConvolutionBackwardDataPartialSums) {
  expect_whole(
      Op::kConvBwdData, 903, 50,
      [](const Case& whole, Rng& rng) {
        const Shape &dx = whole.out[0].data.shape, &dy = whole.in[0].data.shape;
        const Window window = window_of(whole);
        std::vector<Case> shards;
        const auto ps = pieces(rng, dy[2]), qs = pieces(rng, dy[3]);
        for (const Range k : pieces(rng, dy[1]))
          for (const Range p : ps)
            for (const Range q : qs) {
              Case& shard = shards.emplace_back(whole);
              const bool by_w = rng() % 2;
              if (!by_w || rng() % 2) restrict_to(shard.in[0], 1, k);
              if (by_w) restrict_to(shard.in[1], 0, k);
              restrict_to(shard.in[0], 2, p);
              restrict_to(shard.in[0], 3, q);
              restrict_to(shard.out[0], 2, inputs_of(window, 0, p, dx[2]));
              restrict_to(shard.out[0], 3, inputs_of(window, 1, q, dx[3]));
              // Outputs that see padding only: zeros for the whole input.
              if (shard.out[0].box.empty()) shard.out[0].box = Box(dx);
            }
        return shards;
      },
      false);
}

// Filters and channels are divided; examples, rows and columns give partial sums.
TEST(Boxes, ConvolutionBackwardWeight) {
  const auto split = [](const Case& whole, Rng& rng, bool partial) {
    const Shape &x = whole.in[0].data.shape, &dy = whole.in[1].data.shape;
    const Shape& w = whole.out[0].data.shape;
    const Window window = window_of(whole);
    const auto of = [&](int64_t extent, int64_t step) {
      return partial ? pieces(rng, extent, step) : std::vector<Range>{{0, extent}};
    };
    const auto ks = pieces(rng, w[0]), cs = pieces(rng, w[1]);
    const auto ps = of(dy[2], 1), qs = of(dy[3], 1);
    std::vector<Case> shards;
    for (const Range n : of(dy[0], kLanes))
      for (const Range k : ks)
        for (const Range p : ps)
          for (const Range q : qs)
            for (const Range c : cs) {
              Case& shard = shards.emplace_back(whole);
              if (partial) shard.attrs.set("cuts", std::vector<int64_t>{n.lo, n.hi});
              restrict_to(shard.in[0], 0, n);
              const Range channels = channels_of(whole, k, w[0], w[1]);
              const bool one_group = channels.hi - channels.lo == w[1];
              restrict_to(shard.in[0], 1,
                          one_group ? Range{channels.lo + c.lo, channels.lo + c.hi} : channels);
              restrict_to(shard.in[0], 2, inputs_of(window, 0, p, x[2]));
              restrict_to(shard.in[0], 3, inputs_of(window, 1, q, x[3]));
              restrict_to(shard.in[1], 0, n);
              restrict_to(shard.in[1], 1, k);
              restrict_to(shard.in[1], 2, p);
              restrict_to(shard.in[1], 3, q);
              restrict_to(shard.out[0], 0, k);
              restrict_to(shard.out[0], 1, c);
              // The bias gradient once for all channels.
              if (c.lo > 0) shard.out.resize(1);
              if (shard.out.size() == 2) restrict_to(shard.out[1], 0, k);
            }
    return shards;
  };
  expect_whole(
      Op::kConvBwdWeight, 904, 40,
      [&](const Case& whole, Rng& rng) { return split(whole, rng, false); }, true);
  expect_whole(
      Op::kConvBwdWeight, 905, 40,
      [&](const Case& whole, Rng& rng) { return split(whole, rng, true); }, false);
}

TEST(Boxes, FullyConnectedForward) {
  const auto split = [](const Case& whole, Rng& rng, bool partial) {
    const Shape &x = whole.in[0].data.shape, &y = whole.out[0].data.shape;
    const auto cs = partial ? pieces(rng, x[1]) : std::vector<Range>{{0, x[1]}};
    const auto ks = pieces(rng, y[1]);
    std::vector<Case> shards;
    for (const Range n : pieces(rng, y[0], kLanes))
      for (const Range k : ks)
        for (const Range c : cs) {
          Case& shard = shards.emplace_back(whole);
          restrict_to(shard.out[0], 0, n);
          restrict_to(shard.out[0], 1, k);
          restrict_to(shard.in[0], 0, n);
          const bool by_x = rng() % 2;
          if (by_x) restrict_to(shard.in[0], 1, c);
          restrict_to(shard.in[1], 0, k);
          if (!by_x || rng() % 2)
            restrict_to(shard.in[1], 1, {c.lo * x[2] * x[3], c.hi * x[2] * x[3]});
          if (shard.in.size() == 3) restrict_to(shard.in[2], 0, k);
          if (c.lo > 0) shard.in.resize(2);
        }
    return shards;
  };
  expect_whole(
      Op::kFcFwd, 906, 30, [&](const Case& whole, Rng& rng) { return split(whole, rng, false); },
      true);
  expect_whole(
      Op::kFcFwd, 907, 30, [&](const Case& whole, Rng& rng) { return split(whole, rng, true); },
      false);
}

TEST(Boxes, FullyConnectedBackwardData) {
  const auto split = [](const Case& whole, Rng& rng, bool partial) {
    const Shape &dx = whole.out[0].data.shape, &dy = whole.in[0].data.shape;
    const auto ks = partial ? pieces(rng, dy[1]) : std::vector<Range>{{0, dy[1]}};
    const auto cs = pieces(rng, dx[1]);
    std::vector<Case> shards;
    for (const Range n : pieces(rng, dx[0], kLanes))
      for (const Range c : cs)
        for (const Range k : ks) {
          Case& shard = shards.emplace_back(whole);
          restrict_to(shard.out[0], 0, n);
          restrict_to(shard.out[0], 1, c);
          restrict_to(shard.in[0], 0, n);
          const bool by_w = rng() % 2;
          if (!by_w || rng() % 2) restrict_to(shard.in[0], 1, k);
          if (by_w) restrict_to(shard.in[1], 0, k);
          restrict_to(shard.in[1], 1, {c.lo * dx[2] * dx[3], c.hi * dx[2] * dx[3]});
        }
    return shards;
  };
  expect_whole(
      Op::kFcBwdData, 908, 30,
      [&](const Case& whole, Rng& rng) { return split(whole, rng, false); }, true);
  expect_whole(
      Op::kFcBwdData, 909, 30, [&](const Case& whole, Rng& rng) { return split(whole, rng, true); },
      false);
}

TEST(Boxes, FullyConnectedBackwardWeight) {
  const auto split = [](const Case& whole, Rng& rng, bool partial) {
    const Shape &x = whole.in[0].data.shape, &w = whole.out[0].data.shape;
    const auto ns = partial ? pieces(rng, x[0], kLanes) : std::vector<Range>{{0, x[0]}};
    const auto ks = pieces(rng, w[0]), cs = pieces(rng, x[1]);
    std::vector<Case> shards;
    for (const Range n : ns)
      for (const Range k : ks)
        for (const Range c : cs) {
          Case& shard = shards.emplace_back(whole);
          if (partial) shard.attrs.set("cuts", std::vector<int64_t>{n.lo, n.hi});
          restrict_to(shard.in[0], 0, n);
          restrict_to(shard.in[0], 1, c);
          restrict_to(shard.in[1], 0, n);
          restrict_to(shard.in[1], 1, k);
          restrict_to(shard.out[0], 0, k);
          restrict_to(shard.out[0], 1, {c.lo * x[2] * x[3], c.hi * x[2] * x[3]});
          if (c.lo > 0) shard.out.resize(1);
          if (shard.out.size() == 2) restrict_to(shard.out[1], 0, k);
        }
    return shards;
  };
  expect_whole(
      Op::kFcBwdWeight, 910, 30,
      [&](const Case& whole, Rng& rng) { return split(whole, rng, false); }, true);
  expect_whole(
      Op::kFcBwdWeight, 911, 30,
      [&](const Case& whole, Rng& rng) { return split(whole, rng, true); }, false);
}

TEST(Boxes, Pooling) {
  for (const Op op : {Op::kPoolMaxFwd, Op::kPoolAvgFwd, Op::kPoolMaxBwd, Op::kPoolAvgBwd})
    expect_whole(
        op, 920 + static_cast<uint64_t>(op), 30,
        [op](const Case& whole, Rng& rng) {
          const bool forward = op == Op::kPoolMaxFwd || op == Op::kPoolAvgFwd;
          const Shape& out = whole.out[0].data.shape;
          const Shape& in = whole.in.back().data.shape;  // of x (forward) or dy (backward)
          const Window window = window_of(whole);
          const auto cs = pieces(rng, out[1]), ps = pieces(rng, out[2]), qs = pieces(rng, out[3]);
          std::vector<Case> shards;
          for (const Range n : pieces(rng, out[0], kLanes))
            for (const Range c : cs)
              for (const Range p : ps)
                for (const Range q : qs) {
                  Case& shard = shards.emplace_back(whole);
                  for (auto* slots : {&shard.in, &shard.out})
                    for (Slot& slot : *slots) {
                      restrict_to(slot, 0, n);
                      restrict_to(slot, 1, c);
                    }
                  const Range at[2] = {p, q};
                  for (size_t axis = 0; axis < 2; ++axis) {
                    const int dim = 2 + static_cast<int>(axis);
                    restrict_to(shard.out[0], dim, at[axis]);
                    if (forward) {
                      restrict_to(shard.in[0], dim, inputs_of(window, axis, at[axis], in[dim]));
                      continue;
                    }
                    const Range outputs = outputs_of(window, axis, at[axis], in[dim]);
                    restrict_to(shard.in.back(), dim, outputs);
                    if (op == Op::kPoolMaxBwd)
                      restrict_to(shard.in[0], dim,
                                  outputs.lo == outputs.hi
                                      ? at[axis]
                                      : inputs_of(window, axis, outputs, out[dim]));
                  }
                }
          return shards;
        },
        true);
}

// One box for all operands, whatever the shape.
TEST(Boxes, ElementwiseOperations) {
  for (const Op op : {Op::kActFwd, Op::kActBwd, Op::kAdd, Op::kDropoutFwd, Op::kDropoutBwd,
                      Op::kSum, Op::kUpdateSgd})
    expect_whole(
        op, 950 + static_cast<uint64_t>(op), 20,
        [](const Case& whole, Rng& rng) {
          std::vector<Case> shards{whole};
          const Shape& shape = whole.out[0].data.shape;
          const bool blocked = whole.out[0].format == Format::kBlocked;
          for (int dim = 0; dim < shape.rank(); ++dim) {
            std::vector<Case> finer;
            for (const Range range : pieces(rng, shape[dim], dim == 0 && blocked ? kLanes : 1))
              for (Case shard : shards) {
                for (auto* slots : {&shard.in, &shard.out})
                  for (Slot& slot : *slots) restrict_to(slot, dim, range);
                finer.push_back(std::move(shard));
              }
            shards = std::move(finer);
          }
          return shards;
        },
        true);
}

TEST(Boxes, LocalResponseNormalisationWithChannelHalo) {
  for (const Op op : {Op::kLrnFwd, Op::kLrnBwd})
    expect_whole(
        op, 970 + static_cast<uint64_t>(op), 20,
        [op](const Case& whole, Rng& rng) {
          const Shape& shape = whole.out[0].data.shape;
          const int64_t reach = whole.attrs.integer("size") / 2;
          const auto cs = pieces(rng, shape[1]), hs = pieces(rng, shape[2]);
          std::vector<Case> shards;
          for (const Range n : pieces(rng, shape[0], kLanes))
            for (const Range c : cs)
              for (const Range h : hs) {
                Case& shard = shards.emplace_back(whole);
                for (auto* slots : {&shard.in, &shard.out})
                  for (Slot& slot : *slots) {
                    restrict_to(slot, 0, n);
                    restrict_to(slot, 1, c);
                    restrict_to(slot, 2, h);
                  }
                for (size_t i = op == Op::kLrnBwd ? 1 : 0; i < shard.in.size(); ++i)
                  restrict_to(
                      shard.in[i], 1,
                      {std::max<int64_t>(c.lo - reach, 0), std::min(c.hi + reach, shape[1])});
              }
          return shards;
        },
        true);
}

TEST(Boxes, Concat) {
  for (const Op op : {Op::kConcatFwd, Op::kConcatBwd})
    expect_whole(
        op, 980 + static_cast<uint64_t>(op), 20,
        [op](const Case& whole, Rng& rng) {
          const bool forward = op == Op::kConcatFwd;
          const Shape& shape = (forward ? whole.out : whole.in)[0].data.shape;
          const auto cs = pieces(rng, shape[1]), hs = pieces(rng, shape[2]);
          std::vector<Case> shards;
          for (const Range n : pieces(rng, shape[0], kLanes))
            for (const Range c : cs)
              for (const Range h : hs) {
                Case& shard = shards.emplace_back(whole);
                restrict_to((forward ? shard.out : shard.in)[0], 1, c);
                int64_t first = 0;
                for (Slot& part : forward ? shard.in : shard.out) {
                  const int64_t channels = part.data.shape[1];
                  const int64_t lo = std::clamp<int64_t>(c.lo - first, 0, channels);
                  restrict_to(part, 1, {lo, std::clamp(c.hi - first, lo, channels)});
                  first += channels;
                }
                for (auto* slots : {&shard.in, &shard.out})
                  for (Slot& slot : *slots) {
                    restrict_to(slot, 0, n);
                    restrict_to(slot, 2, h);
                  }
              }
          return shards;
        },
        true);
}

// Parts that do not follow the canonical shards (five filters on three devices): each part's cuts
// are its ends and the boundaries between them.
TEST(Boxes, UnevenPartsOfSumsByShards) {
  for (const Op op : {Op::kConvFwd, Op::kConvBwdData, Op::kConvBwdWeight, Op::kFcFwd,
                      Op::kFcBwdData, Op::kBiasBwd})
    expect_whole(
        op, 990 + static_cast<uint64_t>(op), 24,
        [](const Case& whole, Rng& rng) {
          std::vector<Case> shards{whole};
          for (const SummedDim& d : summed_dims(whole)) {
            const int64_t extent = whole.in[d.operand].data.shape[d.dim];
            const int64_t parts = pick(rng, {1, 2, 3, 5});
            std::vector<Case> finer;
            for (const Case& shard : shards)
              for (int64_t i = 0; i < parts; ++i) {
                const Range own{extent * i / parts, extent * (i + 1) / parts};
                if (own.lo == own.hi) continue;
                Case& c = finer.emplace_back(shard);
                restrict_to(c.in[d.operand], d.dim, own);
                std::vector<int64_t> cuts{own.lo};
                for (const int64_t cut : canonical_cuts(extent))
                  if (cut > own.lo && cut < own.hi) cuts.push_back(cut);
                cuts.push_back(own.hi);
                c.attrs.set(d.cuts, cuts);
              }
            shards = std::move(finer);
          }
          for (size_t i = 1; i < shards.size(); ++i)  // the bias once
            if (shards[i].in.size() == 3) shards[i].in.resize(2);
          return shards;
        },
        false);
}

// The gradient of the loss, of the label's class wherever it is held.
TEST(Boxes, GradientOfTheLossOverRangesOfClasses) {
  expect_whole(
      Op::kSoftmaxLossBwd, 998, 20,
      [](const Case& whole, Rng& rng) {
        std::vector<Case> shards;
        for (const Range classes : pieces(rng, whole.out[0].data.shape[1])) {
          Case& c = shards.emplace_back(whole);
          restrict_to(c.in[0], 1, classes);
          restrict_to(c.out[0], 1, classes);
        }
        return shards;
      },
      true);
}

// Statistics, then probabilities and ranks of some shards of the classes.
TEST(Boxes, LossOverRangesOfClasses) {
  for (const Op op : {Op::kSoftmaxStats, Op::kSoftmaxNorm}) {
    Rng rng(1000 + static_cast<uint64_t>(op));
    for (int i = 0; i < 24; ++i) {
      const Case whole = random_case(op, rng, Fill::kFloats);
      const std::vector<int64_t> cuts = whole.attrs.list("class_cuts");
      const int64_t shards = std::ssize(cuts) - 1;
      for (const Engine& engine : engines()) {
        const auto want = run(whole, engine);
        for (const Range held : pieces(rng, shards)) {
          Case c = whole;
          c.attrs.set("class_cuts",
                      std::vector<int64_t>(cuts.begin() + held.lo, cuts.begin() + held.hi + 1));
          const Range classes{cuts[static_cast<size_t>(held.lo)],
                              cuts[static_cast<size_t>(held.hi)]};
          restrict_to(c.in[0], 1, classes);
          if (op == Op::kSoftmaxStats) {
            restrict_to(c.out[0], 1, {3 * held.lo, 3 * held.hi});
          } else {
            restrict_to(c.out[0], 1, classes);
            restrict_to(c.out[1], 1, held);
          }
          if (i % 2)
            for (auto* slots : {&c.in, &c.out})
              for (Slot& slot : *slots) slot.stored = slot.box;
          const auto got = run(c, engine, 2);
          for (size_t r = 0; r < got.size(); ++r)
            expect_equal(got[r], want[r], c.out[r].box, c.str() + " on " + engine.name);
        }
      }
    }
  }
}

}  // namespace
}  // namespace convnet::kernels
