#include "framework/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace convnet {

void check_failed(const char* condition, const char* file, int line, const char* message) {
  std::fprintf(stderr, "%s:%d: internal error: CHECK(%s) failed%s%s\n", file, line, condition,
               *message != '\0' ? ": " : "", message);
  std::fprintf(stderr, "This is a defect of convnet; please report it with the command line.\n");
  std::abort();
}

}  // namespace convnet
