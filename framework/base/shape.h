// Shapes and boxes of logical tensors, with checked sizes. A Box is a hyper-rectangle of a tensor:
// every question about which device holds, needs or sends what is answered with boxes.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "framework/base/check.h"

namespace convnet {

inline constexpr int kMaxRank = 6;

// a * b, or nothing if it does not fit in 63 bits. All sizes are non-negative.
std::optional<int64_t> checked_mul(int64_t a, int64_t b);

// Extents of a logical tensor: activations [N, C, H, W], filters [K, C, R, S], biases [K].
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims);

  int rank() const { return rank_; }
  int64_t operator[](int i) const {
    CHECK(i >= 0 && i < rank_);
    return dims_[static_cast<size_t>(i)];
  }
  void set(int i, int64_t extent) {
    CHECK(i >= 0 && i < rank_);
    dims_[static_cast<size_t>(i)] = extent;
  }
  void append(int64_t extent) {
    CHECK(rank_ < kMaxRank);
    dims_[static_cast<size_t>(rank_++)] = extent;
  }
  // Number of elements; nothing if the product overflows. Rank 0 has one element.
  std::optional<int64_t> checked_count() const;
  // The same for shapes that were checked when they were made.
  int64_t count() const;

  bool operator==(const Shape& other) const;
  std::string str() const;  // "[128, 64, 27, 27]"

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

// Half-open ranges [lo, hi) per dimension.
class Box {
 public:
  Box() = default;
  explicit Box(const Shape& whole);  // all of it

  int rank() const { return rank_; }
  int64_t lo(int i) const { return lo_[index(i)]; }
  int64_t hi(int i) const { return hi_[index(i)]; }
  int64_t extent(int i) const { return hi(i) - lo(i); }
  void set(int i, int64_t lo, int64_t hi) {
    lo_[index(i)] = lo;
    hi_[index(i)] = hi;
  }
  void append(int64_t lo, int64_t hi) {
    CHECK(rank_ < kMaxRank);
    lo_[static_cast<size_t>(rank_)] = lo;
    hi_[static_cast<size_t>(rank_++)] = hi;
  }

  bool empty() const;     // some extent is 0
  int64_t count() const;  // elements, 0 if empty
  Shape shape() const;    // the extents
  bool contains(const Box& other) const;
  bool operator==(const Box& other) const;
  std::string str() const;  // "[0:64,0:3,0:224,0:224]"

 private:
  size_t index(int i) const {
    CHECK(i >= 0 && i < rank_);
    return static_cast<size_t>(i);
  }
  std::array<int64_t, kMaxRank> lo_{}, hi_{};
  int rank_ = 0;
};

// Common part; empty (extent 0 somewhere) if there is none. Same rank required.
Box intersect(const Box& a, const Box& b);

// What one device holds of a logical tensor: a box, and which of `of` partial sums it carries
// (of == 1: complete values).
struct Part {
  Box box;
  int k = 0;
  int of = 1;
  bool operator==(const Part& other) const = default;
};

enum class DType { kF32, kF64, kI32 };
int64_t dtype_size(DType dtype);
const char* dtype_name(DType dtype);  // "f32"

// How a buffer stores its box.
//   kPlain:   row-major over the box.
//   kBlocked: activations, [ceil(N/16)][C][H][W][16]: sixteen examples side by side, examples
//             innermost; lanes past the last example hold zeros in the input and are masked by the
//             loss. The box begins at a multiple of 16 examples. Labels, [N], are blocked too:
//             ceil(N/16)*16 entries, -1 past the last example.
enum class Format { kPlain, kBlocked };
inline constexpr int64_t kLanes = 16;

// Elements that a buffer of this format occupies for a box (padding lanes included).
int64_t stored_count(Format format, const Box& box);

}  // namespace convnet
