#include "tools/bench/cases.h"

#include <algorithm>

namespace convnet::bench {
namespace {

struct Conv {
  const char* name;
  int64_t batch, channels, image, filters, kernel, stride, pad;
  int64_t groups = 1;
  bool cut = false;  // also with sums by shards of channels, filters and rows
};

// The eight canonical shards of channels, filters or rows, of which there are at least so many.
std::vector<int64_t> eighths(int64_t extent) {
  std::vector<int64_t> cuts;
  for (int64_t i = 0; i <= 8; ++i) cuts.push_back(extent * i / 8);
  return cuts;
}

// The eight canonical shards of a batch of whole blocks.
std::vector<int64_t> shards(int64_t batch) {
  std::vector<int64_t> cuts;
  const int64_t blocks = (batch + kLanes - 1) / kLanes;
  for (int64_t i = 0; i <= 8; ++i) cuts.push_back(std::min(batch, i * blocks / 8 * kLanes));
  return cuts;
}

void add_conv(std::vector<Case>& cases, const Conv& c) {
  const int64_t out = (c.image + 2 * c.pad - c.kernel) / c.stride + 1;
  const TensorSpec x{{c.batch, c.channels, c.image, c.image}};
  const TensorSpec y{{c.batch, c.filters, out, out}};
  const TensorSpec w{{c.filters, c.channels / c.groups, c.kernel, c.kernel}, Format::kPlain};
  const TensorSpec b{{c.filters}, Format::kPlain};
  const std::vector<int64_t> stride{c.stride, c.stride}, pad{c.pad, c.pad}, dilation{1, 1};
  Attrs attrs;
  attrs.set("stride", stride).set("pad", pad).set("dilation", dilation).set("groups", c.groups);
  // Taps inside the image only: what has to be computed.
  double taps = 0;
  for (int64_t p = 0; p < out; ++p)
    for (int64_t r = 0; r < c.kernel; ++r) {
      const int64_t h = p * c.stride - c.pad + r;
      taps += h >= 0 && h < c.image;
    }
  const double operations = 2 * static_cast<double>(c.batch * c.filters) *
                            static_cast<double>(c.channels / c.groups) * taps * taps;
  const std::string name = c.name;
  Attrs forward = attrs;
  forward.set("act", std::string("relu"));
  cases.push_back({name + ".fwd", Op::kConvFwd, forward, {x, w, b}, {y}, operations, true});
  cases.push_back({name + ".bwd_data", Op::kConvBwdData, attrs, {y, w}, {x}, operations, true});
  Attrs sum = attrs;
  sum.set("cuts", shards(c.batch));
  cases.push_back(
      {name + ".bwd_weight", Op::kConvBwdWeight, sum, {x, y}, {w, b}, operations, true});
  if (!c.cut) return;
  // As plans that split layers have them: sums by canonical shards.
  Attrs channels = attrs, filters = attrs, rows = sum;
  channels.set("act", std::string("none")).set("channel_cuts", eighths(c.channels));
  filters.set("filter_cuts", eighths(c.filters));
  rows.set("row_cuts", eighths(out));
  cases.push_back({name + ".fwd.shards", Op::kConvFwd, channels, {x, w}, {y}, operations, true});
  cases.push_back(
      {name + ".bwd_data.shards", Op::kConvBwdData, filters, {y, w}, {x}, operations, true});
  cases.push_back(
      {name + ".bwd_weight.shards", Op::kConvBwdWeight, rows, {x, y}, {w, b}, operations, true});
}

void add_fc(std::vector<Case>& cases, const std::string& name, int64_t batch, const Shape& image,
            int64_t outputs) {
  const TensorSpec x{{batch, image[0], image[1], image[2]}}, y{{batch, outputs, 1, 1}};
  const TensorSpec w{{outputs, image.count()}, Format::kPlain}, b{{outputs}, Format::kPlain};
  const double operations = 2 * static_cast<double>(batch * outputs * image.count());
  Attrs forward;
  forward.set("act", std::string("relu"));
  cases.push_back({name + ".fwd", Op::kFcFwd, forward, {x, w, b}, {y}, operations, true});
  cases.push_back({name + ".bwd_data", Op::kFcBwdData, {}, {y, w}, {x}, operations, true});
  Attrs sum;
  sum.set("cuts", shards(batch));
  cases.push_back({name + ".bwd_weight", Op::kFcBwdWeight, sum, {x, y}, {w, b}, operations, true});
  Attrs channels, filters;
  channels.set("act", std::string("none")).set("channel_cuts", eighths(image[0]));
  filters.set("filter_cuts", eighths(outputs));
  cases.push_back({name + ".fwd.shards", Op::kFcFwd, channels, {x, w}, {y}, operations, true});
  cases.push_back(
      {name + ".bwd_data.shards", Op::kFcBwdData, filters, {y, w}, {x}, operations, true});
}

void add_pool(std::vector<Case>& cases, const std::string& name, bool maximum, const Shape& image,
              int64_t kernel, int64_t stride) {
  const int64_t out = (image[2] - kernel) / stride + 1;
  const TensorSpec x{image}, y{{image[0], image[1], out, out}};
  Attrs attrs;
  const std::vector<int64_t> k{kernel, kernel}, s{stride, stride}, pad{0, 0};
  attrs.set("kernel", k).set("stride", s).set("pad", pad);
  if (maximum) {
    cases.push_back({name + ".fwd", Op::kPoolMaxFwd, attrs, {x}, {y}, 0, true});
    cases.push_back({name + ".bwd", Op::kPoolMaxBwd, attrs, {x, y}, {x}, 0, true});
  } else {
    cases.push_back({name + ".fwd", Op::kPoolAvgFwd, attrs, {x}, {y}});
    cases.push_back({name + ".bwd", Op::kPoolAvgBwd, attrs, {y}, {x}});
  }
}

void add_lrn(std::vector<Case>& cases, const std::string& name, const Shape& image, double beta) {
  const TensorSpec x{image};
  Attrs attrs;
  attrs.set("size", 5).set("alpha", 1e-4).set("beta", beta).set("k", 1.0);
  cases.push_back({name + ".fwd", Op::kLrnFwd, attrs, {x}, {x, x}});
  cases.push_back({name + ".bwd", Op::kLrnBwd, attrs, {x, x, x, x}, {x}});
}

void add_elementwise(std::vector<Case>& cases, const Shape& image) {
  const TensorSpec x{image};
  for (const char* act : {"relu", "tanh", "sigmoid"}) {
    Attrs attrs;
    attrs.set("act", std::string(act));
    cases.push_back({std::string("act.") + act + ".fwd", Op::kActFwd, attrs, {x}, {x}});
    cases.push_back({std::string("act.") + act + ".bwd", Op::kActBwd, attrs, {x, x}, {x}});
  }
  Attrs dropout;
  dropout.set("rate", 0.5).set("key", 7);
  cases.push_back({"dropout.fwd", Op::kDropoutFwd, dropout, {x}, {x}});
  Attrs add;
  add.set("act", std::string("relu"));
  cases.push_back({"add.relu", Op::kAdd, add, {x, x}, {x}, 0, true});
  const TensorSpec w{{4096, 9216}, Format::kPlain};
  Attrs update;
  update.set("rate", 1.0).set("decay", 0.0005).set("momentum", 0.9);
  cases.push_back({"update.sgd", Op::kUpdateSgd, update, {w, w, w}, {w, w}});
}

}  // namespace

std::vector<Case> all_cases() {
  // AlexNet as in 'One weird trick' (one tower), LeNet as in Caffe, VGG-16 and ResNet-50 layers.
  const Conv convs[] = {
      {"alexnet.conv1", 128, 3, 224, 64, 11, 4, 2},
      {"alexnet.conv2", 128, 64, 27, 192, 5, 1, 2, 1, true},
      {"alexnet.conv3", 128, 192, 13, 384, 3, 1, 1, 1, true},
      {"alexnet.conv4", 128, 384, 13, 256, 3, 1, 1},
      {"alexnet.conv5", 128, 256, 13, 256, 3, 1, 1},
      {"lenet.conv1", 64, 1, 28, 20, 5, 1, 0},
      {"lenet.conv2", 64, 20, 12, 50, 5, 1, 0},
      {"vgg.conv1_1", 16, 3, 224, 64, 3, 1, 1},
      {"vgg.conv1_2", 16, 64, 224, 64, 3, 1, 1},
      {"vgg.conv2_2", 16, 128, 112, 128, 3, 1, 1},
      {"vgg.conv4_2", 16, 512, 28, 512, 3, 1, 1, 1, true},
      {"vgg.conv5", 16, 512, 14, 512, 3, 1, 1},
      {"resnet.64_64_3x3", 16, 64, 56, 64, 3, 1, 1},
      {"resnet.64_256_1x1", 16, 64, 56, 256, 1, 1, 0, 1, true},
      {"resnet.256_64_1x1", 16, 256, 56, 64, 1, 1, 0},
      {"resnet.128_128_3x3s2", 16, 128, 56, 128, 3, 2, 1},
      {"resnet.256_1024_1x1", 16, 256, 14, 1024, 1, 1, 0},
      {"resnet.512_512_3x3", 16, 512, 7, 512, 3, 1, 1},
      {"resnet20.16_16_3x3", 128, 16, 32, 16, 3, 1, 1},
      {"mobilenet.depthwise", 64, 256, 28, 256, 3, 1, 1, 256},
  };
  std::vector<Case> cases;
  for (const Conv& c : convs) add_conv(cases, c);
  add_fc(cases, "alexnet.fc6", 128, {256, 6, 6}, 4096);
  add_fc(cases, "alexnet.fc7", 128, {4096, 1, 1}, 4096);
  add_fc(cases, "alexnet.fc8", 128, {4096, 1, 1}, 1000);
  add_pool(cases, "alexnet.pool1", true, {128, 64, 55, 55}, 3, 2);
  add_pool(cases, "alexnet.avgpool", false, {128, 64, 55, 55}, 3, 2);
  add_lrn(cases, "alexnet.lrn1", {128, 64, 55, 55}, 0.75);
  add_lrn(cases, "alexnet.lrn1_power", {128, 64, 55, 55}, 0.7);
  add_elementwise(cases, {128, 64, 55, 55});
  return cases;
}

}  // namespace convnet::bench
