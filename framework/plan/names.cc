#include "framework/plan/names.h"

#include <array>
#include <cstddef>

namespace convnet {
namespace {

// In the order of the enumerators.
constexpr std::array kTensorKinds = {"input", "activation", "parameter",
                                     "state", "gradient",   "metric"};
constexpr std::array kFormats = {"plain", "blocked"};
constexpr std::array kRegions = {"input", "state", "arena"};
constexpr std::array kPhases = {"train", "test"};
constexpr std::array kDTypes = {"f32", "f64", "i32"};
constexpr std::array kExchangeKinds = {"boxes",      "all_gather", "reduce_scatter",
                                       "all_reduce", "broadcast",  "reduce",
                                       "gather",     "scatter",    "all_to_all"};
constexpr std::array kStreams = {"compute", "comm"};
constexpr std::array kExchangeOrders = {"none", "tree", "rank"};

template <typename E, size_t N>
const char* name_of(const std::array<const char*, N>& names, E value) {
  const auto i = static_cast<size_t>(value);
  return i < N ? names[i] : "?";
}

template <typename E, size_t N>
std::optional<E> find(const std::array<const char*, N>& names, std::string_view word) {
  for (size_t i = 0; i < N; ++i)
    if (word == names[i]) return static_cast<E>(i);
  return std::nullopt;
}

}  // namespace

const char* tensor_kind_name(TensorKind kind) { return name_of(kTensorKinds, kind); }
const char* format_name(Format format) { return name_of(kFormats, format); }
const char* region_name(Buffer::Region region) { return name_of(kRegions, region); }
const char* phase_name(Plan::Phase phase) { return name_of(kPhases, phase); }
const char* stream_name(Stream stream) { return name_of(kStreams, stream); }
const char* exchange_kind_name(Exchange::Kind kind) { return name_of(kExchangeKinds, kind); }
const char* exchange_order_name(Exchange::Order order) { return name_of(kExchangeOrders, order); }

std::optional<TensorKind> find_tensor_kind(std::string_view word) {
  return find<TensorKind>(kTensorKinds, word);
}
std::optional<Format> find_format(std::string_view word) { return find<Format>(kFormats, word); }
std::optional<Buffer::Region> find_region(std::string_view word) {
  return find<Buffer::Region>(kRegions, word);
}
std::optional<Plan::Phase> find_phase(std::string_view word) {
  return find<Plan::Phase>(kPhases, word);
}
std::optional<DType> find_dtype(std::string_view word) { return find<DType>(kDTypes, word); }
std::optional<Exchange::Kind> find_exchange_kind(std::string_view word) {
  return find<Exchange::Kind>(kExchangeKinds, word);
}
std::optional<Exchange::Order> find_exchange_order(std::string_view word) {
  return find<Exchange::Order>(kExchangeOrders, word);
}

}  // namespace convnet
