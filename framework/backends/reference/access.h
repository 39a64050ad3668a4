// How the reference kernels see memory: elements by their logical indices, whatever the buffer
// holds.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "framework/backends/backend.h"

namespace convnet::reference {

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kF64;
};

// A view of rank 1 to 4; dimensions that it lacks have the one index 0.
template <typename T>
class Access {
 public:
  Access() = default;
  explicit Access(const View& view) : data_(static_cast<T*>(view.data)) {
    const int rank = view.stored.rank();
    int64_t stride = 1;
    if (view.format == Format::kBlocked) {
      shift_ = 4;
      mask_ = kLanes - 1;
      stride = kLanes;
    }
    for (int i = 3; i >= 0; --i) {
      const auto d = static_cast<size_t>(i);
      if (i >= rank) continue;
      lo_[d] = view.box.lo(i);
      hi_[d] = view.box.hi(i);
      origin_[d] = view.stored.lo(i);
      stride_[d] = stride;  // of a whole block of examples for dimension 0 of a blocked view
      stride *= view.stored.extent(i);
    }
  }

  // The element at logical indices, which must lie inside the view's box.
  T& operator()(int64_t a, int64_t b = 0, int64_t c = 0, int64_t d = 0) const {
    a -= origin_[0];
    return data_[(a >> shift_) * stride_[0] + (a & mask_) + (b - origin_[1]) * stride_[1] +
                 (c - origin_[2]) * stride_[2] + (d - origin_[3]) * stride_[3]];
  }

  // The box.
  int64_t lo(size_t dim) const { return lo_[dim]; }
  int64_t hi(size_t dim) const { return hi_[dim]; }
  bool has(size_t dim, int64_t index) const { return index >= lo_[dim] && index < hi_[dim]; }

  // Calls f(a, b, c, d) for every element of the box, in row-major order.
  template <typename F>
  void for_each(F&& f) const {
    for (int64_t a = lo_[0]; a < hi_[0]; ++a)
      for (int64_t b = lo_[1]; b < hi_[1]; ++b)
        for (int64_t c = lo_[2]; c < hi_[2]; ++c)
          for (int64_t d = lo_[3]; d < hi_[3]; ++d) f(a, b, c, d);
  }

 private:
  T* data_ = nullptr;
  int shift_ = 0;  // blocked: example n is lane n & 15 of block n >> 4
  int64_t mask_ = 0;
  std::array<int64_t, 4> lo_{0, 0, 0, 0}, hi_{1, 1, 1, 1}, origin_{}, stride_{};
};

// A kernel that runs a function object.
template <typename F>
std::unique_ptr<Kernel> loop_kernel(F f) {
  class LoopKernel final : public Kernel {
   public:
    explicit LoopKernel(F body) : body_(std::move(body)) {}
    void run() override { body_(); }

   private:
    F body_;
  };
  return std::make_unique<LoopKernel>(std::move(f));
}

}  // namespace convnet::reference
