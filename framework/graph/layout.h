// Layout: how a logical tensor is spread over devices. The annotation is one state per axis of a
// mesh (split, replicated, partial sums); its meaning is a list of parts, one per device. Every
// question about bytes, legality and communication is answered with the parts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "framework/base/shape.h"

namespace convnet {

// An ordered device list with a shape: [0 1 2 3] with extents {4} or {2, 2}, row-major.
struct Mesh {
  std::vector<int> devices;
  std::vector<int> extents;

  static Mesh line(std::vector<int> devices);  // one axis
  int size() const { return static_cast<int>(devices.size()); }
  int position(int device) const;  // index in `devices`; -1 if it is not there
  bool operator==(const Mesh&) const = default;
};

// State of a tensor along one mesh axis.
struct AxisState {
  enum class Kind { kReplicated, kSplit, kPartial };
  Kind kind = Kind::kReplicated;
  int dim = 0;                // kSplit: the dimension that is cut
  std::vector<int64_t> cuts;  // kSplit: extent + 1 boundaries, in elements of the dimension
  bool operator==(const AxisState&) const = default;
};

struct Layout {
  Mesh mesh;
  std::vector<AxisState> axes;  // one per axis of the mesh

  bool empty() const { return mesh.devices.empty(); }  // not laid out yet
  // Per position of the mesh, what the device there holds of a tensor of this shape.
  std::vector<Part> parts(const Shape& shape) const;
  bool has_partial() const;
  // "[0,1]{S(0)}"; a mesh of one device is printed as "[0]".
  std::string str() const;
  bool operator==(const Layout&) const = default;
};

Layout replicated(const Mesh& mesh);
// Along a one-axis mesh.
Layout split(const Mesh& mesh, int dim, std::vector<int64_t> cuts);
Layout partial(const Mesh& mesh);

// p + 1 boundaries floor(extent * i / p).
std::vector<int64_t> balanced_cuts(int64_t extent, int p);

// Boundaries of the canonical shards of a batch (design, section 6): the largest power of two of
// shards, at most 8, such that each has at least one whole block of sixteen examples; whole blocks,
// balanced. A function of the batch alone.
std::vector<int64_t> canonical_shards(int64_t batch);

// How a batch is cut over p devices, p at most its number of blocks: whole canonical shards where
// there are enough of them, else whole blocks.
std::vector<int64_t> batch_cuts(int64_t batch, int p);

// Whether partial sums over the parts of batch_cuts(batch, p) may be added as a balanced tree that
// is a continuation of the canonical one: p divides the number of canonical shards.
bool canonical_tree(int64_t batch, int p);

}  // namespace convnet
