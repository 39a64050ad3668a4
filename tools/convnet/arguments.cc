#include "tools/convnet/arguments.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <thread>

#include "framework/backends/cpu/cpu.h"
#include "framework/backends/reference/reference.h"
#include "layers/registry.h"
#include "parsers/model_file.h"

namespace convnet::cli {
namespace {

constexpr int kMaxDevices = 1024;
constexpr int kMaxThreads = 1024;

}  // namespace

void ModelArgument::declare(CommandLine& line, bool required) {
  line.argument("FILE", &file, required, "model file");
  line.texts("--set", "PATH=VALUE", &sets,
             "replace a value of the model file, e.g. train.rate.base=0.02 or "
             "layers.conv1.filters=32; may be repeated");
}

std::unique_ptr<BoundModel> ModelArgument::load(Diagnostics& diagnostics) const {
  return load_model(file, sets, diagnostics);
}

void DevicesArgument::declare(CommandLine& line, const char* doc) {
  line.text("--devices", "N|cpu:N", &text, doc);
}

Result<int> DevicesArgument::count() const {
  if (text.empty()) return 0;
  std::string_view digits = text;
  if (digits.starts_with("cuda")) {
    return Status(Code::kUsage,
                  fmt::format("--devices {}: this program is built for cpu devices only",
                              printable(text, 100)));
  }
  if (digits.starts_with("cpu:")) digits.remove_prefix(4);
  int count = 0;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
  if (error != std::errc() || end != digits.data() + digits.size() || count < 1 ||
      count > kMaxDevices) {
    return Status(
        Code::kUsage,
        fmt::format("--devices takes a number of devices from 1 to {}, as 4 or cpu:4, not '{}'",
                    kMaxDevices, printable(text, 100)));
  }
  return count;
}

void BackendArgument::declare(CommandLine& line) {
  line.number("--threads", "T", &threads, 1, kMaxThreads,
              "threads of each device; the cores divided by the devices if not given");
  line.choice("--isa", &isa, {"avx2", "avx512", "reference"},
              "instruction set of the kernels; the widest of this machine if not given; reference: "
              "plain loops");
}

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

Result<SessionOptions> BackendArgument::options(int devices, Ranks& ranks) const {
  const int here = first_device(ranks.rank() + 1, ranks.size(), devices) -
                   first_device(ranks.rank(), ranks.size(), devices);
  const int cores = available_cores() / ranks.sharing_cores();
  SessionOptions options;
  options.ranks = &ranks;
  options.threads =
      threads.has_value() ? static_cast<int>(*threads) : std::max(1, cores / std::max(1, here));
  const auto reference = [](int) -> Result<std::unique_ptr<Backend>> {
    return make_reference_backend();
  };
  if (isa == "reference") {
    options.backend = reference;
    return options;
  }
  const std::vector<CpuIsa> known = instruction_sets();
  if (known.empty()) {
    return Status(Code::kUsage, "this processor has no AVX2: --isa reference is all it can do");
  }
  CpuIsa chosen = best_cpu_isa();
  if (!isa.empty()) {
    chosen = isa == cpu_isa_name(CpuIsa::kAvx2) ? CpuIsa::kAvx2 : CpuIsa::kAvx512;
    if (!cpu_supports(chosen)) {
      return Status(Code::kUsage, fmt::format("this processor has no {}: use --isa {}", isa,
                                              cpu_isa_name(known.back())));
    }
  }
  options.backend = [chosen](int) -> Result<std::unique_ptr<Backend>> {
    return make_cpu_backend(chosen);
  };
  options.fallback = reference;
  return options;
}

std::vector<CpuIsa> instruction_sets() {
  std::vector<CpuIsa> known;
  for (CpuIsa candidate : {CpuIsa::kAvx2, CpuIsa::kAvx512}) {
    if (cpu_supports(candidate)) known.push_back(candidate);
  }
  return known;
}

std::optional<Plan> compile_model(const BoundModel& model, const CompileOptions& options,
                                  Diagnostics& diagnostics) {
  return compile(model, all_layers(), options, diagnostics);
}

int64_t parameters(const Plan& plan) {
  int64_t sum = 0;
  for (const Tensor& tensor : plan.tensors) {
    if (tensor.kind == TensorKind::kParameter) sum += tensor.shape.count();
  }
  return sum;
}

}  // namespace convnet::cli
