// The log of a run: one JSON object a line, appended while the run goes on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "framework/base/status.h"

namespace convnet {

// One line. Keys stand in the order in which they are added; the caller adds each once.
class JsonLine {
 public:
  // `event` says what the line is about: "step", "test", "checkpoint".
  explicit JsonLine(std::string_view event);
  JsonLine& text(std::string_view key, std::string_view value);
  JsonLine& integer(std::string_view key, int64_t value);
  // The shortest decimal that reads back as the same double; JSON has no other numbers than finite
  // ones, so the rest is "nan", "inf" or "-inf", as a string.
  JsonLine& number(std::string_view key, double value);
  JsonLine& boolean(std::string_view key, bool value);
  std::string str() const { return text_ + "}"; }  // without line end

 private:
  void key(std::string_view key);
  std::string text_;
};

// Appends to a file. Each line is one write, so a killed program leaves whole lines and at most one
// cut line at the end, which opening removes.
class LogFile {
 public:
  // Makes the file if it is not there. kIo; a symbolic link or anything but a regular file is
  // refused.
  static Result<std::unique_ptr<LogFile>> open(const std::string& path);
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  // If it fails, the line is not in the file, nor a part of it.
  Status append(const JsonLine& line);

 private:
  LogFile(std::string path, int fd);
  std::string path_;
  int fd_;
  int64_t size_ = 0;
};

}  // namespace convnet
