// CHECK: for invariants that only a programmer can break. Prints the condition and the place, then
// aborts. Never for input of any kind.
#pragma once

namespace convnet {
[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               const char* message);
}  // namespace convnet

#define CHECK(cond)                               \
  (static_cast<bool>(cond) ? static_cast<void>(0) \
                           : ::convnet::check_failed(#cond, __FILE__, __LINE__, ""))
// With a message: CHECK_MSG(ok, text), text a const char* or std::string.
#define CHECK_MSG(cond, message) \
  (static_cast<bool>(cond)       \
       ? static_cast<void>(0)    \
       : ::convnet::check_failed(#cond, __FILE__, __LINE__, ::convnet::check_text(message)))

#include <string>
namespace convnet {
inline const char* check_text(const char* s) { return s; }
inline const char* check_text(const std::string& s) { return s.c_str(); }
}  // namespace convnet
