// Files, read within bounds and written so that a crash leaves the old file or the new one.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "framework/base/status.h"

namespace convnet {

// A regular file open for reading from its start: never a device, pipe or folder, so nothing hangs
// and the size is known. Errors about what the file is carry the code given to open(); failing
// system calls carry kIo.
class InputFile {
 public:
  enum class Links {
    kFollow,
    kRefuse
  };  // what to do if the last part of the path is a symbolic link

  static Result<InputFile> open(const std::string& path, Code code, Links links = Links::kFollow);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }
  int64_t position() const { return position_; }
  Status seek(int64_t position);
  // The next `bytes` bytes, all of them; it is an error if the file ends before.
  Status read(void* data, int64_t bytes);

 private:
  InputFile(std::string path, Code code, int fd, int64_t size);
  std::string path_;
  Code code_;
  int fd_ = -1;
  int64_t size_ = 0;
  int64_t position_ = 0;
};

// The whole of a regular file of at most `max_bytes` (else kLimit).
Result<std::string> read_file(const std::string& path, int64_t max_bytes, Code code);

// What the first bytes of a file say that it is ("gzip data", "a pickle (it may hold code)"), for
// messages about a file that is not what was wanted; empty if they say nothing.
std::string_view describe_content(std::string_view head);

// A file of known size that appears under its name complete and durable, or not at all. The bytes
// go to a temporary file in the same folder, whose space is reserved first; commit() syncs it,
// renames it, and syncs the folder. Destroyed without commit(), it removes the temporary file. All
// errors are kIo. The caller ignores SIGXFSZ.
class OutputFile {
 public:
  static Result<std::unique_ptr<OutputFile>> create(const std::string& path, int64_t bytes);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  Status write(std::string_view data);
  // All `bytes` must have been written. After an error the old file, if any, is untouched, unless
  // the message says that only the folder could not be synced.
  Status commit();

 private:
  OutputFile(std::string path, std::string temporary, int fd, int64_t bytes);
  std::string path_, temporary_;
  int fd_ = -1;
  int64_t bytes_ = 0;
  int64_t written_ = 0;
  bool renamed_ = false;
};

// `parts`, one after the other, as one OutputFile.
Status write_file_atomically(const std::string& path, const std::vector<std::string_view>& parts);

// Whether `name` is a temporary file of OutputFile: what a killed program may leave behind.
bool is_temporary_name(std::string_view name);

// Bytes that may still be written to the file system of `folder`.
Result<int64_t> free_space(const std::string& folder);

}  // namespace convnet
