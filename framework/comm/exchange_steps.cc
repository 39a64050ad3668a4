#include "framework/comm/exchange_steps.h"

#include <algorithm>
#include <string>

namespace convnet {
namespace {

constexpr int kMaxGroup = BoxRuns::kMaxOperands - 2;

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
                       const FindSource& find, void* dst, const Box& dst_stored) {
  std::vector<Box> stored{dst_stored};
  std::vector<const void*> sources;
  std::vector<int> operand_of;  // by k: index in `sources`
  for (int member : cell.source_of) {
    operand_of.push_back(member < 0 ? -1 : static_cast<int>(sources.size()));
    if (member < 0) continue;
    const Source source = find(member, cell.box);
    stored.push_back(source.stored);
    sources.push_back(source.data);
  }
  return Transfer(BoxRuns(tensor.format, cell.box, stored), OrderedSum(exchange.order, operand_of),
                  tensor.dtype, dst, std::move(sources));
}

FindSource in_memory(const std::vector<View>& in) {
  return [&in](int member, const Box&) {
    const View& view = in[static_cast<size_t>(member)];
    return Source{view.data, view.stored};
  };
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
        make_transfer(exchange, flat, {piece(m), cell.source_of}, in_memory(flat_in), dst, whole));
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

Status check_group(const Exchange& exchange) {
  if (exchange.group.size() <= static_cast<size_t>(kMaxGroup)) return Status();
  return Status(Code::kLimit, "a group of " + std::to_string(exchange.group.size()) +
                                  " devices; the most is " + std::to_string(kMaxGroup));
}

Status check_views(const Exchange& exchange, const Tensor& from, const Tensor& into, size_t member,
                   const View& in, const View& out) {
  CONVNET_RETURN_IF_ERROR(
      check_view(in, exchange.from[member], from, "operand", exchange.group[member]));
  return check_view(out, exchange.to[member], into, "result", exchange.group[member]);
}

ExchangeSteps direct_steps(const Exchange& exchange, const Tensor& tensor,
                           const std::vector<std::vector<Cell>>& cells, const std::vector<View>& in,
                           const std::vector<View>& out, const FindSource& find) {
  ExchangeSteps steps;
  steps.members.resize(cells.size());
  for (size_t m = 0; m < cells.size(); ++m) {
    if (cells[m].empty()) continue;
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
      member.first.push_back(make_transfer(exchange, tensor, cell, find, dst, dst_stored));
    }
  }
  return steps;
}

Result<ExchangeSteps> exchange_steps(const Exchange& exchange, const Tensor& tensor,
                                     const std::vector<View>& in, const std::vector<View>& out) {
  const size_t n = exchange.group.size();
  CHECK(in.size() == n && out.size() == n);
  CONVNET_RETURN_IF_ERROR(check_group(exchange));
  std::vector<std::vector<Cell>> cells;
  for (size_t m = 0; m < n; ++m) {
    CONVNET_RETURN_IF_ERROR(check_views(exchange, tensor, tensor, m, in[m], out[m]));
    CONVNET_ASSIGN_OR_RETURN(std::vector<Cell> mine,
                             make_cells(exchange, tensor.name, static_cast<int>(m)));
    cells.push_back(std::move(mine));
  }
  if (!flat_all_reduce(exchange, tensor, cells, in, out))
    return direct_steps(exchange, tensor, cells, in, out, in_memory(in));
  ExchangeSteps steps;
  steps.members.resize(n);
  add_flat_all_reduce(exchange, tensor, cells[0][0], in, out, steps);
  return steps;
}

}  // namespace convnet
