// What a training or a test is made of, from a model file: its length, its schedule, its data.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "data/source.h"
#include "framework/base/diagnostics.h"
#include "framework/base/status.h"
#include "framework/comm/ranks.h"
#include "framework/model/binder.h"
#include "framework/plan/plan.h"
#include "framework/runtime/schedule.h"
#include "framework/runtime/trainer.h"
#include "tools/convnet/command.h"

namespace convnet::cli {

// The model file's own number of devices.
int model_devices(const BoundModel& model);

// Mistakes that only those meet who train: no train section, no training data.
void check_trainable(const BoundModel& model, Diagnostics& diagnostics);
// The same for a test.
void check_testable(const BoundModel& model, Diagnostics& diagnostics);

// --steps and --epochs, which replace what the model file says.
struct LengthArgument {
  std::optional<uint64_t> steps, epochs;

  void declare(CommandLine& line);
  bool given() const { return steps.has_value() || epochs.has_value(); }
  // Kept in checkpoints, so that a resumed run has the same length.
  std::map<std::string, std::string> options() const;
  // Takes over what a checkpoint says, unless given.
  void inherit(const std::map<std::string, std::string>& options);
  // Steps of the whole training.
  int64_t total(const BoundModel& model, int64_t examples) const;
};

RateSchedule rate_schedule(const BoundModel& model, int64_t total_steps);

// Intervals and number of checkpoints, schedule and length.
TrainOptions train_options(const BoundModel& model, int64_t total_steps);

// Folder of a path; empty for the current one.
std::string folder_of(const std::string& path);

// The examples of a model file.
struct Examples {
  std::shared_ptr<const Dataset> dataset;
  std::unique_ptr<BatchSource> batches;
  std::optional<HostTensor> mean;
};

// `stored_mean`: what a checkpoint says, or null to compute it. The model has this source. Of each
// batch, what the devices of this rank read.
Result<Examples> training_examples(const BoundModel& model, const DataPaths& paths,
                                   const Plan& plan, const HostTensor* stored_mean,
                                   const Ranks& ranks = one_rank());
// `training` may be null if the mean is stored or not taken from the training data.
Result<Examples> test_examples(const BoundModel& model, const DataPaths& paths, const Plan& plan,
                               const Dataset* training, const HostTensor* stored_mean,
                               const Ranks& ranks = one_rank());
// Generated examples of the shape that the model wants.
Result<Examples> synthetic_examples(const BoundModel& model, const Plan& plan);

}  // namespace convnet::cli
