// If this fails, an edge between two layers costs other communication than its placement needs. The
// rows are those of the table of producers and consumers (S: split, R: replicated, P: partial sums,
// p devices, T bytes of the value, W of a parameter), forward and backward.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "framework/plan/summary.h"
#include "tests/support/model_run.h"

namespace convnet {
namespace {

using Direction = PlanSummary::Direction;

PlanSummary summary_of(const std::string& yaml) {
  const auto model = bind_text(yaml);
  CompileOptions options;
  options.devices = 8;
  return summarise(compile_model(*model, options));
}

// "all_gather 0.75": patterns between devices and bytes in units of `unit`, in order of the plan.
std::string moves(const PlanSummary& summary, Direction direction, const std::string& about,
                  double unit) {
  std::string out;
  for (const PlanSummary::Edge& e : summary.edges) {
    if (e.direction != direction || e.devices < 2) continue;
    if (e.edge != about && !e.tensor.starts_with(about)) continue;
    if (!out.empty()) out += ", ";
    out += fmt::format("{} {}", exchange_kind_name(e.kind), static_cast<double>(e.bytes) / unit);
  }
  return out;
}

// Two layers of 16 filters on 1 x 1 images, then a loss on device 0.
std::string two_layers(int batch, const std::string& first, const std::string& second) {
  return fmt::format(
      "format: 1\nname: edge\ndevices: 8\nbatch: {}\n"
      "input: {{data: [16, 1, 1], label: {{classes: 8}}}}\nlayers:\n"
      "  - {{name: first, type: conv, input: data, filters: 16, kernel: 1, {}}}\n"
      "  - {{name: second, type: conv, filters: 16, kernel: 1, {}}}\n"
      "  - {{name: fc, type: fc, outputs: 8, devices: [0]}}\n"
      "  - {{name: loss, type: softmax_loss, input: [fc, label], devices: [0]}}\n"
      "train: {{rate: {{base: 0.1}}, steps: 1}}\n",
      batch, first, second);
}

const char* const kFour = "devices: [0, 1, 2, 3], parallel: ";
const char* const kUpper = "devices: [4, 5, 6, 7], parallel: ";
const char* const kTwo = "devices: [4, 5], parallel: ";
const char* const kOne = "devices: [0]";
std::string on(const char* devices, const char* mode) { return std::string(devices) + mode; }

class Communication : public testing::Test {
 protected:
  static void expect(const std::string& row, int batch, const std::string& first,
                     const std::string& second, const std::string& forward,
                     const std::string& backward) {
    SCOPED_TRACE("row " + row + ": " + first + " -> " + second);
    const PlanSummary s = summary_of(two_layers(batch, first, second));
    const double bytes = batch * 16 * 4.0;
    // The sum of a product that is split over its inputs serves no edge.
    std::string sums = moves(s, Direction::kForward, "first.sum", bytes);
    const std::string values = moves(s, Direction::kForward, "first->second", bytes);
    if (!sums.empty() && !values.empty()) sums += ", ";
    EXPECT_EQ(sums + values, forward);
    EXPECT_EQ(moves(s, Direction::kBackward, "second->first", bytes), backward);
  }
};

TEST_F(Communication, BetweenLayersOnTheSameDevices) {
  expect("1", 128, on(kFour, "data"), on(kFour, "data"), "", "");
  expect("2", 128, on(kFour, "data"), on(kFour, "model_in"), "all_to_all 0.1875",
         "all_to_all 0.1875");
  expect("2", 128, on(kFour, "model"), on(kFour, "data"), "all_to_all 0.1875", "all_to_all 0.1875");
  expect("3a", 128, on(kFour, "data"), on(kFour, "model"), "all_gather 0.75",
         "reduce_scatter 0.75");
  expect("3b", 128, on(kFour, "data"), on(kFour, "replicate"), "all_gather 0.75", "");
  expect("4a", 128, on(kFour, "replicate"), on(kFour, "data"), "", "all_gather 0.75");
  expect("5a", 128, on(kFour, "replicate"), on(kFour, "model"), "", "all_reduce 1.5");
  expect("5b", 128, on(kFour, "replicate"), on(kFour, "replicate"), "", "");
  expect("6", 128, on(kFour, "model_in"), on(kFour, "replicate"), "all_reduce 1.5", "");
  expect("6'", 128, on(kFour, "model_in"), on(kFour, "model"), "all_reduce 1.5", "all_reduce 1.5");
}

TEST_F(Communication, WithOneDevice) {
  expect("12", 128, on(kFour, "data"), kOne, "gather 0.75", "scatter 0.75");
  expect("14", 128, on(kFour, "replicate"), kOne, "", "broadcast 1");
  expect("15", 128, kOne, on(kFour, "model"), "broadcast 1", "reduce 1");
  expect("15", 128, kOne, on(kFour, "replicate"), "broadcast 1", "");
  expect("16", 128, kOne, on(kFour, "data"), "scatter 0.75", "gather 0.75");
}

TEST_F(Communication, BetweenOtherDevices) {
  expect("17: 4 to 3", 192, on(kFour, "data"), "devices: [0, 1, 2], parallel: data", "boxes 0.25",
         "boxes 0.25");
  expect("17: 4 to 2", 128, on(kFour, "data"), "devices: [0, 1], parallel: data", "boxes 0.5",
         "boxes 0.5");
  expect("18", 128, on(kUpper, "data"), on(kFour, "data"),
         "boxes 0.25, boxes 0.25, boxes 0.25, boxes 0.25",
         "boxes 0.25, boxes 0.25, boxes 0.25, boxes 0.25");
  expect("19", 128, on(kUpper, "data"), on(kFour, "model"), "boxes 1", "boxes 1");
  expect("20", 128, on(kTwo, "replicate"), on(kFour, "data"), "boxes 0.5, boxes 0.5", "boxes 1");
}

// Row 11: 3 x 3 windows on rows split over 4 devices: inner devices get a row from each neighbour,
// forward and backward.
TEST_F(Communication, Halos) {
  const PlanSummary s = summary_of(
      "format: 1\nname: halo\ndevices: 4\nbatch: 16\n"
      "input: {data: [2, 16, 5], label: {classes: 3}}\n"
      "defaults: {conv: {filters: 2, kernel: 3, pad: 1, parallel: spatial}}\nlayers:\n"
      "  - {name: first, type: conv, input: data}\n  - {name: second, type: conv}\n"
      "  - {name: fc, type: fc, outputs: 3, devices: [0]}\n"
      "  - {name: loss, type: softmax_loss, input: [fc, label], devices: [0]}\n"
      "train: {rate: {base: 0.1}, steps: 1}\n");
  const double row = 16 * 2 * 5 * 4.0;
  EXPECT_EQ(moves(s, Direction::kForward, "first->second", row), "boxes 2");
}

// Rows 27 to 30: bytes of gradients and updated parameters, in units of W.
TEST_F(Communication, Parameters) {
  const auto sync = [](const std::string& placement) {
    return moves(summary_of(two_layers(128, placement, kOne)), Direction::kSync, "first.w",
                 16 * 16 * 4.0);
  };
  EXPECT_EQ(sync(on(kFour, "data")), "reduce_scatter 0.75, all_gather 0.75");
  EXPECT_EQ(sync(on(kFour, "model")), "");
  EXPECT_EQ(sync(on(kFour, "model_in")), "");
  EXPECT_EQ(sync(on(kFour, "replicate")), "");
  // A mesh of 2 by 4: examples over 2, filters over 4.
  EXPECT_EQ(sync("devices: [[0, 1, 2, 3], [4, 5, 6, 7]], parallel: [data, model]"),
            "reduce_scatter 0.125, reduce_scatter 0.125, reduce_scatter 0.125, "
            "reduce_scatter 0.125, all_gather 0.125, all_gather 0.125, all_gather 0.125, "
            "all_gather 0.125");
}

}  // namespace
}  // namespace convnet
