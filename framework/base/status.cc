#include "framework/base/status.h"

#include <cerrno>
#include <cstring>

namespace convnet {

std::string_view code_name(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kCheckFailed:
      return "check failed";
    case Code::kUsage:
      return "usage";
    case Code::kModel:
      return "model file";
    case Code::kData:
      return "data";
    case Code::kCheckpoint:
      return "checkpoint";
    case Code::kIo:
      return "input/output";
    case Code::kBusy:
      return "busy";
    case Code::kLimit:
      return "limit";
    case Code::kNotFinite:
      return "not finite";
    case Code::kPeer:
      return "peer lost";
  }
  return "unknown";
}

Status Status::with_context(std::string_view context) const {
  if (ok()) return *this;
  return Status(code_, std::string(context) + ": " + message_);
}

Status io_error(std::string_view action, std::string_view path) {
  const int error = errno;
  return Status(Code::kIo, "cannot " + std::string(action) + " '" + std::string(path) +
                               "': " + std::strerror(error));
}

}  // namespace convnet
