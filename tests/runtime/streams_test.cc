// If this fails, communication beside computation reads what is not there yet or overwrites what is
// still needed. Its worth lies under ThreadSanitizer, which sees an order that is missing even
// where the bits come out right.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "tests/support/model_run.h"

namespace convnet {
namespace {

// One weird trick in passes: fetches ahead of the passes, gradients in buckets, sums to owners.
std::string model_text(const std::string& exchange) {
  return R"(
format: 1
name: streams
devices: 4
batch: 128
input: {data: [3, 6, 6], label: {classes: 5}}
defaults:
  fc: {parallel: model, exchange: )" +
         exchange + R"(}
layers:
  - {name: conv1, type: conv, input: data, filters: 8, kernel: 3, pad: 1, act: relu}
  - {name: conv2, type: conv, filters: 6, kernel: 3, pad: 1, act: relu}
  - {name: pool, type: pool, kernel: 2, stride: 2}
  - {name: fc1, type: fc, outputs: 16, act: relu}
  - {name: fc2, type: fc, outputs: 5}
  - {name: loss, type: softmax_loss, input: [fc2, label]}
train: {rate: {base: 0.1}, steps: 3}
)";
}

std::map<std::string, HostTensor> train(const BoundModel& model, int devices) {
  CompileOptions options;
  options.devices = devices;
  const Plan plan = compile_model(model, options);
  if (devices > 1)
    for (const DevicePlan& device : plan.devices) {
      const auto beside = std::ranges::count(device.instrs, Stream::kComm, &Instr::stream);
      EXPECT_GE(beside, 1) << "nothing runs beside the computation";
    }
  const auto session = reference_session(plan);
  for (int step = 0; step < 3; ++step)
    CHECK(session->run(random_batch(plan, static_cast<uint64_t>(step), 128), step, 0.1).ok());
  return read_all(*session);
}

TEST(Streams, CommunicationBesideComputationChangesNothing) {
  for (const std::string exchange : {"whole", "owner", "stripe"}) {
    SCOPED_TRACE(exchange);
    const auto model = bind_text(model_text(exchange));
    EXPECT_EQ(largest_difference(train(*model, 1), train(*model, 4)), 0);
  }
}

}  // namespace
}  // namespace convnet
