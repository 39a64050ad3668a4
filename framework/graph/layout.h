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
  // Leaves out the devices of an axis beyond its first `count`.
  void keep(size_t axis, int count);
  bool operator==(const Mesh&) const = default;
};

// Indices [lo, hi) of one dimension.
struct Range {
  int64_t lo = 0, hi = 0;
  bool operator==(const Range&) const = default;
};

// State of a tensor along one mesh axis.
struct AxisState {
  enum class Kind { kReplicated, kSplit, kPartial };
  Kind kind = Kind::kReplicated;
  int dim = 0;                // kSplit: the dimension that is cut
  std::vector<Range> ranges;  // kSplit: per index of the axis; neighbours overlap in halos
  // kPartial: what the sums run over, as the dimension of an activation (0: examples, 1: channels,
  // 2: rows, 3: columns), and whether the parts are subtrees of the canonical tree of that sum, and
  // single shards of it.
  int over = 0;
  bool canonical = false, single = false;
  bool operator==(const AxisState&) const = default;
};

// The part of a device that holds none of a tensor.
Part nothing(int rank);

struct Layout {
  Mesh mesh;
  std::vector<AxisState> axes;  // one per axis of the mesh
  // Per position, in place of what the axes say: a box that was cut once more, as the solver's
  // share of a parameter that is split already.
  std::vector<Part> pieces;
  // Partial sums of one pass of `passes`, which are added up later.
  int pass = 0, passes = 1;

  bool empty() const { return mesh.devices.empty(); }  // not laid out yet
  // Per position of the mesh, what the device there holds of a tensor of this shape. With two axes
  // of partial sums, sums over rows are the outer ones, then columns, channels, examples.
  std::vector<Part> parts(const Shape& shape) const;
  bool has_partial() const;
  // Of partial sums: whether adding them as a balanced tree continues the canonical one, in which
  // the trees of inner sums are the leaves of the outer ones'.
  bool canonical() const;
  // "[0,1]{S(0)}"; a mesh of one device is printed as "[0]".
  std::string str() const;
  bool operator==(const Layout&) const = default;
};

Layout replicated(const Mesh& mesh);
// Along a one-axis mesh.
Layout split(const Mesh& mesh, int dim, std::vector<int64_t> cuts);
Layout partial(const Mesh& mesh, int over = 0);

// p + 1 boundaries floor(extent * i / p).
std::vector<int64_t> balanced_cuts(int64_t extent, int p);
std::vector<Range> ranges_of(const std::vector<int64_t>& cuts);

// Boundaries of the canonical shards of channels, rows, columns or classes: the largest power of
// two of shards, at most 8 and at most the extent, balanced.
std::vector<int64_t> canonical_cuts(int64_t extent);

// Whether p balanced parts of the extent are subtrees of the tree over its canonical shards.
bool canonical_parts(int64_t extent, int p);
int canonical_count(int64_t extent);  // of shards

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
