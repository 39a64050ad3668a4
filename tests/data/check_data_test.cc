// If this fails, a model file whose data cannot fit its input is only refused after the data are
// read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/source.h"
#include "framework/model/model.pb.h"
#include "parsers/model_file.h"

namespace convnet {
namespace {

using ::testing::HasSubstr;

// Errors of a model with input [1, 28, 28] and 10 classes, and this data section.
std::string errors_of(const std::string& data) {
  Diagnostics diagnostics;
  const auto model = load_model_text(
      "m.yaml",
      "format: 1\nname: m\nbatch: 8\ninput: {data: [1, 28, 28], label: {classes: 10}}\n"
      "layers:\n  - {name: fc, type: fc, input: data, outputs: 10}\n"
      "data:\n" +
          data,
      {}, diagnostics);
  EXPECT_NE(model, nullptr) << diagnostics.render();
  if (model == nullptr) return "";
  check_data(*model, diagnostics);
  return diagnostics.render();
}

TEST(CheckData, AcceptsWhatFits) {
  EXPECT_EQ(errors_of("  train: {idx: mnist/train, mean_values: [33], pad: 2, crop: 28}\n"
                      "  test: {synthetic: {shape: [1, 32, 30], classes: 10}, crop: 28}\n"),
            "");
  EXPECT_EQ(errors_of("  train: {synthetic: {shape: [1, 26, 26], classes: 2}, pad: 1}\n"), "");
}

TEST(CheckData, PointsAtWhatDoesNotFitTheInput) {
  const std::string crop = errors_of("  train: {idx: mnist/train, crop: 24}\n");
  EXPECT_THAT(crop, HasSubstr("m.yaml:8:35: error: a crop of 24 x 24 pixels, but the model's input "
                              "is [1, 28, 28]\n"));
  EXPECT_THAT(crop, HasSubstr("m.yaml:4:15: note: the input is given here\n"));
  EXPECT_THAT(errors_of("  test: {idx: mnist/t10k, mean_values: [1, 2, 3]}\n"),
              HasSubstr("m.yaml:8:40: error: mean_values has 3 values, but the examples have 1 "
                        "channels"));
  EXPECT_THAT(errors_of("  train: {synthetic: {shape: [1, 28, 28], classes: 11}}\n"),
              HasSubstr("error: synthetic data of 11 classes, but the model's label has 10"));
  EXPECT_THAT(errors_of("  train: {synthetic: {shape: [1, 28, 28], classes: 9}, pad: 1}\n"),
              HasSubstr("error: examples of shape [1, 30, 30], but the model's input is"));
  EXPECT_THAT(errors_of("  train: {synthetic: {shape: [3, 32, 32], classes: 9}, crop: 28}\n"),
              HasSubstr("error: examples of shape [3, 32, 32] cannot be cut to the model's input"));
  EXPECT_THAT(errors_of("  train: {synthetic: {shape: [1, 27, 32], classes: 9}, crop: 28}\n"),
              HasSubstr("error: examples of shape [1, 27, 32] cannot be cut to the model's input"));
}

}  // namespace
}  // namespace convnet
