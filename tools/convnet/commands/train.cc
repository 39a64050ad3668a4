// convnet train: trains a model, or goes on with a run.
#include <fmt/format.h>

#include <filesystem>

#include "framework/model/model.pb.h"
#include "framework/runtime/run_directory.h"
#include "framework/runtime/trainer.h"
#include "parsers/model_file.h"
#include "tools/convnet/arguments.h"
#include "tools/convnet/command.h"
#include "tools/convnet/several.h"
#include "tools/convnet/training.h"

namespace convnet::cli {
namespace {

// What a run is made from: a model file, or the checkpoint of an earlier one.
struct Origin {
  std::unique_ptr<BoundModel> model;
  CheckpointHead head;
  std::optional<Checkpoint> checkpoint;
  DataPaths data;
};

// Where a run's relative data paths were looked up, kept beside its checkpoints: the folder of the
// model file and that of --data, one a line. Checkpoints themselves hold no paths.
constexpr const char* kFolders = "/data-folders";

std::string absolute(const std::string& folder) {
  std::error_code error;
  const std::filesystem::path path =
      std::filesystem::absolute(folder.empty() ? "." : folder, error);
  return error ? folder : path.lexically_normal().string();
}

class TrainCommand : public Command {
 public:
  const char* name() const override { return "train"; }
  const char* summary() const override { return "trains a model, or goes on with a run"; }
  const char* details() const override {
    return R"(Trains the model of FILE and writes checkpoints and a log (log.jsonl) to a run
directory. A run that was stopped, by a signal or a crash, goes on with --resume
DIR as if nothing had happened: the same bits, also on another number of
devices. The number of devices and threads and the instruction set never change
the results.

Started by mpirun -n R (of Open MPI), R processes on one or several hosts share
the devices of the run; all hosts need the model file and the data, the first
process alone reads and writes the run directory.

Ctrl-C and SIGTERM end the run after the step, with a checkpoint; a second one
ends it at once. SIGUSR1 and SIGHUP write a checkpoint and go on.)";
  }
  const char* examples() const override {
    return R"(convnet train model-defs/lenet-fashion.yaml --devices cpu:2
convnet train model.yaml --set train.rate.base=0.02 --epochs 3 --out runs/try
convnet train --resume runs/try --devices cpu:4
mpirun -n 4 convnet train model.yaml --devices 8 --out runs/several)";
  }

  void declare(CommandLine& line) override {
    model_.declare(line, false);
    devices_.declare(line, "train on so many devices; the model file's number if not given");
    backend_.declare(line);
    length_.declare(line);
    line.number("--seed", "S", &seed_, 0, UINT64_MAX,
                "seed of first values, order of examples, dropout, augmentation");
    line.text("--out", "DIR", &out_, "directory of the run; runs/NAME-1, -2, ... if not given");
    line.text("--resume", "DIR", &resume_, "go on with the run of this directory");
    line.text("--data", "DIR", &data_, "where relative data paths of the model file are looked up");
    ranks_.declare(line);
    line.flag("--quiet", &quiet_, "no progress");
    line.exclude("FILE", "--resume");
    line.exclude("--out", "--resume");
    line.exclude("--seed", "--resume");
  }

  int run(Output& output) override {
    return ranks_.run(output, [&](Ranks& ranks) { return run(output, ranks); });
  }

 private:
  int run(Output& output, Ranks& ranks) {
    Result<int> devices = devices_.count();
    if (!devices.ok()) return output.fail(devices.status());
    if (model_.file.empty() && resume_.empty()) {
      return output.fail(Code::kUsage,
                         "name a model file, or a run with --resume (see convnet train --help)");
    }
    Diagnostics diagnostics;
    Result<Origin> origin =
        resume_.empty() ? from_file(diagnostics) : from_run(ranks, output, diagnostics);
    if (!origin.ok()) return output.fail(origin.status());
    if (origin->model != nullptr) {
      check_data(*origin->model, diagnostics);
      check_trainable(*origin->model, diagnostics);
    }
    if (diagnostics.has_errors()) return output.fail(diagnostics);

    CompileOptions options;
    options.devices = *devices;
    std::optional<Plan> plan = compile_model(*origin->model, options, diagnostics);
    std::optional<Plan> test_plan;
    if (plan.has_value() && origin->model->model->data().has_test()) {
      Diagnostics of_test;  // repeats the warnings
      options.phase = Plan::Phase::kTest;
      test_plan = compile_model(*origin->model, options, of_test);
      if (!test_plan.has_value()) diagnostics = of_test;
    }
    if (diagnostics.has_errors()) return output.fail(diagnostics);
    output.warn(diagnostics);

    Result<TrainOutcome> outcome = train_plans(*origin, *plan, test_plan, ranks, output);
    if (!outcome.ok()) return output.fail(outcome.status());
    return finish(*outcome, output);
  }

  Result<Origin> from_file(Diagnostics& diagnostics) {
    Origin origin;
    ModelArgument model = model_;
    if (seed_.has_value()) model.sets.push_back("train.seed=" + std::to_string(*seed_));
    origin.model = model.load(diagnostics);
    origin.head.model_name = model_.file.substr(model_.file.rfind('/') + 1);
    if (origin.model != nullptr) origin.head.model_text = origin.model->source->text();
    origin.head.sets = model.sets;
    origin.head.options = length_.options();
    origin.data = data_paths(folder_of(model_.file), data_);
    return origin;
  }

  // The newest checkpoint, and the folders in which data are looked up: of the model, of --data.
  Result<Checkpoint> read_run(Output& output, std::vector<std::string>& folders) const {
    // The directory is taken for good once it is known how large its checkpoints are.
    CONVNET_ASSIGN_OR_RETURN(std::unique_ptr<RunDirectory> directory,
                             RunDirectory::open(resume_, RunDirectory::Mode::kResume, 0));
    std::vector<std::string> warnings;
    Result<Checkpoint> newest = directory->newest(&warnings);
    for (const std::string& warning : warnings) output.note("warning: " + warning);
    folders = {resume_, data_};
    if (Result<std::string> lines = read_file(resume_ + kFolders, 1 << 16, Code::kCheckpoint);
        lines.ok()) {
      const size_t end = lines->find('\n');
      folders[0] = lines->substr(0, end);
      if (data_.empty() && end != std::string::npos) {
        folders[1] = lines->substr(end + 1, lines->find('\n', end + 1) - end - 1);
      }
    }
    return newest;
  }

  Result<Origin> from_run(Ranks& ranks, Output& output, Diagnostics& diagnostics) {
    Origin origin;
    origin.checkpoint.emplace();
    std::vector<std::string> folders;
    if (ranks.rank() == 0) {
      CONVNET_ASSIGN_OR_RETURN(origin.checkpoint, read_run(output, folders));
    }
    CONVNET_RETURN_IF_ERROR(share(ranks, *origin.checkpoint, folders));
    origin.head = origin.checkpoint->head;
    for (const std::string& set : model_.sets) origin.head.sets.push_back(set);
    origin.model = load_model_text(origin.head.model_name, origin.head.model_text, origin.head.sets,
                                   diagnostics);
    length_.inherit(origin.head.options);
    for (const auto& [option, value] : length_.options()) {
      origin.head.options.erase("steps");
      origin.head.options.erase("epochs");
      origin.head.options[option] = value;
    }
    origin.data = data_paths(folders[0], folders[1]);
    return origin;
  }

  Result<std::unique_ptr<RunDirectory>> open_directory(const Origin& origin, const Plan& plan) {
    const int64_t bytes = checkpoint_bytes(plan);
    if (resume_.empty()) {
      for (int number = 1; out_.empty(); ++number) {
        const std::string candidate = fmt::format("runs/{}-{}", plan.model, number);
        if (!std::filesystem::exists(candidate)) out_ = candidate;
      }
      CONVNET_ASSIGN_OR_RETURN(std::unique_ptr<RunDirectory> directory,
                               RunDirectory::open(out_, RunDirectory::Mode::kNew, bytes));
      CONVNET_RETURN_IF_ERROR(
          directory->write_model(origin.head.model_name, origin.head.model_text));
      const std::string folders =
          absolute(folder_of(model_.file)) + "\n" + (data_.empty() ? "" : absolute(data_)) + "\n";
      CONVNET_RETURN_IF_ERROR(write_file_atomically(out_ + kFolders, {folders}));
      return directory;
    }
    out_ = resume_;
    CONVNET_ASSIGN_OR_RETURN(std::unique_ptr<RunDirectory> directory,
                             RunDirectory::open(resume_, RunDirectory::Mode::kResume, bytes));
    CONVNET_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, directory->steps());
    const int64_t step = origin.checkpoint->head.step;
    if (std::find(steps.begin(), steps.end(), step) == steps.end()) {
      return Status(Code::kBusy, fmt::format("another run went on with {} meanwhile", resume_));
    }
    return directory;
  }

  Result<TrainOutcome> train_plans(const Origin& origin, const Plan& plan,
                                   const std::optional<Plan>& test_plan, Ranks& ranks,
                                   Output& output) {
    const HostTensor* stored_mean =
        origin.checkpoint.has_value() ? origin.checkpoint->find("data.mean") : nullptr;
    CONVNET_ASSIGN_OR_RETURN(
        Examples training, training_examples(*origin.model, origin.data, plan, stored_mean, ranks));
    CheckpointHead head = origin.head;
    if (origin.checkpoint.has_value() && !head.data_fingerprint.empty() &&
        head.data_fingerprint != training.dataset->fingerprint()) {
      return Status(Code::kData,
                    fmt::format("the training data have changed: {} now, {} when the run began",
                                training.dataset->fingerprint(), head.data_fingerprint));
    }
    head.data_fingerprint = training.dataset->fingerprint();
    CONVNET_RETURN_IF_ERROR(check_same_data(ranks, head.data_fingerprint));
    Examples testing;
    if (test_plan.has_value()) {
      CONVNET_ASSIGN_OR_RETURN(testing, test_examples(*origin.model, origin.data, *test_plan,
                                                      training.dataset.get(), stored_mean, ranks));
    }

    const int64_t total = length_.total(*origin.model, training.batches->examples());
    if (origin.checkpoint.has_value() && origin.checkpoint->head.step >= total) {
      TrainOutcome done;
      done.step = origin.checkpoint->head.step;
      out_ = resume_;
      output.note(fmt::format(
          "{} is done: it has come to step {} of {}; --steps or --epochs makes it longer", resume_,
          done.step, total));
      return done;
    }

    CONVNET_ASSIGN_OR_RETURN(SessionOptions session_options,
                             backend_.options(static_cast<int>(plan.devices.size()), ranks));
    CONVNET_ASSIGN_OR_RETURN(std::unique_ptr<Session> session,
                             Session::create(plan, session_options));
    std::unique_ptr<Session> test_session;
    if (test_plan.has_value()) {
      CONVNET_ASSIGN_OR_RETURN(test_session,
                               Session::create(*test_plan, session_options, session.get()));
    }
    session->initialise();
    if (origin.checkpoint.has_value()) {
      CONVNET_RETURN_IF_ERROR(restore(*session, *origin.checkpoint).with_context(resume_));
    }
    std::unique_ptr<RunDirectory> directory;
    if (ranks.rank() == 0) {
      CONVNET_ASSIGN_OR_RETURN(directory, open_directory(origin, plan));
    }

    TrainOptions options = train_options(*origin.model, total);
    options.first_step = origin.checkpoint.has_value() ? origin.checkpoint->head.step : 0;
    options.head = head;
    if (training.mean.has_value()) options.data_tensors.emplace_back("data.mean", *training.mean);
    if (quiet_) options.progress.mode = ProgressOptions::Mode::kNone;
    if (!quiet_) announce(plan, *session, training, options, output);
    return train(*session, test_session.get(), *training.batches, testing.batches.get(), options,
                 directory.get());
  }

  void announce(const Plan& plan, const Session& session, const Examples& training,
                const TrainOptions& options, Output& output) const {
    output.note(fmt::format("{}: {}, {}, batch {}, {}, {}", plan.model,
                            counted(parameters(plan), "parameter"), session.describe(), plan.batch,
                            counted(options.steps - options.first_step, "step"),
                            counted(training.batches->examples(), "example")));
    output.note(fmt::format("run directory {}", printable(out_)));
  }

  int finish(const TrainOutcome& outcome, Output& output) const {
    std::string line = fmt::format("{} after {}", printable(out_), counted(outcome.step, "step"));
    if (!outcome.last_step.sums().empty()) line += ": last step " + outcome.last_step.text();
    output.print(line + "\n");
    if (outcome.test.has_value()) {
      output.print(fmt::format("test: {} on {}\n", outcome.test->metrics.text(),
                               counted(outcome.test->examples, "example")));
    }
    if (outcome.signal == 0) return 0;
    output.note(fmt::format("stopped by signal {}; go on with: convnet train --resume {}",
                            outcome.signal, printable(out_)));
    return 128 + outcome.signal;
  }

  ModelArgument model_;
  DevicesArgument devices_;
  BackendArgument backend_;
  LengthArgument length_;
  RanksArgument ranks_;
  std::optional<uint64_t> seed_;
  std::string out_, resume_, data_;
  bool quiet_ = false;
};

}  // namespace

std::unique_ptr<Command> train_command() { return std::make_unique<TrainCommand>(); }

}  // namespace convnet::cli
