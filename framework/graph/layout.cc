#include "framework/graph/layout.h"

#include <algorithm>

namespace convnet {

Mesh Mesh::line(std::vector<int> devices) {
  const int n = static_cast<int>(devices.size());
  return Mesh{std::move(devices), {n}};
}

int Mesh::position(int device) const {
  const auto it = std::find(devices.begin(), devices.end(), device);
  return it == devices.end() ? -1 : static_cast<int>(it - devices.begin());
}

void Mesh::keep(size_t axis, int count) {
  int stride = 1;
  for (size_t later = axis + 1; later < extents.size(); ++later) stride *= extents[later];
  std::vector<int> kept;
  for (int p = 0; p < size(); ++p)
    if (p / stride % extents[axis] < count) kept.push_back(devices[static_cast<size_t>(p)]);
  devices = std::move(kept);
  extents[axis] = std::min(extents[axis], count);
}

namespace {

// Sums over rows are the outer ones, then columns, channels, examples.
int nesting(const AxisState& axis) {
  constexpr int kOrder[] = {3, 2, 0, 1};  // of examples, channels, rows, columns
  return kOrder[axis.over];
}

}  // namespace

Part nothing(int rank) {
  Part part;
  for (int d = 0; d < rank; ++d) part.box.append(0, 0);
  return part;
}

std::vector<Part> Layout::parts(const Shape& shape) const {
  if (!pieces.empty()) return pieces;
  CHECK(axes.size() == mesh.extents.size());
  std::vector<size_t> order(axes.size());
  for (size_t a = 0; a < axes.size(); ++a) order[a] = a;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return nesting(axes[a]) < nesting(axes[b]); });
  std::vector<Part> all;
  for (int position = 0; position < mesh.size(); ++position) {
    Part part{Box(shape), pass, passes};
    for (size_t a : order) {
      int stride = 1;
      for (size_t later = a + 1; later < axes.size(); ++later) stride *= mesh.extents[later];
      const int index = position / stride % mesh.extents[a];
      const AxisState& axis = axes[a];
      if (axis.kind == AxisState::Kind::kSplit) {
        CHECK(static_cast<int>(axis.ranges.size()) == mesh.extents[a]);
        const Range& range = axis.ranges[static_cast<size_t>(index)];
        part.box.set(axis.dim, std::max(part.box.lo(axis.dim), range.lo),
                     std::min(part.box.hi(axis.dim), range.hi));
      } else if (axis.kind == AxisState::Kind::kPartial) {
        part.k = part.k * mesh.extents[a] + index;
        part.of *= mesh.extents[a];
      }
    }
    if (part.box.empty()) part = nothing(shape.rank());
    all.push_back(part);
  }
  return all;
}

bool Layout::has_partial() const {
  for (size_t a = 0; a < axes.size(); ++a)
    if (axes[a].kind == AxisState::Kind::kPartial && mesh.extents[a] > 1 && pieces.empty())
      return true;
  return false;
}

bool Layout::canonical() const {
  for (size_t a = 0; a < axes.size(); ++a) {
    if (axes[a].kind != AxisState::Kind::kPartial || mesh.extents[a] == 1) continue;
    if (!axes[a].canonical) return false;
    for (const AxisState& outer : axes)
      if (outer.kind == AxisState::Kind::kPartial && nesting(outer) < nesting(axes[a]) &&
          !outer.single)
        return false;
  }
  return true;
}

std::string Layout::str() const {
  if (empty()) return "?";
  std::string s = "[";
  for (size_t i = 0; i < mesh.devices.size(); ++i)
    s += (i ? "," : "") + std::to_string(mesh.devices[i]);
  s += "]";
  const std::string of_passes =
      passes > 1 ? "#" + std::to_string(pass) + "/" + std::to_string(passes) : "";
  if (mesh.size() == 1) return s + of_passes;
  s += "{";
  for (size_t a = 0; a < axes.size(); ++a) {
    if (a) s += ",";
    switch (axes[a].kind) {
      case AxisState::Kind::kReplicated:
        s += "R";
        break;
      case AxisState::Kind::kPartial:
        s += "P";
        break;
      case AxisState::Kind::kSplit:
        s += "S(" + std::to_string(axes[a].dim) + ")";
        for (size_t i = 0; i + 1 < axes[a].ranges.size(); ++i)
          if (axes[a].ranges[i].hi > axes[a].ranges[i + 1].lo) {
            s += "+halo";
            break;
          }
        break;
    }
  }
  return s + (pieces.empty() ? "}" : "/p}") + of_passes;
}

Layout replicated(const Mesh& mesh) {
  return Layout{mesh, std::vector<AxisState>(mesh.extents.size()), {}, 0, 1};
}

Layout split(const Mesh& mesh, int dim, std::vector<int64_t> cuts) {
  CHECK(mesh.extents.size() == 1);
  AxisState axis{.kind = AxisState::Kind::kSplit, .dim = dim, .ranges = ranges_of(cuts)};
  return Layout{mesh, {std::move(axis)}, {}, 0, 1};
}

Layout partial(const Mesh& mesh, int over) {
  CHECK(mesh.extents.size() == 1);
  return Layout{mesh, {{.kind = AxisState::Kind::kPartial, .ranges = {}, .over = over}}, {}, 0, 1};
}

std::vector<int64_t> balanced_cuts(int64_t extent, int p) {
  std::vector<int64_t> cuts;
  for (int i = 0; i <= p; ++i) cuts.push_back(extent * i / p);
  return cuts;
}

std::vector<Range> ranges_of(const std::vector<int64_t>& cuts) {
  std::vector<Range> ranges;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) ranges.push_back({cuts[i], cuts[i + 1]});
  return ranges;
}

std::vector<int64_t> canonical_cuts(int64_t extent) {
  int shards = 1;
  while (shards < 8 && shards * 2 <= extent) shards *= 2;
  return balanced_cuts(extent, shards);
}

int canonical_count(int64_t extent) { return static_cast<int>(canonical_cuts(extent).size()) - 1; }

bool canonical_parts(int64_t extent, int p) {
  const int count = canonical_count(extent);
  return p <= count && count % p == 0;
}

namespace {

int64_t block_count(int64_t batch) { return (batch + kLanes - 1) / kLanes; }

std::vector<int64_t> block_cuts(int64_t batch, int p) {
  std::vector<int64_t> cuts = balanced_cuts(block_count(batch), p);
  for (int64_t& c : cuts) c = std::min(batch, c * kLanes);
  return cuts;
}

}  // namespace

std::vector<int64_t> canonical_shards(int64_t batch) {
  int shards = 1;
  while (shards < 8 && shards * 2 <= block_count(batch)) shards *= 2;
  return block_cuts(batch, shards);
}

std::vector<int64_t> batch_cuts(int64_t batch, int p) {
  const std::vector<int64_t> shards = canonical_shards(batch);
  const int count = static_cast<int>(shards.size()) - 1;
  if (p > count) return block_cuts(batch, p);
  std::vector<int64_t> cuts;
  for (int i = 0; i <= p; ++i) cuts.push_back(shards[static_cast<size_t>(count * i / p)]);
  return cuts;
}

bool canonical_tree(int64_t batch, int p) {
  const int count = static_cast<int>(canonical_shards(batch).size()) - 1;
  return p <= count && count % p == 0;
}

}  // namespace convnet
