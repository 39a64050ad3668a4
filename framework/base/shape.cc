#include "framework/base/shape.h"

#include <algorithm>

namespace convnet {

std::optional<int64_t> checked_mul(int64_t a, int64_t b) {
  int64_t product;
  if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

Shape::Shape(std::initializer_list<int64_t> dims) {
  for (int64_t d : dims) append(d);
}

std::optional<int64_t> Shape::checked_count() const {
  int64_t n = 1;
  for (int i = 0; i < rank_; ++i) {
    const auto next = checked_mul(n, (*this)[i]);
    if (!next) return std::nullopt;
    n = *next;
  }
  return n;
}

int64_t Shape::count() const {
  const auto n = checked_count();
  CHECK(n.has_value());
  return *n;
}

bool Shape::operator==(const Shape& other) const {
  if (rank_ != other.rank_) return false;
  for (int i = 0; i < rank_; ++i)
    if ((*this)[i] != other[i]) return false;
  return true;
}

std::string Shape::str() const {
  std::string s = "[";
  for (int i = 0; i < rank_; ++i) s += (i ? ", " : "") + std::to_string((*this)[i]);
  return s + "]";
}

Box::Box(const Shape& whole) {
  for (int i = 0; i < whole.rank(); ++i) append(0, whole[i]);
}

bool Box::empty() const {
  for (int i = 0; i < rank_; ++i)
    if (hi(i) <= lo(i)) return true;
  return false;
}

int64_t Box::count() const { return empty() ? 0 : shape().count(); }

Shape Box::shape() const {
  Shape s;
  for (int i = 0; i < rank_; ++i) s.append(std::max<int64_t>(0, extent(i)));
  return s;
}

bool Box::contains(const Box& other) const {
  CHECK(rank_ == other.rank_);
  if (other.empty()) return true;
  for (int i = 0; i < rank_; ++i)
    if (other.lo(i) < lo(i) || other.hi(i) > hi(i)) return false;
  return true;
}

bool Box::operator==(const Box& other) const {
  if (rank_ != other.rank_) return false;
  for (int i = 0; i < rank_; ++i)
    if (lo(i) != other.lo(i) || hi(i) != other.hi(i)) return false;
  return true;
}

std::string Box::str() const {
  std::string s = "[";
  for (int i = 0; i < rank_; ++i)
    s += (i ? "," : "") + std::to_string(lo(i)) + ":" + std::to_string(hi(i));
  return s + "]";
}

Box intersect(const Box& a, const Box& b) {
  CHECK(a.rank() == b.rank());
  Box r;
  for (int i = 0; i < a.rank(); ++i) {
    const int64_t lo = std::max(a.lo(i), b.lo(i));
    r.append(lo, std::max(lo, std::min(a.hi(i), b.hi(i))));
  }
  return r;
}

int64_t dtype_size(DType dtype) { return dtype == DType::kF64 ? 8 : 4; }

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF64:
      return "f64";
    case DType::kI32:
      return "i32";
  }
  return "?";
}

int64_t stored_count(Format format, const Box& box) {
  if (box.empty()) return 0;
  if (format == Format::kPlain) return box.count();
  const int64_t n = box.extent(0);
  return box.count() / n * ((n + kLanes - 1) / kLanes * kLanes);
}

}  // namespace convnet
