#include "framework/comm/box_runs.h"

namespace convnet {
namespace {

// A range of a storage dimension. Blocked buffers have the dimensions [N/16] C H W [16].
struct Range {
  int64_t lo = 0, hi = 0;
  int64_t extent() const { return hi - lo; }
};
struct Ranges {
  std::array<Range, kMaxRank + 1> dim{};
  int rank = 0;
  void append(int64_t lo, int64_t hi) { dim[static_cast<size_t>(rank++)] = {lo, hi}; }
};

Ranges storage_ranges(Format format, const Box& box) {
  Ranges r;
  for (int i = 0; i < box.rank(); ++i) {
    if (format == Format::kBlocked && i == 0) {
      r.append(box.lo(0) / kLanes, (box.hi(0) + kLanes - 1) / kLanes);
    } else {
      r.append(box.lo(i), box.hi(i));
    }
  }
  if (format == Format::kBlocked) r.append(0, kLanes);
  return r;
}

}  // namespace

BoxRuns::BoxRuns(Format format, const Box& box, std::span<const Box> stored)
    : operands_(stored.size()) {
  CHECK(stored.size() <= static_cast<size_t>(kMaxOperands));
  if (box.empty()) return;
  const Ranges want = storage_ranges(format, box);
  std::array<int64_t, kMaxLoops> extent{};
  for (int d = 0; d < want.rank; ++d)
    extent[static_cast<size_t>(d)] = want.dim[static_cast<size_t>(d)].extent();

  for (size_t i = 0; i < stored.size(); ++i) {
    CHECK(stored[i].contains(box));
    const Ranges have = storage_ranges(format, stored[i]);
    int64_t stride = 1;
    for (int d = have.rank - 1; d >= 0; --d) {
      const auto dim = static_cast<size_t>(d);
      operands_[i].stride[dim] = stride;
      operands_[i].offset += (want.dim[dim].lo - have.dim[dim].lo) * stride;
      stride *= have.dim[dim].extent();
    }
  }

  // The run grows over inner dimensions as long as every buffer goes on without a gap.
  run_ = runs_ = 1;
  int d = want.rank - 1;
  const auto follows = [&](int dim, int64_t length) {
    for (const Operand& operand : operands_)
      if (operand.stride[static_cast<size_t>(dim)] != length) return false;
    return true;
  };
  for (; d >= 0; --d) {
    const auto dim = static_cast<size_t>(d);
    if (extent[dim] != 1 && !follows(d, run_)) break;
    run_ *= extent[dim];
  }
  loops_ = 0;
  for (int o = 0; o <= d; ++o) {
    const auto dim = static_cast<size_t>(o);
    if (extent[dim] == 1) continue;
    const auto to = static_cast<size_t>(loops_++);
    extent_[to] = extent[dim];
    for (Operand& operand : operands_) operand.stride[to] = operand.stride[dim];
    runs_ *= extent[dim];
  }
}

bool blocks_aligned(Format format, const Box& box, int64_t examples) {
  if (format == Format::kPlain || box.empty()) return true;
  return box.lo(0) % kLanes == 0 && (box.hi(0) % kLanes == 0 || box.hi(0) == examples);
}

}  // namespace convnet
