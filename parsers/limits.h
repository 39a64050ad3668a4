// How large a model file may be, in whatever spelling: hostile files end here, not in memory.
#pragma once

#include <cstddef>

namespace convnet {

inline constexpr size_t kMostModelBytes = size_t{16} << 20;
inline constexpr int kDeepestNesting = 64;
inline constexpr size_t kMostNodes = 1000000;                   // after aliases are expanded
inline constexpr size_t kMostExpandedBytes = size_t{64} << 20;  // of keys and scalars, likewise

}  // namespace convnet
