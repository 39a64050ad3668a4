#include "framework/runtime/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <system_error>
#include <utility>

#include "framework/base/diagnostics.h"
#include "framework/runtime/file.h"

namespace convnet {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLock = "/lock";
constexpr std::string_view kLog = "/log.jsonl";
constexpr std::string_view kCheckpoints = "/checkpoints";
constexpr std::string_view kNameStart = "step-";
constexpr std::string_view kNameEnd = ".safetensors";
constexpr int64_t kMargin = 1 << 20;  // for the log and the model file

// The step in a checkpoint's name, -1 if it is not one.
int64_t step_of(const std::string& name) {
  if (name.size() <= kNameStart.size() + kNameEnd.size()) return -1;
  int64_t step = -1;
  std::from_chars(name.data() + kNameStart.size(), name.data() + name.size(), step);
  return step >= 0 && name == checkpoint_name(step) ? step : -1;
}

Result<std::vector<std::string>> list(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator it(folder, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error))
    names.push_back(it->path().filename().string());
  if (error) return Status(Code::kIo, "cannot list '" + folder + "': " + error.message());
  return names;
}

// Makes the folder if it is not there; it must not be a link to somewhere else.
Status make_folder(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) return io_error("create", folder);
  struct stat info;
  if (::lstat(folder.c_str(), &info) != 0) return io_error("examine", folder);
  if (S_ISLNK(info.st_mode))
    return Status(Code::kIo, "'" + folder + "' is a symbolic link, which is not followed here");
  if (!S_ISDIR(info.st_mode)) return Status(Code::kIo, "'" + folder + "' is not a directory");
  return Status();
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

// Opens and locks DIR/lock. flock, not fcntl: the kernel frees it when the process dies, and only
// then.
Result<int> take_lock(const std::string& folder) {
  const std::string path = folder + std::string(kLock);
  const int flags = O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  const int fd = ::open(path.c_str(), flags, 0666);
  if (fd < 0) return io_error("open", path);
  int result;
  do {
    result = ::flock(fd, LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return fd;
  Status status;
  if (errno == EWOULDBLOCK) {
    std::array<char, 300> holder{};
    const ssize_t n = ::pread(fd, holder.data(), holder.size(), 0);
    std::string who(holder.data(), static_cast<size_t>(std::max<ssize_t>(0, n)));
    who = who.substr(0, who.find('\n'));
    status = Status(Code::kBusy, "'" + folder + "' is in use by " +
                                     (who.empty() ? "another run" : printable(who)));
  } else {
    status = io_error("lock", path);
  }
  ::close(fd);
  return status;
}

// Writes into the lock file who holds it.
Status sign_lock(int fd, const std::string& folder) {
  const std::string who =
      "process " + std::to_string(::getpid()) + " on host " + host_name() + "\n";
  if (::ftruncate(fd, 0) != 0 ||
      ::pwrite(fd, who.data(), who.size(), 0) != static_cast<ssize_t>(who.size()))
    return io_error("write", folder + std::string(kLock));
  return Status();
}

Status remove_temporaries(const std::string& folder) {
  CONVNET_ASSIGN_OR_RETURN(const std::vector<std::string> names, list(folder));
  for (const std::string& name : names) {
    const std::string path = folder + "/" + name;
    if (is_temporary_name(name) && ::unlink(path.c_str()) != 0 && errno != ENOENT)
      return io_error("remove", path);
  }
  return Status();
}

Status probe(const std::string& folder, int64_t checkpoint_bytes) {
  CONVNET_ASSIGN_OR_RETURN(const int64_t space, free_space(folder));
  const int64_t needed = 2 * checkpoint_bytes + kMargin;
  if (space < needed)
    return Status(Code::kIo, "'" + folder + "': two checkpoints need " + std::to_string(needed) +
                                 " bytes, and " + std::to_string(space) + " are free");
  // Reserves the room of one checkpoint, and gives it back: this also meets quotas and size limits.
  CONVNET_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFile> file,
                           OutputFile::create(folder + "/probe", checkpoint_bytes));
  return Status();
}

}  // namespace

RunDirectory::RunDirectory(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}

RunDirectory::~RunDirectory() { ::close(lock_); }

Result<std::unique_ptr<RunDirectory>> RunDirectory::open(const std::string& path, Mode mode,
                                                         int64_t checkpoint_bytes) {
  CHECK(checkpoint_bytes >= 0 && checkpoint_bytes < (int64_t{1} << 60));
  if (path.empty()) return Status(Code::kUsage, "the run directory's name is empty");
  std::error_code error;
  const bool there = fs::is_directory(path, error);
  if (!there && mode == Mode::kResume)
    return Status(Code::kCheckpoint,
                  "there is no run to resume: '" + path + "' is not a directory");
  if (!there) {
    error.clear();
    fs::create_directories(path, error);
    if (error) return Status(Code::kIo, "cannot create '" + path + "': " + error.message());
  }

  CONVNET_ASSIGN_OR_RETURN(const int lock, take_lock(path));
  std::unique_ptr<RunDirectory> run(new RunDirectory(path, lock));
  const std::string checkpoints = path + std::string(kCheckpoints);
  CONVNET_RETURN_IF_ERROR(make_folder(checkpoints));
  CONVNET_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, run->steps());
  if (mode == Mode::kNew && !steps.empty())
    return Status(Code::kUsage, "'" + path + "' holds a run that has come to step " +
                                    std::to_string(steps.back()) +
                                    "; go on with it by --resume, or choose another directory");
  CONVNET_RETURN_IF_ERROR(sign_lock(lock, path));
  CONVNET_RETURN_IF_ERROR(remove_temporaries(path));
  CONVNET_RETURN_IF_ERROR(remove_temporaries(checkpoints));
  CONVNET_RETURN_IF_ERROR(probe(checkpoints, checkpoint_bytes));
  CONVNET_ASSIGN_OR_RETURN(run->log_, LogFile::open(path + std::string(kLog)));
  return run;
}

std::string RunDirectory::checkpoint_path(int64_t step) const {
  return path_ + std::string(kCheckpoints) + "/" + checkpoint_name(step);
}

Result<std::vector<int64_t>> RunDirectory::steps() const {
  CONVNET_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           list(path_ + std::string(kCheckpoints)));
  std::vector<int64_t> steps;
  for (const std::string& name : names)
    if (const int64_t step = step_of(name); step >= 0) steps.push_back(step);
  std::sort(steps.begin(), steps.end());
  return steps;
}

Result<Checkpoint> RunDirectory::newest(std::vector<std::string>* warnings) const {
  CONVNET_ASSIGN_OR_RETURN(std::vector<int64_t> all, steps());
  std::vector<std::string> damaged;
  for (; !all.empty(); all.pop_back()) {
    const std::string path = checkpoint_path(all.back());
    Result<Checkpoint> checkpoint = read_checkpoint(path, InputFile::Links::kRefuse);
    if (checkpoint.ok() && checkpoint->head.step != all.back())
      checkpoint = Status(Code::kCheckpoint, "'" + path + "' is of step " +
                                                 std::to_string(checkpoint->head.step) +
                                                 ", not of the step in its name");
    if (checkpoint.ok()) {
      for (const std::string& reason : damaged)
        warnings->push_back("cannot use a checkpoint: " + reason + "; going on from '" + path +
                            "'");
      return checkpoint;
    }
    damaged.push_back(checkpoint.status().message());
  }
  if (damaged.empty())
    return Status(Code::kCheckpoint,
                  "there is no complete checkpoint in '" + path_ + std::string(kCheckpoints) + "'");
  std::string message = "no checkpoint of '" + path_ + "' can be used: ";
  for (size_t i = 0; i < damaged.size(); ++i) message += (i > 0 ? "; " : "") + damaged[i];
  return Status(Code::kCheckpoint, message);
}

Status RunDirectory::write_model(std::string_view name, std::string_view text) {
  const std::string extension = fs::path(name).extension().string();
  return write_file_atomically(path_ + "/model" + extension, {text});
}

Status RunDirectory::save(const Checkpoint& checkpoint, int keep) {
  CHECK(keep >= 2);
  const int64_t step = checkpoint.head.step;
  CONVNET_RETURN_IF_ERROR(write_checkpoint(checkpoint_path(step), checkpoint));
  Result<std::vector<int64_t>> all = steps();
  if (!all.ok()) return Status();
  all->erase(std::upper_bound(all->begin(), all->end(), step), all->end());
  for (size_t i = 0; i + static_cast<size_t>(keep) < all->size(); ++i)
    ::unlink(checkpoint_path((*all)[i]).c_str());
  return Status();
}

}  // namespace convnet
