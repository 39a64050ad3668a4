// Plan: what each device does, in order, to train or test one step of a model. The waist of the
// program: the compiler makes plans and knows no kernel; the runtime executes plans and knows no
// layer. A plan has a text form (FORMAT.md) that prints and parses back to the same plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "framework/base/shape.h"
#include "framework/base/status.h"
#include "framework/plan/attrs.h"
#include "framework/plan/ops.h"
#include "framework/plan/wire.h"

namespace convnet {

// A logical tensor: what the model's mathematics names. Devices hold boxes of it in buffers.
enum class TensorKind {
  kInput,       // filled by the data source before each step: data, label
  kActivation,  // value or gradient of a value
  kParameter,   // trained; kept from step to step, and in checkpoints
  kState,       // belongs to a parameter (momentum); kept from step to step, and in checkpoints
  kGradient,    // of a parameter
  kMetric,      // read by the host after the step: [loss sum, examples, correct...]
};

struct Tensor {
  std::string name;  // "conv1", "conv1.w", "conv1.grad", "conv1.w.momentum"; unique
  TensorKind kind = TensorKind::kActivation;
  DType dtype = DType::kF32;
  Format format = Format::kPlain;
  Shape shape;
  // Parameters: how the first values are made: init=constant value | normal mean std | uniform lo
  // hi, drawn by Philox from (seed, key), counter the logical element index. State: init=constant.
  // Metrics: metric=loss weight top=[...]. Inputs: input=data | label (and classes for labels).
  // Activations and inputs that hold a sub-batch: rows=[lo,hi,lo,hi,...], the examples that their
  // rows stand for (rows.h).
  Attrs attrs;
  bool operator==(const Tensor&) const = default;
};

// Where in the model file an instruction comes from.
struct Layer {
  std::string name;
  std::string type;
  int line = 0;
  bool operator==(const Layer&) const = default;
};

// Memory of one device that holds one part of one logical tensor.
struct Buffer {
  enum class Region {
    kInput,  // memory of the session, filled before each step
    kState,  // kept from step to step, shared by the train and the test plan; found by tensor name
    kArena,  // at `offset` in the device's arena; lives from its first write to its last use
  };
  std::string name;  // unique on its device; the tensor's name, with a suffix for a second layout
  int tensor = 0;    // index in Plan::tensors
  Part part;
  Region region = Region::kArena;
  int64_t offset = -1;  // bytes, multiple of 64; arena only
  int64_t bytes = 0;    // stored_count * dtype_size, rounded up to 64
  bool operator==(const Buffer&) const = default;
};

// A buffer, or a box of one. The box is in logical indices and lies inside the buffer's.
struct Operand {
  int buffer = 0;  // index in DevicePlan::buffers
  Box box;
  bool operator==(const Operand&) const = default;
};

// A device runs two streams at the same time, each in the order written: computation, and the
// communication that need not hold it up. Events order them: an instruction that waits for an event
// begins after the instruction of the other stream that signals it has ended.
enum class Stream { kCompute, kComm };
const char* stream_name(Stream stream);  // "comm"

struct Instr {
  Op op = Op::kAdd;
  std::vector<Operand> in, out;
  Attrs attrs;
  int layer = -1;  // index in Plan::layers
  Stream stream = Stream::kCompute;
  int wait = -1, signal = -1;  // events of the device, numbered from 0; -1: none
  bool operator==(const Instr&) const = default;
};

struct DevicePlan {
  int64_t arena_bytes = 0;
  // The largest sum of simultaneously live arena buffers: no placement can need less.
  int64_t arena_bound = 0;
  std::vector<Buffer> buffers;
  std::vector<Instr> instrs;
  bool operator==(const DevicePlan&) const = default;
};

// One communication: every element of each destination part is copied from the one source that
// holds it, or is the sum of the partial sums that it consists of: destination part k of `of` is
// the sum of the sources k * q .. k * q + q - 1 of `of` * q (complete values: k = 0, of = 1).
// `kind` names the pattern; the box copy that `from` and `to` spell out is what it means.
struct Exchange {
  enum class Kind {
    kBoxes,  // no pattern: send and receive
    kAllGather,
    kReduceScatter,
    kAllReduce,
    kBroadcast,
    kReduce,
    kGather,
    kScatter,
    kAllToAll,
  };
  // In which order partial sums are added: the balanced tree over k (as ops.def's tree), which
  // gives the same bits for any number of devices that divides the canonical shards; or k = 0, 1,
  // 2, ...
  enum class Order { kNone, kTree, kRank };
  Kind kind = Kind::kBoxes;
  Order order = Order::kNone;
  // How elements travel. Other than kF32: every operand counts as what its encoding decodes to, on
  // all devices, its own included; so does every piece of the sum of an all-reduce (FORMAT.md).
  Wire wire = Wire::kF32;
  // Exchanges of one bucket, side by side on all their devices, are carried out as one: together
  // they wait once for each other. -1: alone.
  int bucket = -1;
  int tensor = 0;  // logical tensor that moves (index in Plan::tensors)
  // Logical tensor that it becomes part of, which may have other rows: an element goes to the row
  // that stands for the same example. -1: `tensor`. `from` are boxes of `tensor`, `to` of this one.
  int into = -1;
  std::vector<int> group;      // devices that take part, in mesh order
  std::vector<Part> from, to;  // per group member; an empty box: holds or wants nothing
  int64_t bytes = 0;           // on the wire, the largest over devices of max(sent, received)
  // What it serves, for reports: an edge of the graph, "conv5->fc6", or a tensor, "conv1.w.grad".
  std::string edge;
  int layer = -1;
  int target() const { return into < 0 ? tensor : into; }
  bool operator==(const Exchange&) const = default;
};
const char* exchange_kind_name(Exchange::Kind kind);     // "all_gather"
const char* exchange_order_name(Exchange::Order order);  // "tree"

struct Plan {
  enum class Phase { kTrain, kTest };
  std::string model;   // name of the model
  std::string source;  // the model file as the user named it, for error messages
  Phase phase = Phase::kTrain;
  DType dtype = DType::kF32;  // of activations and parameters
  int64_t batch = 0;          // examples per step over all devices
  uint64_t seed = 0;
  // Boundaries of the canonical shards of the batch, in examples: a function of the batch alone.
  std::vector<int64_t> shards;
  std::vector<Layer> layers;
  std::vector<Tensor> tensors;
  // In the one order in which all devices issue them; exchange instructions name an entry by `id`.
  std::vector<Exchange> exchanges;
  std::vector<DevicePlan> devices;
  bool operator==(const Plan&) const = default;
};

// Text form; see FORMAT.md. parse_plan(print_plan(p)) == p. Errors name line and column.
std::string print_plan(const Plan& plan);
Result<Plan> parse_plan(const std::string& text);

}  // namespace convnet
