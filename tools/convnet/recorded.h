// Values of a plan's run on the host: what instructions produced, by logical tensor.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "framework/backends/backend.h"
#include "framework/plan/plan.h"

namespace convnet::cli {

// A value in memory, as a double: exact for all types of values.
double load(DType dtype, const void* at);

// Element of a view's memory that holds a logical index.
int64_t stored_index(const View& view, const std::vector<int64_t>& index);

// Calls fn(index, element of the view's memory, element of the logical tensor) for all of view.box.
template <typename F>
void for_each_element(const View& view, F&& fn) {
  if (view.box.empty()) return;
  const int rank = view.box.rank();
  std::vector<int64_t> index(static_cast<size_t>(rank));
  for (int i = 0; i < rank; ++i) index[static_cast<size_t>(i)] = view.box.lo(i);
  for (;;) {
    int64_t logical = 0;
    for (int i = 0; i < rank; ++i)
      logical = logical * view.shape[i] + index[static_cast<size_t>(i)];
    fn(index, stored_index(view, index), logical);
    int i = rank - 1;
    while (i >= 0 && ++index[static_cast<size_t>(i)] == view.box.hi(i)) {
      index[static_cast<size_t>(i)] = view.box.lo(i);
      --i;
    }
    if (i < 0) return;
  }
}

// A logical tensor after a step: plain, whole, in its own type.
struct Recorded {
  DType dtype = DType::kF32;
  int64_t count = 0;
  std::vector<char> bytes;

  const char* at(int64_t element) const { return bytes.data() + element * dtype_size(dtype); }
  double norm() const;
  double largest() const;  // magnitude
};
using Records = std::map<std::string, Recorded>;  // by tensor

// Copies what a view shows into the record of its tensor.
void record(const View& view, Recorded& into);

const Tensor& tensor_of(const Plan& plan, int device, const Operand& operand);
const Part& part_of(const Plan& plan, int device, const Operand& operand);

}  // namespace convnet::cli
