#include "framework/plan/attrs.h"

#include "framework/base/check.h"

namespace convnet {
namespace {

const Attrs::Value& must_find(const Attrs& attrs, std::string_view name) {
  const Attrs::Value* v = attrs.find(name);
  CHECK_MSG(v != nullptr, "no attribute '" + std::string(name) + "'");
  return *v;
}

template <typename T>
const T& must_get(const Attrs& attrs, std::string_view name) {
  const T* v = std::get_if<T>(&must_find(attrs, name));
  CHECK_MSG(v != nullptr, "attribute '" + std::string(name) + "' is of another kind");
  return *v;
}

}  // namespace

Attrs& Attrs::set(std::string name, Value value) {
  for (auto& [n, v] : all_)
    if (n == name) {
      v = std::move(value);
      return *this;
    }
  all_.emplace_back(std::move(name), std::move(value));
  return *this;
}

const Attrs::Value* Attrs::find(std::string_view name) const {
  for (const auto& [n, v] : all_)
    if (n == name) return &v;
  return nullptr;
}

int64_t Attrs::integer(std::string_view name) const { return must_get<int64_t>(*this, name); }

double Attrs::real(std::string_view name) const {
  if (const auto* i = std::get_if<int64_t>(&must_find(*this, name))) return static_cast<double>(*i);
  return must_get<double>(*this, name);
}

const std::string& Attrs::word(std::string_view name) const {
  return must_get<std::string>(*this, name);
}

const std::vector<int64_t>& Attrs::list(std::string_view name) const {
  return must_get<std::vector<int64_t>>(*this, name);
}

}  // namespace convnet
