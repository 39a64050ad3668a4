// Cells: the result of a member of an exchange, cut into boxes whose sources are the same for all
// their elements.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "framework/base/status.h"
#include "framework/plan/plan.h"

namespace convnet {

// One box of a member's result, and which member's operand holds each partial sum of it.
struct Cell {
  Box box;
  std::vector<int> source_of;  // by k, of those that the result is made of; -1: nothing to add
};

// True if the member holds or wants something; the others do not issue the exchange.
bool takes_part(const Exchange& exchange, size_t member);

// The result of `member`, cut along every boundary of an operand. Of several members that hold the
// same numbers, itself is the source before others of its rank, these before the rest. `ranks`: of
// each member; empty: all are of one. kUsage if the exchange leaves an element without a source.
Result<std::vector<Cell>> make_cells(const Exchange& exchange, const std::string& tensor,
                                     int member, std::span<const int> ranks = {});

}  // namespace convnet
