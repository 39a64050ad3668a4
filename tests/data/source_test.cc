// If this fails, data sets are looked up elsewhere than said, or examples do not fit the model.
#include "data/source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "framework/model/model.pb.h"
#include "tests/data/idx_files.h"

namespace convnet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

void put_small(const TemporaryFolder& folder, const std::string& prefix, const std::string& end) {
  std::filesystem::create_directories(std::filesystem::path(folder / prefix).parent_path());
  const bool packed = end == ".gz";
  spit(folder / prefix + "-images-idx3-ubyte" + end,
       packed ? gzip(small_images()) : small_images());
  spit(folder / prefix + "-labels-idx1-ubyte" + end,
       packed ? gzip(small_labels()) : small_labels());
}

DataOptions idx(const std::string& prefix) {
  DataOptions options;
  options.idx = prefix;
  return options;
}

TEST(OpenDataset, LooksInTheFoldersInOrderForPlainAndGzipFiles) {
  TemporaryFolder a, b;
  put_small(b, "set/train", ".gz");
  const DataPaths paths{{{a.path(), "first"}, {b.path(), "second"}}};
  auto dataset = open_dataset(idx("set/train"), paths, 3);
  ASSERT_TRUE(dataset.ok()) << dataset.status().message();
  EXPECT_EQ((*dataset)->name(), "set/train");
  put_small(a, "set/train", "");
  spit(a / "set/train-labels-idx1-ubyte", idx_header({5}) + std::string(5, '\2'));
  const auto first = open_dataset(idx("set/train"), paths, 3);
  ASSERT_TRUE(first.ok());
  EXPECT_NE((*first)->fingerprint(), (*dataset)->fingerprint());
  // An absolute path is itself and nothing else.
  EXPECT_TRUE(open_dataset(idx(b / "set/train"), DataPaths(), 3).ok());
}

TEST(OpenDataset, SaysWhereItLookedAndWhatHelps) {
  const DataPaths paths{{{"/nowhere", "beside the model file"}, {"/neither", "--data"}}};
  Status status = open_dataset(idx("fashion-mnist/train"), paths, 10).status();
  EXPECT_EQ(status.code(), Code::kData);
  EXPECT_THAT(status.message(),
              HasSubstr("data set 'fashion-mnist/train' not found: no file "
                        "'fashion-mnist/train-images-idx3-ubyte' or "
                        "'fashion-mnist/train-images-idx3-ubyte.gz' in '/nowhere' (beside the "
                        "model file) or '/neither' (--data)"));
  EXPECT_THAT(status.message(), HasSubstr("help: apt-get install dataset-fashion-mnist, or "));
  status = open_dataset(idx("other/train"), paths, 10).status();
  EXPECT_THAT(status.message(), HasSubstr("help: name the folder that holds it with --data DIR"));
}

TEST(OpenDataset, ImagesWithoutLabelsAreAnError) {
  TemporaryFolder folder;
  put_small(folder, "train", "");
  std::filesystem::remove(folder / "train-labels-idx1-ubyte");
  const Status status = open_dataset(idx("train"), {{{folder.path(), "x"}}}, 3).status();
  EXPECT_EQ(status.code(), Code::kData);
  EXPECT_THAT(status.message(), HasSubstr("is there, but neither"));
}

TEST(OpenDataset, SyntheticClassesMustFitTheModel) {
  DataOptions options;
  options.synthetic.emplace();
  options.synthetic->shape = {1, 4, 4};
  options.synthetic->classes = 10;
  options.synthetic->examples = 20;
  EXPECT_TRUE(open_dataset(options, DataPaths(), 10).ok());
  const Status status = open_dataset(options, DataPaths(), 9).status();
  EXPECT_EQ(status.code(), Code::kData);
  EXPECT_THAT(status.message(), HasSubstr("10 classes, but the model's label has 9"));
}

TEST(DataPaths, ComeInTheOrderOfTheManual) {
  const auto folders = [](const std::string& model, const std::string& data) {
    std::vector<std::string> all;
    for (const auto& folder : data_paths(model, data).folders) all.push_back(folder.path);
    return all;
  };
  setenv("CONVNET_DATA", "/c", 1);
  setenv("XDG_DATA_HOME", "/x", 1);
  setenv("HOME", "/h", 1);
  EXPECT_THAT(folders("m", "/d"),
              ElementsAre("m", "/d", "/c", "/x/convnet/datasets", "/usr/share/datasets"));
  unsetenv("XDG_DATA_HOME");
  setenv("CONVNET_DATA", "", 1);
  EXPECT_THAT(folders("", ""),
              ElementsAre(".", "/h/.local/share/convnet/datasets", "/usr/share/datasets"));
  unsetenv("HOME");
  unsetenv("CONVNET_DATA");
  EXPECT_THAT(folders("m", ""), ElementsAre("m", "/usr/share/datasets"));
}

TEST(DataOptions, OfATestSourceTakeMeanAndScaleFromTraining) {
  schema::Data data;
  data.mutable_train()->set_idx("a");
  data.mutable_train()->set_mean(schema::Source::channel);
  data.mutable_train()->set_scale(0.5f);
  data.mutable_train()->set_mirror(true);
  EXPECT_FALSE(data_options(data, DataRole::kTest).has_value());
  data.mutable_test()->set_idx("b");
  auto test = data_options(data, DataRole::kTest);
  ASSERT_TRUE(test.has_value());
  EXPECT_EQ(test->idx, "b");
  EXPECT_EQ(test->mean, Mean::kChannel);
  EXPECT_EQ(test->scale, 0.5);
  EXPECT_FALSE(test->mirror);
  data.mutable_test()->add_mean_values(7);
  data.mutable_test()->set_scale(1);
  test = data_options(data, DataRole::kTest);
  EXPECT_EQ(test->mean, Mean::kNone);
  EXPECT_THAT(test->mean_values, ElementsAre(7));
  EXPECT_EQ(test->scale, 1);
  const auto train = data_options(data, DataRole::kTrain);
  EXPECT_TRUE(train->mirror);
  EXPECT_TRUE(train->shuffle);
}

TEST(DataOptions, TestAndTrainingStreamsOfSyntheticDataDiffer) {
  schema::Source source;
  for (uint32_t extent : {1u, 4u, 5u}) source.mutable_synthetic()->add_shape(extent);
  source.mutable_synthetic()->set_classes(3);
  const DataOptions train = data_options(source, DataRole::kTrain);
  EXPECT_EQ(train.synthetic->shape, (Shape{1, 4, 5}));
  EXPECT_EQ(train.synthetic->examples, 1024);
  EXPECT_EQ(train.synthetic->stream, "train");
  EXPECT_EQ(data_options(source, DataRole::kTest).synthetic->stream, "test");
}

TEST(SourceMean, IsGivenStoredOrComputed) {
  const auto dataset = *memory_dataset("m", {1, 1, 2}, {1, 2, 3, 4}, {0, 0}, 1, "labels");
  DataOptions options;
  EXPECT_FALSE(source_mean(options, nullptr, nullptr)->has_value());
  options.mean = Mean::kChannel;
  EXPECT_THAT((*source_mean(options, dataset.get(), nullptr))->values, ElementsAre(2.5));
  const HostTensor stored{Shape{1}, DType::kF32, {9}};
  EXPECT_THAT((*source_mean(options, dataset.get(), &stored))->values, ElementsAre(9));
  EXPECT_THAT((*source_mean(options, nullptr, &stored))->values, ElementsAre(9));
  EXPECT_EQ(source_mean(options, nullptr, nullptr).status().code(), Code::kData);
  options.mean = Mean::kPixel;
  EXPECT_THAT((*source_mean(options, dataset.get(), nullptr))->values, ElementsAre(2, 3));
  EXPECT_EQ(source_mean(options, nullptr, &stored).status().code(), Code::kCheckpoint);
  options.mean = Mean::kNone;
  options.mean_values = {5};
  EXPECT_THAT((*source_mean(options, nullptr, nullptr))->values, ElementsAre(5));
}

TEST(MakeSource, ComparesExamplesWithTheModelsInput) {
  const auto dataset = *memory_dataset("m", {1, 3, 3}, std::vector<uint8_t>(9), {0}, 1, "labels");
  DataOptions options;
  SourceOptions source;
  source.input = {1, 3, 3};
  EXPECT_TRUE(make_train_source(options, dataset, source).ok());
  EXPECT_TRUE(make_test_source(options, dataset, source).ok());
  options.crop = 2;
  const Status status = make_test_source(options, dataset, source).status();
  EXPECT_EQ(status.code(), Code::kData);
  EXPECT_THAT(status.message(), HasSubstr("examples of data set 'm' have shape [1, 2, 2] (cut from "
                                          "[1, 3, 3]), but the model's input is [1, 3, 3]"));
}

TEST(MakeSource, TrainingIsEndlessAndTestsEnd) {
  const auto dataset = *memory_dataset("m", {1, 1, 1}, {1, 2}, {0, 0}, 1, "labels");
  SourceOptions source;
  source.input = {1, 1, 1};
  source.batch = 2;
  const auto train = *make_train_source(DataOptions(), dataset, source);
  const auto test = *make_test_source(DataOptions(), dataset, source);
  EXPECT_EQ((*train->get(100))->count, 2);
  EXPECT_EQ((*test->get(0))->count, 2);
  EXPECT_EQ((*test->get(1))->count, 0);
}

}  // namespace
}  // namespace convnet
