// The order in which sums are taken: ops.def, `cuts` and its like.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace convnet::reference {

// Shards lo .. hi-1, of which shard i holds indices cuts[i] .. cuts[i + 1] - 1 and sums to
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

// One shard in each of three dimensions.
struct Block {
  int64_t p_lo, p_hi, q_lo, q_hi, n_lo, n_hi;
};

// The tree over shards of rows of the trees over shards of columns of the trees over shards of
// examples.
template <typename T, typename F>
T pixel_sum(const std::vector<int64_t>& rows, const std::vector<int64_t>& columns,
            const std::vector<int64_t>& examples, const F& block) {
  return tree_sum<T>(rows, [&](int64_t p_lo, int64_t p_hi) {
    return tree_sum<T>(columns, [&](int64_t q_lo, int64_t q_hi) {
      return tree_sum<T>(examples, [&](int64_t n_lo, int64_t n_hi) {
        return block(Block{p_lo, p_hi, q_lo, q_hi, n_lo, n_hi});
      });
    });
  });
}

}  // namespace convnet::reference
