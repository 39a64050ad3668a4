#include "tests/support/model_run.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "framework/backends/reference/reference.h"
#include "framework/base/random.h"
#include "layers/registry.h"
#include "parsers/model_file.h"

namespace convnet {

std::unique_ptr<BoundModel> bind_text(const std::string& yaml) {
  Diagnostics diagnostics;
  auto model = load_model_text("model.yaml", yaml, {}, diagnostics);
  CHECK_MSG(model != nullptr, "model has mistakes:\n" + diagnostics.render() + "\n" + yaml);
  return model;
}

Plan compile_model(const BoundModel& model, const CompileOptions& options) {
  Diagnostics diagnostics;
  std::optional<Plan> plan = compile(model, all_layers(), options, diagnostics);
  CHECK_MSG(plan.has_value(), "model has mistakes:\n" + diagnostics.render());
  return *std::move(plan);
}

std::unique_ptr<Session> reference_session(const Plan& plan) {
  SessionOptions options;
  options.backend = [](int) -> Result<std::unique_ptr<Backend>> {
    return make_reference_backend();
  };
  auto session = Session::create(plan, options);
  CHECK_MSG(session.ok(), session.status().message());
  (*session)->initialise();
  return *std::move(session);
}

Batch random_batch(const Plan& plan, uint64_t seed, int64_t count) {
  Batch batch;
  batch.count = count;
  const int64_t padded = (plan.batch + kLanes - 1) / kLanes * kLanes;
  batch.label.assign(static_cast<size_t>(padded), -1);
  for (const Tensor& t : plan.tensors) {
    if (t.kind != TensorKind::kInput) continue;
    if (t.attrs.word("input") == "label") {
      const auto classes = static_cast<uint64_t>(t.attrs.integer("classes"));
      const auto key = random_key(seed, name_key("label"));
      for (int64_t n = 0; n < count; ++n)
        batch.label[static_cast<size_t>(n)] =
            static_cast<int32_t>(random_below(key, static_cast<uint64_t>(n), classes));
    } else {
      const int64_t elements = t.shape.count() / plan.batch;
      batch.data.assign(static_cast<size_t>(padded * elements), 0.0f);
      const auto key = random_key(seed, name_key("data"));
      for (int64_t n = 0; n < count; ++n)
        for (int64_t e = 0; e < elements; ++e) {
          const auto index = static_cast<uint64_t>(n * elements + e);
          const size_t at = static_cast<size_t>((n / kLanes * elements + e) * kLanes + n % kLanes);
          const auto k = static_cast<int>(random_below(key, index, 16));
          batch.data[at] = static_cast<float>(2 * k - 15) / 16.0f;
        }
    }
  }
  return batch;
}

std::map<std::string, HostTensor> read_all(const Session& session) {
  std::map<std::string, HostTensor> all;
  for (const Tensor& t : session.plan().tensors) {
    if (t.kind != TensorKind::kParameter && t.kind != TensorKind::kState) continue;
    auto value = session.read(t.name);
    CHECK_MSG(value.ok(), value.status().message());
    all[t.name] = *std::move(value);
  }
  return all;
}

double largest_difference(const std::map<std::string, HostTensor>& a,
                          const std::map<std::string, HostTensor>& b) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (a.size() != b.size()) return kInfinity;
  double worst = 0;
  for (const auto& [name, x] : a) {
    const auto it = b.find(name);
    if (it == b.end() || it->second.values.size() != x.values.size()) return kInfinity;
    for (size_t i = 0; i < x.values.size(); ++i) {
      const double difference = std::abs(x.values[i] - it->second.values[i]);
      if (!(difference <= kInfinity)) return kInfinity;  // NaN
      worst = std::max(worst, difference / std::max(1.0, std::abs(x.values[i])));
    }
  }
  return worst;
}

}  // namespace convnet
