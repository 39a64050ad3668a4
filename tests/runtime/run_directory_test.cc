// If this fails, two runs can share a directory, a checkpoint can be lost, or a run starts over its
// old results.
#include "framework/runtime/run_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <limits>
#include <optional>

#include "tests/runtime/temporary_folder.h"

namespace convnet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Mode = RunDirectory::Mode;

Checkpoint checkpoint_of(int64_t step) {
  Checkpoint checkpoint;
  checkpoint.head.step = step;
  checkpoint.tensors = {{"w", {Shape{1}, DType::kF32, {static_cast<double>(step)}}}};
  return checkpoint;
}

std::unique_ptr<RunDirectory> open_run(const std::string& path, Mode mode) {
  auto run = RunDirectory::open(path, mode, 1000);
  EXPECT_TRUE(run.ok()) << run.status().message();
  return run.ok() ? std::move(*run) : nullptr;
}

// A directory with checkpoints of these steps.
void make_run(const std::string& path, const std::vector<int64_t>& steps) {
  const auto run = open_run(path, Mode::kNew);
  ASSERT_NE(run, nullptr);
  for (int64_t step : steps) ASSERT_TRUE(run->save(checkpoint_of(step), 100).ok());
}

TEST(RunDirectory, IsMadeWithItsParents) {
  TemporaryFolder folder;
  const auto run = open_run(folder / "runs/a", Mode::kNew);
  ASSERT_NE(run, nullptr);
  ASSERT_TRUE(run->write_model("models/x.prototxt", "name: \"x\"").ok());
  ASSERT_TRUE(run->save(checkpoint_of(5), 2).ok());
  EXPECT_THAT(folder.names("runs/a"),
              ElementsAre("checkpoints", "lock", "log.jsonl", "model.prototxt"));
  EXPECT_THAT(folder.names("runs/a/checkpoints"), ElementsAre("step-00000005.safetensors"));
  EXPECT_EQ(slurp(folder / "runs/a/model.prototxt"), "name: \"x\"");
}

TEST(RunDirectory, ASecondRunIsToldWhoHoldsTheFirst) {
  TemporaryFolder folder;
  auto run = open_run(folder / "a", Mode::kNew);
  for (Mode mode : {Mode::kNew, Mode::kResume}) {
    const auto second = RunDirectory::open(folder / "a", mode, 0);
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.status().code(), Code::kBusy);
    EXPECT_THAT(second.status().message(),
                HasSubstr("in use by process " + std::to_string(getpid()) + " on host "));
  }
  run.reset();
  EXPECT_NE(open_run(folder / "a", Mode::kNew), nullptr);
}

TEST(RunDirectory, TheLockOfAKilledRunIsFree) {
  TemporaryFolder folder;
  EXPECT_EQ(in_child(RLIM_INFINITY,
                     [&folder]() -> int {
                       auto run = RunDirectory::open(folder / "a", Mode::kNew, 0);
                       spit(folder / "a/checkpoints/step-00000005.safetensors.1-0.convnet-tmp",
                            "x");
                       spit(folder / "a/model.yaml.1-0.convnet-tmp", "x");
                       kill(getpid(), SIGKILL);
                       return 0;
                     }),
            128 + SIGKILL);
  spit(folder / "a/notes.tmp", "mine");
  EXPECT_NE(open_run(folder / "a", Mode::kNew), nullptr);
  EXPECT_THAT(folder.names("a/checkpoints"), ElementsAre());
  EXPECT_THAT(folder.names("a"), ElementsAre("checkpoints", "lock", "log.jsonl", "notes.tmp"));
}

TEST(RunDirectory, ANewRunDoesNotStartOverAnOldOne) {
  TemporaryFolder folder;
  make_run(folder / "a", {100, 200});
  const std::string lock = slurp(folder / "a/lock");
  const auto run = RunDirectory::open(folder / "a", Mode::kNew, 0);
  ASSERT_FALSE(run.ok());
  EXPECT_EQ(run.status().code(), Code::kUsage);
  EXPECT_THAT(run.status().message(), HasSubstr("step 200; go on with it by --resume"));
  EXPECT_EQ(slurp(folder / "a/lock"), lock);
  EXPECT_NE(open_run(folder / "a", Mode::kResume), nullptr);
}

TEST(RunDirectory, NeedsADirectoryToResumeAndRefusesFilesAndEmptyNames) {
  TemporaryFolder folder;
  EXPECT_EQ(RunDirectory::open(folder / "none", Mode::kResume, 0).status().code(),
            Code::kCheckpoint);
  EXPECT_EQ(RunDirectory::open("", Mode::kNew, 0).status().code(), Code::kUsage);
  spit(folder / "file", "x");
  EXPECT_EQ(RunDirectory::open(folder / "file", Mode::kNew, 0).status().code(), Code::kIo);
  EXPECT_EQ(RunDirectory::open(folder / std::string(5000, 'x'), Mode::kNew, 0).status().code(),
            Code::kIo);
}

TEST(RunDirectory, SpaceIsCheckedBeforeTheFirstStep) {
  TemporaryFolder folder;
  const auto run = RunDirectory::open(folder / "a", Mode::kNew, int64_t{1} << 50);
  ASSERT_FALSE(run.ok());
  EXPECT_EQ(run.status().code(), Code::kIo);
  EXPECT_THAT(run.status().message(),
              HasSubstr("two checkpoints need 2251799814733824 bytes, and "));
  EXPECT_EQ(in_child(10000,
                     [&folder] {
                       return static_cast<int>(
                           RunDirectory::open(folder / "b", Mode::kNew, 20000).status().code());
                     }),
            static_cast<int>(Code::kIo));
  EXPECT_THAT(folder.names("b/checkpoints"), ElementsAre());
}

TEST(RunDirectory, AFolderThatCannotBeWrittenIsFoundBeforeTheFirstStep) {
  TemporaryFolder folder;
  make_run(folder / "a", {});
  ASSERT_EQ(chmod(folder.path().c_str(), 0755), 0);
  ASSERT_EQ(chmod((folder / "a/lock").c_str(), 0666), 0);
  ASSERT_EQ(chmod((folder / "a/checkpoints").c_str(), 0555), 0);
  EXPECT_EQ(
      in_unprivileged_child([&folder] {
        return static_cast<int>(RunDirectory::open(folder / "a", Mode::kNew, 0).status().code());
      }),
      static_cast<int>(Code::kIo));
  ASSERT_EQ(chmod((folder / "a/checkpoints").c_str(), 0755), 0);
}

TEST(RunDirectory, KeepsTheNewestCheckpoints) {
  TemporaryFolder folder;
  const auto run = open_run(folder / "a", Mode::kNew);
  for (int64_t step : {100, 200, 300}) ASSERT_TRUE(run->save(checkpoint_of(step), 2).ok());
  EXPECT_THAT(*run->steps(), ElementsAre(200, 300));
  std::vector<std::string> warnings;
  EXPECT_EQ(run->newest(&warnings)->head.step, 300);
  EXPECT_THAT(warnings, ElementsAre());
}

TEST(RunDirectory, AFailedSaveKeepsTheOldOnes) {
  TemporaryFolder folder;
  make_run(folder / "a", {100, 200});
  EXPECT_EQ(in_child(100,
                     [&folder] {
                       auto run = RunDirectory::open(folder / "a", Mode::kResume, 0);
                       return run.ok()
                                  ? static_cast<int>((*run)->save(checkpoint_of(300), 2).code())
                                  : 100;
                     }),
            static_cast<int>(Code::kIo));
  EXPECT_THAT(folder.names("a/checkpoints"),
              ElementsAre("step-00000100.safetensors", "step-00000200.safetensors"));
}

TEST(RunDirectory, FallsBackOverDamagedCheckpointsAndSaysSo) {
  TemporaryFolder folder;
  make_run(folder / "a", {100, 200, 300});
  const auto run = open_run(folder / "a", Mode::kResume);
  const std::string text = slurp(run->checkpoint_path(300));
  spit(run->checkpoint_path(300), text.substr(0, text.size() - 1));
  std::vector<std::string> warnings;
  const auto newest = run->newest(&warnings);
  ASSERT_TRUE(newest.ok());
  EXPECT_EQ(newest->head.step, 200);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("step-00000300.safetensors': truncated"));
  EXPECT_THAT(warnings[0], HasSubstr("going on from '" + run->checkpoint_path(200)));

  // Going on from 200, the damaged one of step 300 must not count as one of the newest two.
  ASSERT_TRUE(run->save(checkpoint_of(250), 2).ok());
  EXPECT_THAT(*run->steps(), ElementsAre(200, 250, 300));
  ASSERT_TRUE(run->save(checkpoint_of(300), 2).ok());
  EXPECT_THAT(*run->steps(), ElementsAre(250, 300));
  EXPECT_EQ(run->newest(&warnings)->head.step, 300);
}

TEST(RunDirectory, WithoutAUsableCheckpointNothingIsResumed) {
  TemporaryFolder folder;
  make_run(folder / "a", {100, 200});
  const auto run = open_run(folder / "a", Mode::kResume);
  spit(run->checkpoint_path(100), "");
  spit(run->checkpoint_path(200), slurp(run->checkpoint_path(200)) + "x");
  std::vector<std::string> warnings;
  Status status = run->newest(&warnings).status();
  EXPECT_EQ(status.code(), Code::kCheckpoint);
  EXPECT_THAT(status.message(), HasSubstr("step-00000200.safetensors': 1 trailing"));
  EXPECT_THAT(status.message(), HasSubstr("step-00000100.safetensors': not a SafeTensors file"));

  make_run(folder / "b", {});
  spit(folder / "b/checkpoints/step-00000100.safetensors.7-0.convnet-tmp", "x");
  status = open_run(folder / "b", Mode::kResume)->newest(&warnings).status();
  EXPECT_EQ(status.code(), Code::kCheckpoint);
  EXPECT_THAT(status.message(), HasSubstr("no complete checkpoint"));
}

TEST(RunDirectory, DoesNotFollowLinks) {
  TemporaryFolder folder;
  make_run(folder / "a", {100});
  make_run(folder / "b", {200});
  ASSERT_EQ(symlink((folder / "b/checkpoints/step-00000200.safetensors").c_str(),
                    (folder / "a/checkpoints/step-00000200.safetensors").c_str()),
            0);
  std::vector<std::string> warnings;
  const auto newest = open_run(folder / "a", Mode::kResume)->newest(&warnings);
  ASSERT_TRUE(newest.ok());
  EXPECT_EQ(newest->head.step, 100);
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("symbolic link")));

  mkdir((folder / "c").c_str(), 0700);
  ASSERT_EQ(symlink((folder / "b/checkpoints").c_str(), (folder / "c/checkpoints").c_str()), 0);
  Status status = RunDirectory::open(folder / "c", Mode::kNew, 0).status();
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_THAT(status.message(), HasSubstr("symbolic link"));

  mkdir((folder / "d").c_str(), 0700);
  spit(folder / "elsewhere", "keep");
  for (const char* name : {"lock", "log.jsonl"}) {
    ASSERT_EQ(symlink((folder / "elsewhere").c_str(), (folder / "d/" + name).c_str()), 0);
    EXPECT_EQ(RunDirectory::open(folder / "d", Mode::kNew, 0).status().code(), Code::kIo);
    std::filesystem::remove(folder / "d/" + name);
  }
  EXPECT_EQ(slurp(folder / "elsewhere"), "keep");
}

TEST(RunDirectory, ACheckpointUnderAnotherStepsNameIsNotUsed) {
  TemporaryFolder folder;
  make_run(folder / "a", {100});
  const auto run = open_run(folder / "a", Mode::kResume);
  std::filesystem::copy(run->checkpoint_path(100), run->checkpoint_path(900));
  std::vector<std::string> warnings;
  EXPECT_EQ(run->newest(&warnings)->head.step, 100);
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("is of step 100, not of the step in its name")));
}

TEST(RunDirectory, TheLogGoesOnAfterACutLine) {
  TemporaryFolder folder;
  {
    const auto run = open_run(folder / "a", Mode::kNew);
    ASSERT_TRUE(run->log()
                    .append(JsonLine("step")
                                .integer("step", 1)
                                .number("loss", 0.1)
                                .number("rate", std::nan(""))
                                .number("x", -std::numeric_limits<double>::infinity())
                                .text("layer", "a\"b\n\xff")
                                .boolean("ok", true))
                    .ok());
  }
  const std::string line =
      "{\"event\":\"step\",\"step\":1,\"loss\":0.1,\"rate\":\"nan\",\"x\":\"-inf\","
      "\"layer\":\"a\\\"b\\n\xef\xbf\xbd\",\"ok\":true}\n";
  EXPECT_EQ(slurp(folder / "a/log.jsonl"), line);
  spit(folder / "a/log.jsonl", line + "{\"event\":\"ste" + std::string(5000, 'x'));
  ASSERT_TRUE(open_run(folder / "a", Mode::kResume)->log().append(JsonLine("resume")).ok());
  EXPECT_EQ(slurp(folder / "a/log.jsonl"), line + "{\"event\":\"resume\"}\n");
}

TEST(RunDirectory, ALogLineThatDoesNotFitLeavesNoPart) {
  TemporaryFolder folder;
  EXPECT_EQ(in_child(100,
                     [&folder] {
                       auto log = LogFile::open(folder / "log");
                       if (!log.ok() || !(*log)->append(JsonLine("a")).ok()) return 100;
                       return static_cast<int>(
                           (*log)->append(JsonLine("b").text("t", std::string(200, 'x'))).code());
                     }),
            static_cast<int>(Code::kIo));
  EXPECT_EQ(slurp(folder / "log"), "{\"event\":\"a\"}\n");
}

}  // namespace
}  // namespace convnet
