// Exchanges of every pattern, and what their operands hold: for the tests of communicators.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <vector>

#include "framework/plan/plan.h"

namespace convnet {

inline Box empty_box(int rank) {
  Box b;
  for (int d = 0; d < rank; ++d) b.append(0, 0);
  return b;
}

// Part i of p of `whole` along `dim`; blocked batches are cut between blocks, and may give empty
// parts.
inline Box split(const Tensor& tensor, int dim, int i, int p) {
  Box b(tensor.shape);
  const int64_t unit = tensor.format == Format::kBlocked && dim == 0 ? kLanes : 1;
  const int64_t units = (tensor.shape[dim] + unit - 1) / unit;
  const auto cut = [&](int64_t n) { return std::min(tensor.shape[dim], units * n / p * unit); };
  b.set(dim, cut(i), cut(i + 1));
  return b;
}

// Calls f(element's index, its place in a buffer that holds `stored`) for the elements of `box`.
inline void each_element(const Tensor& tensor, const Box& stored, const Box& box,
                         const std::function<void(int64_t logical, int64_t place)>& f) {
  const int rank = box.rank();
  std::vector<int64_t> at(static_cast<size_t>(rank));
  const std::function<void(int)> walk = [&](int d) {
    if (d < rank) {
      for (int64_t i = box.lo(d); i < box.hi(d); ++i) {
        at[static_cast<size_t>(d)] = i;
        walk(d + 1);
      }
      return;
    }
    int64_t logical = 0, place = 0;
    for (int j = 0; j < rank; ++j) {
      const int64_t i = at[static_cast<size_t>(j)];
      logical = logical * tensor.shape[j] + i;
      if (j == 0 && tensor.format == Format::kBlocked) {
        place = (i - stored.lo(0)) / kLanes;
      } else {
        place = place * stored.extent(j) + i - stored.lo(j);
      }
    }
    if (tensor.format == Format::kBlocked) place = place * kLanes + at[0] % kLanes;
    f(logical, place);
  };
  if (!box.empty()) walk(0);
}

// Operand value of partial sum k: of many magnitudes, so that the order of a sum shows in its bits.
template <typename T>
T value(int64_t logical, int k) {
  const auto mix =
      static_cast<uint32_t>(logical * 2654435761u + static_cast<uint32_t>(k) * 40503u + 7u);
  const uint32_t bits = mix ^ (mix >> 15);
  if constexpr (std::is_integral_v<T>) return static_cast<T>(bits);
  return static_cast<T>(
      std::ldexp(static_cast<double>(bits % 100003) + 0.37, static_cast<int>(bits >> 28) - 8));
}

template <typename T>
T plus(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
  return a + b;
}
template <typename T>
T tree_sum(int64_t logical, int lo, int hi) {
  if (hi - lo == 1) return value<T>(logical, lo);
  const int mid = lo + (hi - lo) / 2;
  return plus(tree_sum<T>(logical, lo, mid), tree_sum<T>(logical, mid, hi));
}
template <typename T>
T rank_sum(int64_t logical, int of) {
  T sum = value<T>(logical, 0);
  for (int k = 1; k < of; ++k) sum = plus(sum, value<T>(logical, k));
  return sum;
}

inline Exchange make(Exchange::Kind kind, const Tensor& tensor, int members, int dim,
                     Exchange::Order order) {
  Exchange e;
  e.kind = kind;
  e.order = order;
  e.edge = "test";
  const Box all(tensor.shape), none = empty_box(tensor.shape.rank());
  const int other = (dim + 1) % tensor.shape.rank();
  const int root = members / 2;
  for (int m = 0; m < members; ++m) {
    e.group.push_back(members - 1 - m);  // mesh order need not be the order of device numbers
    const Box mine = split(tensor, dim, m, members);
    const Part part{mine, 0, 1}, whole{all, 0, 1}, nothing{none, 0, 1}, partial{all, m, members};
    const Part rooted = m == root ? whole : nothing;
    switch (kind) {
      case Exchange::Kind::kAllGather:
        e.from.push_back(part), e.to.push_back(whole);
        break;
      case Exchange::Kind::kReduceScatter:
        e.from.push_back(partial), e.to.push_back(part);
        break;
      case Exchange::Kind::kAllReduce:
        e.from.push_back(partial), e.to.push_back(whole);
        break;
      case Exchange::Kind::kBroadcast:
        e.from.push_back(rooted), e.to.push_back(whole);
        break;
      case Exchange::Kind::kReduce:
        e.from.push_back(partial), e.to.push_back(rooted);
        break;
      case Exchange::Kind::kGather:
        e.from.push_back(part), e.to.push_back(rooted);
        break;
      case Exchange::Kind::kScatter:
        e.from.push_back(rooted), e.to.push_back(part);
        break;
      case Exchange::Kind::kAllToAll:
      case Exchange::Kind::kBoxes:
        e.from.push_back(part);
        e.to.push_back({split(tensor, other, m, members), 0, 1});
        break;
    }
  }
  return e;
}

inline constexpr Exchange::Kind kKinds[] = {
    Exchange::Kind::kAllGather, Exchange::Kind::kReduceScatter, Exchange::Kind::kAllReduce,
    Exchange::Kind::kBroadcast, Exchange::Kind::kReduce,        Exchange::Kind::kGather,
    Exchange::Kind::kScatter,   Exchange::Kind::kAllToAll,      Exchange::Kind::kBoxes};

inline Tensor tensor_of(Shape shape, Format format) {
  Tensor t;
  t.name = "t";
  t.shape = shape;
  t.format = format;
  return t;
}

}  // namespace convnet
