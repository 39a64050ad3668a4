#include "framework/runtime/initialise.h"

#include "framework/base/random.h"

namespace convnet {
namespace {

// Row-major index, in the logical tensor, of the first element of a row of the stored box.
int64_t first_index(const View& view, int64_t row) {
  const int rank = view.stored.rank();
  if (rank == 0) return 0;
  int64_t at[kMaxRank] = {};
  for (int d = rank - 2; d >= 0; --d) {
    at[d] = row % view.stored.extent(d);
    row /= view.stored.extent(d);
  }
  int64_t index = 0;
  for (int d = 0; d < rank; ++d) index = index * view.shape[d] + view.stored.lo(d) + at[d];
  return index;
}

int64_t row_length(const View& view) {
  return view.stored.rank() == 0 ? 1 : view.stored.extent(view.stored.rank() - 1);
}

}  // namespace

Result<Initialiser> Initialiser::create(const Tensor& tensor, uint64_t seed) {
  Initialiser init;
  init.key_ = random_key(seed, name_key(tensor.name));
  if (!tensor.attrs.has("init")) return init;
  const std::string& kind = tensor.attrs.word("init");
  const auto read = [&](const char* a, const char* b) {
    init.a_ = tensor.attrs.real(a);
    if (b != nullptr) init.b_ = tensor.attrs.real(b);
  };
  if (kind == "constant") {
    read("value", nullptr);
  } else if (kind == "normal") {
    init.kind_ = Kind::kNormal;
    read("mean", "std");
  } else if (kind == "uniform") {
    init.kind_ = Kind::kUniform;
    read("lo", "hi");
  } else {
    return Status(Code::kUsage, "'" + tensor.name + "' has init=" + kind +
                                    ", which is none of constant, normal, uniform");
  }
  return init;
}

double Initialiser::value(int64_t index) const {
  switch (kind_) {
    case Kind::kConstant:
      return a_;
    case Kind::kNormal:
      return a_ + b_ * random_normal(key_, static_cast<uint64_t>(index));
    case Kind::kUniform:
      return a_ + (b_ - a_) * random_uniform(key_, static_cast<uint64_t>(index));
  }
  return 0;
}

int64_t Initialiser::rows(const View& view) {
  return view.stored.empty() ? 0 : view.stored.count() / row_length(view);
}

void Initialiser::fill(const View& view, int64_t lo, int64_t hi) const {
  const int64_t length = row_length(view);
  for (int64_t row = lo; row < hi; ++row) {
    const int64_t first = first_index(view, row);
    for (int64_t i = 0; i < length; ++i) {
      const double v = value(first + i);
      switch (view.dtype) {
        case DType::kF32:
          static_cast<float*>(view.data)[row * length + i] = static_cast<float>(v);
          break;
        case DType::kF64:
          static_cast<double*>(view.data)[row * length + i] = v;
          break;
        case DType::kI32:
          static_cast<int32_t*>(view.data)[row * length + i] = static_cast<int32_t>(v);
          break;
      }
    }
  }
}

}  // namespace convnet
