#include "tools/convnet/random/proof.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <map>
#include <optional>

#include "data/source.h"
#include "framework/backends/cpu/cpu.h"
#include "framework/backends/reference/reference.h"
#include "framework/base/random.h"
#include "framework/compiler/compile.h"
#include "framework/graph/graph.h"
#include "framework/plan/verify_plan.h"
#include "framework/runtime/session.h"
#include "layers/registry.h"
#include "parsers/model_file.h"
#include "tools/convnet/arguments.h"
#include "tools/convnet/random/integer_backend.h"
#include "tools/convnet/random/random_model.h"

namespace convnet::cli {
namespace {

constexpr int kDraws = 40;
constexpr unsigned kSecondsPerCase = 60;
constexpr double kRate = 0.125;

using PassRows = std::map<std::string, std::vector<std::vector<int64_t>>>;  // per layer

// Of the network on its devices, which fills `passes`, or on one, in the same passes.
std::optional<Plan> plan_of(const RandomModel& model, bool placed, DType dtype, PassRows& passes) {
  Diagnostics diagnostics;
  const auto bound = load_model_text("random.yaml", model.text(placed), {}, diagnostics);
  if (bound == nullptr) return std::nullopt;
  CompileOptions options;
  options.dtype = dtype;
  options.devices = placed ? model.devices : 1;
  options.phase = model.test ? Plan::Phase::kTest : Plan::Phase::kTrain;
  options.verify = false;  // done here, where a fault is a finding
  options.damage_graph = [&](const std::string& pass, Graph& graph) {
    for (GraphLayer& layer : graph.layers) {
      if (placed && pass == "rebatch") passes[layer.name] = layer.pass_rows;
      if (!placed && pass == "grad" && passes.contains(layer.name))
        layer.pass_rows = passes[layer.name];
    }
  };
  return compile(*bound, all_layers(), options, diagnostics);
}

Batch batch_of(const Plan& plan, int64_t step, bool integer) {
  Batch batch;
  batch.count = plan.batch - (step > 0 ? plan.batch / 3 : 0);
  const int64_t padded = (plan.batch + kLanes - 1) / kLanes * kLanes;
  batch.label.assign(static_cast<size_t>(padded), -1);
  for (const Tensor& t : plan.tensors) {
    if (t.kind != TensorKind::kInput) continue;
    const bool label = t.attrs.word("input") == "label";
    const int64_t elements = label ? 1 : t.shape.count() / t.shape[0];
    const auto key = random_key(static_cast<uint64_t>(step), name_key(label ? "label" : "data"));
    if (!label) batch.data.assign(static_cast<size_t>(padded * elements), 0.0f);
    for (int64_t n = 0; n < batch.count; ++n)
      for (int64_t e = 0; e < elements; ++e) {
        const auto index = static_cast<uint64_t>(n * elements + e);
        if (label) {
          const auto classes = static_cast<uint64_t>(t.attrs.integer("classes"));
          batch.label[static_cast<size_t>(n)] =
              static_cast<int32_t>(random_below(key, index, classes));
        } else {
          const auto at = static_cast<size_t>((n / kLanes * elements + e) * kLanes + n % kLanes);
          const auto drawn = static_cast<int>(random_below(key, index, integer ? 5 : 16));
          batch.data[at] =
              integer ? static_cast<float>(drawn - 2) : static_cast<float>(2 * drawn - 15) / 16.0f;
        }
      }
  }
  return batch;
}

enum class Kernels { kReference, kCpu, kInteger };

// Small integers as parameters; other ones in each step, so that they stay small.
Status write_integers(Session& session, int64_t step) {
  for (const Tensor& t : session.plan().tensors) {
    if (t.kind != TensorKind::kParameter) continue;
    HostTensor value{t.shape, t.dtype, {}};
    const auto key = random_key(static_cast<uint64_t>(step), name_key(t.name));
    for (uint64_t i = 0; i < static_cast<uint64_t>(t.shape.count()); ++i)
      value.values.push_back(std::array{-1, 0, 0, 1}[random_below(key, i, 4)]);
    CONVNET_RETURN_IF_ERROR(session.write(t.name, value));
  }
  return Status();
}

// `rounded`: see make_integer_backend.
Result<std::unique_ptr<Session>> session_of(const Plan& plan, Kernels kernels,
                                            std::atomic<bool>& rounded) {
  const auto reference = [](int) -> Result<std::unique_ptr<Backend>> {
    return make_reference_backend();
  };
  SessionOptions options;
  options.threads = 1;
  options.backend = reference;
  if (kernels == Kernels::kInteger)
    options.backend = [&](int) -> Result<std::unique_ptr<Backend>> {
      return make_integer_backend(plan.batch, rounded);
    };
  if (kernels == Kernels::kCpu) {
    options.backend = [](int) -> Result<std::unique_ptr<Backend>> {
      return make_cpu_backend(best_cpu_isa());
    };
    options.fallback = reference;
  }
  auto session = Session::create(plan, options);
  if (session.ok()) (*session)->initialise();
  return session;
}

// Whether one device computes the network, as it is without devices, in whole numbers.
bool keeps_integers(const RandomModel& model) {
  PassRows none;
  const auto plan = plan_of(model, false, DType::kF64, none);
  if (!plan.has_value()) return false;
  std::atomic<bool> rounded{false};
  const auto session = session_of(*plan, Kernels::kInteger, rounded);
  return session.ok() && write_integers(**session, 0).ok() &&
         (*session)->run(batch_of(*plan, 0, true), 0, kRate).ok() && !rounded;
}

// Empty if they agree, or if either `rounded` where there are to be whole numbers.
std::string difference(const Plan& serial, const Plan& placed, double bound, Kernels kernels,
                       std::atomic<bool>& rounded) {
  const bool integer = kernels == Kernels::kInteger;
  auto one = session_of(serial, kernels, rounded), many = session_of(placed, kernels, rounded);
  if (!one.ok()) return "one device: " + one.status().message();
  if (!many.ok()) return "many devices: " + many.status().message();
  const auto differ = [&](double a, double b) {
    return !(a == b || std::abs(a - b) <= bound * std::max(1.0, std::abs(a)));
  };
  for (int64_t step = 0; step < 2; ++step) {
    const Batch batch = batch_of(serial, step, integer);
    if (integer) {
      for (Session* session : {one->get(), many->get()})
        if (const Status status = write_integers(*session, step); !status.ok())
          return "parameters cannot be written: " + status.message();
    }
    const auto a = (*one)->run(batch, step, kRate), b = (*many)->run(batch, step, kRate);
    if (rounded) return "";
    if (!a.ok() || !b.ok()) return "a step failed: " + (a.ok() ? b : a).status().message();
    if (a->metrics.size() != b->metrics.size()) return "another number of metrics";
    for (size_t i = 0; i < a->metrics.size(); ++i) {
      const MetricValues &x = a->metrics[i], &y = b->metrics[i];
      if (std::abs(x.loss_sum - y.loss_sum) >
              std::max(bound, 1e-12) * std::max(1.0, std::abs(x.loss_sum)) ||
          x.examples != y.examples)
        return fmt::format("step {}: loss {} of {} examples on one device, {} of {} on many",
                           step + 1, x.loss_sum, x.examples, y.loss_sum, y.examples);
    }
    for (const Tensor& t : serial.tensors) {
      if (t.kind != TensorKind::kParameter && t.kind != TensorKind::kState) continue;
      const auto x = (*one)->read(t.name), y = (*many)->read(t.name);
      if (!x.ok() || !y.ok() || x->values.size() != y->values.size())
        return t.name + " has another shape, or cannot be read";
      for (size_t i = 0; i < x->values.size(); ++i)
        if (differ(x->values[i], y->values[i]))
          return fmt::format("step {}: {} element {} is {:.17g} on one device, {:.17g} on many",
                             step + 1, t.name, i, x->values[i], y->values[i]);
    }
  }
  return "";
}

// "r": refused. "f" and what differs. Else "=" and a letter for each thing that is counted:
// compared 'i' as whole numbers, 'e' bit for bit and 't' within rounding in double, 's' bit for bit
// in float; with 'm' a mesh, 'u' updates in passes, 'o' a number of devices that is no power of
// two.
std::string check(const RandomModel& model, const ProofOptions& options) {
  std::string done = "=";
  for (const DType dtype : {DType::kF64, DType::kF32}) {
    PassRows passes;
    auto placed = plan_of(model, true, dtype, passes);
    const auto serial = plan_of(model, false, dtype, passes);
    if (!serial.has_value() || !placed.has_value()) return "r";
    if (options.damage) options.damage(*placed);
    for (const Plan* plan : {&*serial, const_cast<const Plan*>(&*placed)}) {
      const auto faults = verify_plan(*plan);
      if (!faults.empty() && !options.damage) return "fverifier: " + faults[0].str();
    }
    const bool exact = std::ranges::none_of(
        placed->exchanges, [](const Exchange& e) { return e.order == Exchange::Order::kRank; });
    std::string what;
    const auto differs = [&](const char* level, double bound, Kernels kernels, char letter) {
      std::atomic<bool> rounded{false};
      what = difference(*serial, *placed, bound, kernels, rounded);
      if (!what.empty()) what = fmt::format("f{}, {}", level, what);
      if (!rounded) done += letter;
      return !what.empty();
    };
    if (dtype == DType::kF64) {
      if (model.integer && differs("whole numbers", 0, Kernels::kInteger, 'i')) return what;
      if (differs("double", exact ? 0 : 1e-12, Kernels::kReference, exact ? 'e' : 't')) return what;
    } else if (exact) {
      if (differs("float", 0, Kernels::kReference, 's')) return what;
      if (!instruction_sets().empty() && differs("cpu", 0, Kernels::kCpu, 'c')) return what;
    }
  }
  if (std::ranges::any_of(model.layers, [](const RandomLayer& l) { return l.rows > 0; }))
    done += 'm';
  if (model.updates_in_passes()) done += 'u';
  if (!std::has_single_bit(static_cast<unsigned>(model.devices))) done += 'o';
  return done;
}

struct Child {
  pid_t pid;
  int fd;
};

Child start(const std::function<void(int fd)>& body) {
  int fds[2];
  CHECK(pipe(fds) == 0);
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    close(fds[0]);
    alarm(kSecondsPerCase);
    body(fds[1]);
    _exit(0);
  }
  close(fds[1]);
  return {pid, fds[0]};
}

void put(int fd, const std::string& text) {
  CHECK(write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
}

// What the child wrote; if it died, with an 'f' after it.
std::string finish(const Child& child) {
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(child.fd, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(n));
  close(child.fd);
  int status = 0;
  waitpid(child.pid, &status, 0);
  if (WIFSIGNALED(status))
    text += fmt::format("f{} (signal {})",
                        WTERMSIG(status) == SIGALRM ? "does not end" : "the program aborts",
                        WTERMSIG(status));
  return text;
}

// Only failures of one kind: up to the first ':' or ','.
std::string kind(const std::string& outcome) {
  return outcome.substr(0, outcome.find_first_of(":,"));
}

ProofFailure shrink(RandomModel model, std::string outcome, const ProofOptions& options) {
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(options.shrink_seconds);
  for (bool again = true; again;) {
    again = false;
    for (const RandomModel& smaller : smaller_models(model)) {
      if (std::chrono::steady_clock::now() > end) break;
      const std::string now = finish(start([&](int fd) { put(fd, check(smaller, options)); }));
      if (now.empty() || now[0] != 'f' || kind(now) != kind(outcome)) continue;
      model = smaller;
      outcome = now;
      again = true;
      break;
    }
  }
  return {0, outcome.substr(1), model.text(true)};
}

}  // namespace

std::string levels_text(const ProofResult& r) {
  return fmt::format(
      "{} run: {} in whole numbers, {} bit for bit and {} within rounding in double, {} bit for "
      "bit in float; {} with a mesh, {} with updates in passes, {} on devices that are no power of "
      "two; {} "
      "placements refused, {} graphs without any",
      r.run, r.integer, r.exact, r.rounded, r.single, r.meshes, r.update_periods, r.odd_devices,
      r.refused, r.unplaced);
}

ProofResult prove(const ProofOptions& options) {
  ProofResult result;
  const auto enough = [&] {
    return static_cast<int64_t>(result.failures.size()) >= options.most_failures;
  };
  for (int64_t i = 0; i < options.graphs && !enough();) {
    std::vector<std::pair<uint64_t, Child>> children;
    for (int p = 0; p < options.processes && i < options.graphs; ++p, ++i) {
      const uint64_t seed = options.seed + static_cast<uint64_t>(i);
      children.emplace_back(seed, start([&](int fd) {
                              std::mt19937 random(static_cast<uint32_t>(seed));
                              RandomModel model = random_network(random, keeps_integers);
                              for (int draw = 0; draw < kDraws; ++draw) {
                                place_at_random(model, random);
                                put(fd, ".");  // so that the parent knows which draw it was
                                const std::string outcome = check(model, options);
                                if (outcome == "r") continue;
                                put(fd, outcome);
                                return;
                              }
                            }));
    }
    for (const auto& [seed, child] : children) {
      const std::string text = finish(child);
      const size_t draws = std::min(text.find_first_not_of('.'), text.size());
      const std::string outcome = text.substr(draws);
      result.refused += static_cast<int64_t>(draws) - (outcome.empty() ? 0 : 1);
      if (outcome.empty()) {
        ++result.unplaced;
        continue;
      }
      ++result.run;
      if (outcome[0] == '=') {
        for (const auto& [letter, count] :
             {std::pair{'i', &result.integer}, std::pair{'e', &result.exact},
              std::pair{'t', &result.rounded}, std::pair{'s', &result.single},
              std::pair{'m', &result.meshes}, std::pair{'u', &result.update_periods},
              std::pair{'o', &result.odd_devices}})
          *count += outcome.find(letter) != std::string::npos;
        continue;
      }
      std::mt19937 random(static_cast<uint32_t>(seed));
      RandomModel model = random_network(random, keeps_integers);
      for (size_t d = 0; d < draws; ++d) place_at_random(model, random);
      ProofFailure failure = shrink(model, outcome, options);
      failure.seed = seed;
      result.failures.push_back(std::move(failure));
    }
    if (options.progress) options.progress(i);
  }
  return result;
}

}  // namespace convnet::cli
