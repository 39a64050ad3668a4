// Gradients of filters and biases, bound to the weight kernels: the elements of a filter with the
// output pixels that reach them, the tree over canonical shards, the cuts for the caches and
// threads.
#include <numeric>
#include <string>
#include <tuple>

#include "framework/backends/cpu/bind.h"

namespace convnet::cpu {
namespace {

// With fewer filters a group than this, lanes hold samples instead of filters: at least a quarter
// of a Vec would be idle. A function of the logical shape, since it decides the order of sums.
constexpr int64_t kVectorFilters = 12;

constexpr int64_t kKeptFloats = 131072;  // dyT of all pixels, if it is no more than this: 512 KB
constexpr int64_t kStripFloats = 8192;   // of dyT at a time: 32 KB
constexpr int64_t kShortRounds = 512;    // in a shard: then sums are kept in L1, not in L2
constexpr int64_t kL1Floats = 6144;
constexpr int64_t kL2Floats = 98304;

constexpr int64_t kStreamFloats = 1048576;  // of dw: 4 MB, twice L2

struct WeightWork {
  std::vector<WeightGroup> groups;
  std::vector<Tap> taps;
  std::vector<ShardLeaf> leaves;
  WeightProblem problem{};
  std::vector<WeightPart> parts;
};

// The tree over shards of rows of the trees over shards of columns of the trees over shards of
// examples, as the order in which finished shards are added up.
Status set_shards(WeightWork& work, const Attrs& attrs, const Box& dy) {
  const std::vector<int64_t>& cuts = attrs.list("cuts");
  for (size_t i = 0; i + 1 < cuts.size(); ++i)
    if (cuts[i] % kLanes != 0 && cuts[i] != cuts.back())
      return Status(Code::kLimit, "a canonical shard begins at example " + std::to_string(cuts[i]) +
                                      ", not at a multiple of " + std::to_string(kLanes));
  const auto shards = [&](const char* name, int dim) {
    const std::vector<int64_t> all{dy.lo(dim), dy.hi(dim)};
    return shards_of(attrs.has(name) ? attrs.list(name) : all, dy.lo(dim), dy.hi(dim));
  };
  const std::vector<Shard> rows = shards("row_cuts", 2), columns = shards("column_cuts", 3);
  const std::vector<Shard> examples = shards("cuts", 0);
  for (const Shard& r : rows)
    for (const Shard& c : columns)
      for (const Shard& n : examples) {
        ShardLeaf leaf{n.lo / kLanes, ceil_div(n.hi, kLanes), r.lo, r.hi, c.lo, c.hi, n.merges};
        if (&n == &examples.back()) leaf.merges += c.merges;
        if (&n == &examples.back() && &c == &columns.back()) leaf.merges += r.merges;
        work.leaves.push_back(leaf);
      }
  work.problem.planes = rows.size() == 1 && columns.size() == 1;
  work.problem.levels = tree_levels(work.leaves);
  return Status();
}

// Output rows (columns) [0, outputs) whose tap lies inside the input's [0, inputs), `first` being
// where output 0's lies.
void set_range(int64_t first, int64_t stride, int64_t outputs, int64_t inputs, int32_t* lo,
               int32_t* hi) {
  const int64_t begin = first >= 0 ? 0 : ceil_div(-first, stride);
  const int64_t end = first >= inputs ? 0 : (inputs - 1 - first) / stride + 1;
  *lo = static_cast<int32_t>(std::min(begin, outputs));
  *hi = static_cast<int32_t>(std::clamp(end, int64_t{*lo}, outputs));
}

// The cuts: vectors of filters and elements a part, elements at a time, strips. Returns the taps of
// a tile.
int64_t choose_blocking(const Context& context, WeightWork& work, int64_t filters,
                        int64_t threads) {
  WeightProblem& p = work.problem;
  const int64_t vectors = ceil_div(filters, kLanes);
  const auto groups = static_cast<int64_t>(work.groups.size());
  const int64_t pixels = p.blocks * p.rows * p.columns;
  double best = 0;
  int64_t filter_parts = 1, tap_parts = 1;
  for (int v = 1; v <= 4; ++v) {
    const int64_t most_taps = context.kernels.weight_taps[v];
    if (most_taps == 0) continue;
    const int64_t f = ceil_div(vectors, v);
    const auto width = static_cast<double>(ceil_div(vectors, f));  // of the widest part
    for (int64_t t = 1; t <= std::min<int64_t>(4 * threads, ceil_div(p.tap_count, most_taps));
         ++t) {
      const int64_t tiles = ceil_div(ceil_div(p.tap_count, t), most_taps);
      // As in conv.cc: multiply-adds, loads, or the latency of a sum.
      const double scale = context.wide ? 1 : 2;
      const double taps = static_cast<double>(most_taps);
      const double round =
          std::max({taps * width * scale / 2, (taps + width * scale) / 2, 4.0}) * kLanes;
      const double transposing = 100 * width;
      const double cycles = static_cast<double>(ceil_div(groups * f * t, threads) * pixels) *
                            (static_cast<double>(tiles) * round + transposing);
      if (best == 0 || cycles < best * 0.98) {
        best = cycles;
        filter_parts = f;
        tap_parts = t;
      }
    }
  }
  for (int64_t g = 0; g < groups; ++g)
    for (int64_t f = 0; f < filter_parts; ++f)
      for (int64_t t = 0; t < tap_parts; ++t) {
        const int64_t own = work.groups[static_cast<size_t>(g)].filters;
        const int64_t own_vectors = ceil_div(own, kLanes);
        WeightPart part{};
        part.group = g;
        part.filter_lo = std::min(own, part_begin(f, filter_parts, own_vectors) * kLanes);
        part.filter_hi = std::min(own, part_begin(f + 1, filter_parts, own_vectors) * kLanes);
        part.tap_lo = part_begin(t, tap_parts, p.tap_count);
        part.tap_hi = part_begin(t + 1, tap_parts, p.tap_count);
        part.bias = t == 0;
        if (part.filter_lo < part.filter_hi) work.parts.push_back(part);
      }

  const int64_t width = ceil_div(vectors, filter_parts);
  const int64_t transposed = kLanes * kLanes * width;  // floats a pixel
  p.keep = pixels * transposed <= kKeptFloats;
  const int64_t shard_rounds = pixels * kLanes / std::max<int64_t>(1, std::ssize(work.leaves));
  int64_t sums = kL2Floats;
  if (p.keep && shard_rounds < kShortRounds) sums = kL1Floats / p.levels;
  const int64_t tile = context.kernels.weight_taps[width];
  // Whole tiles, and whole groups of 16 for the way to dw.
  const int64_t step = std::lcm(tile, kLanes);
  p.tap_block = std::max<int64_t>(1, sums / (width * kLanes * step)) * step;

  // A strip: columns of a row, or whole rows, or whole images, or whole shards.
  const int64_t most = kStripFloats / transposed;
  int64_t rows = 1, columns = 1;  // of the largest shards
  for (const ShardLeaf& leaf : work.leaves) {
    rows = std::max(rows, leaf.row_hi - leaf.row_lo);
    columns = std::max(columns, leaf.column_hi - leaf.column_lo);
  }
  p.strip_columns = ceil_div(columns, ceil_div(columns, most));
  p.strip_rows = p.strip_columns < columns ? 1 : std::clamp<int64_t>(most / columns, 1, rows);
  p.strip_blocks =
      p.strip_rows < rows ? 1 : std::clamp<int64_t>(most / (rows * columns), 1, p.blocks);
  return tile;
}

// Orders the taps so that a tile's, `group` of them, have the same pixels: groups of channels, in
// each the window's taps one after the other, so that the channels' inputs stay in L1 meanwhile.
void arrange_taps(WeightWork& work, int64_t group) {
  const auto key = [&](const Tap& t) {
    return std::tuple(t.channel / group, t.row_lo, t.row_hi, t.col_lo, t.col_hi);
  };
  std::stable_sort(work.taps.begin(), work.taps.end(),
                   [&](const Tap& a, const Tap& b) { return key(a) < key(b); });
  for (size_t i = work.taps.size(); i-- > 0;) {
    Tap& tap = work.taps[i];
    tap.alike = 1;
    if (i + 1 == work.taps.size()) continue;
    const Tap& next = work.taps[i + 1];
    if (std::tie(tap.row_lo, tap.row_hi, tap.col_lo, tap.col_hi) ==
        std::tie(next.row_lo, next.row_hi, next.col_lo, next.col_hi))
      tap.alike = next.alike + 1;
  }
}

// For weight_dot: parts of filters.
void choose_dot_parts(WeightWork& work, int64_t filters, int64_t threads) {
  const auto groups = static_cast<int64_t>(work.groups.size());
  const int64_t n = std::clamp<int64_t>(ceil_div(4 * threads, groups), 1, filters);
  for (int64_t g = 0; g < groups; ++g)
    for (int64_t i = 0; i < n; ++i) {
      const int64_t own = work.groups[static_cast<size_t>(g)].filters;
      WeightPart part{};
      part.group = g;
      part.filter_lo = part_begin(i, n, own);
      part.filter_hi = part_begin(i + 1, n, own);
      part.tap_hi = work.problem.tap_count;
      part.bias = 1;
      if (part.filter_lo < part.filter_hi) work.parts.push_back(part);
    }
}

KernelResult finish(const Context& context, const Binding& binding,
                    std::shared_ptr<WeightWork> work, int64_t group_filters) {
  WeightProblem& p = work->problem;
  const int threads = binding.team.threads();
  p.groups = work->groups.data();
  p.tap_count = std::ssize(work->taps);
  p.leaves = work->leaves.data();
  p.leaf_count = std::ssize(work->leaves);
  if (p.rows == 0 || p.columns == 0 || p.blocks == 0) p.leaf_count = 0;
  int64_t filters = 0, elements = 0;
  for (const WeightGroup& g : work->groups) {
    filters = std::max(filters, g.filters);
    elements += g.filters * p.tap_count;
  }
  p.stream = elements > kStreamFloats;
  const bool bias = work->groups.empty() || work->groups[0].db != nullptr;
  if (filters == 0 || (p.tap_count == 0 && !bias)) return make_kernel([] {});

  const bool dot = group_filters < kVectorFilters || p.tap_count == 0;
  int64_t channel_group = 1;  // taps of a tile
  int64_t floats = 0;
  if (dot) {
    choose_dot_parts(*work, filters, threads);
  } else {
    channel_group = choose_blocking(context, *work, filters, threads);
    for (const WeightPart& part : work->parts) {
      const int64_t width = ceil_div(part.filter_hi - part.filter_lo, kLanes) * kLanes;
      const int64_t pixels =
          p.keep ? p.blocks * p.rows * p.columns : p.strip_blocks * p.strip_rows * p.strip_columns;
      floats = std::max(floats, p.levels * p.tap_block * width + pixels * kLanes * width);
    }
  }
  arrange_taps(*work, channel_group);
  p.taps = work->taps.data();
  if (!bias)
    for (WeightPart& part : work->parts) part.bias = 0;
  CONVNET_RETURN_IF_ERROR(context.scratch->reserve(threads, floats));
  return make_kernel([work, weight = dot ? context.kernels.weight_dot : context.kernels.weight,
                      scratch = context.scratch, &team = binding.team] {
    team.run(static_cast<int64_t>(work->parts.size()), [&](int64_t task, int thread) {
      weight(work->problem, work->parts[static_cast<size_t>(task)], scratch->of(thread));
    });
  });
}

}  // namespace

KernelResult bind_weight(const Context& context, const Binding& binding) {
  const Attrs& attrs = binding.instr.attrs;
  const bool fc = binding.instr.op == Op::kFcBwdWeight;
  const View& x = binding.in[0];
  const View& dy = binding.in[1];
  const View& dw = binding.out[0];
  const View* db = binding.out.size() == 2 ? &binding.out[1] : nullptr;
  if (db != nullptr && (db->box.lo(0) != dw.box.lo(0) || db->box.hi(0) != dw.box.hi(0)))
    return Status(Code::kLimit, "dw and db have different filters");

  auto work = std::make_shared<WeightWork>();
  WeightProblem& p = work->problem;
  CONVNET_RETURN_IF_ERROR(set_shards(*work, attrs, dy.box));
  const Tensor4 from = tensor_of(x, dy), gradient = tensor_of(dy, dy);
  p.blocks = gradient.blocks;
  p.last_lanes = dy.box.extent(0) - (p.blocks - 1) * kLanes;
  p.rows = gradient.rows;
  p.columns = gradient.columns;
  p.dy_block = gradient.block;
  p.dy_channel = gradient.channel;
  p.dy_row = gradient.row;
  p.x_block = from.block;

  const int64_t groups = fc ? 1 : attrs.integer("groups");
  const int64_t filters = dw.shape[0] / groups, channels = fc ? x.shape[1] : dw.shape[1];
  // A fully connected layer is a window as large as the image.
  ConvAxis axes[2];
  for (const int axis : {0, 1}) {
    const auto a = static_cast<size_t>(axis);
    axes[axis] = fc ? ConvAxis{x.shape[2 + axis], 1, 0, 1}
                    : ConvAxis{dw.shape[2 + axis], attrs.list("stride")[a], attrs.list("pad")[a],
                               attrs.list("dilation")[a]};
  }
  p.x_step_row = axes[0].stride * from.row;
  p.x_step_column = axes[1].stride * kLanes;

  // Element (c, r, s) of a filter; c counts from the first of dw's box.
  const auto add_tap = [&](int64_t c, bool there, int64_t r, int64_t s, int64_t index) {
    const int64_t row =
        dy.box.lo(2) * axes[0].stride - axes[0].pad + r * axes[0].dilation - x.box.lo(2);
    const int64_t column =
        dy.box.lo(3) * axes[1].stride - axes[1].pad + s * axes[1].dilation - x.box.lo(3);
    Tap tap{};
    tap.x = c * from.channel + row * from.row + column * kLanes;
    tap.index = index;
    tap.channel = c;
    if (there) {
      set_range(row, axes[0].stride, p.rows, from.rows, &tap.row_lo, &tap.row_hi);
      set_range(column, axes[1].stride, p.columns, from.columns, &tap.col_lo, &tap.col_hi);
    }
    work->taps.push_back(tap);
  };
  int64_t first_channel = 0;
  if (fc) {
    const int64_t columns = x.shape[3], image = x.shape[2] * columns;
    p.dw_filter = dw.stored.extent(1);
    first_channel = x.box.lo(1);
    for (int64_t j = dw.box.lo(1); j < dw.box.hi(1); ++j) {
      const int64_t c = j / image;
      add_tap(c - first_channel, c >= x.box.lo(1) && c < x.box.hi(1), j % image / columns,
              j % columns, j - dw.box.lo(1));
    }
  } else {
    const int64_t row = dw.stored.extent(3), window = dw.stored.extent(2) * row;
    p.dw_filter = dw.stored.extent(1) * window;
    first_channel = dw.box.lo(1);
    for (int64_t c = dw.box.lo(1); c < dw.box.hi(1); ++c)
      for (int64_t r = dw.box.lo(2); r < dw.box.hi(2); ++r)
        for (int64_t s = dw.box.lo(3); s < dw.box.hi(3); ++s)
          add_tap(c - first_channel, true, r, s,
                  (c - dw.box.lo(1)) * window + (r - dw.box.lo(2)) * row + (s - dw.box.lo(3)));
  }
  if (from.blocks == 0 || x.box.empty())
    for (Tap& tap : work->taps) tap.row_hi = tap.row_lo;

  for (int64_t g = 0; g < groups; ++g) {
    const int64_t k_lo = std::max(g * filters, dw.box.lo(0));
    const int64_t k_hi = std::min((g + 1) * filters, dw.box.hi(0));
    if (k_lo >= k_hi) continue;
    WeightGroup group{};
    group.filters = k_hi - k_lo;
    group.x =
        from.data + (g * channels * (fc ? 0 : 1) + first_channel - x.box.lo(1)) * from.channel;
    group.dy = gradient.data + (k_lo - dy.box.lo(1)) * gradient.channel;
    group.dw = static_cast<float*>(dw.data) + (k_lo - dw.stored.lo(0)) * p.dw_filter;
    for (int i = 1; i < dw.box.rank(); ++i) {
      int64_t step = 1;
      for (int j = i + 1; j < dw.box.rank(); ++j) step *= dw.stored.extent(j);
      group.dw += (dw.box.lo(i) - dw.stored.lo(i)) * step;
    }
    if (db != nullptr) group.db = static_cast<float*>(db->data) + (k_lo - db->stored.lo(0));
    work->groups.push_back(group);
  }
  return finish(context, binding, std::move(work), filters);
}

KernelResult bind_bias_gradient(const Context& context, const Binding& binding) {
  const View& dy = binding.in[0];
  const View& db = binding.out[0];
  auto work = std::make_shared<WeightWork>();
  WeightProblem& p = work->problem;
  CONVNET_RETURN_IF_ERROR(set_shards(*work, binding.instr.attrs, dy.box));
  const Tensor4 gradient = tensor_of(dy, dy.box);
  p.blocks = gradient.blocks;
  p.last_lanes = dy.box.extent(0) - (p.blocks - 1) * kLanes;
  p.rows = gradient.rows;
  p.columns = gradient.columns;
  p.dy_block = gradient.block;
  p.dy_channel = gradient.channel;
  p.dy_row = gradient.row;
  WeightGroup group{};
  group.dy = gradient.data + (db.box.lo(0) - dy.box.lo(1)) * gradient.channel;
  group.db = static_cast<float*>(db.data) + (db.box.lo(0) - db.stored.lo(0));
  group.filters = db.box.extent(0);
  work->groups.push_back(group);
  return finish(context, binding, std::move(work), group.filters);
}

}  // namespace convnet::cpu
