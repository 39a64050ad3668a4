// If this fails, splitting a network over devices changes what it computes. Random small networks
// on random devices, against the same network on one device, in double on the reference backend:
// the same bits where the plan promises them, else equal to 1e-11.
#include <gtest/gtest.h>

#include <random>

#include "tests/support/model_run.h"

namespace convnet {
namespace {

// Text of a random network. Layers keep a list of values that later layers may read.
class Generator {
 public:
  explicit Generator(uint32_t seed) : random_(seed) {}

  // `devices` > 1: some layers get a random list of devices and a mode.
  std::string network(int devices) {
    text_.clear();
    values_.clear();
    const int batch = pick({1, 10, 16, 17, 33, 40, 64, 100, 128});
    const int channels = below(3) + 1, rows = below(5) + 5, columns = below(5) + 5;
    values_.push_back({"data", channels, rows, columns});
    const int layers = below(5) + 2;
    for (int i = 0; i < layers; ++i) add_layer("l" + std::to_string(i));
    add("fc", "outputs: 4, init: {xavier: 1}", {4, 1, 1}, values_.back().name, "last");
    std::string model = "format: 1\nname: random\nbatch: " + std::to_string(batch) +
                        "\ninput: {data: [" + std::to_string(channels) + ", " +
                        std::to_string(rows) + ", " + std::to_string(columns) +
                        "], label: {classes: 4}}\nlayers:\n";
    std::vector<std::string> lines = text_;
    lines.push_back("name: loss, type: softmax_loss, input: [last, label], report: [top1, top2]");
    for (const std::string& line : lines) model += "  - {" + line + placement(devices) + "}\n";
    return model +
           "train: {momentum: 0.5, decay: 0.01, steps: 2, seed: " + std::to_string(below(100)) +
           ", rate: {base: 0.1}}\n";
  }

 private:
  struct Item {
    std::string name;
    int c, h, w;
  };
  int below(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
  int pick(std::initializer_list<int> list) {
    return *(list.begin() + below(static_cast<int>(list.size())));
  }

  void add(const std::string& type, const std::string& attributes, std::array<int, 3> shape,
           const std::string& input, const std::string& name) {
    text_.push_back("name: " + name + ", type: " + type + ", input: [" + input + "]" +
                    (attributes.empty() ? "" : ", " + attributes));
    values_.push_back({name, shape[0], shape[1], shape[2]});
  }

  std::string activation() {
    const char* acts[] = {"none", "relu", "tanh", "sigmoid"};
    return acts[below(4)];
  }

  void add_layer(const std::string& name) {
    const Item x =
        values_[values_.size() - 1 -
                static_cast<size_t>(below(std::min<int>(2, static_cast<int>(values_.size()))))];
    const std::array<int, 3> same{x.c, x.h, x.w};
    switch (below(8)) {
      case 0:
      case 1: {
        const int filters = below(5) + 1, kernel = std::min({x.h, x.w, below(3) + 1});
        add("conv",
            "filters: " + std::to_string(filters) + ", kernel: " + std::to_string(kernel) +
                ", act: " + activation(),
            {filters, x.h - kernel + 1, x.w - kernel + 1}, x.name, name);
        break;
      }
      case 2: {
        const int kernel = std::min({x.h, x.w, 2});
        add("pool",
            std::string("kind: ") + (below(2) ? "max" : "average") +
                ", kernel: " + std::to_string(kernel) + ", stride: 2",
            {x.c, (x.h - kernel) / 2 + 1, (x.w - kernel) / 2 + 1}, x.name, name);
        break;
      }
      case 3:
        add("lrn", "size: 3, alpha: 0.3, k: 2", same, x.name, name);
        break;
      case 4:
        add("dropout", "rate: 0.3", same, x.name, name);
        break;
      case 5:
        add("tanh", "", same, x.name, name);
        break;
      case 6: {  // a branch that is added to what it came from
        add("conv", "filters: " + std::to_string(x.c) + ", kernel: 3, pad: 1", same, x.name,
            name + "b");
        add("add", "act: " + activation(), same, x.name + ", " + name + "b", name);
        break;
      }
      case 7: {
        add("conv", "filters: 2, kernel: 1", {2, x.h, x.w}, x.name, name + "b");
        add("concat", "", {x.c + 2, x.h, x.w}, x.name + ", " + name + "b", name);
        break;
      }
    }
  }

  std::string placement(int devices) {
    if (devices == 1 || below(2) == 0) return "";
    std::string list;
    for (int d = 0; d < devices; ++d)
      if (below(2)) list += (list.empty() ? "" : ", ") + std::to_string(d);
    if (list.empty()) list = std::to_string(below(devices));
    return ", devices: [" + list + "], parallel: " + (below(4) ? "data" : "replicate");
  }

  std::mt19937 random_;
  std::vector<std::string> text_;
  std::vector<Item> values_;
};

std::map<std::string, HostTensor> train(const BoundModel& model, int devices, bool* promised) {
  CompileOptions options;
  options.dtype = DType::kF64;
  options.devices = devices;
  const Plan plan = compile_model(model, options);
  *promised = true;
  for (const Exchange& e : plan.exchanges) *promised &= e.order != Exchange::Order::kRank;
  const auto session = reference_session(plan);
  for (int step = 0; step < 2; ++step) {
    const auto result = session->run(
        random_batch(plan, static_cast<uint64_t>(step), plan.batch - (step ? plan.batch / 3 : 0)),
        step, 0.25);
    CHECK(result.ok());
  }
  return read_all(*session);
}

TEST(Equivalence, DataParallelOnAnyNumberOfDevices) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const std::string text = Generator(seed).network(1);
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + text);
    const auto model = bind_text(text);
    bool promised;
    const auto serial = train(*model, 1, &promised);
    const int devices = static_cast<int>(seed % 7) + 2;
    const auto parallel = train(*model, devices, &promised);
    const double difference = largest_difference(serial, parallel);
    if (promised)
      ASSERT_EQ(difference, 0);
    else
      ASSERT_LE(difference, 1e-11);
  }
}

TEST(Equivalence, LayersOnAnyDevicesInAnyMode) {
  for (uint32_t seed = 1000; seed < 1060; ++seed) {
    const int devices = static_cast<int>(seed % 4) + 2;
    const std::string text = Generator(seed).network(devices);
    SCOPED_TRACE("seed " + std::to_string(seed) + " devices " + std::to_string(devices) + "\n" +
                 text);
    // The same network without placements.
    std::string plain = text;
    for (size_t at; (at = plain.find(", devices: [")) != std::string::npos;)
      plain.erase(at, plain.find('}', at) - at);
    bool promised;
    const auto serial = train(*bind_text(plain), 1, &promised);
    const auto parallel = train(*bind_text(text), devices, &promised);
    ASSERT_LE(largest_difference(serial, parallel), promised ? 0 : 1e-11);
  }
}

// A gradient that passes make up is read first with a halo of channels, of which no device is the
// owner, then in another layout.
TEST(Equivalence, AGradientOfPassesWithAHaloIsReadTwice) {
  const auto network = [](const std::string& lrn, const std::string& last) {
    return "format: 1\nname: halo\ndevices: 3\nbatch: 33\n"
           "input: {data: [1, 1, 1], label: {classes: 4}}\nlayers:\n"
           "  - {name: l1, type: fc, input: data, outputs: 7}\n"
           "  - {name: l2, type: lrn, input: l1, size: 5, alpha: 1, beta: 0.5, k: 1" +
           lrn +
           "}\n"
           "  - {name: l3, type: add, input: [l2, l1]}\n"
           "  - {name: last, type: fc, outputs: 4, init: {xavier: 1}" +
           last +
           "}\n"
           "  - {name: loss, type: softmax_loss, input: [last, label]}\n"
           "train: {momentum: 0.5, steps: 2, rate: {base: 0.125}}\n";
  };
  bool promised;
  const auto serial = train(*bind_text(network("", "")), 1, &promised);
  const auto split = train(*bind_text(network(", parallel: model, devices: [1, 2]",
                                              ", devices: [2], exchange: owner, passes: 3")),
                           3, &promised);
  EXPECT_LE(largest_difference(serial, split), promised ? 0 : 1e-11);
}

}  // namespace
}  // namespace convnet
