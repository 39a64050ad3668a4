// If this fails, a run that is stopped, resumed, killed or gone wrong loses work or goes on with
// other numbers than an unbroken one.
#include "framework/runtime/trainer.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "framework/backends/reference/reference.h"
#include "framework/runtime/signals.h"
#include "tests/runtime/fc_plan.h"
#include "tests/runtime/synthetic_batches.h"
#include "tests/runtime/temporary_folder.h"

namespace convnet {
namespace {

// 10 steps an epoch, but for 40 examples.
constexpr int64_t kExamples = 1240;
constexpr int64_t kTestExamples = 300;

// Everything that a run needs, on `devices` devices.
struct RunFixture {
  explicit RunFixture(int devices, FcNet net = {})
      : data(kExamples, net.batch, net.features, net.classes, true),
        test_data(kTestExamples, net.batch, net.features, net.classes, false) {
    SessionOptions reference;
    reference.backend = [](int) {
      return Result<std::unique_ptr<Backend>>(make_reference_backend());
    };
    auto opened = Session::create(FcPlan::train(net, devices), reference);
    EXPECT_TRUE(opened.ok());
    session = *std::move(opened);
    auto beside = Session::create(FcPlan::test(net, devices), reference, session.get());
    EXPECT_TRUE(beside.ok());
    test = *std::move(beside);
    session->initialise();
    options.steps = 25;
    options.schedule.base = 0.1;
    options.schedule.policy = RateSchedule::Policy::kPoly;
    options.schedule.total_steps = 25;
    options.test.epochs = 1;
    options.checkpoint.steps = 10;
    options.head.model_name = "fc.yaml";
    options.head.model_text = "name: fc\n";
    options.progress.mode = ProgressOptions::Mode::kNone;
    options.progress.file = -1;
  }

  Status open_directory(const std::string& path,
                        RunDirectory::Mode mode = RunDirectory::Mode::kNew) {
    directory.reset();
    auto opened = RunDirectory::open(path, mode, checkpoint_bytes(session->plan()));
    if (!opened.ok()) return opened.status();
    directory = *std::move(opened);
    return Status();
  }
  Status resume(const std::string& path) {
    CONVNET_RETURN_IF_ERROR(open_directory(path, RunDirectory::Mode::kResume));
    CONVNET_ASSIGN_OR_RETURN(const Checkpoint checkpoint, directory->newest(nullptr));
    CONVNET_RETURN_IF_ERROR(restore(*session, checkpoint));
    options.first_step = checkpoint.head.step;
    return Status();
  }
  Result<TrainOutcome> go() {
    return train(*session, test.get(), data, &test_data, options, directory.get(), callbacks);
  }

  std::unique_ptr<Session> session, test;
  SyntheticBatches data, test_data;
  TrainOptions options;
  TrainCallbacks callbacks;
  std::unique_ptr<RunDirectory> directory;
};

std::vector<nlohmann::json> log_lines(const TemporaryFolder& folder,
                                      const std::string& event = "") {
  std::istringstream text(slurp(folder / "log.jsonl"));
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(text, line);) {
    auto parsed = nlohmann::json::parse(line);
    if (event.empty() || parsed["event"] == event) lines.push_back(parsed);
  }
  return lines;
}

// The bytes of the checkpoint after 25 steps that nothing interrupted.
std::string unbroken_checkpoint() {
  static const std::string bytes = [] {
    TemporaryFolder folder;
    RunFixture run(1);
    EXPECT_TRUE(run.open_directory(folder.path()).ok());
    EXPECT_TRUE(run.go().ok());
    return slurp(folder / "checkpoints/step-00000025.safetensors");
  }();
  EXPECT_FALSE(bytes.empty());
  return bytes;
}

TEST(Trainer, TrainsTestsSavesAndLogs) {
  TemporaryFolder folder;
  RunFixture run(2);
  std::vector<int64_t> stepped, tested, saved;
  run.callbacks.after_step = [&](int64_t step, const StepResult&) { stepped.push_back(step); };
  run.callbacks.after_test = [&](int64_t step, const Evaluation&) { tested.push_back(step); };
  run.callbacks.after_checkpoint = [&](int64_t step, const std::string&) { saved.push_back(step); };
  ASSERT_TRUE(run.open_directory(folder.path()).ok());
  const auto outcome = run.go();
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  EXPECT_EQ(outcome->step, 25);
  EXPECT_EQ(outcome->signal, 0);
  EXPECT_EQ(outcome->checkpoint_step, 25);
  EXPECT_EQ(stepped.size(), 25u);
  EXPECT_EQ(tested, (std::vector<int64_t>{10, 20, 25}));  // epochs end within steps 10 and 20
  EXPECT_EQ(saved, (std::vector<int64_t>{10, 20, 25}));
  EXPECT_EQ(folder.names("checkpoints"),
            (std::vector<std::string>{"step-00000020.safetensors", "step-00000025.safetensors"}));

  ASSERT_TRUE(outcome->test.has_value());
  EXPECT_EQ(outcome->test->examples, kTestExamples);
  EXPECT_EQ(outcome->test->metrics.examples(), kTestExamples);

  const auto steps = log_lines(folder, "step");
  ASSERT_EQ(steps.size(), 25u);
  EXPECT_EQ(steps[0]["step"], 1);
  EXPECT_EQ(steps[0]["rate"], 0.1);
  EXPECT_EQ(steps[4]["epoch"], 5 * 128 / 1240.0);
  EXPECT_LT(steps[24]["loss"].get<double>(), 0.7 * steps[0]["loss"].get<double>());
  for (const char* key : {"top1", "top2"}) {
    EXPECT_GE(steps[24][key].get<double>(), 0);
    EXPECT_LE(steps[24][key].get<double>(), 1);
  }
  const auto tests = log_lines(folder, "test");
  ASSERT_EQ(tests.size(), 3u);
  EXPECT_EQ(tests[2]["examples"], kTestExamples);
  EXPECT_EQ(tests[2]["loss"], outcome->test->metrics.loss());
  EXPECT_EQ(log_lines(folder).front()["event"], "start");
  EXPECT_EQ(log_lines(folder).back()["reason"], "done");
}

TEST(Trainer, DeviceCountDoesNotChangeTheCheckpoint) {
  TemporaryFolder folder;
  RunFixture run(4);
  ASSERT_TRUE(run.open_directory(folder.path()).ok());
  ASSERT_TRUE(run.go().ok());
  EXPECT_EQ(slurp(folder / "checkpoints/step-00000025.safetensors"), unbroken_checkpoint());
}

TEST(Trainer, StoppedByASignalAndResumedItContinuesBitForBit) {
  for (const int signal : {SIGINT, SIGTERM}) {
    TemporaryFolder folder;
    {
      RunFixture run(1);
      run.callbacks.after_step = [&](int64_t step, const StepResult&) {
        if (step == 13) raise(signal);
      };
      ASSERT_TRUE(run.open_directory(folder.path()).ok());
      const auto outcome = run.go();
      ASSERT_TRUE(outcome.ok());
      EXPECT_EQ(outcome->step, 13);
      EXPECT_EQ(outcome->signal, signal);
      EXPECT_EQ(outcome->checkpoint_step, 13);
      EXPECT_EQ(log_lines(folder).back()["signal"], signal);
    }
    RunFixture run(2);  // on another number of devices
    ASSERT_TRUE(run.resume(folder.path()).ok());
    EXPECT_EQ(run.options.first_step, 13);
    const auto outcome = run.go();
    ASSERT_TRUE(outcome.ok());
    EXPECT_EQ(outcome->step, 25);
    EXPECT_EQ(slurp(folder / "checkpoints/step-00000025.safetensors"), unbroken_checkpoint());
  }
}

TEST(Trainer, HangUpSavesAndGoesOn) {
  for (const int signal : {SIGHUP, SIGUSR1}) {
    TemporaryFolder folder;
    RunFixture run(1);
    std::vector<int64_t> saved;
    run.callbacks.after_step = [&](int64_t step, const StepResult&) {
      if (step == 7) raise(signal);
      if (step == 8) raise(SIGPIPE);  // ignored
    };
    run.callbacks.after_checkpoint = [&](int64_t step, const std::string&) {
      saved.push_back(step);
    };
    ASSERT_TRUE(run.open_directory(folder.path()).ok());
    const auto outcome = run.go();
    ASSERT_TRUE(outcome.ok());
    EXPECT_EQ(outcome->signal, 0);
    EXPECT_EQ(saved, (std::vector<int64_t>{7, 10, 20, 25}));
  }
}

TEST(Trainer, ASignalDuringATestStopsIt) {
  TemporaryFolder folder;
  RunFixture run(1);
  run.callbacks.after_checkpoint = [&](int64_t step, const std::string&) {
    if (step == 10) raise(SIGTERM);
  };
  ASSERT_TRUE(run.open_directory(folder.path()).ok());
  const auto outcome = run.go();
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(outcome->step, 10);
  EXPECT_FALSE(outcome->test.has_value());
}

TEST(Signals, TheSecondOneEndsTheProcessAtOnce) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const pid_t child = fork();
    if (child == 0) {
      const SignalScope scope;
      raise(signal);
      if (stop_signal() != signal) _exit(1);
      raise(signal);
      _exit(2);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 128 + signal);
  }
  // Afterwards signals do again what they did before.
  const pid_t child = fork();
  if (child == 0) {
    { const SignalScope scope; }
    raise(SIGTERM);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
}

TEST(Trainer, LossThatIsNotFiniteStopsTheRunAndKeepsTheCheckpoint) {
  // A NaN must pass through relu, or a diverged network would train on.
  for (float spoil :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    TemporaryFolder folder;
    RunFixture run(2);
    run.data.spoiled = 12;
    run.data.spoil = spoil;
    ASSERT_TRUE(run.open_directory(folder.path()).ok());
    const auto outcome = run.go();
    EXPECT_EQ(outcome.status().code(), Code::kNotFinite);
    EXPECT_EQ(outcome.status().message(),
              "loss is not finite at step 13: first in 'data'; the last checkpoint is of step 10");
    EXPECT_EQ(folder.names("checkpoints"), std::vector<std::string>{"step-00000010.safetensors"});
    EXPECT_EQ(log_lines(folder).back()["reason"], "not finite");
  }
}

TEST(Trainer, NamesTheLayerAndLineWhereNumbersOverflow) {
  RunFixture run(1);
  HostTensor large = *run.session->read("fc1.w");
  for (double& v : large.values) v = 3e38;
  ASSERT_TRUE(run.session->write("fc1.w", large).ok());
  const auto outcome = run.go();
  EXPECT_EQ(outcome.status().message(), "loss is not finite at step 1: first in 'fc1' (fc.yaml:4)");
}

TEST(Trainer, ParametersThatAreNotFiniteAreNotSaved) {
  TemporaryFolder folder;
  RunFixture run(1);
  run.options.checkpoint.steps = 1;
  run.options.schedule.base = 3e38;
  ASSERT_TRUE(run.open_directory(folder.path()).ok());
  const auto outcome = run.go();
  EXPECT_EQ(outcome.status().code(), Code::kNotFinite);
  for (const std::string& name : folder.names("checkpoints"))
    EXPECT_TRUE(read_checkpoint(folder / ("checkpoints/" + name)).ok()) << name;
}

// The disk is full once: a warning; twice in a row: the end, and the checkpoint before is whole.
TEST(Trainer, CheckpointThatCannotBeWrittenIsTriedAgain) {
  TemporaryFolder folder;
  const auto child = [&](int64_t fails_from, int64_t fails_until) {
    return in_child(RLIM_INFINITY, [&] {
      RunFixture run(1);
      run.options.checkpoint.steps = 5;
      run.callbacks.after_step = [&](int64_t step, const StepResult&) {
        const rlim_t most = step >= fails_from && step <= fails_until ? 16 : 1 << 24;
        const rlimit limit{most, RLIM_INFINITY};
        setrlimit(RLIMIT_FSIZE, &limit);
      };
      if (!run.open_directory(folder.path() + "/" + std::to_string(fails_until)).ok()) return 1;
      const auto outcome = run.go();
      return outcome.ok() ? 0 : static_cast<int>(outcome.status().code());
    });
  };
  EXPECT_EQ(child(9, 11), 0);
  EXPECT_EQ(folder.names("11/checkpoints"),
            (std::vector<std::string>{"step-00000020.safetensors", "step-00000025.safetensors"}));
  EXPECT_EQ(child(9, 16), static_cast<int>(Code::kIo));
  EXPECT_EQ(folder.names("16/checkpoints"), std::vector<std::string>{"step-00000005.safetensors"});
  EXPECT_EQ(child(24, 30), static_cast<int>(Code::kIo));  // the last one matters at once
}

TEST(Trainer, RestoreRefusesWhatDoesNotFit) {
  RunFixture run(1);
  Checkpoint checkpoint;
  checkpoint.tensors = *kept_tensors(*run.session);
  EXPECT_EQ(checkpoint.tensors.size(), 8u);
  checkpoint.tensors.emplace_back("data.mean", HostTensor{{3}, DType::kF32, {1, 2, 3}});
  EXPECT_TRUE(restore(*run.session, checkpoint).ok());
  Checkpoint more = checkpoint;
  more.tensors.emplace_back("fc9.w", HostTensor{{1}, DType::kF32, {1}});
  EXPECT_EQ(restore(*run.session, more).message(), "the checkpoint's 'fc9.w' is not in the model");
  Checkpoint wrong = checkpoint;
  wrong.tensors[0].second.shape = {12, 9};
  EXPECT_EQ(restore(*run.session, wrong).message(),
            "'fc1.w' is f32[12, 9] in the checkpoint when the model's is f32[9, 12]");
  checkpoint.tensors.erase(checkpoint.tensors.begin());
  EXPECT_EQ(restore(*run.session, checkpoint).message(), "the checkpoint has no 'fc1.w'");
}

TEST(Evaluate, MeansAreOverExactExampleCounts) {
  RunFixture run(2);
  const auto all = evaluate(*run.test, run.test_data);
  ASSERT_TRUE(all.ok());
  EXPECT_TRUE(all->complete);
  double loss = 0, examples = 0;
  for (int64_t i = 0; i < 3; ++i) {
    const auto step = run.test->run(**run.test_data.get(i), i, 0);
    loss += step->metrics[0].loss_sum;
    examples += step->metrics[0].examples;
  }
  EXPECT_EQ(examples, kTestExamples);
  EXPECT_EQ(all->metrics.loss(), loss / examples);
  const auto part =
      evaluate(*run.test, run.test_data, [](int64_t done, int64_t) { return done < 200; });
  EXPECT_FALSE(part->complete);
  EXPECT_EQ(part->examples, 256);
  run.test_data.spoiled = 2;
  run.test_data.spoil = std::numeric_limits<float>::infinity();
  EXPECT_EQ(evaluate(*run.test, run.test_data).status().message(),
            "loss is not finite in test batch 3: first in 'data'");
}

TEST(MetricSums, SeveralLossLayers) {
  MetricSums sums;
  EXPECT_TRUE(std::isnan(sums.loss()));
  sums.add({{"main", 1, {1}, 30, 10, {5}}, {"aux", 0.5, {1, 5}, 8, 4, {1, 3}}});
  sums.add({{"main", 1, {1}, 10, 10, {10}}, {"aux", 0.5, {1, 5}, 0, 0, {0, 0}}});
  EXPECT_EQ(sums.loss(), 40.0 / 20 + 0.5 * (8.0 / 4));
  EXPECT_EQ(sums.text(),
            "loss 3  main.loss 2  main.top1 75.00%  aux.loss 2  aux.top1 25.00%  aux.top5 75.00%");
}

TEST(Interval, StepsAndEpochs) {
  EXPECT_FALSE((Interval{}.due(10, 128, 1240)));
  EXPECT_TRUE((Interval{5, 0}.due(10, 128, 1240)));
  EXPECT_FALSE((Interval{5, 0}.due(11, 128, 1240)));
  // Each of a thousand epochs of 9.6875 steps ends in one step, and the last of them is the run's.
  const Interval epoch{0, 1};
  int64_t ends = 0;
  const int64_t steps = steps_of_epochs(1000, 128, 1240);
  EXPECT_EQ(steps, 9688);
  for (int64_t step = 1; step <= steps; ++step) ends += epoch.due(step, 128, 1240);
  EXPECT_EQ(ends, 1000);
  EXPECT_TRUE(epoch.due(10, 128, 1240));
  EXPECT_TRUE(epoch.due(steps, 128, 1240));
}

}  // namespace
}  // namespace convnet
