// Progress of a run for people, on stderr: on a terminal one line that is redrawn, else a plain
// line now and then. It never fails: a stderr that is closed or full loses lines, nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace convnet {

struct ProgressOptions {
  enum class Mode {
    kAuto,  // kBar on a terminal that can redraw a line (TERM is set and not "dumb"), else kLines
    kBar,
    kLines,
    kNone,  // messages only
  };
  Mode mode = Mode::kAuto;
  int file = 2;        // file descriptor
  double seconds = 5;  // kLines: between lines
  int64_t steps = 0;   // kLines: a line every so many steps instead; 0: by time
  // Seconds from any start; a steady clock if not given.
  std::function<double()> clock;
};

// What there is to show after a step.
struct ProgressState {
  int64_t step = 0;     // steps done
  double epoch = 0;     // epochs done
  std::string metrics;  // "loss 0.0834  top1 97.21%", means since the last report
  double rate = 0;      // learning rate
};

class Progress {
 public:
  // `examples`: per step. `first` steps were done by an earlier run.
  Progress(const ProgressOptions& options, int64_t first, int64_t total, int64_t examples);
  ~Progress();  // ends the redrawn line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Whether it is time to report, `step` steps being done. Cheap.
  bool due(int64_t step);
  void report(const ProgressState& state);
  // A line of its own.
  void message(const std::string& text);
  // Time that is no training (a test, a checkpoint) lies between pause() and resume().
  void pause();
  void resume();

  bool redraws() const { return mode_ == ProgressOptions::Mode::kBar; }

 private:
  void write(const std::string& text);
  void measure(int64_t step);

  ProgressOptions options_;
  ProgressOptions::Mode mode_;
  const int64_t total_, examples_;
  double reported_ = 0, paused_at_ = 0;
  int64_t reported_step_ = 0;
  double steps_per_second_ = 0;  // smoothed; 0: not known yet
  std::string line_;             // as drawn now; empty: none
};

// The line of a report. eta in seconds, < 0: not known. `width` columns at most, 0: no limit; a bar
// is drawn if `bar` and if there is room. `colour`: the bar has ANSI codes, which take no columns.
std::string progress_line(const ProgressState& state, int64_t total, double images_per_second,
                          double eta, bool bar, int width, bool colour);

// "0:07", "12:34", "5:06:07", "3d 04:05"
std::string duration_text(double seconds);

// Columns of the terminal: what it says, else $COLUMNS, else 80.
int terminal_width(int file);

}  // namespace convnet
