#include "framework/plan/rows.h"

#include <algorithm>

namespace convnet {
namespace {

bool replace_boxes(std::vector<Part>* parts, const RowMap& from, const RowMap& to) {
  for (Part& part : *parts) {
    if (part.box.empty()) continue;
    std::optional<Box> box = map_box(part.box, from, to);
    if (!box) return false;
    part.box = *box;
  }
  return true;
}

}  // namespace

RowMap::RowMap(const std::vector<int64_t>& rows) {
  int64_t row = 0;
  for (size_t i = 0; i + 1 < rows.size(); i += 2) {
    const int64_t lo = rows[i], count = rows[i + 1] - lo;
    const bool goes_on =
        !segments_.empty() && segments_.back().example + segments_.back().count == lo;
    if (goes_on)
      segments_.back().count += count;
    else
      segments_.push_back({row, lo, count});
    row += count;
  }
}

int64_t RowMap::example(int64_t row) const {
  for (const Segment& s : segments_)
    if (row < s.row + s.count) return s.example + (row - s.row);
  return row;
}

std::vector<RowMap::Segment> RowMap::segments(int64_t lo, int64_t hi) const {
  std::vector<Segment> parts;
  if (lo >= hi) return parts;
  if (is_identity()) return {{lo, lo, hi - lo}};
  for (const Segment& s : segments_) {
    const int64_t first = std::max(lo, s.row), last = std::min(hi, s.row + s.count);
    if (first < last) parts.push_back({first, s.example + (first - s.row), last - first});
  }
  return parts;
}

std::vector<int64_t> rows_of(const Tensor& tensor) {
  const Attrs::Value* value = tensor.attrs.find("rows");
  const auto* rows = value == nullptr ? nullptr : std::get_if<std::vector<int64_t>>(value);
  return rows == nullptr ? std::vector<int64_t>() : *rows;
}

RowMap row_map(const Tensor& tensor) { return RowMap(rows_of(tensor)); }

int64_t row_count(const std::vector<int64_t>& rows, int64_t batch) {
  if (rows.empty()) return batch;
  int64_t count = 0;
  for (size_t i = 0; i + 1 < rows.size(); i += 2) count += rows[i + 1] - rows[i];
  return count;
}

std::string rows_fault(const std::vector<int64_t>& rows, int64_t count, int64_t batch) {
  const auto number = [](int64_t n) { return std::to_string(n); };
  if (rows.empty() || rows.size() % 2 != 0)
    return "has " + std::to_string(rows.size()) + " boundaries, must have pairs";
  int64_t end = 0;
  for (size_t i = 0; i < rows.size(); i += 2) {
    const int64_t lo = rows[i], hi = rows[i + 1];
    const std::string segment = "has the segment " + number(lo) + ":" + number(hi);
    if (lo < end) return segment + " after " + number(end) + ", segments must rise";
    if (lo >= hi) return segment + ", which is empty";
    if (hi > batch) return segment + ", the batch is " + number(batch);
    if (lo % kLanes != 0 || (hi % kLanes != 0 && hi != batch))
      return segment + ", which is not whole blocks of " + number(kLanes) + " examples";
    end = hi;
  }
  const int64_t have = row_count(rows, batch);
  return have == count ? ""
                       : "stands for " + number(have) + " examples, the tensor has " +
                             number(count) + " rows";
}

std::vector<RowRun> common_rows(const RowMap& from, int64_t lo, int64_t hi, const RowMap& to) {
  std::vector<RowRun> runs;
  const auto add = [&](const RowRun& run) {
    if (!runs.empty()) {
      RowRun& last = runs.back();
      if (last.from + last.count == run.from && last.to + last.count == run.to) {
        last.count += run.count;
        return;
      }
    }
    runs.push_back(run);
  };
  for (const RowMap::Segment& have : from.segments(lo, hi)) {
    if (to.is_identity()) {
      add({have.row, have.example, have.count});
      continue;
    }
    // Examples rise with the rows in both.
    for (const RowMap::Segment& want : to.segments(0, INT64_MAX)) {
      const int64_t first = std::max(have.example, want.example);
      const int64_t last = std::min(have.example + have.count, want.example + want.count);
      if (first < last)
        add({have.row + (first - have.example), want.row + (first - want.example), last - first});
    }
  }
  return runs;
}

std::optional<Box> map_box(const Box& box, const RowMap& from, const RowMap& to) {
  if (from == to || box.rank() == 0) return box;
  const std::vector<RowRun> runs = common_rows(from, box.lo(0), box.hi(0), to);
  if (runs.size() > 1) return std::nullopt;
  Box mapped = box;
  if (runs.empty())
    mapped.set(0, 0, 0);
  else
    mapped.set(0, runs[0].to, runs[0].to + runs[0].count);
  return mapped;
}

bool judged_by_receiver(const Tensor& tensor, const Tensor& into) {
  return into.shape[0] <= tensor.shape[0];
}

std::optional<Exchange> in_common_rows(const Exchange& exchange, const Tensor& tensor,
                                       const Tensor& into) {
  const RowMap from = row_map(tensor), to = row_map(into);
  Exchange e = exchange;
  if (from == to) return e;
  if (judged_by_receiver(tensor, into) ? replace_boxes(&e.from, from, to)
                                       : replace_boxes(&e.to, to, from))
    return e;
  return std::nullopt;
}

}  // namespace convnet
