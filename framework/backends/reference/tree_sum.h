// The order in which sums over examples are taken: ops.def, `cuts`.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace convnet::reference {

// Shards lo .. hi-1, of which shard i holds examples cuts[i] .. cuts[i + 1] - 1 and sums to
// shard(cuts[i], cuts[i + 1]). Nothing if all of them are empty.
template <typename T, typename F>
std::optional<T> tree_sum(const std::vector<int64_t>& cuts, size_t lo, size_t hi, const F& shard) {
  if (hi - lo == 1) {
    if (cuts[lo] == cuts[hi]) return std::nullopt;
    return shard(cuts[lo], cuts[hi]);
  }
  const size_t mid = lo + (hi - lo) / 2;
  const std::optional<T> left = tree_sum<T>(cuts, lo, mid, shard);
  const std::optional<T> right = tree_sum<T>(cuts, mid, hi, shard);
  if (!left) return right;
  if (!right) return left;
  return *left + *right;
}

template <typename T, typename F>
T tree_sum(const std::vector<int64_t>& cuts, const F& shard) {
  return tree_sum<T>(cuts, 0, cuts.size() - 1, shard).value_or(T(0));
}

}  // namespace convnet::reference
