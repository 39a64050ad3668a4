// If this fails, people see wrong progress, terminals are garbled, or a closed stderr ends a run.
#include "framework/runtime/progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace convnet {
namespace {

// Sets an environment variable (null: removes it) for a test.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before, had_ = true;
    set(value);
  }
  ~Environment() { set(had_ ? before_.c_str() : nullptr); }

 private:
  void set(const char* value) { value != nullptr ? setenv(name_, value, 1) : unsetenv(name_); }
  const char* name_;
  std::string before_;
  bool had_ = false;
};

// Both ends of a pipe that holds what is written until it is read.
class Pipe {
 public:
  Pipe() {
    EXPECT_EQ(pipe(ends_), 0);
    fcntl(ends_[0], F_SETFL, O_NONBLOCK);
  }
  ~Pipe() {
    close(ends_[0]);
    close(ends_[1]);
  }
  int file() const { return ends_[1]; }
  std::string text() {
    char buffer[65536];
    const ssize_t n = read(ends_[0], buffer, sizeof buffer);
    return n > 0 ? std::string(buffer, static_cast<size_t>(n)) : "";
  }

 private:
  int ends_[2];
};

ProgressState state(int64_t step) { return {step, 1.25, "loss 0.5  top1 75.00%", 0.01}; }

TEST(Progress, LinesOfWhatIsNoTerminal) {
  Pipe out;
  double now = 100;
  ProgressOptions options;
  options.file = out.file();
  options.clock = [&] { return now; };
  Progress progress(options, 0, 1000, 64);
  EXPECT_FALSE(progress.redraws());
  now = 104.5;
  EXPECT_FALSE(progress.due(9));
  now = 105;
  ASSERT_TRUE(progress.due(10));
  progress.report(state(10));
  // 10 steps in 5 seconds: 128 images a second, 495 seconds to go.
  EXPECT_EQ(out.text(),
            "step 10/1000  epoch 1.25  loss 0.5  top1 75.00%  rate 0.01  128 images/s  eta 8:15\n");
  EXPECT_FALSE(progress.due(11));
  EXPECT_TRUE(progress.due(1000));
  // A test of 50 seconds does not slow the training down.
  progress.pause();
  now += 50;
  progress.message("test");
  progress.resume();
  now += 5;
  progress.report(state(20));
  EXPECT_EQ(
      out.text(),
      "test\nstep 20/1000  epoch 1.25  loss 0.5  top1 75.00%  rate 0.01  128 images/s  eta 8:10\n");
}

TEST(Progress, RateIsSmoothed) {
  Pipe out;
  double now = 0;
  ProgressOptions options;
  options.file = out.file();
  options.clock = [&] { return now; };
  Progress progress(options, 100, 1000, 1);
  for (int64_t step = 110; step <= 300; step += 10) {
    now += 1;
    progress.report(state(step));
  }
  EXPECT_NE(out.text().find("10 images/s  eta 1:10\n"), std::string::npos);
  now += 1;
  progress.report(state(300 + 100));  // one fast second
  const std::string line = out.text();
  const double speed = std::stod(line.substr(line.find("0.01  ") + 6));
  EXPECT_GT(speed, 12);
  EXPECT_LT(speed, 20);
}

TEST(Progress, LinesByStep) {
  ProgressOptions options;
  options.mode = ProgressOptions::Mode::kLines;
  options.steps = 50;
  Progress progress(options, 0, 120, 1);
  EXPECT_FALSE(progress.due(49));
  EXPECT_TRUE(progress.due(50));
  EXPECT_TRUE(progress.due(100));
  EXPECT_TRUE(progress.due(120));
}

TEST(Progress, NoneShowsMessagesOnly) {
  Pipe out;
  ProgressOptions options;
  options.mode = ProgressOptions::Mode::kNone;
  options.file = out.file();
  Progress progress(options, 0, 10, 1);
  EXPECT_FALSE(progress.due(10));
  progress.report(state(10));
  progress.message("warning: disk full");
  EXPECT_EQ(out.text(), "warning: disk full\n");
}

TEST(Progress, RedrawsOneLineOnATerminal) {
  int master = -1, slave = -1;
  struct winsize size {
    24, 100, 0, 0
  };
  ASSERT_EQ(openpty(&master, &slave, nullptr, nullptr, &size), 0);
  const Environment term("TERM", "xterm"), plain("NO_COLOR", "1");
  {
    ProgressOptions options;
    options.file = slave;
    Progress progress(options, 0, 40, 1);
    ASSERT_TRUE(progress.redraws());
    progress.report(state(10));
    progress.message("checkpoint");
  }
  std::string text;
  for (char c; text.find("checkpoint\r\n10/40") == std::string::npos || c != '\n';) {
    ASSERT_EQ(read(master, &c, 1), 1) << text;
    text += c;
  }
  EXPECT_EQ(text.find("\r10/40 ["), 0u) << text;
  EXPECT_NE(text.find("\x1b[K\r\x1b[Kcheckpoint\r\n10/40 ["), std::string::npos) << text;
  EXPECT_EQ(text.find("\x1b[32m"), std::string::npos);
  {
    const Environment dumb("TERM", "dumb");
    ProgressOptions options;
    options.file = slave;
    EXPECT_FALSE(Progress(options, 0, 40, 1).redraws());
  }
  EXPECT_EQ(terminal_width(slave), 100);
  // A terminal of width 0, as some pseudo-terminals are.
  size.ws_col = 0;
  ASSERT_EQ(ioctl(slave, TIOCSWINSZ, &size), 0);
  {
    const Environment columns("COLUMNS", "61");
    EXPECT_EQ(terminal_width(slave), 61);
  }
  for (const char* bad : {"", "0", "-5", "wide"}) {
    const Environment columns("COLUMNS", bad);
    EXPECT_EQ(terminal_width(slave), 80) << bad;
  }
  close(master);
  close(slave);
}

TEST(ProgressLine, FitsAnyWidth) {
  for (int width = 0; width < 200; ++width) {
    const std::string line = progress_line(state(123), 1000, 512, 75, true, width, false);
    EXPECT_LE(line.size(), static_cast<size_t>(width));
  }
  EXPECT_EQ(progress_line(state(500), 1000, 512, 75, true, 120, false),
            "500/1000 [===================>                  ]  epoch 1.25  loss 0.5  top1 75.00%  "
            "rate 0.01  "
            "512 images/s  eta 1:15");
  // What is missed least goes first: the learning rate, then the epoch, at last the bar.
  EXPECT_EQ(progress_line(state(500), 1000, 512, 75, true, 80, false),
            "500/1000 [=====>    ]  epoch 1.25  loss 0.5  top1 75.00%  512 images/s  eta 1:15");
  EXPECT_EQ(progress_line(state(500), 1000, 0, -1, true, 40, false),
            "500/1000 [===>  ]  loss 0.5  top1 75.00%");
  EXPECT_EQ(progress_line(state(500), 1000, 0, -1, true, 35, false),
            "500/1000  epoch 1.25  loss 0.5  top");
}

TEST(DurationText, AllSizes) {
  EXPECT_EQ(duration_text(6.6), "0:07");
  EXPECT_EQ(duration_text(754), "12:34");
  EXPECT_EQ(duration_text(5 * 3600 + 6 * 60 + 7), "5:06:07");
  EXPECT_EQ(duration_text(3 * 86400 + 4 * 3600 + 300), "3d 04:05");
  EXPECT_EQ(duration_text(-1), "?");
  EXPECT_EQ(duration_text(1e300), "?");
}

TEST(Progress, SurvivesAStderrThatTakesNothing) {
  signal(SIGPIPE, SIG_IGN);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  const int full = open("/dev/full", O_WRONLY);
  for (int file : {-1, 12345, ends[1], full}) {
    ProgressOptions options;
    options.file = file;
    options.mode = ProgressOptions::Mode::kLines;
    Progress progress(options, 0, 10, 1);
    progress.report(state(1));
    progress.message("text");
  }
  close(ends[1]);
  close(full);
}

}  // namespace
}  // namespace convnet
