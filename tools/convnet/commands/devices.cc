// convnet devices: what this machine can train on.
#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "framework/base/amounts.h"
#include "framework/comm/mpi/join.h"
#include "tools/convnet/arguments.h"
#include "tools/convnet/command.h"

namespace convnet::cli {
namespace {

// The value of the first line "KEY<blanks>: VALUE" of a file of /proc; empty if there is none.
std::string proc_value(const char* file, const std::string& key) {
  std::ifstream lines(file);
  std::string line;
  while (std::getline(lines, line)) {
    if (!line.starts_with(key)) continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

class DevicesCommand : public Command {
 public:
  const char* name() const override { return "devices"; }
  const char* summary() const override { return "what this machine can train on"; }
  const char* details() const override {
    return R"(A device is logical: any number of cpu devices share the cores of the machine,
each with a team of threads of its own. Processes that mpirun starts, on this
host or several, share the devices of a run in blocks.)";
  }
  const char* examples() const override {
    return R"(convnet devices
convnet devices --measure
convnet devices --json)";
  }

  void declare(CommandLine& line) override {
    line.flag("--measure", &measure_,
              "measure the multiply-add peak of a core, for about a second");
    line.flag("--json", &json_, "print a JSON object");
  }

  int run(Output& output) override {
    const std::string processor = printable(proc_value("/proc/cpuinfo", "model name"));
    const int64_t memory = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
    const int64_t free = static_cast<int64_t>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGESIZE);
    const std::vector<CpuIsa> known = instruction_sets();
    std::vector<std::string> names;
    std::vector<double> peaks;
    for (CpuIsa isa : known) {
      names.emplace_back(cpu_isa_name(isa));
      if (measure_) peaks.push_back(measure_cpu_peak(isa, 0.5));
    }
    if (json_) {
      nlohmann::ordered_json json = {{"schema", 1},
                                     {"processor", processor},
                                     {"cores", available_cores()},
                                     {"memory_bytes", memory},
                                     {"instruction_sets", names},
                                     {"devices", {"cpu"}},
                                     {"left_out", nlohmann::json::array({"cuda"})}};
      if (mpi_version().empty()) {
        json["left_out"].push_back("mpi");
      } else {
        json["mpi"] = mpi_version();
      }
      if (measure_) json["gflops_per_core"] = peaks;
      output.print(json.dump(2) + "\n");
      return 0;
    }
    output.print(fmt::format("cpu   {}\n", processor.empty() ? "unknown processor" : processor));
    output.print(fmt::format("      {} for this process, {} memory, {} free\n",
                             counted(available_cores(), "core"), bytes_text(memory),
                             bytes_text(free)));
    output.print(fmt::format("      kernels for {}\n",
                             names.empty() ? "none of its instruction sets: --isa reference only"
                                           : fmt::format("{}", fmt::join(names, ", "))));
    for (size_t i = 0; i < peaks.size(); ++i) {
      output.print(
          fmt::format("      {}: {:.1f} GFLOP/s per core, multiply-add\n", names[i], peaks[i]));
    }
    const std::string mpi = mpi_version();
    output.print("cuda  not in this build\n");
    output.print(mpi.empty() ? "mpi   not in this build\n"
                             : fmt::format("mpi   {}: mpirun -n 2 convnet train ... runs as 2 "
                                           "processes\n",
                                           printable(mpi)));
    return 0;
  }

 private:
  bool measure_ = false, json_ = false;
};

}  // namespace

std::unique_ptr<Command> devices_command() { return std::make_unique<DevicesCommand>(); }

}  // namespace convnet::cli
