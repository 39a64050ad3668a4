#include "framework/runtime/log_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

namespace convnet {

namespace {

std::string json_text(std::string_view text) {
  // Names may hold any bytes; a log line must still be UTF-8.
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Offset behind the last line end in the first `size` bytes of the file; 0 without one.
Result<int64_t> end_of_lines(int fd, int64_t size, const std::string& path) {
  std::array<char, 4096> block;
  for (int64_t end = size; end > 0;) {
    const int64_t begin = std::max<int64_t>(0, end - static_cast<int64_t>(block.size()));
    const ssize_t n = ::pread(fd, block.data(), static_cast<size_t>(end - begin), begin);
    if (n != end - begin) {
      if (n < 0 && errno == EINTR) continue;
      if (n >= 0) return Status(Code::kIo, "'" + path + "' changed while it was read");
      return io_error("read", path);
    }
    for (int64_t i = end - begin; i > 0; --i)
      if (block[static_cast<size_t>(i - 1)] == '\n') return begin + i;
    end = begin;
  }
  return int64_t{0};
}

}  // namespace

JsonLine::JsonLine(std::string_view event) : text_("{\"event\":" + json_text(event)) {}

void JsonLine::key(std::string_view key) { text_ += "," + json_text(key) + ":"; }

JsonLine& JsonLine::text(std::string_view k, std::string_view value) {
  key(k);
  text_ += json_text(value);
  return *this;
}

JsonLine& JsonLine::integer(std::string_view k, int64_t value) {
  key(k);
  text_ += std::to_string(value);
  return *this;
}

JsonLine& JsonLine::number(std::string_view k, double value) {
  key(k);
  if (std::isnan(value)) {
    text_ += "\"nan\"";
  } else if (std::isinf(value)) {
    text_ += value > 0 ? "\"inf\"" : "\"-inf\"";
  } else {
    std::array<char, 32> digits;
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value);
    text_.append(digits.data(), end.ptr);
  }
  return *this;
}

JsonLine& JsonLine::boolean(std::string_view k, bool value) {
  key(k);
  text_ += value ? "true" : "false";
  return *this;
}

LogFile::LogFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

LogFile::~LogFile() { ::close(fd_); }

Result<std::unique_ptr<LogFile>> LogFile::open(const std::string& path) {
  const int flags = O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  const int fd = ::open(path.c_str(), flags, 0666);
  if (fd < 0) return io_error("open", path);
  std::unique_ptr<LogFile> log(new LogFile(path, fd));
  struct stat info;
  if (::fstat(fd, &info) != 0) return io_error("examine", path);
  if (!S_ISREG(info.st_mode)) return Status(Code::kIo, "'" + path + "' is not a regular file");
  CONVNET_ASSIGN_OR_RETURN(const int64_t end, end_of_lines(fd, info.st_size, path));
  if (end != info.st_size && ::ftruncate(fd, end) != 0) return io_error("shorten", path);
  log->size_ = end;
  return log;
}

Status LogFile::append(const JsonLine& line) {
  const std::string text = line.str() + "\n";
  std::string_view rest = text;
  while (!rest.empty()) {
    const ssize_t n = ::write(fd_, rest.data(), rest.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      const Status status = io_error("write", path_);
      // On a full disk part of the line may have fitted.
      if (rest.size() < text.size() && ::ftruncate(fd_, size_) != 0)
        return status.with_context("the last line is cut");
      return status;
    }
    rest.remove_prefix(static_cast<size_t>(n));
  }
  size_ += static_cast<int64_t>(text.size());
  return Status();
}

}  // namespace convnet
