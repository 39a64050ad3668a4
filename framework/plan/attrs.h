// Attributes of an instruction or tensor: an ordered list of name = value, value an integer, a
// real, a word or a list of integers. Small and generic, so that plans print and parse without a
// schema; a kernel reads its attributes once, when it is bound.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace convnet {

class Attrs {
 public:
  using Value = std::variant<int64_t, double, std::string, std::vector<int64_t>>;

  Attrs& set(std::string name, Value value);  // replaces; returns *this for chaining
  // Numbers of any type: without this, a double would be cut to an integer on its way into Value.
  template <typename T>
  requires std::is_arithmetic_v<T> Attrs& set(std::string name, T value) {
    using Stored = std::conditional_t<std::is_integral_v<T>, int64_t, double>;
    return set(std::move(name), Value(static_cast<Stored>(value)));
  }
  bool has(std::string_view name) const { return find(name) != nullptr; }
  const Value* find(std::string_view name) const;

  // The value; CHECKs that it is there and of the kind asked for (verify_plan has made sure).
  int64_t integer(std::string_view name) const;
  double real(std::string_view name) const;  // an integer is taken as a real
  const std::string& word(std::string_view name) const;
  const std::vector<int64_t>& list(std::string_view name) const;

  const std::vector<std::pair<std::string, Value>>& all() const { return all_; }
  bool operator==(const Attrs&) const = default;

 private:
  std::vector<std::pair<std::string, Value>> all_;
};

}  // namespace convnet
