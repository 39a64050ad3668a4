// Convolution forward and backward data, and the fully connected layer's, bound to the mac kernel:
// who sees whom (groups and pixel classes), how the work is cut for the caches, and who does what.
#include <array>
#include <string>

#include "framework/backends/cpu/bind.h"

namespace convnet::cpu {
namespace {

constexpr int64_t kL1Lines = 512;  // of 768 (48 KB): room for weights and sums
constexpr int64_t kL1Sets = 64;
constexpr int64_t kL1Ways = 8;             // of 12
constexpr int64_t kGatheredFloats = 6144;  // 24 KB
constexpr int64_t kPanelFloats = 98304;    // a chunk's packed weights in L2: 384 KB
constexpr int64_t kStripFloats = 131072;   // sums of a strip in L2: 512 KB
constexpr int64_t kInputFloats = 196608;   // inputs of a strip and chunk in L2: 768 KB
constexpr int64_t kStripPixels = 192;      // about, so that packing the weights is 1 %
constexpr int64_t kShardPixels = 96;       // if the input channels are cut into shards
constexpr int64_t kLevelFloats = 262144;   // all levels of a strip's sums then: 1 MB
constexpr int64_t kLeastPixels = 48;
constexpr int64_t kStreamFloats = 1048576;  // 4 MB, twice L2
constexpr int64_t kTileCycles = 60;         // a tile's sums loaded and stored, and the call

// A MacProblem with the memory that it points to.
struct MacWork {
  std::vector<MacGroup> groups;
  std::vector<std::vector<Shard>> shards;  // of each group's inputs; none: all are one
  std::vector<MacChunk> chunks;
  std::vector<AxisClass> rows, columns;
  MacProblem problem{};
  std::vector<MacPart> parts;
  int64_t blocks = 0, out_rows = 0, out_columns = 0;
};

const AxisClass& largest(const std::vector<AxisClass>& classes) {
  return *std::max_element(
      classes.begin(), classes.end(), [](const AxisClass& a, const AxisClass& b) {
        return a.count * std::max<int64_t>(a.taps, 1) < b.count * std::max<int64_t>(b.taps, 1);
      });
}

// Cycles of one round (one input channel and tap) of a tile.
double round_cycles(bool wide, int64_t outputs, int64_t pixels) {
  if (outputs == 0 || pixels == 0) return 0;
  const double registers = wide ? 1 : 2;  // of a Vec
  const double sums = static_cast<double>(outputs * pixels) * registers;
  const double loads = static_cast<double>(outputs) + static_cast<double>(pixels) * registers;
  // Two multiply-adds and two loads a cycle; four cycles from one sum of an accumulator to the
  // next; a tile's fixed cost, spread over its rounds.
  return std::max({sums / 2, loads / 2, 4.0}) + 0.5;
}

// Chooses the tile for `outputs` outputs of a part.
void choose_tile(const Context& context, MacWork& work, int64_t outputs, int64_t blocks) {
  double best = 0;
  for (int o = 8; o >= 1; --o)  // of equals the widest: fewest loads of inputs
    for (int p = context.kernels.mac_pixels[o]; p >= 1; --p) {
      double cycles = 0;
      for (const AxisClass& r : work.rows)
        for (const AxisClass& c : work.columns) {
          const int64_t pixels = r.count * c.count * blocks;
          for (const int64_t width : {int64_t{o}, outputs % o})
            cycles += static_cast<double>(std::max<int64_t>(1, r.taps * c.taps) *
                                          (width == o ? outputs / o : 1)) *
                      (static_cast<double>(pixels / p) * round_cycles(context.wide, width, p) +
                       round_cycles(context.wide, width, pixels % p));
        }
      if (best == 0 || cycles < best * 0.999) {
        best = cycles;
        work.problem.tile_outputs = o;
        work.problem.tile_pixels = p;
      }
    }
}

// Most input channels whose part of a tile's inputs stays in L1: it counts the lines that fall into
// each set.
int64_t direct_chunk(const MacWork& work, int64_t inputs) {
  const MacProblem& p = work.problem;
  const AxisClass& rows = largest(work.rows);
  const AxisClass& columns = largest(work.columns);
  // Lines under a tile's taps in one channel, each once. Pixels follow each other in columns, then
  // blocks, then rows.
  std::vector<int64_t> touched;
  for (int64_t i = 0; i < p.tile_pixels; ++i) {
    const int64_t block = i / columns.count % p.strip_blocks;
    const int64_t row = i / columns.count / p.strip_blocks;
    for (int64_t r = 0; r < rows.taps; ++r)
      for (int64_t s = 0; s < columns.taps; ++s)
        touched.push_back((block * p.x_block + (row * rows.in_step + r * rows.in_tap) * p.x_row) /
                              kLanes +
                          i % columns.count * columns.in_step + s * columns.in_tap);
  }
  std::sort(touched.begin(), touched.end());
  touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
  if (touched.empty()) return std::max<int64_t>(inputs, 1);
  std::array<int64_t, kL1Sets> lines{};
  for (int64_t c = 0; c < inputs; ++c) {
    for (const int64_t at : touched) {
      const int64_t line = c * p.x_channel / kLanes + at - touched.front();
      ++lines[static_cast<size_t>(line % kL1Sets)];
    }
    if ((c + 1) * std::ssize(touched) > kL1Lines ||
        *std::max_element(lines.begin(), lines.end()) > kL1Ways)
      return std::max<int64_t>(c, 1);
  }
  return std::max<int64_t>(inputs, 1);
}

// Chunk of input channels, and whether a tile's inputs are gathered first. Overheads per multiply-
// add: a tile's fixed cost over the rounds of a chunk; copying over the outputs that use a copy.
void choose_chunk(MacWork& work, int64_t outputs, int64_t inputs) {
  MacProblem& p = work.problem;
  const int64_t taps = std::max<int64_t>(1, largest(work.rows).taps * largest(work.columns).taps);
  const double tile_cycles = static_cast<double>(p.tile_outputs * p.tile_pixels) / 2;
  const auto overhead = [&](int64_t chunk) {
    return static_cast<double>(kTileCycles) / (static_cast<double>(chunk * taps) * tile_cycles);
  };
  const int64_t direct = direct_chunk(work, inputs);
  const int64_t gathered = std::clamp<int64_t>(kGatheredFloats / (taps * p.tile_pixels * kLanes), 1,
                                               std::max<int64_t>(inputs, 1));
  p.gather = overhead(direct) > overhead(gathered) + 4.0 / static_cast<double>(outputs);
  const int64_t most = p.gather ? gathered : direct;
  p.chunk = ceil_div(std::max<int64_t>(inputs, 1), ceil_div(std::max<int64_t>(inputs, 1), most));
}

// How many parts of blocks, outputs and rows: the least time of the busiest thread.
struct Split {
  int64_t blocks = 1, outputs = 1, rows = 1;
};

Split choose_split(const MacWork& work, int64_t outputs, int64_t inputs, int64_t threads) {
  const auto groups = static_cast<int64_t>(work.groups.size());
  const int64_t taps = std::max<int64_t>(1, largest(work.rows).taps * largest(work.columns).taps);
  const int64_t most = std::max<int64_t>(1, 4 * threads / groups);
  Split best;
  double best_cycles = 0;
  for (int64_t b = 1; b <= std::min(work.blocks, most); ++b)
    for (int64_t o = 1; o <= std::min(ceil_div(outputs, 8), most / b); ++o)
      for (int64_t r = 1; r <= std::min(work.out_rows, most / b / o); ++r) {
        const int64_t rounds = ceil_div(groups * b * o * r, threads);
        const auto pixels = static_cast<double>(ceil_div(work.blocks, b) *
                                                ceil_div(work.out_rows, r) * work.out_columns);
        const auto width = static_cast<double>(round_up(ceil_div(outputs, o), 8));
        const auto depth = static_cast<double>(inputs * taps);
        // Multiply-adds, packing the weights, and the inputs' way from memory.
        const double cycles =
            pixels * width * depth / 2 + width * depth + pixels * static_cast<double>(inputs) * 6;
        if (best_cycles == 0 || static_cast<double>(rounds) * cycles < best_cycles * 0.999) {
          best_cycles = static_cast<double>(rounds) * cycles;
          best = {b, o, r};
        }
      }
  return best;
}

// Cuts each group's shards into chunks of at most problem.chunk channels.
void cut_chunks(MacWork& work) {
  std::vector<size_t> first;
  for (const std::vector<Shard>& shards : work.shards) {
    first.push_back(work.chunks.size());
    int64_t depth = 0;
    for (const Shard& shard : shards) {
      const int64_t length = shard.hi - shard.lo;
      const int64_t count = std::max<int64_t>(1, ceil_div(length, work.problem.chunk));
      const int64_t step = ceil_div(length, count);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t lo = std::min(shard.hi, shard.lo + i * step);
        const int64_t hi = std::min(shard.hi, lo + step);
        if (lo == hi && length > 0) break;
        MacChunk chunk{lo, hi - lo, depth, i == 0, 0};
        if (hi == shard.hi) chunk.merges = static_cast<int32_t>(shard.merges);
        work.chunks.push_back(chunk);
      }
      depth += 1 - shard.merges;
    }
  }
  first.push_back(work.chunks.size());
  for (size_t g = 0; g < work.groups.size(); ++g) {
    work.groups[g].chunks = work.chunks.data() + first[g];
    work.groups[g].chunk_count = static_cast<int64_t>(first[g + 1] - first[g]);
  }
}

Result<std::unique_ptr<Kernel>> finish(const Context& context, const Binding& binding,
                                       std::shared_ptr<MacWork> work) {
  MacProblem& p = work->problem;
  int64_t outputs = 0, inputs = 0, longest = 0;
  bool several = false;
  p.levels = 1;
  for (size_t g = 0; g < work->groups.size(); ++g) {
    const MacGroup& group = work->groups[g];
    std::vector<Shard>& shards = work->shards[g];
    outputs = std::max(outputs, group.outputs);
    inputs = std::max(inputs, group.inputs);
    // Without inputs one round still writes the biases.
    if (shards.empty()) shards.push_back({0, group.inputs, 0});
    for (const Shard& shard : shards) longest = std::max(longest, shard.hi - shard.lo);
    several |= shards.size() > 1;
    p.levels = std::max(p.levels, tree_levels(shards));
  }
  if (p.levels > kMaxMacLevels)
    return Status(Code::kLimit,
                  "a tree over shards of channels is deeper than " + std::to_string(kMaxMacLevels));
  if (outputs == 0 || work->blocks == 0 || work->rows.empty() || work->columns.empty())
    return make_kernel([] {});

  const int threads = binding.team.threads();
  const Split split = choose_split(*work, outputs, inputs, threads);
  const int64_t part_outputs = ceil_div(outputs, split.outputs);
  const int64_t part_blocks = ceil_div(work->blocks, split.blocks);

  // A strip is some rows of a block, or some blocks.
  const int64_t image = work->out_rows * work->out_columns;
  p.strip_blocks = std::clamp<int64_t>(kStripPixels / image, 1, part_blocks);
  choose_tile(context, *work, part_outputs, p.strip_blocks);
  choose_chunk(*work, part_outputs, longest);
  several |= p.chunk < longest;
  cut_chunks(*work);
  const int64_t tile = p.tile_outputs;
  p.pack_all = part_outputs * inputs * p.taps <= kPanelFloats;
  const int64_t inputs_a_pixel =
      std::max<int64_t>(1, largest(work->rows).in_step * largest(work->columns).in_step);
  const int64_t pixels =
      std::clamp<int64_t>(kInputFloats / (p.chunk * kLanes * inputs_a_pixel), kLeastPixels,
                          p.levels > 1 ? kShardPixels : kStripPixels);
  p.strip_blocks = std::clamp<int64_t>(pixels / image, 1, part_blocks);
  p.strip_rows = ceil_div(work->out_rows, std::max<int64_t>(1, image / pixels));

  const int64_t strip_pixels = p.strip_blocks * p.strip_rows * work->out_columns;
  int64_t most_outputs = kPanelFloats / (p.chunk * p.taps);
  if (p.levels > 1) {
    const int64_t most_sums = kLevelFloats / (strip_pixels * kLanes * p.levels);
    most_outputs = std::min(most_outputs, most_sums);
    p.pack_all = p.pack_all && part_outputs <= most_sums;
  } else if (several) {
    most_outputs = std::min(most_outputs, kStripFloats / (strip_pixels * kLanes));
  }
  const int64_t out_block = std::max<int64_t>(1, most_outputs / tile) * tile;
  p.out_block = p.pack_all
                    ? part_outputs
                    : round_up(ceil_div(part_outputs, ceil_div(part_outputs, out_block)), tile);
  // Results that no later chunk reads again, and too many for a cache. tanh and sigmoid read them.
  p.stream =
      !several && p.act <= kActRelu && work->blocks * outputs * image * kLanes > kStreamFloats;
  // Packing writes up to 8 floats beyond the weights.
  p.panel_floats = round_up(p.out_block * (p.pack_all ? inputs : p.chunk) * p.taps + 8, kLanes);
  p.gathered_floats = p.gather ? p.chunk * p.taps * p.tile_pixels * kLanes : 0;
  p.level_floats = strip_pixels * p.out_block * kLanes;

  p.groups = work->groups.data();
  p.rows = work->rows.data();
  p.columns = work->columns.data();
  p.row_classes = static_cast<int64_t>(work->rows.size());
  p.column_classes = static_cast<int64_t>(work->columns.size());
  for (size_t g = 0; g < work->groups.size(); ++g)
    for (int64_t b = 0; b < split.blocks; ++b)
      for (int64_t o = 0; o < split.outputs; ++o)
        for (int64_t r = 0; r < split.rows; ++r) {
          const int64_t own = work->groups[g].outputs;
          MacPart part{};
          part.group = static_cast<int64_t>(g);
          part.output_lo = part_begin(o, split.outputs, own);
          part.output_hi = part_begin(o + 1, split.outputs, own);
          part.block_lo = part_begin(b, split.blocks, work->blocks);
          part.block_hi = part_begin(b + 1, split.blocks, work->blocks);
          part.row_lo = part_begin(r, split.rows, work->out_rows);
          part.row_hi = part_begin(r + 1, split.rows, work->out_rows);
          if (part.output_lo < part.output_hi) work->parts.push_back(part);
        }
  CONVNET_RETURN_IF_ERROR(context.scratch->reserve(
      threads, p.panel_floats + p.gathered_floats + (p.levels - 1) * p.level_floats));
  return make_kernel(
      [work, mac = context.kernels.mac, scratch = context.scratch, &team = binding.team] {
        team.run(static_cast<int64_t>(work->parts.size()), [&](int64_t task, int thread) {
          mac(work->problem, work->parts[static_cast<size_t>(task)], scratch->of(thread));
        });
      });
}

void set_strides(MacWork& work, const Tensor4& x, const Tensor4& y) {
  MacProblem& p = work.problem;
  p.x_block = x.block;
  p.x_channel = x.channel;
  p.x_row = x.row;
  p.x_columns = x.columns;
  p.y_block = y.block;
  p.y_channel = y.channel;
  p.y_row = y.row;
  work.blocks = y.blocks;
  work.out_rows = y.rows;
  work.out_columns = y.columns;
}

const float* element(const View& w, int64_t k, int64_t c) {
  const Box& s = w.stored;
  int64_t tail = 1;
  for (int i = 2; i < s.rank(); ++i) tail *= s.extent(i);
  return static_cast<const float*>(w.data) + ((k - s.lo(0)) * s.extent(1) + (c - s.lo(1))) * tail;
}

// The boundaries of the shards of what is summed; none: it is one.
std::vector<int64_t> cuts_of(const Binding& binding, bool forward) {
  const char* name = forward ? "channel_cuts" : "filter_cuts";
  const Attrs& attrs = binding.instr.attrs;
  return attrs.has(name) ? attrs.list(name) : std::vector<int64_t>{};
}

KernelResult bind_conv(const Context& context, const Binding& binding, bool forward) {
  const Attrs& attrs = binding.instr.attrs;
  const View& x = binding.in[0];  // or dy
  const View& w = binding.in[1];
  const View& y = binding.out[0];  // or dx
  for (const int dim : {2, 3})
    if (w.box.extent(dim) != w.shape[dim])
      return Status(Code::kLimit, "the filters' window is cut");
  const int64_t groups = attrs.integer("groups");
  const int64_t filters = w.shape[0] / groups, channels = w.shape[1];

  auto work = std::make_shared<MacWork>();
  const Tensor4 from = tensor_of(x, y), to = tensor_of(y, y);
  set_strides(*work, from, to);
  MacProblem& p = work->problem;
  p.taps = w.shape[2] * w.shape[3];
  p.tap_columns = w.shape[3];
  const int64_t filter = w.stored.extent(1) * p.taps;
  p.w_out = forward ? filter : p.taps;
  p.w_in = forward ? p.taps : filter;
  p.act = forward ? act_of(binding.instr) : kActNone;
  for (const int axis : {0, 1}) {
    const auto a = static_cast<size_t>(axis);
    const int dim = 2 + axis;
    const ConvAxis conv{w.shape[dim], attrs.list("stride")[a], attrs.list("pad")[a],
                        attrs.list("dilation")[a]};
    (axis == 0 ? work->rows : work->columns) = (forward ? forward_classes : backward_classes)(
        conv, y.box.lo(dim), y.box.hi(dim), x.box.lo(dim), x.box.hi(dim));
  }

  const std::vector<int64_t> cuts = cuts_of(binding, forward);
  p.bias_last = !cuts.empty();

  // Forward, filters are outputs and channels are inputs; backward the other way round.
  const View* bias = binding.in.size() == 3 ? &binding.in[2] : nullptr;
  const View& by_filter = forward ? y : x;
  const View& by_channel = forward ? x : y;
  for (int64_t g = 0; g < groups; ++g) {
    int64_t k_lo = std::max({g * filters, by_filter.box.lo(1), w.box.lo(0)});
    const int64_t k_hi = std::min({(g + 1) * filters, by_filter.box.hi(1), w.box.hi(0)});
    int64_t c_lo = std::max(g * channels + w.box.lo(1), by_channel.box.lo(1));
    const int64_t c_hi = std::min(g * channels + w.box.hi(1), by_channel.box.hi(1));
    int64_t& in_lo = forward ? c_lo : k_lo;
    int64_t& out_lo = forward ? k_lo : c_lo;
    const int64_t in_hi = forward ? c_hi : k_hi, out_hi = forward ? k_hi : c_hi;
    if (out_lo >= out_hi) continue;
    MacGroup group{};
    group.outputs = out_hi - out_lo;
    group.inputs = std::max<int64_t>(0, in_hi - in_lo);
    group.y = to.data + (out_lo - y.box.lo(1)) * to.channel;
    if (group.inputs > 0) {
      group.x = from.data + (in_lo - x.box.lo(1)) * from.channel;
      group.w = element(w, k_lo, c_lo - g * channels);
    } else {
      group.x = from.data;
      group.w = static_cast<const float*>(w.data);
    }
    if (bias != nullptr)
      group.bias = static_cast<const float*>(bias->data) + (k_lo - bias->stored.lo(0));
    work->groups.push_back(group);
    work->shards.push_back(shards_of(cuts, in_lo, in_lo + group.inputs));
  }
  return finish(context, binding, std::move(work));
}

// One output pixel at (0, 0) and one tap: a plain product of matrices.
AxisClass single_pixel() {
  AxisClass c{};
  c.count = c.taps = c.out_step = c.tap_step = 1;
  return c;
}

bool whole_image(const View& v) {
  return v.box.lo(2) == v.stored.lo(2) && v.box.hi(2) == v.stored.hi(2) &&
         v.box.lo(3) == v.stored.lo(3) && v.box.hi(3) == v.stored.hi(3) &&
         v.box.extent(2) == v.shape[2] && v.box.extent(3) == v.shape[3];
}

KernelResult bind_fc(const Context& context, const Binding& binding, bool forward) {
  const View& x = binding.in[0];  // or dy
  const View& w = binding.in[1];
  const View& y = binding.out[0];  // or dx
  const View& flat = forward ? x : y;
  const int64_t image = flat.shape[2] * flat.shape[3];
  if (!whole_image(flat)) return Status(Code::kLimit, "the flattened input's images are cut");
  // Columns that both the input's box and the weights' hold.
  const int64_t j_first = flat.box.lo(1) * image;
  const int64_t j_lo = std::max(j_first, w.box.lo(1));
  const int64_t j_hi = std::min(flat.box.hi(1) * image, w.box.hi(1));
  const View& by_output = forward ? y : x;
  const int64_t k_lo = std::max(by_output.box.lo(1), w.box.lo(0));
  const int64_t k_hi = std::min(by_output.box.hi(1), w.box.hi(0));

  auto work = std::make_shared<MacWork>();
  const Tensor4 from = tensor_of(x, y), to = tensor_of(y, y);
  set_strides(*work, from, to);
  work->out_rows = work->out_columns = 1;
  work->rows = work->columns = {single_pixel()};
  MacProblem& p = work->problem;
  if (forward) p.x_channel = kLanes;
  if (!forward) p.y_channel = kLanes;
  p.taps = p.tap_columns = 1;
  p.w_out = forward ? w.stored.extent(1) : 1;
  p.w_in = forward ? 1 : w.stored.extent(1);
  p.act = forward ? act_of(binding.instr) : kActNone;
  MacGroup group{};
  group.x = from.data;
  group.y = to.data;
  group.w = static_cast<const float*>(w.data);
  const int64_t js = std::max<int64_t>(0, j_hi - j_lo), ks = std::max<int64_t>(0, k_hi - k_lo);
  group.outputs = forward ? ks : js;
  group.inputs = forward ? js : ks;
  if (js > 0 && ks > 0) {
    group.w = element(w, k_lo, j_lo);
    // Forward the outputs are all of y's box, backward all of dx's: require's `covers`.
    const int64_t skipped = forward ? (j_lo - j_first) : (k_lo - x.box.lo(1));
    group.x += skipped * (forward ? kLanes : from.channel);
  }
  if (binding.in.size() == 3)
    group.bias =
        static_cast<const float*>(binding.in[2].data) + (y.box.lo(1) - binding.in[2].stored.lo(0));
  work->groups.push_back(group);
  std::vector<int64_t> cuts = cuts_of(binding, forward);
  p.bias_last = !cuts.empty();
  const int64_t first = forward ? j_lo : k_lo;
  for (int64_t& cut : cuts) cut *= forward ? image : 1;
  work->shards.push_back(shards_of(cuts, first, first + group.inputs));
  return finish(context, binding, std::move(work));
}

}  // namespace

KernelResult bind_mac(const Context& context, const Binding& binding) {
  switch (binding.instr.op) {
    case Op::kConvFwd:
      return bind_conv(context, binding, true);
    case Op::kConvBwdData:
      return bind_conv(context, binding, false);
    case Op::kFcFwd:
      return bind_fc(context, binding, true);
    default:
      return bind_fc(context, binding, false);
  }
}

}  // namespace convnet::cpu
