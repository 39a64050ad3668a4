// The program's start: makes the process safe to write from, then hands over to the command line.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <system_error>

#include "framework/base/status.h"
#include "tools/convnet/command.h"

namespace {

// A closed descriptor 0, 1 or 2 would be given to the next file that is opened, and messages would
// be written into it.
void open_standard_descriptors() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) == -1 && errno == EBADF) {
      if (open("/dev/null", O_RDWR) != fd) _exit(static_cast<int>(convnet::Code::kIo));
    }
  }
}

int limit(const char* what) {
  std::fprintf(stderr, "convnet: error: %s\n", what);
  return static_cast<int>(convnet::Code::kLimit);
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_descriptors();
  // Errors of writing are handled where they happen.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return convnet::cli::run_command_line(argc, argv);
  } catch (const std::bad_alloc&) {
    return limit("out of memory");
  } catch (const std::system_error& e) {
    return limit(e.what());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "convnet: internal error: %s; please report it\n", e.what());
    std::abort();
  }
}
