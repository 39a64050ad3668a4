// A folder of its own for each test, and files in it.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace convnet {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "convnet-XXXXXX").string();
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }
  // Names in the folder, sorted.
  std::vector<std::string> names(const std::string& sub = "") const {
    std::vector<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(path_ + "/" + sub))
      all.push_back(entry.path().filename().string());
    std::sort(all.begin(), all.end());
    return all;
  }

 private:
  std::string path_;
};

inline std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

inline void spit(const std::string& path, const std::string& text) {
  // Anew: some file systems sync a file that is truncated and written again.
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

// Runs fn in a child process, with files limited to `max_file` bytes and SIGXFSZ ignored as main()
// does; returns its exit status, or 128 + the signal that ended it.
template <typename F>
int in_child(rlim_t max_file, F fn) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{max_file, max_file};
    setrlimit(RLIMIT_FSIZE, &limit);
    _exit(fn());
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// The same for a process that may not write what it does not own.
template <typename F>
int in_unprivileged_child(F fn) {
  return in_child(RLIM_INFINITY, [&fn] {
    constexpr uid_t kNobody = 65534;
    if (geteuid() == 0 && setuid(kNobody) != 0) return 100;
    return fn();
  });
}

}  // namespace convnet
