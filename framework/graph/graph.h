// Graph: what is computed and how it is split. Nodes are plan operations on whole logical tensors;
// the compiler's passes differentiate them, lay their values out over devices, insert the
// communication that the layouts need, and at last restrict each node to the boxes of each device.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <unordered_set>
#include <vector>

#include "framework/base/source.h"
#include "framework/graph/layout.h"
#include "framework/plan/plan.h"

namespace google::protobuf {
class Message;
}

namespace convnet {

namespace schema {
class Layer;
}
struct LayerDef;
struct ShardRule;

// How a layer's work is divided along an axis of its mesh. Values of schema::Parallel, without its
// header.
enum class Mode {
  kData = 0,       // examples
  kReplicate = 1,  // nothing
  kModel = 2,      // filters or outputs; channels where every channel is for itself
  kModelIn = 3,    // input channels: each device makes partial sums
  kSpatial = 4,    // rows
  kColumns = 5,    // columns
  kGroup = 6,      // groups of a convolution
};
const char* mode_name(Mode mode);

// What an operand or result is to its layer: the key into the layer's sharding rule.
enum class RoleKind {
  kNone,   // laid out by the pass that made the node
  kX,      // an input
  kParam,  // a parameter
  kY,      // the output, and values saved with it
  kSum,  // what is still to be added up over the channels of the input, before bias and activation
  kWhole,   // read with all its channels, whatever the layer does with those of its input
  kMetric,  // loss and accuracies
  kDY,      // gradient of the output
  kDX,      // gradient of an input
  kDParam,  // gradient of a parameter
};
struct Role {
  RoleKind kind = RoleKind::kNone;
  int index = 0;  // which input or parameter
  bool operator==(const Role&) const = default;
};

// A value as an operand or result of a node.
struct Use {
  int value = -1;
  Role role;
};

struct Value {
  std::string name;  // unique
  TensorKind kind = TensorKind::kActivation;
  DType dtype = DType::kF32;
  Format format = Format::kPlain;
  Shape shape;
  Attrs attrs;        // of the plan's tensor
  Attrs update;       // parameters: rate (factor of the step's) and decay, for the solver
  int producer = -1;  // node; -1: input, parameter, state
  int layer = -1;
  // Of a gradient: its parameter, the number of examples that it sums over (0: the batch), and the
  // factor that makes it the mean over them, where the loss was divided by the batch.
  int gradient_of = -1;
  int64_t examples = 0;
  double scale = 1;
  // Computed in passes: partial sums of pass `pass` of so many, where they are added up; a
  // sub-batch of another value, `whole`; and the values of the passes that this one consists of.
  int pass = 0, passes = 1;
  int whole = -1;
  std::vector<int> joined;
  // The value whose logical tensor this is: differs from its own index for a second layout of a
  // tensor and for an updated parameter.
  int tensor = -1;
  // The value in whose memory it lives: an updated parameter lives in the parameter's.
  int memory = -1;
  Layout layout;  // since pass "shard"
};

enum class NodePhase { kForward, kBackward, kUpdate };

struct Node {
  Op op = Op::kAdd;
  std::vector<Use> in, out;
  Attrs attrs;
  int layer = -1;
  NodePhase phase = NodePhase::kForward;
  int pass = -1;  // of the layers that are computed in passes
  // Since pass "shard": what each operand must be laid out as. A value whose parts contain the
  // parts asked for needs no communication: the node then reads a box of it.
  std::vector<Layout> in_layout;
  // kExchange: the edge of the graph that it serves, "conv5->fc6", or the tensor that it completes;
  // and the four states of that edge: from and to, forward and backward.
  std::string edge;
  std::string forward_states, backward_states;
  // kExchange, and kRowsJoin where it communicates: how the values travel.
  Wire wire = Wire::kF32;
  // Exchanges of one bucket are carried out as one; -1: alone.
  int bucket = -1;
  Stream stream = Stream::kCompute;  // since pass "schedule"
};

struct GraphLayer {
  std::string name;
  std::string type;
  Span span;  // of its name
  const LayerDef* def = nullptr;
  const schema::Layer* common = nullptr;
  const google::protobuf::Message* attrs = nullptr;  // the message of its type
  std::vector<int> inputs;                           // values
  int output = -1;                                   // value; -1: none (a loss)
  std::vector<int> params;                           // values
  // What backward needs besides inputs, output and parameters, as the layer named it.
  std::vector<std::pair<std::string, Use>> saved;
  // How it is split, one mode per axis of its mesh, as the file or its first input says.
  std::vector<Mode> modes;
  // In a mode, what is dealt out to the devices, where that is not the split dimension itself: the
  // groups of a convolution, the channels under a fully-connected layer's columns.
  std::map<Mode, int64_t> units;
  std::map<Mode, std::string> refused;  // modes that this layer cannot have, and why
  // Since pass "rebatch": the examples of each of its passes, as a tensor's `rows`; if they are
  // there already, they are taken instead of those that the devices suggest. And the passes after
  // which its parameters are updated; 0: at the end of the step.
  std::vector<std::vector<int64_t>> pass_rows;
  int update_period = 0;
  // Since pass "place": one rule per axis; and how its values travel.
  Mesh mesh;
  std::vector<const ShardRule*> rules;
  Wire wire = Wire::kF32;
};

class Graph {
 public:
  std::string model;
  std::string source;  // name of the model file
  Plan::Phase phase = Plan::Phase::kTrain;
  DType dtype = DType::kF32;
  int64_t batch = 0;
  int devices = 1;
  uint64_t seed = 0;
  double momentum = 0;  // of the solver
  // Factor of the learning rate, and the weight decay, of a parameter that is updated after so many
  // examples.
  struct Scaling {
    int64_t batch = 0;  // that the model's rate and decays are for; 0: any
    double rate_power = 0;
    bool adjust_decay = false;
    double base_rate = 0;

    double rate_factor(int64_t examples) const;
    double decay(double decay, double rate,
                 int64_t examples) const;  // rate: the parameter's factor
  } scaling;

  std::vector<GraphLayer> layers;  // in an order in which inputs come first
  std::deque<Value> values;        // a reference to one stays good when others are added
  std::vector<Node> nodes;         // in execution order

  // Appends a value, made its own tensor and memory. CHECKs that the name is new.
  int add_value(Value value);
  // Appends a node and makes it the producer of its results.
  int add_node(Node node);
  // Recomputes every value's producer after nodes were inserted or moved.
  void renumber();

  const Value& value(int id) const { return values[static_cast<size_t>(id)]; }
  Value& value(int id) { return values[static_cast<size_t>(id)]; }
  const GraphLayer& layer(int id) const { return layers[static_cast<size_t>(id)]; }
  Mesh all_devices() const;

  // Readable text, one line a value and a node; what --dump-after prints.
  std::string str() const;

 private:
  std::unordered_set<std::string> names_;
};

// Violations of the graph's invariants after the named pass; empty: fine. Independent of the
// passes.
std::vector<std::string> verify_graph(const Graph& graph, const std::string& pass);

}  // namespace convnet
