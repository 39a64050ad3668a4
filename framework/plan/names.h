// The words for the plan's enumerations, as its text form writes them.
#pragma once

#include <optional>
#include <string_view>

#include "framework/plan/plan.h"

namespace convnet {

const char* tensor_kind_name(TensorKind kind);   // "parameter"
const char* format_name(Format format);          // "blocked"
const char* region_name(Buffer::Region region);  // "arena"
const char* phase_name(Plan::Phase phase);       // "train"

// The other way; nothing if there is no such word.
std::optional<TensorKind> find_tensor_kind(std::string_view word);
std::optional<Format> find_format(std::string_view word);
std::optional<Buffer::Region> find_region(std::string_view word);
std::optional<Plan::Phase> find_phase(std::string_view word);
std::optional<DType> find_dtype(std::string_view word);
std::optional<Exchange::Kind> find_exchange_kind(std::string_view word);
std::optional<Exchange::Order> find_exchange_order(std::string_view word);

}  // namespace convnet
