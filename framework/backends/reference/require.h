// Require: the preconditions of an instruction, checked when it is bound. The first failure is
// kept; after it every call does nothing and returns something harmless.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "framework/backends/backend.h"

namespace convnet::reference {

class Require {
 public:
  explicit Require(const Binding& binding);

  bool ok() const { return status_.ok(); }
  // The first failure, "conv.fwd: ...".
  const Status& status() const { return status_; }

  void that(bool condition, std::string_view otherwise);

  // Operands: dtype, format and rank, box inside what is stored, what is stored inside the tensor.
  void activation(const View& view, std::string_view name, DType dtype);  // blocked, rank 4
  void parameter(const View& view, std::string_view name, DType dtype, int rank);  // plain
  void elementwise(const View& view, std::string_view name,
                   DType dtype);                  // any format, rank 1 to 4
  void label(const View& view);                   // blocked i32 [N]
  void metrics(const View& view, int64_t count);  // plain f64 [count], all
  // The box of `view` covers [lo, hi) of dimension `dim`, unless that range is empty.
  void covers(const View& view, std::string_view name, int dim, int64_t lo, int64_t hi);
  // ... covers the whole box of `other`.
  void covers(const View& view, std::string_view name, const View& other);
  void same_shape(const View& a, std::string_view a_name, const View& b, std::string_view b_name);

  // Attributes; the number must be at least (at most) the given one.
  int64_t integer(std::string_view name, int64_t least);
  double real(std::string_view name);
  double real_or(std::string_view name, double absent);
  std::array<int64_t, 2> pair(std::string_view name, int64_t least);  // [vertical, horizontal]
  std::vector<int64_t> list(std::string_view name);
  // Boundaries of the canonical shards: ascending, from the first to the last example of `box`.
  std::vector<int64_t> cuts(const Box& box);
  // The same of another dimension that is summed; without the attribute all of the box is one
  // shard.
  std::vector<int64_t> cuts(std::string_view name, const Box& box, int dim);

 private:
  void placed(const View& view, std::string_view name, DType dtype);
  const Attrs::Value* attr(std::string_view name);

  const Instr& instr_;
  Status status_;
};

}  // namespace convnet::reference
