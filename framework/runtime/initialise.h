// First values of parameters and state: what a tensor's attributes say, drawn by Philox from the
// seed, the tensor's name and the element's index. No number depends on devices or on what was
// drawn before.
#pragma once

#include <cstdint>

#include "framework/backends/backend.h"
#include "framework/base/status.h"
#include "framework/plan/plan.h"

namespace convnet {

class Initialiser {
 public:
  // kUsage if the attributes name no distribution: init=constant value | normal mean std | uniform
  // lo hi; zero without an init.
  static Result<Initialiser> create(const Tensor& tensor, uint64_t seed);

  // Value of the element with this row-major index; an f32 tensor holds it rounded once.
  double value(int64_t index) const;

  // Fills a plain buffer of the tensor, by rows of its innermost dimension: rows lo .. hi-1 of
  // rows().
  static int64_t rows(const View& view);
  void fill(const View& view, int64_t lo, int64_t hi) const;

 private:
  enum class Kind { kConstant, kNormal, kUniform };
  Kind kind_ = Kind::kConstant;
  double a_ = 0, b_ = 0;  // value; mean, std; lo, hi
  std::array<uint32_t, 2> key_{};
};

}  // namespace convnet
