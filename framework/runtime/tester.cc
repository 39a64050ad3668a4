#include "framework/runtime/tester.h"

#include <algorithm>
#include <cstdio>
#include <limits>

namespace convnet {

void MetricSums::add(const std::vector<MetricValues>& step) {
  if (sums_.empty()) {
    sums_ = step;
    return;
  }
  CHECK(sums_.size() == step.size());
  for (size_t i = 0; i < step.size(); ++i) {
    sums_[i].loss_sum += step[i].loss_sum;
    sums_[i].examples += step[i].examples;
    for (size_t t = 0; t < step[i].correct.size(); ++t) sums_[i].correct[t] += step[i].correct[t];
  }
}

double MetricSums::examples() const {
  double most = 0;
  for (const MetricValues& m : sums_) most = std::max(most, m.examples);
  return most;
}

double MetricSums::loss() const {
  if (examples() == 0) return std::numeric_limits<double>::quiet_NaN();
  double loss = 0;
  for (const MetricValues& m : sums_)
    if (m.examples > 0) loss += m.weight * (m.loss_sum / m.examples);
  return loss;
}

std::vector<std::pair<std::string, double>> MetricSums::means() const {
  std::vector<std::pair<std::string, double>> means;
  for (const MetricValues& m : sums_) {
    if (m.examples == 0) continue;
    const std::string prefix = sums_.size() > 1 ? m.layer + "." : "";
    if (sums_.size() > 1) means.emplace_back(prefix + "loss", m.loss_sum / m.examples);
    for (size_t t = 0; t < m.top.size(); ++t)
      means.emplace_back(prefix + "top" + std::to_string(m.top[t]), m.correct[t] / m.examples);
  }
  return means;
}

std::string MetricSums::text() const {
  char number[64];
  std::snprintf(number, sizeof number, "loss %.4g", loss());
  std::string text = number;
  for (const auto& [name, mean] : means()) {
    const bool is_loss = name.ends_with(".loss");
    std::snprintf(number, sizeof number, is_loss ? " %.4g" : " %.2f%%",
                  is_loss ? mean : 100 * mean);
    text += "  " + name + number;
  }
  return text;
}

Status not_finite(Session& session, const Batch& batch, int64_t step, const std::string& when) {
  CONVNET_ASSIGN_OR_RETURN(const NonFinite first, session.find_non_finite(batch, step));
  std::string where;
  if (!first.tensor.empty()) {
    where = ": first in '" + first.tensor + "'";
    if (first.tensor != first.layer) where += " of layer '" + first.layer + "'";
    if (first.line > 0)
      where += " (" + session.plan().source + ":" + std::to_string(first.line) + ")";
  }
  return Status(Code::kNotFinite, "loss is not finite " + when + where);
}

Result<Evaluation> evaluate(Session& session, BatchSource& data,
                            const std::function<bool(int64_t done, int64_t all)>& after_batch) {
  Evaluation result;
  const int64_t all = data.examples();
  for (int64_t index = 0;; ++index) {
    CONVNET_ASSIGN_OR_RETURN(const Batch* batch, data.get(index));
    if (batch->count == 0) break;
    CONVNET_ASSIGN_OR_RETURN(const StepResult step, session.run(*batch, index, 0));
    if (!step.finite)
      return not_finite(session, *batch, index, "in test batch " + std::to_string(index + 1));
    result.metrics.add(step.metrics);
    result.examples += batch->count;
    if (after_batch && !after_batch(result.examples, all) && result.examples < all) return result;
  }
  if (result.examples != all)
    return Status(Code::kData, "the test data gave " + std::to_string(result.examples) +
                                   " examples of " + std::to_string(all));
  result.complete = true;
  return result;
}

}  // namespace convnet
