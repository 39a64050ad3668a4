#include "framework/comm/exchange_steps.h"

#include <algorithm>
#include <array>
#include <string>

namespace convnet {
namespace {

// Below this an all-reduce is done by every member for itself: reading all operands costs less than
// a third barrier. Bytes of the tensor.
constexpr int64_t kTwoPhaseBytes = 16 * 1024;
constexpr int kMaxGroup = BoxRuns::kMaxOperands - 2;

// One box of a member's result, and which member's operand holds each partial sum of it.
struct Cell {
  Box box;
  std::vector<int> source_of;  // by k; -1: nothing to add
};

bool whole_cover(const Box& outer, const Box& inner) {
  return !inner.empty() && outer.contains(inner);
}

// A member's operand that holds (k of `of`) of the whole cell: its own if it can be, because that
// one is near; else the first. -1: none.
int find_source(const Exchange& exchange, const Box& cell, int member, int k) {
  const auto holds = [&](int m) {
    const Part& part = exchange.from[static_cast<size_t>(m)];
    return part.k == k && whole_cover(part.box, cell);
  };
  if (holds(member)) return member;
  for (int m = 0; m < static_cast<int>(exchange.group.size()); ++m)
    if (holds(m)) return m;
  return -1;
}

// The result of `member`, cut along every boundary of an operand: within a cell the sources are
// fixed.
Result<std::vector<Cell>> make_cells(const Exchange& exchange, const std::string& name,
                                     int member) {
  const Part& to = exchange.to[static_cast<size_t>(member)];
  std::vector<Cell> cells;
  if (to.box.empty()) return cells;
  if (to.of != 1)
    return Status(Code::kUsage, "the result on device " +
                                    std::to_string(exchange.group[static_cast<size_t>(member)]) +
                                    " is partial sum " + std::to_string(to.k) + " of " +
                                    std::to_string(to.of) + ", but a result must be complete");
  int of = 0;
  cells.push_back({to.box, {}});
  for (const Part& from : exchange.from) {
    if (intersect(from.box, to.box).empty()) continue;
    if (of != 0 && from.of != of)
      return Status(Code::kUsage, "operands that are one of " + std::to_string(of) +
                                      " and one of " + std::to_string(from.of) +
                                      " partial sums meet");
    of = from.of;
    for (int d = 0; d < to.box.rank(); ++d) {
      for (const int64_t cut : {from.box.lo(d), from.box.hi(d)}) {
        const size_t count = cells.size();
        for (size_t c = 0; c < count; ++c) {
          if (cut <= cells[c].box.lo(d) || cut >= cells[c].box.hi(d)) continue;
          Cell rest = cells[c];
          rest.box.set(d, cut, cells[c].box.hi(d));
          cells[c].box.set(d, cells[c].box.lo(d), cut);
          cells.push_back(rest);
        }
      }
    }
  }
  for (Cell& cell : cells) {
    for (int k = 0; k < of; ++k)
      cell.source_of.push_back(find_source(exchange, cell.box, member, k));
    if (std::all_of(cell.source_of.begin(), cell.source_of.end(), [](int s) { return s < 0; }))
      return Status(Code::kUsage,
                    "no device holds " + cell.box.str() + " of '" + name + "', which device " +
                        std::to_string(exchange.group[static_cast<size_t>(member)]) + " is to get");
  }
  return cells;
}

struct Bytes {
  const std::byte* begin;
  const std::byte* end;
};
Bytes memory_of(const View& v) {
  const auto* begin = static_cast<const std::byte*>(v.data);
  return {begin, begin + stored_count(v.format, v.stored) * dtype_size(v.dtype)};
}
bool overlap(const View& a, const View& b) {
  const Bytes x = memory_of(a), y = memory_of(b);
  return x.begin < y.end && y.begin < x.end;
}
bool same_memory(const View& a, const View& b) { return a.data == b.data && a.stored == b.stored; }

// A cell that is a copy of the very memory that it would be copied to.
bool in_place(const Cell& cell, int member, const View& in, const View& out) {
  return cell.source_of.size() == 1 && cell.source_of[0] == member && same_memory(in, out);
}

// True if `member` must not write its result while others read its operand.
bool needs_stage(const std::vector<std::vector<Cell>>& cells, int member, const View& in,
                 const View& out) {
  if (in.box.empty() || out.box.empty() || !overlap(in, out)) return false;
  if (!same_memory(in, out)) return true;
  for (size_t reader = 0; reader < cells.size(); ++reader) {
    if (static_cast<int>(reader) == member) continue;
    for (const Cell& read : cells[reader]) {
      const auto& sources = read.source_of;
      if (std::find(sources.begin(), sources.end(), member) == sources.end()) continue;
      for (const Cell& written : cells[static_cast<size_t>(member)])
        if (!in_place(written, member, in, out) && !intersect(written.box, read.box).empty())
          return true;
    }
  }
  return false;
}

Transfer make_transfer(const Exchange& exchange, const Tensor& tensor, const Cell& cell,
                       const std::vector<View>& in, void* dst, const Box& dst_stored) {
  std::vector<Box> stored{dst_stored};
  std::vector<const void*> sources;
  std::vector<int> operand_of;  // by k: index in `sources`
  for (int member : cell.source_of) {
    operand_of.push_back(member < 0 ? -1 : static_cast<int>(sources.size()));
    if (member < 0) continue;
    stored.push_back(in[static_cast<size_t>(member)].stored);
    sources.push_back(in[static_cast<size_t>(member)].data);
  }
  return Transfer(BoxRuns(tensor.format, cell.box, stored), OrderedSum(exchange.order, operand_of),
                  tensor.dtype, dst, std::move(sources));
}

// An all-reduce of whole buffers may be cut anywhere: member m sums the m-th piece for all.
bool flat_all_reduce(const Exchange& exchange, const Tensor& tensor,
                     const std::vector<std::vector<Cell>>& cells, const std::vector<View>& in,
                     const std::vector<View>& out) {
  const size_t n = exchange.group.size();
  const Box& box = exchange.to[0].box;
  if (n < 2 || stored_count(tensor.format, box) * dtype_size(tensor.dtype) < kTwoPhaseBytes)
    return false;
  for (size_t m = 0; m < n; ++m) {
    if (cells[m].size() != 1 || cells[m][0].source_of.size() < 2) return false;
    if (!(cells[m][0].box == box) || !(in[m].stored == box) || !(out[m].stored == box))
      return false;
    if (!(in[m].box == box) || (overlap(in[m], out[m]) && !same_memory(in[m], out[m])))
      return false;
  }
  return true;
}

// In place this is safe: piece m of any operand is read by member m alone, and in the second phase
// member j only writes pieces that are not its own, which nobody reads.
void add_flat_all_reduce(const Exchange& exchange, const Tensor& tensor, const Cell& cell,
                         const std::vector<View>& in, const std::vector<View>& out,
                         ExchangeSteps& steps) {
  const auto n = static_cast<int64_t>(exchange.group.size());
  const int64_t elements = stored_count(tensor.format, exchange.to[0].box);
  const int64_t lines = (elements + kLanes - 1) / kLanes;
  Tensor flat = tensor;
  flat.format = Format::kPlain;
  Box whole;
  whole.append(0, elements);
  std::vector<View> flat_in = in;
  for (View& v : flat_in) v.stored = whole;
  const auto piece = [&](int64_t m) {
    Box box;
    box.append(std::min(elements, lines * m / n * kLanes),
               std::min(elements, lines * (m + 1) / n * kLanes));
    return box;
  };
  steps.two_phases = true;
  for (int64_t m = 0; m < n; ++m) {
    MemberSteps& member = steps.members[static_cast<size_t>(m)];
    void* dst = out[static_cast<size_t>(m)].data;
    member.first.push_back(
        make_transfer(exchange, flat, {piece(m), cell.source_of}, flat_in, dst, whole));
    for (int64_t other = 0; other < n; ++other) {
      if (other == m) continue;
      const int sole = 0;
      const Box both[] = {whole, whole};
      member.second.emplace_back(BoxRuns(Format::kPlain, piece(other), both),
                                 OrderedSum(exchange.order, std::span(&sole, 1)), tensor.dtype, dst,
                                 std::vector<const void*>{out[static_cast<size_t>(other)].data});
    }
  }
}

// Every member makes its own result.
void add_direct(const Exchange& exchange, const Tensor& tensor,
                const std::vector<std::vector<Cell>>& cells, const std::vector<View>& in,
                const std::vector<View>& out, ExchangeSteps& steps) {
  for (size_t m = 0; m < cells.size(); ++m) {
    MemberSteps& member = steps.members[m];
    const bool staged = needs_stage(cells, static_cast<int>(m), in[m], out[m]);
    void* dst = out[m].data;
    Box dst_stored = out[m].stored;
    if (staged) {
      dst_stored = out[m].box;
      const int64_t bytes = stored_count(tensor.format, dst_stored) * dtype_size(tensor.dtype);
      member.stage = std::make_unique<std::byte[]>(static_cast<size_t>(bytes));
      dst = member.stage.get();
      const int sole = 0;
      const Box both[] = {out[m].stored, dst_stored};
      member.last.emplace_back(BoxRuns(tensor.format, out[m].box, both),
                               OrderedSum(exchange.order, std::span(&sole, 1)), tensor.dtype,
                               out[m].data, std::vector<const void*>{dst});
    }
    for (const Cell& cell : cells[m]) {
      if (!staged && in_place(cell, static_cast<int>(m), in[m], out[m])) continue;
      member.first.push_back(make_transfer(exchange, tensor, cell, in, dst, dst_stored));
    }
  }
}

Status check_view(const View& view, const Part& part, const Tensor& tensor, const char* what,
                  int device) {
  if (view.box.empty() && part.box.empty()) return Status();
  if (!(view.box == part.box))
    return Status(Code::kUsage, "the " + std::string(what) + " on device " +
                                    std::to_string(device) + " is " + view.box.str() +
                                    " when the exchange says " + part.box.str());
  if (view.dtype != tensor.dtype || view.format != tensor.format)
    return Status(Code::kUsage, "the " + std::string(what) + " on device " +
                                    std::to_string(device) + " is not stored as '" + tensor.name +
                                    "' is");
  if (!blocks_aligned(tensor.format, part.box, tensor.shape.rank() > 0 ? tensor.shape[0] : 0))
    return Status(Code::kUsage, "the " + std::string(what) + " on device " +
                                    std::to_string(device) + ", " + part.box.str() +
                                    ", does not cut the batch at multiples of 16 examples");
  return Status();
}

}  // namespace

void Transfer::run() const {
  const int64_t size = dtype_size(dtype_);
  const void* at[BoxRuns::kMaxOperands];
  runs_.for_each([&](const int64_t* offsets) {
    for (size_t i = 0; i < sources_.size(); ++i)
      at[i] = static_cast<const std::byte*>(sources_[i]) + offsets[i + 1] * size;
    sum_.run(dtype_, static_cast<std::byte*>(dst_) + offsets[0] * size, at, runs_.run());
  });
}

Result<ExchangeSteps> exchange_steps(const Exchange& exchange, const Tensor& tensor,
                                     const std::vector<View>& in, const std::vector<View>& out) {
  const size_t n = exchange.group.size();
  CHECK(in.size() == n && out.size() == n);
  if (n > static_cast<size_t>(kMaxGroup))
    return Status(Code::kLimit, "a group of " + std::to_string(n) + " devices; the most is " +
                                    std::to_string(kMaxGroup));
  std::vector<std::vector<Cell>> cells;
  for (size_t m = 0; m < n; ++m) {
    CONVNET_RETURN_IF_ERROR(
        check_view(in[m], exchange.from[m], tensor, "operand", exchange.group[m]));
    CONVNET_RETURN_IF_ERROR(
        check_view(out[m], exchange.to[m], tensor, "result", exchange.group[m]));
    CONVNET_ASSIGN_OR_RETURN(std::vector<Cell> mine,
                             make_cells(exchange, tensor.name, static_cast<int>(m)));
    cells.push_back(std::move(mine));
  }
  ExchangeSteps steps;
  steps.members.resize(n);
  if (flat_all_reduce(exchange, tensor, cells, in, out)) {
    add_flat_all_reduce(exchange, tensor, cells[0][0], in, out, steps);
  } else {
    add_direct(exchange, tensor, cells, in, out, steps);
  }
  return steps;
}

}  // namespace convnet
