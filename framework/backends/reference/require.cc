#include "framework/backends/reference/require.h"

#include <algorithm>

namespace convnet::reference {
namespace {

std::string range(int64_t lo, int64_t hi) { return std::to_string(lo) + ":" + std::to_string(hi); }

std::string quoted(std::string_view name) { return "'" + std::string(name) + "'"; }

}  // namespace

Require::Require(const Binding& binding) : instr_(binding.instr) {
  const OpInfo& op = op_info(instr_.op);
  const auto count = [&](size_t n, int least, int most, const char* what) {
    const auto have = static_cast<int64_t>(n);
    that(have >= least && (most < 0 || have <= most),
         "has " + std::to_string(have) + " " + what + ", takes " + std::to_string(least) +
             (most < 0       ? " or more"
              : most > least ? " to " + std::to_string(most)
                             : ""));
  };
  count(binding.in.size(), op.in_min, op.in_max, "operands");
  count(binding.out.size(), op.out_min, op.out_max, "results");
}

void Require::that(bool condition, std::string_view otherwise) {
  if (ok() && !condition)
    status_ =
        Status(Code::kUsage, std::string(op_info(instr_.op).text) + ": " + std::string(otherwise));
}

void Require::placed(const View& view, std::string_view name, DType dtype) {
  if (!ok()) return;
  const std::string n(name);
  that(view.dtype == dtype,
       n + " is " + dtype_name(view.dtype) + ", " + dtype_name(dtype) + " is needed");
  const int rank = view.shape.rank();
  that(view.stored.rank() == rank && view.box.rank() == rank,
       n + " has boxes of another rank than its tensor " + view.shape.str());
  if (!ok()) return;
  that(Box(view.shape).contains(view.stored),
       n + " stores " + view.stored.str() + ", beyond its tensor " + view.shape.str());
  that(view.stored.contains(view.box),
       n + " reads or writes " + view.box.str() + ", but only " + view.stored.str() + " is stored");
  that(view.data != nullptr || view.box.empty(), n + " has no memory");
  if (view.format == Format::kBlocked && rank > 0)
    that(view.stored.lo(0) % kLanes == 0, n + " is stored from example " +
                                              std::to_string(view.stored.lo(0)) +
                                              ", not from a multiple of " + std::to_string(kLanes));
}

void Require::activation(const View& view, std::string_view name, DType dtype) {
  placed(view, name, dtype);
  that(view.format == Format::kBlocked, std::string(name) + " is not blocked");
  that(view.shape.rank() == 4,
       std::string(name) + " is " + view.shape.str() + ", not [N, C, H, W]");
}

void Require::parameter(const View& view, std::string_view name, DType dtype, int rank) {
  placed(view, name, dtype);
  that(view.format == Format::kPlain, std::string(name) + " is not plain");
  that(view.shape.rank() == rank,
       std::string(name) + " is " + view.shape.str() + ", not of rank " + std::to_string(rank));
}

void Require::elementwise(const View& view, std::string_view name, DType dtype) {
  placed(view, name, dtype);
  that(view.shape.rank() >= 1 && view.shape.rank() <= 4,
       std::string(name) + " is " + view.shape.str() + ", not of rank 1 to 4");
}

void Require::label(const View& view) {
  placed(view, "label", DType::kI32);
  that(view.format == Format::kBlocked, "label is not blocked");
  that(view.shape.rank() == 1, "label is " + view.shape.str() + ", not [N]");
}

void Require::metrics(const View& view, int64_t count) {
  placed(view, "metrics", DType::kF64);
  that(view.format == Format::kPlain, "metrics is not plain");
  that(view.shape == Shape{count} && view.box == Box(view.shape),
       "metrics is " + view.box.str() + " of " + view.shape.str() + ", not all of [" +
           std::to_string(count) + "]");
}

void Require::covers(const View& view, std::string_view name, int dim, int64_t lo, int64_t hi) {
  if (!ok() || lo >= hi) return;
  that(view.box.lo(dim) <= lo && view.box.hi(dim) >= hi,
       std::string(name) + " is " + view.box.str() + ", which lacks some of " + range(lo, hi) +
           " in dimension " + std::to_string(dim));
}

void Require::covers(const View& view, std::string_view name, const View& other) {
  if (!ok()) return;
  that(view.box.rank() == other.box.rank() && view.box.contains(other.box),
       std::string(name) + " is " + view.box.str() + ", which does not cover " + other.box.str());
}

void Require::same_shape(const View& a, std::string_view a_name, const View& b,
                         std::string_view b_name) {
  that(a.shape == b.shape, std::string(a_name) + " is " + a.shape.str() + ", but " +
                               std::string(b_name) + " is " + b.shape.str());
}

const Attrs::Value* Require::attr(std::string_view name) {
  if (!ok()) return nullptr;
  const Attrs::Value* value = instr_.attrs.find(name);
  that(value != nullptr, "attribute " + quoted(name) + " is missing");
  return value;
}

int64_t Require::integer(std::string_view name, int64_t least) {
  const Attrs::Value* value = attr(name);
  if (value == nullptr) return least;
  const auto* number = std::get_if<int64_t>(value);
  that(number != nullptr && *number >= least,
       "attribute " + quoted(name) + " is not an integer of at least " + std::to_string(least));
  return ok() ? *number : least;
}

double Require::real(std::string_view name) {
  const Attrs::Value* value = attr(name);
  if (value == nullptr) return 0;
  that(std::holds_alternative<double>(*value) || std::holds_alternative<int64_t>(*value),
       "attribute " + quoted(name) + " is not a number");
  return ok() ? instr_.attrs.real(name) : 0;
}

double Require::real_or(std::string_view name, double absent) {
  return instr_.attrs.has(name) ? real(name) : absent;
}

std::vector<int64_t> Require::list(std::string_view name) {
  const Attrs::Value* value = attr(name);
  if (value == nullptr) return {};
  const auto* items = std::get_if<std::vector<int64_t>>(value);
  that(items != nullptr, "attribute " + quoted(name) + " is not a list");
  return ok() ? *items : std::vector<int64_t>{};
}

std::array<int64_t, 2> Require::pair(std::string_view name, int64_t least) {
  const std::vector<int64_t> items = list(name);
  that(items.size() == 2 && *std::min_element(items.begin(), items.end()) >= least,
       "attribute " + quoted(name) + " is not two numbers of at least " + std::to_string(least));
  if (!ok()) return {least, least};
  return {items[0], items[1]};
}

std::vector<int64_t> Require::cuts(const Box& box) {
  return attr("cuts") == nullptr ? std::vector<int64_t>{} : cuts("cuts", box, 0);
}

std::vector<int64_t> Require::cuts(std::string_view name, const Box& box, int dim) {
  if (!ok()) return {};
  if (instr_.attrs.find(std::string(name)) == nullptr) return {box.lo(dim), box.hi(dim)};
  const std::vector<int64_t> items = list(name);
  that(items.size() >= 2 && std::is_sorted(items.begin(), items.end()) &&
           items.front() == box.lo(dim) && items.back() == box.hi(dim),
       "attribute " + quoted(name) + " does not go from " + std::to_string(box.lo(dim)) +
           " up to " + std::to_string(box.hi(dim)) + ", what is summed");
  return items;
}

}  // namespace convnet::reference
