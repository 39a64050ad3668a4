// Evaluation: a model run over a whole data set, and the means of its metrics over exact example
// counts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "framework/base/status.h"
#include "framework/runtime/batch_source.h"
#include "framework/runtime/session.h"

namespace convnet {

// Sums of metrics over steps. Means are sums over numbers of examples, so a last batch that is not
// full counts for what it holds.
class MetricSums {
 public:
  void add(const std::vector<MetricValues>& step);
  void clear() { sums_.clear(); }

  const std::vector<MetricValues>& sums() const { return sums_; }  // per loss layer
  double examples() const;  // of the loss layer that saw most
  // Sum over loss layers of weight times mean loss; NaN without examples.
  double loss() const;
  // "top1" -> part of the examples that are right, 0 to 1; with several loss layers also their
  // losses, and all names are "LAYER.loss", "LAYER.top1".
  std::vector<std::pair<std::string, double>> means() const;
  // "loss 0.0834  top1 97.21%"
  std::string text() const;

 private:
  std::vector<MetricValues> sums_;
};

struct Evaluation {
  MetricSums metrics;
  int64_t examples = 0;   // that were run
  bool complete = false;  // false: stopped before the end of the data
};

// Runs every example of `data` once. `session` has a test plan. `after_batch`, if given, is called
// with the examples done and the examples of the data set, and returns false to stop. kNotFinite if
// a loss is not finite; kData if the data fail.
Result<Evaluation> evaluate(Session& session, BatchSource& data,
                            const std::function<bool(int64_t done, int64_t all)>& after_batch = {});

// The error for a step with StepResult::finite == false: "loss is not finite at step 12: first in
// 'conv3' (model.yaml:14)". `when` is "at step 12".
Status not_finite(Session& session, const Batch& batch, int64_t step, const std::string& when);

}  // namespace convnet
