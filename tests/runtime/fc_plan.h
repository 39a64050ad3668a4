// A plan written by hand: two fully-connected layers and a softmax loss, data-parallel on any
// number of devices. No compiler is involved, so what fails here is the runtime's.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "framework/plan/plan.h"

namespace convnet {

struct FcNet {
  int64_t batch = 128;
  int64_t features = 12;
  int64_t hidden = 9;
  int64_t classes = 5;
  DType dtype = DType::kF32;
  Exchange::Order order = Exchange::Order::kTree;
  bool guard = true;
};

class FcPlan {
 public:
  static Plan train(const FcNet& net, int devices) { return FcPlan(net, devices, true).plan_; }
  static Plan test(const FcNet& net, int devices) { return FcPlan(net, devices, false).plan_; }

 private:
  FcPlan(const FcNet& net, int devices, bool train) : net_(net), devices_(devices), train_(train) {
    plan_.model = "fc";
    plan_.source = "fc.yaml";
    plan_.phase = train ? Plan::Phase::kTrain : Plan::Phase::kTest;
    plan_.dtype = net.dtype;
    plan_.batch = net.batch;
    plan_.seed = 7;
    // Eight canonical shards of whole blocks, as far as there are blocks.
    const int64_t blocks = (net.batch + kLanes - 1) / kLanes;
    for (int64_t s = 0; s <= 8; ++s)
      plan_.shards.push_back(std::min(net.batch, blocks * s / 8 * kLanes));
    plan_.layers = {{"fc1", "fc", 4}, {"fc2", "fc", 5}, {"loss", "softmax_loss", 6}};
    plan_.devices.resize(static_cast<size_t>(devices));
    for (int d = 0; d < devices; ++d) next_.push_back(0);

    const Shape x{net.batch, net.features, 1, 1}, h{net.batch, net.hidden, 1, 1},
        y{net.batch, net.classes, 1, 1};
    tensor("data", TensorKind::kInput, net.dtype, Format::kBlocked, x)
        .attrs.set("input", std::string("data"));
    tensor("label", TensorKind::kInput, DType::kI32, Format::kBlocked, {net.batch})
        .attrs.set("input", std::string("label"));
    tensor("fc1", TensorKind::kActivation, net.dtype, Format::kBlocked, h);
    tensor("fc2", TensorKind::kActivation, net.dtype, Format::kBlocked, y);
    tensor("prob", TensorKind::kActivation, net.dtype, Format::kBlocked, y);
    tensor("loss.metrics", TensorKind::kMetric, DType::kF64, Format::kPlain, {4})
        .attrs.set("metric", std::string("loss"))
        .set("weight", 1.0)
        .set("top", std::vector<int64_t>{1, 2});
    parameter("fc1.w", {net.hidden, net.features}, 0.5);
    parameter("fc1.b", {net.hidden}, 0.1);
    parameter("fc2.w", {net.classes, net.hidden}, 0.5);
    parameter("fc2.b", {net.classes}, 0.1);
    tensor("fc2.grad", TensorKind::kActivation, net.dtype, Format::kBlocked, y);
    tensor("fc1.grad", TensorKind::kActivation, net.dtype, Format::kBlocked, h);

    for (int d = 0; d < devices; ++d) {
      for (const char* name : {"data", "label"})
        buffer(d, name, split(name, d), Buffer::Region::kInput);
      for (const char* name : {"fc1", "fc2", "prob"})
        buffer(d, name, split(name, d), Buffer::Region::kArena);
      for (const char* name : {"fc1.w", "fc1.b", "fc2.w", "fc2.b"})
        buffer(d, name, whole(name), Buffer::Region::kState);
      op(d, Op::kFcFwd, {"data", "fc1.w", "fc1.b"}, {"fc1"},
         Attrs().set("act", std::string("relu")), 0);
      op(d, Op::kFcFwd, {"fc1", "fc2.w", "fc2.b"}, {"fc2"}, Attrs().set("act", std::string("none")),
         1);
      buffer(d, "loss.metrics", partial("loss.metrics", d), Buffer::Region::kArena);
      Attrs loss;
      loss.set("top", std::vector<int64_t>{1, 2}).set("cuts", cuts(d));
      op(d, Op::kSoftmaxLossFwd, {"fc2", "label"}, {"prob", "loss.metrics"}, loss, 2);
    }
    const std::string metrics = all_reduce("loss.metrics", 2);
    if (!train) return;
    for (int d = 0; d < devices; ++d) {
      if (net.guard) op(d, Op::kGuard, {metrics}, {}, Attrs(), 2);
      for (const char* name : {"fc2.grad", "fc1.grad"})
        buffer(d, name, split(name, d), Buffer::Region::kArena);
      Attrs scale;
      scale.set("scale", 1.0 / static_cast<double>(net.batch));
      op(d, Op::kSoftmaxLossBwd, {"prob", "label"}, {"fc2.grad"}, scale, 2);
      op(d, Op::kFcBwdData, {"fc2.grad", "fc2.w"}, {"fc1.grad"}, Attrs(), 1);
      weight_gradient(d, "fc1", "fc2.grad", "fc2", 1);
      op(d, Op::kActBwd, {"fc1", "fc1.grad"}, {"fc1.grad"}, Attrs().set("act", std::string("relu")),
         0);
      weight_gradient(d, "data", "fc1.grad", "fc1", 0);
    }
    for (const char* name : {"fc2.w", "fc2.b", "fc1.w", "fc1.b"}) {
      const std::string parameter = name;
      const int layer = parameter[2] == '1' ? 0 : 1;
      const std::string gradient = all_reduce(parameter + ".grad", layer);
      for (int d = 0; d < devices; ++d) {
        buffer(d, parameter + ".momentum", whole(parameter + ".momentum"), Buffer::Region::kState);
        Attrs update;
        update.set("rate", 1.0).set("decay", 0.001).set("momentum", 0.9);
        op(d, Op::kUpdateSgd, {gradient, parameter, parameter + ".momentum"},
           {parameter, parameter + ".momentum"}, update, layer);
      }
    }
    for (int d = 0; d < devices; ++d) {
      DevicePlan& p = plan_.devices[static_cast<size_t>(d)];
      p.arena_bytes = p.arena_bound = next_[static_cast<size_t>(d)];
    }
  }

  Tensor& tensor(const std::string& name, TensorKind kind, DType dtype, Format format,
                 Shape shape) {
    Tensor t;
    t.name = name;
    t.kind = kind;
    t.dtype = dtype;
    t.format = format;
    t.shape = shape;
    plan_.tensors.push_back(t);
    return plan_.tensors.back();
  }
  void parameter(const std::string& name, Shape shape, double std) {
    tensor(name, TensorKind::kParameter, net_.dtype, Format::kPlain, shape)
        .attrs.set("init", std::string("normal"))
        .set("mean", 0.0)
        .set("std", std);
    if (!train_) return;
    tensor(name + ".momentum", TensorKind::kState, net_.dtype, Format::kPlain, shape)
        .attrs.set("init", std::string("constant"))
        .set("value", 0.0);
    tensor(name + ".grad", TensorKind::kGradient, net_.dtype, Format::kPlain, shape);
  }
  int find(const std::string& name) const {
    for (size_t t = 0; t < plan_.tensors.size(); ++t)
      if (plan_.tensors[t].name == name) return static_cast<int>(t);
    CHECK(false);
    return -1;
  }
  // Device d holds whole canonical shards.
  int64_t edge(int64_t d) const { return plan_.shards[static_cast<size_t>(8 * d / devices_)]; }
  std::vector<int64_t> cuts(int d) const {
    std::vector<int64_t> list;
    for (int64_t s = 8 * d / devices_; s <= 8 * (d + 1) / devices_; ++s)
      list.push_back(plan_.shards[static_cast<size_t>(s)]);
    return list;
  }
  Part split(const std::string& name, int d) const {
    Part part{Box(plan_.tensors[static_cast<size_t>(find(name))].shape), 0, 1};
    part.box.set(0, edge(d), edge(d + 1));
    return part;
  }
  Part whole(const std::string& name) const {
    return {Box(plan_.tensors[static_cast<size_t>(find(name))].shape), 0, 1};
  }
  Part partial(const std::string& name, int d) const { return {whole(name).box, d, devices_}; }

  void buffer(int d, const std::string& name, Part part, Buffer::Region region,
              const std::string& suffix = "") {
    Buffer b;
    b.name = name + suffix;
    b.tensor = find(name);
    b.part = part;
    b.region = region;
    const Tensor& t = plan_.tensors[static_cast<size_t>(b.tensor)];
    b.bytes = (stored_count(t.format, part.box) * dtype_size(t.dtype) + 63) / 64 * 64;
    DevicePlan& p = plan_.devices[static_cast<size_t>(d)];
    if (region == Buffer::Region::kArena) {
      b.offset = next_[static_cast<size_t>(d)];
      next_[static_cast<size_t>(d)] += b.bytes;
      p.arena_bytes = p.arena_bound = next_[static_cast<size_t>(d)];
    }
    p.buffers.push_back(b);
  }
  Operand operand(int d, const std::string& name) const {
    const auto& buffers = plan_.devices[static_cast<size_t>(d)].buffers;
    for (size_t b = 0; b < buffers.size(); ++b)
      if (buffers[b].name == name) return {static_cast<int>(b), buffers[b].part.box};
    CHECK_MSG(false, name);
    return {};
  }
  void op(int d, Op op, const std::vector<std::string>& in, const std::vector<std::string>& out,
          const Attrs& attrs, int layer) {
    Instr i;
    i.op = op;
    for (const std::string& name : in) i.in.push_back(operand(d, name));
    for (const std::string& name : out) i.out.push_back(operand(d, name));
    i.attrs = attrs;
    i.layer = layer;
    plan_.devices[static_cast<size_t>(d)].instrs.push_back(i);
  }
  void weight_gradient(int d, const std::string& x, const std::string& dy, const std::string& layer,
                       int index) {
    for (const char* which : {".w.grad", ".b.grad"})
      buffer(d, layer + which, partial(layer + which, d), Buffer::Region::kArena);
    Attrs attrs;
    attrs.set("cuts", cuts(d));
    op(d, Op::kFcBwdWeight, {x, dy}, {layer + ".w.grad", layer + ".b.grad"}, attrs, index);
  }
  // Returns the name of the buffers with the sum.
  std::string all_reduce(const std::string& name, int layer) {
    if (devices_ == 1) return name;
    Exchange e;
    e.kind = Exchange::Kind::kAllReduce;
    e.order = net_.order;
    e.tensor = find(name);
    e.edge = name;
    e.layer = layer;
    for (int d = 0; d < devices_; ++d) {
      e.group.push_back(d);
      e.from.push_back(partial(name, d));
      e.to.push_back(whole(name));
      buffer(d, name, whole(name), Buffer::Region::kArena, ".sum");
    }
    Attrs id;
    id.set("id", static_cast<int>(plan_.exchanges.size()));
    plan_.exchanges.push_back(e);
    for (int d = 0; d < devices_; ++d) op(d, Op::kExchange, {name}, {name + ".sum"}, id, layer);
    return name + ".sum";
  }

  FcNet net_;
  int devices_;
  bool train_;
  Plan plan_;
  std::vector<int64_t> next_;  // first free byte of each arena
};

}  // namespace convnet
