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

std::vector<Part> Layout::parts(const Shape& shape) const {
  CHECK(axes.size() == mesh.extents.size());
  std::vector<Part> all;
  for (int position = 0; position < mesh.size(); ++position) {
    Part part{Box(shape), 0, 1};
    int stride = mesh.size();
    for (size_t a = 0; a < axes.size(); ++a) {
      stride /= mesh.extents[a];
      const int index = position / stride % mesh.extents[a];
      const AxisState& axis = axes[a];
      if (axis.kind == AxisState::Kind::kSplit) {
        CHECK(static_cast<int>(axis.cuts.size()) == mesh.extents[a] + 1);
        Box cut(shape);
        cut.set(axis.dim, axis.cuts[static_cast<size_t>(index)],
                axis.cuts[static_cast<size_t>(index) + 1]);
        part.box = intersect(part.box, cut);
      } else if (axis.kind == AxisState::Kind::kPartial) {
        part.k = part.k * mesh.extents[a] + index;
        part.of *= mesh.extents[a];
      }
    }
    all.push_back(part);
  }
  return all;
}

bool Layout::has_partial() const {
  for (size_t a = 0; a < axes.size(); ++a)
    if (axes[a].kind == AxisState::Kind::kPartial && mesh.extents[a] > 1) return true;
  return false;
}

std::string Layout::str() const {
  if (empty()) return "?";
  std::string s = "[";
  for (size_t i = 0; i < mesh.devices.size(); ++i)
    s += (i ? "," : "") + std::to_string(mesh.devices[i]);
  s += "]";
  if (mesh.size() == 1) return s;
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
        break;
    }
  }
  return s + "}";
}

Layout replicated(const Mesh& mesh) {
  return Layout{mesh, std::vector<AxisState>(mesh.extents.size())};
}

Layout split(const Mesh& mesh, int dim, std::vector<int64_t> cuts) {
  CHECK(mesh.extents.size() == 1);
  return Layout{mesh, {AxisState{AxisState::Kind::kSplit, dim, std::move(cuts)}}};
}

Layout partial(const Mesh& mesh) {
  CHECK(mesh.extents.size() == 1);
  return Layout{mesh, {AxisState{AxisState::Kind::kPartial, 0, {}}}};
}

std::vector<int64_t> balanced_cuts(int64_t extent, int p) {
  std::vector<int64_t> cuts;
  for (int i = 0; i <= p; ++i) cuts.push_back(extent * i / p);
  return cuts;
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
