// Status and Result: how the framework reports errors of the world (a disk, a peer, a damaged
// file). Mistakes in a user's model file go through Diagnostics (diagnostics.h); broken invariants
// through CHECK (check.h). No exception crosses a function of the framework.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "framework/base/check.h"

namespace convnet {

// The values are the program's exit codes.
enum class Code : int {
  kOk = 0,
  kCheckFailed = 1,  // a check or test ran and failed
  kUsage = 2,
  kModel = 3,       // model file
  kData = 4,        // data set
  kCheckpoint = 5,  // weights or checkpoint
  kIo = 6,          // input/output of the system
  kBusy = 7,        // the run directory is in use
  kLimit = 8,       // a size, memory or count limit
  kNotFinite = 9,   // NaN or infinity in loss or parameters
  kPeer = 10,       // a peer or device was lost
};

// "data set", "model file", ...: the words an error line starts with.
std::string_view code_name(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

  // The same error with "context: " before its message; an ok status stays ok.
  Status with_context(std::string_view context) const;

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

// A value or an error, never both.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) { CHECK(!status_.ok()); }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& operator*() & {
    CHECK(ok());
    return *value_;
  }
  const T& operator*() const& {
    CHECK(ok());
    return *value_;
  }
  T&& operator*() && {
    CHECK(ok());
    return std::move(*value_);
  }
  T* operator->() { return &**this; }
  const T* operator->() const { return &**this; }

 private:
  std::optional<T> value_;
  Status status_;
};

// Status of the last failed system call: "cannot ACTION PATH: strerror(errno)".
Status io_error(std::string_view action, std::string_view path);

#define CONVNET_RETURN_IF_ERROR(expr)                          \
  do {                                                         \
    if (::convnet::Status st_ = (expr); !st_.ok()) return st_; \
  } while (0)

#define CONVNET_CONCAT_INNER_(a, b) a##b
#define CONVNET_CONCAT_(a, b) CONVNET_CONCAT_INNER_(a, b)
// Declares or assigns `lhs` from a Result, or returns its error.
#define CONVNET_ASSIGN_OR_RETURN(lhs, expr)             \
  auto CONVNET_CONCAT_(result_, __LINE__) = (expr);     \
  if (!CONVNET_CONCAT_(result_, __LINE__).ok())         \
    return CONVNET_CONCAT_(result_, __LINE__).status(); \
  lhs = *std::move(CONVNET_CONCAT_(result_, __LINE__))

}  // namespace convnet
