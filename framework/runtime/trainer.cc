#include "framework/runtime/trainer.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <set>
#include <utility>

#include "framework/runtime/signals.h"

namespace convnet {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool is_kept(const Tensor& tensor) {
  return tensor.kind == TensorKind::kParameter || tensor.kind == TensorKind::kState;
}

// batch * step, which may pass 63 bits only for counts that no run reaches.
__int128 product(int64_t a, int64_t b) { return static_cast<__int128>(a) * b; }

class Trainer {
 public:
  Trainer(Session& session, Session* test, BatchSource& data, BatchSource* test_data,
          const TrainOptions& options, RunDirectory* directory, const TrainCallbacks& callbacks)
      : session_(session),
        test_(test),
        data_(data),
        test_data_(test_data),
        options_(options),
        directory_(directory),
        callbacks_(callbacks),
        ranks_(session.ranks()),
        batch_(session.plan().batch),
        progress_(progress_options(options.progress, session.ranks()), options.first_step,
                  options.steps, session.plan().batch) {}

  Result<TrainOutcome> run() {
    log(start_line());
    const Status status = steps();
    JsonLine end("end");
    end.integer("step", outcome_.step);
    if (!status.ok()) {
      end.text("reason", status.code() == Code::kNotFinite ? "not finite" : "error");
      end.text("message", status.message());
    } else if (outcome_.signal != 0) {
      end.text("reason", "signal").integer("signal", outcome_.signal);
    } else {
      end.text("reason", "done");
    }
    log(end);
    if (!status.ok()) return status;
    return outcome_;
  }

 private:
  // Other ranks show nothing.
  static ProgressOptions progress_options(ProgressOptions options, const Ranks& ranks) {
    if (ranks.rank() == 0) return options;
    options.mode = ProgressOptions::Mode::kNone;
    options.file = -1;
    return options;
  }

  Status steps() {
    outcome_.step = options_.first_step;
    logged_at_ = seconds_now();
    CONVNET_RETURN_IF_ERROR(find_whether_saved());
    bool tested = false;
    while (outcome_.step < options_.steps && stop_asked_ == 0) {
      CONVNET_RETURN_IF_ERROR(step());
      const int64_t done = outcome_.step;
      const bool requested = std::exchange(checkpoint_asked_, false);
      // The checkpoint first: what a long test takes is then not lost with it.
      if (requested || options_.checkpoint.due(done, batch_, data_.examples()))
        CONVNET_RETURN_IF_ERROR(save(done == options_.steps));
      tested = options_.test.due(done, batch_, data_.examples());
      if (tested && stop_asked_ == 0) CONVNET_RETURN_IF_ERROR(run_test());
    }
    outcome_.signal = stop_asked_;
    // A run that a signal stops saves first and tests not at all.
    if (outcome_.checkpoint_step != outcome_.step && outcome_.step > options_.first_step)
      CONVNET_RETURN_IF_ERROR(save(true));
    if (outcome_.signal == 0 && !tested) CONVNET_RETURN_IF_ERROR(run_test());
    outcome_.signal = stop_asked_;
    return Status();
  }

  // What signals ask for counts once all ranks know of it, so that all stop after the same step and
  // save after the same steps. It is told while the step runs: a signal that comes in the meantime
  // counts after the next one, but on a rank that is alone, which has nobody to tell, at once.
  void begin_asking() { ranks_.begin_max(asked()); }
  Status end_asking(const std::string& what) {
    std::array<int64_t, 2> all{};
    CONVNET_RETURN_IF_ERROR(ranks_.end_max(all, what, Ranks::Patience::kStep));
    if (ranks_.size() == 1) {
      const std::array<int64_t, 2> since = asked();
      all = {std::max(all[0], since[0]), std::max(all[1], since[1])};
    }
    stop_asked_ = static_cast<int>(all[0]);
    checkpoint_asked_ = checkpoint_asked_ || all[1] != 0;
    return Status();
  }
  std::array<int64_t, 2> asked() const {
    if (!options_.handle_signals) return {0, 0};
    return {stop_signal(), take_checkpoint_request() ? 1 : 0};
  }

  // Whether checkpoints are written: rank 0 does, and the others have to help.
  Status find_whether_saved() {
    ranks_.begin_max(std::array<int64_t, 1>{directory_ != nullptr ? 1 : 0});
    std::array<int64_t, 1> any{};
    CONVNET_RETURN_IF_ERROR(
        ranks_.end_max(any, "the start of the training", Ranks::Patience::kWork));
    saves_ = any[0] != 0;
    return Status();
  }

  Status step() {
    const int64_t index = outcome_.step;
    const double rate = options_.schedule.rate_at(index);
    CONVNET_ASSIGN_OR_RETURN(const Batch* batch, data_.get(index));
    if (batch->count == 0) return Status(Code::kData, "the training data are empty");
    begin_asking();
    CONVNET_ASSIGN_OR_RETURN(const StepResult result, session_.run(*batch, index, rate));
    if (result.finite) note_step(result, rate);
    CONVNET_RETURN_IF_ERROR(end_asking("the end of step " + std::to_string(index + 1)));
    return result.finite ? Status() : stop_not_finite(*batch, index);
  }

  void note_step(const StepResult& result, double rate) {
    ++outcome_.step;
    outcome_.last_step.clear();
    outcome_.last_step.add(result.metrics);
    log_sums_.add(result.metrics);
    shown_sums_.add(result.metrics);
    if (callbacks_.after_step) callbacks_.after_step(outcome_.step, result);

    if (outcome_.step % std::max<int64_t>(1, options_.log_every) == 0 ||
        outcome_.step == options_.steps)
      log_step(rate);
    if (progress_.due(outcome_.step)) {
      progress_.report({outcome_.step, epochs(), shown_sums_.text(), rate});
      shown_sums_.clear();
    }
  }

  Status stop_not_finite(const Batch& batch, int64_t index) {
    Status status = not_finite(session_, batch, index, "at step " + std::to_string(index + 1));
    if (status.code() != Code::kNotFinite) return status;
    const int64_t saved = outcome_.checkpoint_step.value_or(options_.first_step);
    if (saved == 0) return status;
    return Status(status.code(),
                  status.message() + "; the last checkpoint is of step " + std::to_string(saved));
  }

  double epochs() const {
    const int64_t examples = std::max<int64_t>(1, data_.examples());
    return static_cast<double>(outcome_.step) * static_cast<double>(batch_) /
           static_cast<double>(examples);
  }

  Status run_test() {
    if (test_ == nullptr || test_data_ == nullptr) return Status();
    progress_.pause();
    Status asking;
    const auto go_on = [this, &asking](int64_t done, int64_t) {
      begin_asking();
      asking = end_asking("the test of " + std::to_string(done) + " examples");
      return asking.ok() && stop_asked_ == 0;
    };
    auto evaluation = evaluate(*test_, *test_data_, go_on);
    progress_.resume();
    CONVNET_RETURN_IF_ERROR(asking);
    if (!evaluation.ok())
      return evaluation.status().with_context("test after step " + std::to_string(outcome_.step));
    if (!evaluation->complete) return Status();
    JsonLine line("test");
    line.integer("step", outcome_.step).number("epoch", epochs());
    add_means(line, evaluation->metrics);
    line.integer("examples", evaluation->examples);
    log(line);
    progress_.message("test after step " + std::to_string(outcome_.step) + ": " +
                      evaluation->metrics.text() + "  (" + std::to_string(evaluation->examples) +
                      " examples)");
    if (callbacks_.after_test) callbacks_.after_test(outcome_.step, *evaluation);
    outcome_.test = *std::move(evaluation);
    return Status();
  }

  // `last`: there is no later occasion.
  Status save(bool last) {
    if (!saves_) return Status();
    progress_.pause();
    Status status = write_checkpoint_now();
    progress_.resume();
    CONVNET_RETURN_IF_ERROR(ranks_.failure());
    // Rank 0 alone knows how it went; all do the same about it.
    ranks_.begin_max(std::array<int64_t, 1>{static_cast<int64_t>(status.code())});
    std::array<int64_t, 1> code{};
    CONVNET_RETURN_IF_ERROR(ranks_.end_max(
        code, "the checkpoint of step " + std::to_string(outcome_.step), Ranks::Patience::kWork));
    if (code[0] != 0 && status.ok())
      status = Status(static_cast<Code>(code[0]), "not written by " + ranks_.name(0));
    if (!status.ok()) {
      status = status.with_context("checkpoint of step " + std::to_string(outcome_.step));
      if (last || save_failed_ || status.code() != Code::kIo) return status;
      save_failed_ = true;
      progress_.message("warning: " + status.message() +
                        "; training goes on until the next one is due");
      return Status();
    }
    save_failed_ = false;
    outcome_.checkpoint_step = outcome_.step;
    if (directory_ == nullptr) return Status();
    const std::string path = directory_->checkpoint_path(outcome_.step);
    log(JsonLine("checkpoint").integer("step", outcome_.step));
    progress_.message("checkpoint " + path);
    if (callbacks_.after_checkpoint) callbacks_.after_checkpoint(outcome_.step, path);
    return Status();
  }

  Status write_checkpoint_now() {
    Checkpoint checkpoint;
    checkpoint.head = options_.head;
    checkpoint.head.step = outcome_.step;
    CONVNET_ASSIGN_OR_RETURN(checkpoint.tensors, kept_tensors(session_));
    checkpoint.tensors.insert(checkpoint.tensors.end(), options_.data_tensors.begin(),
                              options_.data_tensors.end());
    if (directory_ == nullptr) return Status();
    return directory_->save(checkpoint, options_.keep);
  }

  JsonLine start_line() const {
    const Plan& plan = session_.plan();
    JsonLine line("start");
    line.text("model", plan.model)
        .integer("step", options_.first_step)
        .integer("steps", options_.steps);
    line.integer("batch", batch_).integer("seed", static_cast<int64_t>(plan.seed));
    line.integer("examples", data_.examples()).text("devices", session_.describe());
    return line;
  }

  void log_step(double rate) {
    const double now = seconds_now();
    JsonLine line("step");
    line.integer("step", outcome_.step).number("epoch", epochs());
    add_means(line, log_sums_);
    line.number("rate", rate);
    const double seconds = now - logged_at_;
    if (seconds > 0)
      line.number(
          "images_per_s",
          static_cast<double>(static_cast<int64_t>(log_sums_.examples() / seconds * 10)) / 10);
    log(line);
    log_sums_.clear();
    logged_at_ = now;
  }

  static void add_means(JsonLine& line, const MetricSums& metrics) {
    line.number("loss", metrics.loss());
    for (const auto& [name, mean] : metrics.means()) line.number(name, mean);
  }

  // A log that cannot be written costs a warning, not the run.
  void log(const JsonLine& line) {
    if (directory_ == nullptr) return;
    const Status status = directory_->log().append(line);
    if (!status.ok() && !log_failed_) progress_.message("warning: " + status.message());
    log_failed_ = !status.ok();
  }

  Session& session_;
  Session* test_;
  BatchSource& data_;
  BatchSource* test_data_;
  const TrainOptions& options_;
  RunDirectory* directory_;
  const TrainCallbacks& callbacks_;
  Ranks& ranks_;
  const int64_t batch_;
  bool saves_ = false;
  int stop_asked_ = 0;
  bool checkpoint_asked_ = false;
  Progress progress_;
  TrainOutcome outcome_;
  MetricSums log_sums_, shown_sums_;  // since the last line of the log, and on the screen
  double logged_at_ = 0;
  bool save_failed_ = false;
  bool log_failed_ = false;
};

}  // namespace

bool Interval::due(int64_t step, int64_t batch, int64_t examples) const {
  if (steps > 0) return step % steps == 0;
  if (epochs <= 0 || examples <= 0 || step <= 0) return false;
  const __int128 length = product(epochs, examples);
  return product(step, batch) / length > product(step - 1, batch) / length;
}

int64_t steps_of_epochs(int64_t epochs, int64_t batch, int64_t examples) {
  CHECK(batch > 0);
  const __int128 steps = (product(epochs, examples) + batch - 1) / batch;
  return static_cast<int64_t>(std::min<__int128>(steps, INT64_MAX));
}

Result<TrainOutcome> train(Session& session, Session* test, BatchSource& data,
                           BatchSource* test_data, const TrainOptions& options,
                           RunDirectory* directory, const TrainCallbacks& callbacks) {
  std::optional<SignalScope> signals;
  if (options.handle_signals) signals.emplace();
  return Trainer(session, test, data, test_data, options, directory, callbacks).run();
}

Result<std::vector<std::pair<std::string, HostTensor>>> kept_tensors(const Session& session) {
  std::vector<std::pair<std::string, HostTensor>> tensors;
  for (const Tensor& tensor : session.plan().tensors) {
    if (!is_kept(tensor)) continue;
    CONVNET_ASSIGN_OR_RETURN(HostTensor value, session.read(tensor.name));
    tensors.emplace_back(tensor.name, std::move(value));
  }
  return tensors;
}

Status restore(Session& session, const Checkpoint& checkpoint) {
  std::set<std::string> known;
  for (const Tensor& tensor : session.plan().tensors) {
    if (!is_kept(tensor)) continue;
    known.insert(tensor.name);
    if (session.ranks().rank() != 0) continue;
    const HostTensor* value = checkpoint.find(tensor.name);
    if (value == nullptr)
      return Status(Code::kCheckpoint, "the checkpoint has no '" + tensor.name + "'");
    if (!(value->shape == tensor.shape) || value->dtype != tensor.dtype)
      return Status(Code::kCheckpoint, "'" + tensor.name + "' is " + dtype_name(value->dtype) +
                                           value->shape.str() +
                                           " in the checkpoint when the model's is " +
                                           dtype_name(tensor.dtype) + tensor.shape.str());
  }
  if (session.ranks().rank() != 0) {
    for (const std::string& name : known)
      CONVNET_RETURN_IF_ERROR(session.write(name, HostTensor()));
    return Status();
  }
  for (const auto& [name, value] : checkpoint.tensors)
    if (!known.contains(name) && !name.starts_with("data."))
      return Status(Code::kCheckpoint, "the checkpoint's '" + name + "' is not in the model");
  // Only now, so that an error leaves the session as it was.
  for (const std::string& name : known)
    CONVNET_RETURN_IF_ERROR(session.write(name, *checkpoint.find(name)));
  return Status();
}

int64_t checkpoint_bytes(const Plan& plan) {
  int64_t bytes = 0;
  for (const Tensor& tensor : plan.tensors)
    if (is_kept(tensor)) bytes += tensor.shape.count() * dtype_size(tensor.dtype);
  return bytes;
}

}  // namespace convnet
