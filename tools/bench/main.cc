// convnet_bench: how fast the cpu backend's kernels are on this machine, against the multiply-add
// peak of the same processor measured in the same process right before and after. Every result is
// checked before it is timed. With --codecs, how fast the codecs of the wire are, against a copy.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tools/bench/codecs.h"
#include "tools/bench/measure.h"

namespace convnet::bench {
namespace {

// The processor's name as the system gives it.
std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  std::string line, name = "unknown processor";
  int cores = 0;
  while (std::getline(info, line))
    if (line.starts_with("model name")) {
      const size_t colon = line.find(": ");
      if (colon != std::string::npos) name = line.substr(colon + 2);
      ++cores;
    }
  return name + ", " + std::to_string(cores) + (cores == 1 ? " core" : " cores");
}

void run_codecs(int64_t elements, int runs, bool json) {
  const std::string machine = processor() + ", 1 thread";
  nlohmann::json report{
      {"machine", machine}, {"elements", elements}, {"codecs", nlohmann::json::array()}};
  if (!json) {
    std::printf("%s, pieces of %lld elements; GB/s of f32\n", machine.c_str(),
                static_cast<long long>(elements));
    std::printf("%-12s %9s %9s %9s %9s\n", "codec", "encode", "decode", "memcpy", "bytes");
  }
  for (const CodecMeasurement& m : measure_codecs(elements, runs)) {
    const std::string name(to_string(m.wire));
    const int64_t bytes = encoded_bytes(m.wire, elements);
    report["codecs"].push_back({{"name", name},
                                {"encode_gigabytes_per_second", m.encode},
                                {"decode_gigabytes_per_second", m.decode},
                                {"copy_gigabytes_per_second", m.copy},
                                {"bytes", bytes}});
    if (!json)
      std::printf("%-12s %9.2f %9.2f %9.2f %9lld\n", name.c_str(), m.encode, m.decode, m.copy,
                  static_cast<long long>(bytes));
  }
  if (json) std::printf("%s\n", report.dump(1).c_str());
}

int run(const std::string& wanted, const Options& options, bool json) {
  const std::string machine = processor() + ", cpu(" + cpu_isa_name(options.isa) + "), " +
                              std::to_string(options.threads) +
                              (options.threads == 1 ? " thread" : " threads");
  nlohmann::json report{{"machine", machine}, {"cases", nlohmann::json::array()}};
  if (!json) {
    std::printf("%s\n", machine.c_str());
    std::printf("%-34s %10s %9s %7s %8s\n", "case", "ms", "GFLOP/s", "% peak", "GB/s");
  }
  int matches = 0;
  for (const Case& c : all_cases()) {
    if (c.name.find(wanted) == std::string::npos) continue;
    ++matches;
    const Result<Measurement> result = measure(c, options);
    if (!result.ok()) {
      std::fprintf(stderr, "error: %s\n", result.status().message().c_str());
      return static_cast<int>(result.status().code());
    }
    const Measurement& m = *result;
    const double percent = 100 * m.gflops / m.peak_gflops;
    if (json) {
      nlohmann::json entry{{"name", c.name},
                           {"milliseconds", m.milliseconds},
                           {"gigabytes_per_second", m.gigabytes}};
      if (c.operations > 0) {
        entry["gflops"] = m.gflops;
        entry["peak_gflops"] = m.peak_gflops;
      }
      report["cases"].push_back(entry);
    } else if (c.operations > 0) {
      std::printf("%-34s %10.3f %9.1f %7.1f %8.1f\n", c.name.c_str(), m.milliseconds, m.gflops,
                  percent, m.gigabytes);
    } else {
      std::printf("%-34s %10.3f %9s %7s %8.1f\n", c.name.c_str(), m.milliseconds, "-", "-",
                  m.gigabytes);
    }
    std::fflush(stdout);
  }
  if (matches == 0) {
    std::fprintf(stderr, "error: no case has '%s' in its name; --list prints all names\n",
                 wanted.c_str());
    return static_cast<int>(Code::kUsage);
  }
  if (json) std::printf("%s\n", report.dump(1).c_str());
  return 0;
}

}  // namespace
}  // namespace convnet::bench

int main(int argc, char** argv) {
  using namespace convnet;
  CLI::App app{"measures the cpu backend's kernels"};
  std::string wanted, isa;
  bench::Options options;
  bool json = false, list = false, codecs = false;
  int64_t elements = 1 << 20;
  app.add_option("--case", wanted, "only cases with this in their name");
  app.add_option("--isa", isa, "avx2 or avx512; the best one if not given")
      ->check(CLI::IsMember({"avx2", "avx512"}));
  app.add_option("--threads", options.threads, "threads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--runs", options.runs, "runs; the median counts")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_flag("--processor-time", options.processor_time,
               "time the threads by the processor's clock, on a machine that others use too");
  app.add_flag("--json", json, "machine-readable output");
  app.add_flag("--codecs", codecs, "the codecs of the wire instead of kernels");
  app.add_option("--elements", elements, "--codecs: elements of a piece")
      ->check(CLI::Range(1, 1 << 28))
      ->capture_default_str();
  app.add_flag("--list", list, "print the cases' names and stop");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const int code = app.exit(e);
    return code == 0 ? 0 : static_cast<int>(Code::kUsage);
  }
  if (list) {
    for (const bench::Case& c : bench::all_cases()) std::printf("%s\n", c.name.c_str());
    return 0;
  }
  if (codecs) {
    bench::run_codecs(elements, options.runs, json);
    return 0;
  }
  options.isa = isa == "avx2" ? CpuIsa::kAvx2 : isa == "avx512" ? CpuIsa::kAvx512 : best_cpu_isa();
  if (!cpu_supports(options.isa)) {
    std::fprintf(stderr, "error: this machine lacks %s\n", cpu_isa_name(options.isa));
    return static_cast<int>(Code::kUsage);
  }
  return bench::run(wanted, options, json);
}
