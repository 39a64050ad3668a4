#include "tools/bench/codecs.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <random>

#include "framework/comm/codecs/codec.h"

namespace convnet::bench {
namespace {

// Seconds of one call; short ones are run several times, for at least a few milliseconds.
template <typename F>
double median_seconds(int runs, F&& call) {
  using Clock = std::chrono::steady_clock;
  call();
  std::vector<double> times;
  for (int i = 0; i < runs; ++i) {
    const auto from = Clock::now();
    double took = 0;
    int repeats = 0;
    do {
      call();
      ++repeats;
      took = std::chrono::duration<double>(Clock::now() - from).count();
    } while (took < 5e-3);
    times.push_back(took / repeats);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace

std::vector<CodecMeasurement> measure_codecs(int64_t count, int runs) {
  const auto size = static_cast<size_t>(count);
  std::mt19937 bits(1);
  std::normal_distribution<float> draw;
  std::vector<float> values(size), back(size), residual(size);
  for (float& v : values) v = draw(bits);
  const double gigabytes = static_cast<double>(count) * sizeof(float) * 1e-9;
  const double copy = gigabytes / median_seconds(runs, [&] {
                        std::memcpy(back.data(), values.data(), size * sizeof(float));
                        // Else nothing would need the copy.
                        asm volatile("" : : "r"(back.data()) : "memory");
                      });
  std::vector<CodecMeasurement> all;
  for (int w = 0; w < kWires; ++w) {
    const auto wire = static_cast<Wire>(w);
    std::vector<std::byte> bytes(static_cast<size_t>(encoded_bytes(wire, count)));
    CodecMeasurement m{wire, 0, 0, copy};
    m.encode = gigabytes / median_seconds(runs, [&] {
                 if (wire == Wire::kOnebit)
                   encode_onebit(values, residual, bytes);
                 else
                   encode(wire, values, bytes);
               });
    m.decode = gigabytes / median_seconds(runs, [&] { decode(wire, bytes, back); });
    all.push_back(m);
  }
  return all;
}

}  // namespace convnet::bench
