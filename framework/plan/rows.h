// Row maps: which examples of the batch the rows of a tensor stand for. A tensor with the attribute
// `rows` (a sub-batch) holds some whole blocks of the batch, numbered 0, 1, 2, ...; a tensor
// without it all of the batch in order. Boxes are always in a tensor's own row numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "framework/plan/plan.h"

namespace convnet {

class RowMap {
 public:
  RowMap() = default;  // every row stands for the example of its number
  // `rows`: [lo,hi,lo,hi,...], as the attribute; empty: as above. Sound (rows_fault).
  explicit RowMap(const std::vector<int64_t>& rows);

  bool is_identity() const { return segments_.empty(); }
  // The example that a row stands for.
  int64_t example(int64_t row) const;

  // Rows row .. row + count - 1 stand for the examples example, example + 1, ...
  struct Segment {
    int64_t row = 0, example = 0, count = 0;
    bool operator==(const Segment&) const = default;
  };
  // Rows lo .. hi-1, by rising row; neighbours that go on without a gap are one.
  std::vector<Segment> segments(int64_t lo, int64_t hi) const;

  bool operator==(const RowMap&) const = default;

 private:
  std::vector<Segment> segments_;  // empty: identity
};

// The attribute `rows` of a tensor; empty if it has none.
std::vector<int64_t> rows_of(const Tensor& tensor);
RowMap row_map(const Tensor& tensor);
// How many examples `rows` stand for, or the batch if there are none.
int64_t row_count(const std::vector<int64_t>& rows, int64_t batch);

// What is wrong with the attribute of a tensor of `count` rows in a plan of `batch` examples, or
// nothing: "has 3 boundaries, must have pairs".
std::string rows_fault(const std::vector<int64_t>& rows, int64_t count, int64_t batch);

// Rows of two tensors that stand for the same examples: `from` + i and `to` + i for i < count.
struct RowRun {
  int64_t from = 0, to = 0, count = 0;
  bool operator==(const RowRun&) const = default;
};
// The rows lo .. hi-1 of `from` that `to` has as well, in runs that go on in both, by rising
// example.
std::vector<RowRun> common_rows(const RowMap& from, int64_t lo, int64_t hi, const RowMap& to);

// A box of the tensor of `from` in the row numbers of `to`: the rows that it has as well. Empty if
// there are none; nothing if they are more than one run.
std::optional<Box> map_box(const Box& box, const RowMap& from, const RowMap& to);

// Whether an exchange of `tensor` into `into` is judged in the row numbers of `into`: those of the
// side with fewer rows count.
bool judged_by_receiver(const Tensor& tensor, const Tensor& into);

// The exchange with the boxes of both sides in those row numbers, in which its pattern, its bytes
// and what covers what are judged. Nothing if a box has no single image there.
std::optional<Exchange> in_common_rows(const Exchange& exchange, const Tensor& tensor,
                                       const Tensor& into);

}  // namespace convnet
