#include "framework/comm/cells.h"

#include <algorithm>

namespace convnet {
namespace {

// A member's operand that holds (k of `of`) of the whole cell; -1: none.
int find_source(const Exchange& exchange, const Box& cell, int member, int k,
                std::span<const int> ranks) {
  const auto holds = [&](int m) {
    const Part& part = exchange.from[static_cast<size_t>(m)];
    return part.k == k && !cell.empty() && part.box.contains(cell);
  };
  if (holds(member)) return member;
  int first = -1;
  for (int m = 0; m < static_cast<int>(exchange.group.size()); ++m) {
    if (!holds(m)) continue;
    const bool near =
        !ranks.empty() && ranks[static_cast<size_t>(m)] == ranks[static_cast<size_t>(member)];
    if (near) return m;
    if (first < 0) first = m;
  }
  return first;
}

}  // namespace

bool takes_part(const Exchange& exchange, size_t member) {
  return !exchange.from[member].box.empty() || !exchange.to[member].box.empty();
}

Result<std::vector<Cell>> make_cells(const Exchange& exchange, const std::string& tensor,
                                     int member, std::span<const int> ranks) {
  const Part& to = exchange.to[static_cast<size_t>(member)];
  std::vector<Cell> cells;
  if (to.box.empty()) return cells;
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
  if (of % to.of != 0)
    return Status(Code::kUsage, "the result on device " +
                                    std::to_string(exchange.group[static_cast<size_t>(member)]) +
                                    " is partial sum " + std::to_string(to.k) + " of " +
                                    std::to_string(to.of) + ", which " + std::to_string(of) +
                                    " partial sums do not make");
  for (Cell& cell : cells) {
    for (int k = of / to.of * to.k; k < of / to.of * (to.k + 1); ++k)
      cell.source_of.push_back(find_source(exchange, cell.box, member, k, ranks));
    if (std::all_of(cell.source_of.begin(), cell.source_of.end(), [](int s) { return s < 0; }))
      return Status(Code::kUsage,
                    "no device holds " + cell.box.str() + " of '" + tensor + "', which device " +
                        std::to_string(exchange.group[static_cast<size_t>(member)]) + " is to get");
  }
  return cells;
}

}  // namespace convnet
