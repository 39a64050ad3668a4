#include "tools/convnet/training.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>

#include "framework/model/model.pb.h"
#include "tools/convnet/several.h"

namespace convnet::cli {
namespace {

constexpr uint64_t kMaxSteps = 1'000'000'000'000'000;

Interval interval(const schema::Every& every) {
  Interval result;
  result.steps = static_cast<int64_t>(every.steps());
  result.epochs = every.epochs();
  return result;
}

SourceOptions source_options(const BoundModel& model, const Plan& plan,
                             const Ranks& ranks = one_rank()) {
  SourceOptions options;
  options.batch = plan.batch;
  for (uint32_t extent : model.model->input().data()) options.input.append(extent);
  options.seed = plan.seed;
  std::tie(options.begin, options.end) = examples_of_rank(plan, ranks);
  return options;
}

int64_t classes(const BoundModel& model) {
  return static_cast<int64_t>(model.model->input().label().classes());
}

std::optional<uint64_t> number(const std::map<std::string, std::string>& options,
                               const std::string& name) {
  const auto found = options.find(name);
  if (found == options.end()) return std::nullopt;
  uint64_t value = 0;
  const std::string& text = found->second;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > kMaxSteps) {
    return std::nullopt;
  }
  return value;
}

}  // namespace

int model_devices(const BoundModel& model) { return static_cast<int>(model.model->devices()); }

void check_trainable(const BoundModel& model, Diagnostics& diagnostics) {
  const Span place = model.spans.message(*model.model);
  if (!model.model->has_train()) {
    diagnostics.error(place, "the model has no 'train' section, so it cannot be trained");
  }
  if (!model.model->data().has_train()) {
    diagnostics.error(place, "the model has no data to train on").help =
        "add 'data: {train: {idx: PREFIX}}'";
  }
}

void check_testable(const BoundModel& model, Diagnostics& diagnostics) {
  if (model.model->data().has_test()) return;
  diagnostics.error(model.spans.message(*model.model), "the model has no data to test on").help =
      "add 'data: {test: {idx: PREFIX}}'";
}

void LengthArgument::declare(CommandLine& line) {
  line.number("--steps", "N", &steps, 1, kMaxSteps,
              "length of the training in steps, instead of what the model file says");
  line.number("--epochs", "N", &epochs, 1, 1'000'000, "the same in passes over the data");
  line.exclude("--steps", "--epochs");
}

std::map<std::string, std::string> LengthArgument::options() const {
  std::map<std::string, std::string> options;
  if (steps.has_value()) options["steps"] = std::to_string(*steps);
  if (epochs.has_value()) options["epochs"] = std::to_string(*epochs);
  return options;
}

void LengthArgument::inherit(const std::map<std::string, std::string>& options) {
  if (given()) return;
  steps = number(options, "steps");
  if (!steps.has_value()) epochs = number(options, "epochs");
}

int64_t LengthArgument::total(const BoundModel& model, int64_t examples) const {
  const schema::Train& train = model.model->train();
  if (steps.has_value()) return static_cast<int64_t>(*steps);
  if (!epochs.has_value() && train.has_steps()) return static_cast<int64_t>(train.steps());
  const uint64_t passes = epochs.value_or(train.epochs());
  return steps_of_epochs(static_cast<int64_t>(passes), model.model->batch(), examples);
}

RateSchedule rate_schedule(const BoundModel& model, int64_t total_steps) {
  const schema::Rate& rate = model.model->train().rate();
  RateSchedule schedule;
  schedule.base = rate.base();
  switch (rate.policy()) {
    case schema::Rate::constant:
      schedule.policy = RateSchedule::Policy::kConstant;
      break;
    case schema::Rate::step:
      schedule.policy = RateSchedule::Policy::kStep;
      break;
    case schema::Rate::multistep:
      schedule.policy = RateSchedule::Policy::kMultistep;
      break;
    case schema::Rate::exp:
      schedule.policy = RateSchedule::Policy::kExp;
      break;
    case schema::Rate::dexp:
      schedule.policy = RateSchedule::Policy::kDexp;
      break;
    case schema::Rate::linear:
      schedule.policy = RateSchedule::Policy::kLinear;
      break;
    case schema::Rate::poly:
      schedule.policy = RateSchedule::Policy::kPoly;
      break;
  }
  schedule.gamma = rate.gamma();
  schedule.every = static_cast<int64_t>(rate.every());
  for (uint64_t step : rate.at()) schedule.at.push_back(static_cast<int64_t>(step));
  schedule.factor = rate.has_factor() ? rate.factor() : 1;
  schedule.stages = rate.has_steps() ? rate.steps() : 2;
  schedule.power = rate.power();
  if (rate.has_warmup()) {
    schedule.warmup_steps = static_cast<int64_t>(rate.warmup().steps());
    schedule.warmup_from = rate.warmup().from();
  }
  schedule.total_steps = total_steps;
  return schedule;
}

TrainOptions train_options(const BoundModel& model, int64_t total_steps) {
  const schema::Train& train = model.model->train();
  TrainOptions options;
  options.steps = total_steps;
  options.schedule = rate_schedule(model, total_steps);
  options.test.epochs = options.checkpoint.epochs = 1;
  if (train.has_test()) options.test = interval(train.test());
  if (train.has_checkpoint()) options.checkpoint = interval(train.checkpoint());
  options.keep = static_cast<int>(train.keep());
  return options;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, std::max<size_t>(slash, 1));
}

Result<Examples> training_examples(const BoundModel& model, const DataPaths& paths,
                                   const Plan& plan, const HostTensor* stored_mean,
                                   const Ranks& ranks) {
  const std::optional<DataOptions> options = data_options(model.model->data(), DataRole::kTrain);
  CHECK(options.has_value());
  Examples examples;
  CONVNET_ASSIGN_OR_RETURN(examples.dataset, open_dataset(*options, paths, classes(model)));
  CONVNET_ASSIGN_OR_RETURN(examples.mean,
                           source_mean(*options, examples.dataset.get(), stored_mean));
  SourceOptions source = source_options(model, plan, ranks);
  source.mean = examples.mean;
  CONVNET_ASSIGN_OR_RETURN(examples.batches, make_train_source(*options, examples.dataset, source));
  return examples;
}

Result<Examples> test_examples(const BoundModel& model, const DataPaths& paths, const Plan& plan,
                               const Dataset* training, const HostTensor* stored_mean,
                               const Ranks& ranks) {
  const std::optional<DataOptions> options = data_options(model.model->data(), DataRole::kTest);
  CHECK(options.has_value());
  Examples examples;
  CONVNET_ASSIGN_OR_RETURN(examples.dataset, open_dataset(*options, paths, classes(model)));
  CONVNET_ASSIGN_OR_RETURN(examples.mean, source_mean(*options, training, stored_mean));
  SourceOptions source = source_options(model, plan, ranks);
  source.mean = examples.mean;
  CONVNET_ASSIGN_OR_RETURN(examples.batches, make_test_source(*options, examples.dataset, source));
  return examples;
}

Result<Examples> synthetic_examples(const BoundModel& model, const Plan& plan) {
  SourceOptions source = source_options(model, plan);
  DataOptions options;
  options.synthetic.emplace();
  options.synthetic->shape = source.input;
  options.synthetic->classes = classes(model);
  options.synthetic->examples = 64 * plan.batch;
  options.mean_values.assign(static_cast<size_t>(source.input[0]), 128.0);
  options.scale = 1.0 / 64;
  Examples examples;
  CONVNET_ASSIGN_OR_RETURN(examples.dataset, open_dataset(options, DataPaths(), classes(model)));
  CONVNET_ASSIGN_OR_RETURN(examples.batches, make_train_source(options, examples.dataset, source));
  return examples;
}

}  // namespace convnet::cli
