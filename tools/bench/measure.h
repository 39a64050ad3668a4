// One case on the cpu backend: checked, then timed.
#pragma once

#include <string>
#include <vector>

#include "framework/backends/cpu/cpu.h"
#include "tools/bench/cases.h"

namespace convnet::bench {

struct Options {
  CpuIsa isa = CpuIsa::kAvx2;
  int threads = 1;
  int runs = 5;
  // Time by the processor time of the threads, divided by their number, not by the wall clock: for
  // a machine that others use at the same time.
  bool processor_time = false;
};

struct Measurement {
  double milliseconds = 0;  // median of the runs
  double gflops = 0;        // 0 if the case counts no operations
  double peak_gflops = 0;   // of all threads, the mean of before and after
  double gigabytes = 0;     // operands and results, each once, a second
};

// kCheckFailed if some result differs from the reference backend's.
Result<Measurement> measure(const Case& c, const Options& options);

// The multiply-add peak of `threads` threads at once, GFLOP/s.
double measure_peak(const Options& options);

}  // namespace convnet::bench
