#include "tools/bench/measure.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "framework/backends/reference/reference.h"
#include "framework/base/random.h"

namespace convnet::bench {
namespace {

// A tensor in the backend's memory.
class Memory {
 public:
  static Result<Memory> make(Backend& backend, const TensorSpec& spec) {
    Memory m;
    m.backend_ = &backend;
    m.view_.format = spec.format;
    m.view_.shape = spec.shape;
    m.view_.stored = m.view_.box = Box(spec.shape);
    m.count_ = stored_count(spec.format, m.view_.stored);
    CONVNET_ASSIGN_OR_RETURN(m.view_.data, backend.allocate(m.bytes()));
    return m;
  }
  Memory(Memory&& other) noexcept { *this = std::move(other); }
  Memory& operator=(Memory&& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(view_, other.view_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~Memory() {
    if (backend_ != nullptr) backend_->free_memory(view_.data, bytes());
  }

  const View& view() const { return view_; }
  int64_t bytes() const { return count_ * 4; }
  float* data() { return static_cast<float*>(view_.data); }

  // Small integers, or numbers in [0.25, 1.25).
  void fill(bool integers, uint64_t key) {
    const auto k = random_key(1, key);
    // A repeating pattern: drawing a hundred million numbers would take longer than the
    // measurement.
    constexpr int64_t kPattern = 16369;
    std::vector<float> pattern(kPattern);
    for (size_t i = 0; i < pattern.size(); ++i)
      pattern[i] = integers ? static_cast<float>(random_below(k, i, 3)) - 1.0f
                            : static_cast<float>(random_uniform(k, i)) + 0.25f;
    float* to = data();
    for (int64_t i = 0; i < count_; i += kPattern)
      std::memcpy(to + i, pattern.data(),
                  static_cast<size_t>(std::min(kPattern, count_ - i)) * sizeof(float));
  }

 private:
  Memory() = default;
  Backend* backend_ = nullptr;
  View view_;
  int64_t count_ = 0;
};

double seconds(bool processor_time) {
  timespec t;
  clock_gettime(processor_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

float element(const View& v, int64_t n, int64_t a, int64_t b, int64_t c) {
  const int64_t at[4] = {n, a, b, c};
  const bool blocked = v.format == Format::kBlocked;
  int64_t index = 0;
  for (int i = 0; i < v.stored.rank(); ++i) {
    int64_t extent = v.stored.extent(i), x = at[i] - v.stored.lo(i);
    if (blocked && i == 0) {
      extent = (extent + kLanes - 1) / kLanes;
      x /= kLanes;
    }
    index = index * extent + x;
  }
  if (blocked) index = index * kLanes + (n - v.stored.lo(0)) % kLanes;
  return static_cast<const float*>(v.data)[index];
}

// Small boxes of a result: its corners and places between. They begin with a block of examples.
std::vector<Box> samples(const View& v) {
  std::vector<Box> boxes;
  constexpr int kSamples = 9;
  for (int i = 0; i < kSamples; ++i) {
    Box box;
    for (int d = 0; d < v.shape.rank(); ++d) {
      const int64_t extent = v.shape[d];
      // Odd multiples, so that the dimensions do not all move together.
      int64_t lo = (extent - 1) * ((i * (2 * d + 1)) % kSamples) / (kSamples - 1);
      if (v.format == Format::kBlocked && d == 0) lo = lo / kLanes * kLanes;
      box.append(lo, std::min(extent, lo + (d < 2 ? 1 : 3)));
    }
    boxes.push_back(box);
  }
  return boxes;
}

// Compares sampled boxes of each result with what the reference backend makes of the same operands.
Status check(const Case& c, const Instr& instr, const std::vector<View>& in,
             const std::vector<View>& out, StepState& state, ThreadTeam& team) {
  const auto reference = make_reference_backend();
  for (const Box& first : samples(out[0])) {
    std::vector<View> want;
    std::vector<std::vector<float>> memory(out.size());
    for (size_t i = 0; i < out.size(); ++i) {
      View v = out[i];
      // A filter's bias gradient goes with the filter.
      if (v.shape.rank() == out[0].shape.rank()) {
        v.box = first;
      } else {
        v.box = Box();
        v.box.append(first.lo(0), first.hi(0));
      }
      v.stored = v.box;
      memory[i].resize(static_cast<size_t>(stored_count(v.format, v.stored)));
      v.data = memory[i].data();
      want.push_back(v);
    }
    const Binding binding{instr, in, want, state, team};
    CONVNET_ASSIGN_OR_RETURN(const auto kernel, reference->bind(binding));
    kernel->run();
    for (size_t i = 0; i < out.size(); ++i) {
      Box box = want[i].box;
      while (box.rank() < 4) box.append(0, 1);
      for (int64_t n = box.lo(0); n < box.hi(0); ++n)
        for (int64_t a = box.lo(1); a < box.hi(1); ++a)
          for (int64_t p = box.lo(2); p < box.hi(2); ++p)
            for (int64_t q = box.lo(3); q < box.hi(3); ++q) {
              const float g = element(out[i], n, a, p, q), w = element(want[i], n, a, p, q);
              const bool same =
                  c.integers ? g == w : std::abs(g - w) <= 1e-5f * std::abs(w) + 1e-6f;
              if (!same)
                return Status(Code::kCheckFailed,
                              c.name + ": result " + std::to_string(i) + " at [" +
                                  std::to_string(n) + ", " + std::to_string(a) + ", " +
                                  std::to_string(p) + ", " + std::to_string(q) + "] is " +
                                  std::to_string(g) + ", the reference backend has " +
                                  std::to_string(w));
            }
    }
  }
  return Status();
}

}  // namespace

double measure_peak(const Options& options) {
  ThreadTeam team(options.threads);
  std::vector<double> peak(static_cast<size_t>(options.threads));
  team.run(options.threads, [&](int64_t, int thread) {
    peak[static_cast<size_t>(thread)] = measure_cpu_peak(options.isa, 0.05);
  });
  double sum = 0;
  for (const double p : peak) sum += p;
  return sum;
}

Result<Measurement> measure(const Case& c, const Options& options) {
  const auto backend = make_cpu_backend(options.isa);
  ThreadTeam team(options.threads);
  StepState state;
  state.rate = 0.01;
  Instr instr;
  instr.op = c.op;
  instr.attrs = c.attrs;
  std::vector<Memory> memory;
  std::vector<View> in, out;
  int64_t bytes = 0;
  for (const TensorSpec& spec : c.in) {
    CONVNET_ASSIGN_OR_RETURN(Memory m, Memory::make(*backend, spec));
    m.fill(c.integers, memory.size());
    bytes += m.bytes();
    in.push_back(m.view());
    memory.push_back(std::move(m));
  }
  for (const TensorSpec& spec : c.out) {
    CONVNET_ASSIGN_OR_RETURN(Memory m, Memory::make(*backend, spec));
    bytes += m.bytes();
    out.push_back(m.view());
    memory.push_back(std::move(m));
  }
  const Binding binding{instr, in, out, state, team};
  CONVNET_ASSIGN_OR_RETURN(const auto kernel, backend->bind(binding));
  kernel->run();
  CONVNET_RETURN_IF_ERROR(check(c, instr, in, out, state, team));

  Measurement m;
  const double before = measure_peak(options);
  std::vector<double> times;
  for (int i = 0; i < options.runs; ++i) {
    // Short kernels are run several times, for at least a few milliseconds.
    double from = seconds(options.processor_time), took = 0;
    int64_t repeats = 0;
    do {
      kernel->run();
      ++repeats;
      took = seconds(options.processor_time) - from;
    } while (took < 5e-3);
    times.push_back(took / static_cast<double>(repeats));
  }
  m.peak_gflops = (before + measure_peak(options)) / 2;
  std::sort(times.begin(), times.end());
  double median = times[times.size() / 2];
  if (options.processor_time) median /= options.threads;
  m.milliseconds = median * 1e3;
  m.gflops = c.operations / median * 1e-9;
  m.gigabytes = static_cast<double>(bytes) / median * 1e-9;
  return m;
}

}  // namespace convnet::bench
