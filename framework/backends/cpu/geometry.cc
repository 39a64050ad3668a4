#include <numeric>
#include <string>

#include "framework/backends/cpu/bind.h"

namespace convnet::cpu {
namespace {

int64_t floor_div(int64_t a, int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

// Appends a pixel, to the last class if it continues it.
void append(std::vector<AxisClass>& classes, size_t first, const AxisClass& pixel) {
  if (classes.size() > first) {
    AxisClass& last = classes.back();
    if (last.taps == pixel.taps && last.tap == pixel.tap &&
        last.in + last.count * last.in_step == pixel.in &&
        last.out + last.count * last.out_step == pixel.out) {
      ++last.count;
      return;
    }
  }
  classes.push_back(pixel);
}

// Shards first .. last-1; returns whether any of them has something.
bool add_shards(const std::vector<int64_t>& cuts, size_t first, size_t last,
                std::vector<Shard>& shards) {
  if (last - first == 1) {
    if (cuts[first] == cuts[last]) return false;
    shards.push_back({cuts[first], cuts[last], 0});
    return true;
  }
  const size_t mid = first + (last - first) / 2;
  const bool left = add_shards(cuts, first, mid, shards);
  const bool right = add_shards(cuts, mid, last, shards);
  if (left && right) ++shards.back().merges;
  return left || right;
}

}  // namespace

std::vector<Shard> shards_of(const std::vector<int64_t>& cuts, int64_t lo, int64_t hi) {
  std::vector<int64_t> inside;
  for (const int64_t cut : cuts) inside.push_back(std::clamp(cut, lo, std::max(lo, hi)) - lo);
  std::vector<Shard> shards;
  if (inside.size() >= 2) add_shards(inside, 0, inside.size() - 1, shards);
  return shards;
}

int32_t act_of(const Instr& instr) {
  const std::string& word = instr.attrs.word("act");
  if (word == "relu") return kActRelu;
  if (word == "tanh") return kActTanh;
  if (word == "sigmoid") return kActSigmoid;
  return kActNone;
}

Tensor4 tensor_of(const View& view, const Box& box) {
  const Box& stored = view.stored;
  Tensor4 t{};
  t.row = stored.extent(3) * kLanes;
  t.channel = stored.extent(2) * t.row;
  t.block = stored.extent(1) * t.channel;
  t.blocks = ceil_div(box.extent(0), kLanes);
  t.channels = box.extent(1);
  t.rows = box.extent(2);
  t.columns = box.extent(3);
  t.data = static_cast<float*>(view.data);
  if (!box.empty())
    t.data += (box.lo(0) - stored.lo(0)) / kLanes * t.block +
              (box.lo(1) - stored.lo(1)) * t.channel + (box.lo(2) - stored.lo(2)) * t.row +
              (box.lo(3) - stored.lo(3)) * kLanes;
  return t;
}

Tensor4 tensor_of(const View& view, const View& out) {
  Box box = view.box;
  box.set(0, out.box.lo(0), out.box.hi(0));
  return tensor_of(view, box);
}

std::vector<AxisClass> forward_classes(const ConvAxis& a, int64_t out_lo, int64_t out_hi,
                                       int64_t in_lo, int64_t in_hi) {
  std::vector<AxisClass> classes;
  for (int64_t p = out_lo; p < out_hi; ++p) {
    const int64_t base = p * a.stride - a.pad;
    const int64_t lo = std::max<int64_t>(0, -floor_div(base - in_lo, a.dilation));
    const int64_t hi = std::min(a.kernel, floor_div(in_hi - 1 - base, a.dilation) + 1);
    AxisClass pixel{};
    pixel.out = p - out_lo;
    pixel.out_step = 1;
    pixel.count = 1;
    pixel.tap_step = 1;
    pixel.in_tap = a.dilation;
    pixel.taps = std::max<int64_t>(0, hi - lo);
    if (pixel.taps > 0) {
      pixel.tap = lo;
      pixel.in_step = a.stride;
      pixel.in = base + lo * a.dilation - in_lo;
    }
    append(classes, 0, pixel);
  }
  return classes;
}

std::vector<AxisClass> backward_classes(const ConvAxis& a, int64_t out_lo, int64_t out_hi,
                                        int64_t in_lo, int64_t in_hi) {
  std::vector<AxisClass> classes;
  const int64_t common = std::gcd(a.stride, a.dilation);
  for (int64_t phase = 0; phase < std::min(a.stride, out_hi - out_lo); ++phase) {
    const size_t first = classes.size();
    for (int64_t h = out_lo + phase; h < out_hi; h += a.stride) {
      AxisClass pixel{};
      pixel.out = h - out_lo;
      pixel.out_step = a.stride;
      pixel.count = 1;
      pixel.tap_step = a.stride / common;
      pixel.in_tap = -a.dilation / common;
      for (int64_t r = 0; r < a.kernel; ++r) {
        const int64_t distance = h + a.pad - r * a.dilation;
        if (distance < 0 || distance % a.stride != 0) continue;
        const int64_t p = distance / a.stride;
        if (p < in_lo || p >= in_hi) continue;
        if (pixel.taps == 0) {
          pixel.tap = r;
          pixel.in_step = 1;
          pixel.in = p - in_lo;
        }
        ++pixel.taps;
      }
      append(classes, first, pixel);
    }
  }
  return classes;
}

}  // namespace convnet::cpu
