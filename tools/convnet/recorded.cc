#include "tools/convnet/recorded.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace convnet::cli {

double load(DType dtype, const void* at) {
  switch (dtype) {
    case DType::kF32: {
      float value;
      std::memcpy(&value, at, sizeof value);
      return value;
    }
    case DType::kF64: {
      double value;
      std::memcpy(&value, at, sizeof value);
      return value;
    }
    case DType::kI32: {
      int32_t value;
      std::memcpy(&value, at, sizeof value);
      return value;
    }
  }
  return 0;
}

int64_t stored_index(const View& view, const std::vector<int64_t>& index) {
  int64_t inner = 0, inner_count = 1;
  const int first = view.format == Format::kBlocked ? 1 : 0;
  for (int i = first; i < view.stored.rank(); ++i) {
    inner = inner * view.stored.extent(i) + index[static_cast<size_t>(i)] - view.stored.lo(i);
    inner_count *= view.stored.extent(i);
  }
  if (view.format == Format::kPlain) return inner;
  const int64_t example = index[0] - view.stored.lo(0);
  return ((example / kLanes) * inner_count + inner) * kLanes + example % kLanes;
}

double Recorded::norm() const {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += std::pow(load(dtype, at(i)), 2);
  return std::sqrt(sum);
}

double Recorded::largest() const {
  double value = 0;
  for (int64_t i = 0; i < count; ++i) value = std::max(value, std::abs(load(dtype, at(i))));
  return value;
}

void record(const View& view, Recorded& into) {
  if (into.bytes.empty()) {
    into.dtype = view.dtype;
    into.count = view.shape.count();
    into.bytes.resize(static_cast<size_t>(into.count * dtype_size(view.dtype)));
  }
  const int64_t size = dtype_size(view.dtype);
  const char* data = static_cast<const char*>(view.data);
  for_each_element(view, [&](const std::vector<int64_t>&, int64_t stored, int64_t logical) {
    std::memcpy(into.bytes.data() + logical * size, data + stored * size,
                static_cast<size_t>(size));
  });
}

const Tensor& tensor_of(const Plan& plan, int device, const Operand& operand) {
  const DevicePlan& d = plan.devices[static_cast<size_t>(device)];
  const Buffer& buffer = d.buffers[static_cast<size_t>(operand.buffer)];
  return plan.tensors[static_cast<size_t>(buffer.tensor)];
}

const Part& part_of(const Plan& plan, int device, const Operand& operand) {
  return plan.devices[static_cast<size_t>(device)]
      .buffers[static_cast<size_t>(operand.buffer)]
      .part;
}

}  // namespace convnet::cli
