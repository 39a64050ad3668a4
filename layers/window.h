// Windows over rows and columns, as convolution and pooling state them: one number or two,
// defaults, output sizes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace convnet {

using Pair = std::array<int64_t, 2>;  // rows, columns

// A list of one or two numbers (the binder lets no other pass); `otherwise` if it is empty.
template <typename Repeated>
Pair pair_of(const Repeated& list, int64_t otherwise) {
  if (list.empty()) return {otherwise, otherwise};
  return {int64_t{list[0]}, int64_t{list[list.size() - 1]}};
}

inline std::vector<int64_t> list_of(const Pair& p) { return {p[0], p[1]}; }

inline std::string pair_text(const Pair& p) {
  return std::to_string(p[0]) + "x" + std::to_string(p[1]);
}

}  // namespace convnet
