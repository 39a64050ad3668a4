// If this fails, --set changes something else than it says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "framework/model/reference.h"
#include "tests/model/model_text.h"

namespace convnet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Sets = std::vector<std::string>;

// The examples of both spellings are the same model: every override must keep them the same.
class BothSpellings {
 public:
  explicit BothSpellings(const Sets& sets)
      : yaml_(load_good("m.yaml", std::string(example_yaml()), sets)),
        prototxt_(load_good("m.prototxt", std::string(example_prototxt()), sets)) {
    EXPECT_NE(yaml_, nullptr);
    EXPECT_NE(prototxt_, nullptr);
    if (yaml_ && prototxt_) {
      EXPECT_EQ(difference(*yaml_->model, *prototxt_->model), "");
    }
  }
  const schema::Model& model() const { return *yaml_->model; }

 private:
  std::unique_ptr<BoundModel> yaml_, prototxt_;
};

TEST(Override, ChangesOnlyWhatItNames) {
  const auto before = load_good("m.yaml", std::string(example_yaml()));
  const BothSpellings after({"batch=256"});
  EXPECT_EQ(difference(*before->model, after.model()), "modified: batch: 128 -> 256\n");
}

TEST(Override, ReachesNestedMaps) {
  EXPECT_EQ(BothSpellings({"train.rate.base=0.02"}).model().train().rate().base(), 0.02);
  EXPECT_EQ(BothSpellings({"data.train.scale=2"}).model().data().train().scale(), 2.0f);
}

TEST(Override, FindsLayersByNameAndByIndex) {
  EXPECT_EQ(BothSpellings({"layers.conv2.filters=5"}).model().layers(2).conv().filters(), 5u);
  EXPECT_EQ(BothSpellings({"layers[2].filters=5"}).model().layers(2).conv().filters(), 5u);
  EXPECT_EQ(BothSpellings({"layers.conv2.rate_factor=5"}).model().layers(2).rate_factor(), 5.0f);
  EXPECT_EQ(BothSpellings({"layers.conv2.stride=2"}).model().layers(2).conv().stride(0), 2u);
}

TEST(Override, TakesListsAndMaps) {
  const BothSpellings lists({"layers.conv1.kernel=[3, 5]", "layers[1].stride=[1,2]"});
  EXPECT_THAT(lists.model().layers(0).conv().kernel(), ElementsAre(3, 5));
  EXPECT_THAT(lists.model().layers(1).pool().stride(), ElementsAre(1, 2));
  const BothSpellings map({"layers.conv1.init={uniform: 0.5}"});
  EXPECT_EQ(map.model().layers(0).init().uniform(), 0.5f);
  EXPECT_EQ(map.model().layers(2).init().kaiming(), 1.0f);
  const BothSpellings whole({"train={steps: 5, rate: {base: 1}}"});
  EXPECT_EQ(whole.model().train().steps(), 5u);
  EXPECT_FALSE(whole.model().train().has_epochs());
}

TEST(Override, ReachesItemsOfLists) {
  EXPECT_THAT(BothSpellings({"input.data[1]=7"}).model().input().data(), ElementsAre(1, 7, 28));
  EXPECT_THAT(
      BothSpellings({"layers.loss.report[1]=top3"}).model().layers(6).softmax_loss().report(),
      ElementsAre("top1", "top3"));
  // A list that protobuf text writes in pieces.
  const auto bound = load_good(
      "m.prototxt",
      std::string(kPrototxtHead) +
          "layers { name: \"a\" input: \"data\" conv { filters: 1 kernel: 3 kernel: 5 } }\n",
      {"layers.a.kernel[1]=7"});
  ASSERT_NE(bound, nullptr);
  EXPECT_THAT(bound->model->layers(0).conv().kernel(), ElementsAre(3, 7));
}

TEST(Override, MakesMapsOnTheWay) {
  EXPECT_EQ(BothSpellings({"train.test.epochs=2"}).model().train().test().epochs(), 2u);
  EXPECT_EQ(BothSpellings({"train.rate.warmup.steps=9"}).model().train().rate().warmup().steps(),
            9u);
  const auto bound =
      load_good("m.yaml", std::string(kYamlHead) + "layers: [{name: a, type: relu}]\n",
                {"train.epochs=3", "train.rate.base=1"});
  ASSERT_NE(bound, nullptr);
  EXPECT_EQ(bound->model->train().epochs(), 3u);
}

TEST(Override, ReachesDefaults) {
  const BothSpellings changed({"defaults.conv.init.kaiming=2", "defaults.pool.kernel=3"});
  EXPECT_EQ(changed.model().layers(0).init().kaiming(), 2.0f);
  EXPECT_THAT(changed.model().layers(1).pool().kernel(), ElementsAre(3));
  const BothSpellings added({"defaults.fc.decay=0.5", "defaults.fc.act=tanh"});
  EXPECT_EQ(added.model().layers(5).decay(), 0.5f);
  EXPECT_EQ(added.model().layers(5).fc().act(), schema::tanh);
}

TEST(Override, LetsTheLastOneCount) {
  EXPECT_EQ(BothSpellings({"batch=5", "batch=6"}).model().batch(), 6u);
}

TEST(Override, ReplacesAMistakeInTheFile) {
  const auto bound = load_good("m.yaml",
                               "format: 1\nname: m\nbatch: none\ninput: {data: [1, 2, 3]}\n"
                               "layers: [{name: a, type: relu}]\n",
                               {"batch=3"});
  ASSERT_NE(bound, nullptr);
  EXPECT_EQ(bound->model->batch(), 3u);
}

TEST(Override, NeedsNoQuotesInProtobufText) {
  EXPECT_EQ(BothSpellings({"name=other"}).model().name(), "other");
  EXPECT_EQ(BothSpellings({"data.train.idx=\"a b\""}).model().data().train().idx(), "a b");
}

TEST(Override, SaysWhatIsWrongWithIt) {
  const std::string yaml(example_yaml());
  EXPECT_THAT(errors_of("m.yaml", yaml, {"layers.conv9.filters=1"}),
              HasSubstr("layers has no item named 'conv9'"));
  EXPECT_THAT(errors_of("m.yaml", yaml, {"layers.conv9.filters=1"}),
              HasSubstr("did you mean 'conv"));
  EXPECT_THAT(errors_of("m.prototxt", std::string(example_prototxt()), {"layers.conv9.filters=1"}),
              HasSubstr("layers has no item named 'conv9'"));
  EXPECT_THAT(errors_of("m.yaml", yaml, {"train.rate.bsae=1"}),
              HasSubstr("--set:1:12: error: unknown attribute 'bsae' in train.rate"));
  EXPECT_THAT(errors_of("m.yaml", yaml, {"layers.conv1.kernel=0"}),
              HasSubstr("--set:1:21: error: kernel is 0, must be at least 1"));
  for (const char* path : {"=1",
                           ".=1",
                           "a.=1",
                           "a..b=1",
                           "[0]=1",
                           "layers[=1",
                           "layers[]=1",
                           "layers[-1]=1",
                           "layers[0=1",
                           "layers[99999999999999999999]=1",
                           "layers[7]=1",
                           "layers[0]x=1",
                           "batch.x=1",
                           "batch.x.y=1",
                           "layers.conv1.filters.x=1",
                           "nothing.at.all=1",
                           "layers[0][0]=1",
                           "batch",
                           "",
                           "batch=",
                           "batch=[",
                           "batch=a: b: c",
                           "batch=\x01",
                           "batch=\xff",
                           "batch=*x",
                           "batch=1\n---\n2"}) {
    EXPECT_THAT(errors_of("m.yaml", yaml, {path}), HasSubstr("--set")) << printable(path);
    EXPECT_THAT(errors_of("m.prototxt", std::string(example_prototxt()), {path}),
                HasSubstr("--set"))
        << printable(path);
  }
}

TEST(Override, IsAUsageErrorWithoutAValue) {
  Diagnostics diagnostics;
  EXPECT_EQ(load("m.yaml", std::string(example_yaml()), {"batch"}, diagnostics), nullptr);
  EXPECT_EQ(diagnostics.code(), Code::kUsage);
}

}  // namespace
}  // namespace convnet
