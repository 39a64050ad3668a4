#include "framework/runtime/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace convnet {
namespace {

constexpr double kRedrawSeconds = 0.1;
constexpr int kDefaultWidth = 80;
constexpr int kMaxWidth = 160;
// Weight of older reports falls by e in so many seconds.
constexpr double kSmoothSeconds = 15;

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

ProgressOptions::Mode choose(const ProgressOptions& options) {
  if (options.mode != ProgressOptions::Mode::kAuto) return options.mode;
  const char* term = std::getenv("TERM");
  const bool redraws =
      isatty(options.file) == 1 && is_set("TERM") && std::strcmp(term, "dumb") != 0;
  return redraws ? ProgressOptions::Mode::kBar : ProgressOptions::Mode::kLines;
}

std::string format(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

// "[=====>    ]", `width` columns with its brackets.
std::string draw_bar(double part, int width, bool colour) {
  const int inside = width - 2;
  const int full = std::clamp(static_cast<int>(part * inside), 0, inside);
  std::string bar(static_cast<size_t>(full), '=');
  if (full < inside) bar += '>';
  bar.resize(static_cast<size_t>(inside), ' ');
  return "[" + (colour ? "\x1b[32m" + bar + "\x1b[0m" : bar) + "]";
}

}  // namespace

std::string duration_text(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "?";
  const auto s = static_cast<long>(seconds + 0.5);
  char text[64];
  if (s < 3600) {
    std::snprintf(text, sizeof text, "%ld:%02ld", s / 60, s % 60);
  } else if (s < 86400) {
    std::snprintf(text, sizeof text, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
  } else {
    std::snprintf(text, sizeof text, "%ldd %02ld:%02ld", s / 86400, s / 3600 % 24, s / 60 % 60);
  }
  return text;
}

int terminal_width(int file) {
  struct winsize size {};
  if (ioctl(file, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  if (const char* columns = std::getenv("COLUMNS")) {
    const long width = std::strtol(columns, nullptr, 10);
    if (width > 0 && width < 10000) return static_cast<int>(width);
  }
  return kDefaultWidth;
}

std::string progress_line(const ProgressState& state, int64_t total, double images_per_second,
                          double eta, bool bar, int width, bool colour) {
  const std::string count = std::to_string(state.step) + "/" + std::to_string(total);
  // The parts after the bar; those that a narrow terminal misses least are left out first.
  const auto parts = [&](bool epoch, bool rate) {
    std::string text = epoch ? "epoch " + format("%.2f", state.epoch) + "  " : "";
    text += state.metrics;
    if (rate) text += "  rate " + format("%.4g", state.rate);
    if (images_per_second > 0) text += "  " + format("%.0f", images_per_second) + " images/s";
    if (eta >= 0) text += "  eta " + duration_text(eta);
    return text;
  };
  if (bar) {
    constexpr int kLeastBar = 8, kMostBar = 40;
    for (const auto& [epoch, rate] : {std::pair(true, true), {true, false}, {false, false}}) {
      const std::string rest = parts(epoch, rate);
      const int room = width - static_cast<int>(count.size() + rest.size()) - 3;
      if (room < kLeastBar) continue;
      const double part =
          total > 0 ? static_cast<double>(state.step) / static_cast<double>(total) : 0;
      return count + " " + draw_bar(part, std::min(room, kMostBar), colour) + "  " + rest;
    }
  }
  std::string line = (bar ? "" : "step ") + count + "  " + parts(true, true);
  if ((bar || width > 0) && line.size() > static_cast<size_t>(std::max(0, width)))
    line.resize(static_cast<size_t>(std::max(0, width)));
  return line;
}

Progress::Progress(const ProgressOptions& options, int64_t first, int64_t total, int64_t examples)
    : options_(options),
      mode_(choose(options)),
      total_(total),
      examples_(examples),
      reported_step_(first) {
  if (!options_.clock) options_.clock = steady_seconds;
  reported_ = options_.clock();
}

Progress::~Progress() {
  if (!line_.empty()) write("\n");
}

bool Progress::due(int64_t step) {
  if (step == total_) return mode_ != ProgressOptions::Mode::kNone;
  switch (mode_) {
    case ProgressOptions::Mode::kBar:
      return options_.clock() - reported_ >= kRedrawSeconds;
    case ProgressOptions::Mode::kLines:
      if (options_.steps > 0) return step % options_.steps == 0;
      return options_.clock() - reported_ >= options_.seconds;
    default:
      return false;
  }
}

void Progress::measure(int64_t step) {
  const double now = options_.clock();
  const double seconds = now - reported_;
  if (step > reported_step_ && seconds > 0) {
    const double speed = static_cast<double>(step - reported_step_) / seconds;
    const double keep = steps_per_second_ > 0 ? std::exp(-seconds / kSmoothSeconds) : 0;
    steps_per_second_ = keep * steps_per_second_ + (1 - keep) * speed;
  }
  reported_ = now;
  reported_step_ = step;
}

void Progress::report(const ProgressState& state) {
  if (mode_ == ProgressOptions::Mode::kNone) return;
  measure(state.step);
  const double speed = steps_per_second_ * static_cast<double>(examples_);
  const double eta =
      steps_per_second_ > 0 ? static_cast<double>(total_ - state.step) / steps_per_second_ : -1;
  if (mode_ == ProgressOptions::Mode::kLines) {
    write(progress_line(state, total_, speed, eta, false, 0, false) + "\n");
    return;
  }
  // One column is left free: some terminals wrap after the last.
  const int width = std::min(terminal_width(options_.file) - 1, kMaxWidth);
  line_ = progress_line(state, total_, speed, eta, true, width, !is_set("NO_COLOR"));
  write("\r" + line_ + "\x1b[K");
}

void Progress::message(const std::string& text) {
  if (line_.empty()) {
    write(text + "\n");
  } else {
    write("\r\x1b[K" + text + "\n" + line_);
  }
}

void Progress::pause() { paused_at_ = options_.clock(); }

void Progress::resume() { reported_ += options_.clock() - paused_at_; }

void Progress::write(const std::string& text) {
  size_t at = 0;
  while (at < text.size()) {
    const ssize_t n = ::write(options_.file, text.data() + at, text.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    at += static_cast<size_t>(n);
  }
}

}  // namespace convnet
