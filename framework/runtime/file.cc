#include "framework/runtime/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <utility>

namespace convnet {

namespace {

constexpr std::string_view kTemporarySuffix = ".convnet-tmp";
// Linux transfers at most 2 GiB - 4 KiB a call.
constexpr int64_t kMaxTransfer = int64_t{1} << 30;

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

Status sync_folder(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return io_error("open folder", folder);
  Status status;
  // Some file systems have nothing to sync for folders and say EINVAL.
  if (::fsync(fd) != 0 && errno != EINVAL) status = io_error("sync folder", folder);
  ::close(fd);
  return status;
}

}  // namespace

InputFile::InputFile(std::string path, Code code, int fd, int64_t size)
    : path_(std::move(path)), code_(code), fd_(fd), size_(size) {}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      code_(other.code_),
      fd_(std::exchange(other.fd_, -1)),
      size_(other.size_),
      position_(other.position_) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(code_, other.code_);
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  std::swap(position_, other.position_);
  return *this;
}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

Result<InputFile> InputFile::open(const std::string& path, Code code, Links links) {
  // O_NONBLOCK: opening a pipe without a writer must not hang before fstat can refuse it.
  const int flags =
      O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY | (links == Links::kRefuse ? O_NOFOLLOW : 0);
  int fd;
  do {
    fd = ::open(path.c_str(), flags);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) {
    if (errno == ELOOP && links == Links::kRefuse)
      return Status(code, "'" + path + "' is a symbolic link, which is not followed here");
    return Status(code, io_error("open", path).message());
  }
  struct stat info;
  if (::fstat(fd, &info) != 0) {
    const Status status = io_error("examine", path);
    ::close(fd);
    return status;
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    return Status(code, "'" + path + "' is " +
                            (S_ISDIR(info.st_mode) ? "a directory" : "a device, pipe or socket") +
                            ", not a regular file");
  }
  return InputFile(path, code, fd, static_cast<int64_t>(info.st_size));
}

Status InputFile::seek(int64_t position) {
  if (::lseek(fd_, static_cast<off_t>(position), SEEK_SET) < 0) return io_error("read", path_);
  position_ = position;
  return Status();
}

Status InputFile::read(void* data, int64_t bytes) {
  char* to = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::read(fd_, to, static_cast<size_t>(std::min(bytes, kMaxTransfer)));
    if (n < 0) {
      if (errno == EINTR) continue;
      return io_error("read", path_);
    }
    if (n == 0)
      return Status(code_, "'" + path_ + "' ends at byte " + std::to_string(position_) + " where " +
                               std::to_string(bytes) + " more were expected");
    to += n;
    bytes -= n;
    position_ += n;
  }
  return Status();
}

Result<std::string> read_file(const std::string& path, int64_t max_bytes, Code code) {
  CONVNET_ASSIGN_OR_RETURN(InputFile file, InputFile::open(path, code));
  if (file.size() > max_bytes)
    return Status(Code::kLimit, "'" + path + "' has " + std::to_string(file.size()) +
                                    " bytes; the limit is " + std::to_string(max_bytes));
  std::string text(static_cast<size_t>(file.size()), '\0');
  CONVNET_RETURN_IF_ERROR(file.read(text.data(), file.size()));
  return text;
}

std::string_view describe_content(std::string_view head) {
  struct Mark {
    std::string_view bytes, name;
  };
  using namespace std::string_view_literals;
  static constexpr std::array<Mark, 16> kMarks = {{
      {"\x1f\x8b"sv, "gzip data"sv},
      {"PK\x03\x04"sv, "a zip archive (PyTorch's .pt; not loaded, it may hold code)"sv},
      {"\x80\x02"sv, "a pickle (not loaded, it may hold code)"sv},
      {"\x80\x03"sv, "a pickle (not loaded, it may hold code)"sv},
      {"\x80\x04"sv, "a pickle (not loaded, it may hold code)"sv},
      {"\x80\x05"sv, "a pickle (not loaded, it may hold code)"sv},
      {"\x89HDF\r\n\x1a\n"sv, "an HDF5 file"sv},
      {"\x7f"
       "ELF"sv,
       "a program (ELF)"sv},
      {"\xff\xd8\xff"sv, "a JPEG image"sv},
      {"\x89PNG\r\n\x1a\n"sv, "a PNG image"sv},
      {"BZh"sv, "bzip2 data"sv},
      {"\xfd"
       "7zXZ\0"sv,
       "xz data"sv},
      {"\x28\xb5\x2f\xfd"sv, "zstd data"sv},
      {"\x93NUMPY"sv, "a NumPy array"sv},
      {"%PDF"sv, "a PDF document"sv},
      {"#!"sv, "a script"sv},
  }};
  for (const Mark& mark : kMarks)
    if (head.substr(0, mark.bytes.size()) == mark.bytes) return mark.name;
  if (head.empty()) return "an empty file";
  const std::string_view sample = head.substr(0, 512);
  const bool text = std::all_of(sample.begin(), sample.end(), [](char c) {
    return (c >= ' ' && c <= '~') || c == '\n' || c == '\r' || c == '\t';
  });
  return text && sample.size() >= 8 ? "a text file" : "";
}

OutputFile::OutputFile(std::string path, std::string temporary, int fd, int64_t bytes)
    : path_(std::move(path)), temporary_(std::move(temporary)), fd_(fd), bytes_(bytes) {}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!renamed_) ::unlink(temporary_.c_str());
}

Result<std::unique_ptr<OutputFile>> OutputFile::create(const std::string& path, int64_t bytes) {
  CHECK(bytes >= 0);
  // rename() would replace a device or a pipe by a file.
  struct stat info;
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode))
    return Status(Code::kIo, "cannot write '" + path + "': it is there and is not a regular file");

  const std::string folder = folder_of(path);
  CONVNET_ASSIGN_OR_RETURN(const int64_t space, free_space(folder));
  if (bytes > space)
    return Status(Code::kIo, "cannot write '" + path + "': it needs " + std::to_string(bytes) +
                                 " bytes, and " + std::to_string(space) + " are free");

  // The process number keeps programs apart; the count passes over what a killed program left.
  std::string temporary;
  int fd = -1;
  for (int i = 0; i < 100 && fd < 0; ++i) {
    temporary = path + "." + std::to_string(::getpid()) + "-" + std::to_string(i) +
                std::string(kTemporarySuffix);
    fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0 && errno != EEXIST && errno != EINTR) break;
  }
  if (fd < 0) return io_error("create", temporary);
  std::unique_ptr<OutputFile> file(new OutputFile(path, temporary, fd, bytes));
  if (bytes > 0) {
    int error;
    do {
      error = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
    } while (error == EINTR);
    // Where space cannot be reserved, a full disk shows when the bytes are written.
    if (error != 0 && error != EINVAL && error != EOPNOTSUPP) {
      errno = error;
      return io_error("reserve " + std::to_string(bytes) + " bytes for", path);
    }
  }
  return file;
}

Status OutputFile::write(std::string_view data) {
  CHECK(fd_ >= 0 && written_ + static_cast<int64_t>(data.size()) <= bytes_);
  while (!data.empty()) {
    const ssize_t n =
        ::write(fd_, data.data(), std::min(data.size(), static_cast<size_t>(kMaxTransfer)));
    if (n < 0) {
      if (errno == EINTR) continue;
      return io_error("write", path_);
    }
    data.remove_prefix(static_cast<size_t>(n));
    written_ += n;
  }
  return Status();
}

Status OutputFile::commit() {
  CHECK(fd_ >= 0 && written_ == bytes_);
  // After a failed fsync the kernel may have dropped the pages: this file is dead, there is no
  // second try on it.
  if (::fsync(fd_) != 0) return io_error("sync", path_);
  // Linux closes the descriptor whatever close() says.
  if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) return io_error("close", path_);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return io_error("rename to", path_);
  renamed_ = true;
  return sync_folder(folder_of(path_));
}

Status write_file_atomically(const std::string& path, const std::vector<std::string_view>& parts) {
  int64_t bytes = 0;
  for (std::string_view part : parts) bytes += static_cast<int64_t>(part.size());
  CONVNET_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFile> file, OutputFile::create(path, bytes));
  for (std::string_view part : parts) CONVNET_RETURN_IF_ERROR(file->write(part));
  return file->commit();
}

bool is_temporary_name(std::string_view name) {
  return name.size() > kTemporarySuffix.size() &&
         name.substr(name.size() - kTemporarySuffix.size()) == kTemporarySuffix;
}

Result<int64_t> free_space(const std::string& folder) {
  struct statvfs info;
  int result;
  do {
    result = ::statvfs(folder.c_str(), &info);
  } while (result != 0 && errno == EINTR);
  if (result != 0) return io_error("examine the file system of", folder);
  int64_t bytes;
  if (__builtin_mul_overflow(info.f_bavail, info.f_frsize, &bytes))
    bytes = std::numeric_limits<int64_t>::max();
  return bytes;
}

}  // namespace convnet
