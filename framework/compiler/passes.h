// The compiler's passes, in the order in which compile.cc runs them. Each says what it gets, what
// it makes and what holds afterwards (verify_graph checks it).
#pragma once

#include <array>
#include <vector>

#include "framework/base/diagnostics.h"
#include "framework/graph/graph.h"
#include "framework/graph/layer_def.h"
#include "framework/model/binder.h"
#include "framework/plan/plan.h"

namespace convnet {

// place: decides for each layer its devices (mesh), its sharding rule and how its values travel.
// Mistakes: devices that are not there, given twice; a mode the layer has not; a wire that needs
// more than a step.
bool place(Graph& graph, const BoundModel& model, Diagnostics& diagnostics);

// grad: appends guards after the forward nodes, then the backward nodes: for each layer from the
// last to the first, the sum of the gradients of its output and the layer's own gradient
// operations. Only gradients that some trained parameter needs are computed.
//   conv.fwd %data %c.w -> %c; softmax_loss.fwd %c %label -> ...
//   becomes  ...; guard; softmax_loss.bwd -> %c.grad; conv.bwd_weight %data %c.grad -> %c.w.grad
void grad(Graph& graph);

// rebatch: repeats the nodes of layers with `exchange: owner` or `stripe` for each pass, on values
// of their own. Train graphs only. What crosses into the passes, or out of them, is left to shard.
// Mistakes: a reader outside the passes; a period that does not divide them.
//   pool5 -> fc.fwd -> fc6  becomes  pool5 ~> pool5.pass0 -> fc.fwd -> fc6.pass0; ... pass1; ...
bool rebatch(Graph& graph, const BoundModel& model, Diagnostics& diagnostics);

// shard: gives every value its layout and every operand the layout that its layer's rule asks for,
// and inserts an exchange where the two do not agree, encoded as the layer at the reading end of
// the edge says. Inputs are laid out as their readers want them.
//   %c @[0,1]{S(0)} read as [0,1]{R}  becomes  %c@1 = exchange %c (c->f)
void shard(Graph& graph);

// sync: after the last use of each trained parameter, its update: the gradient's partial sums are
// reduced to 1/p of the parameter per device, updated there, and the updated parameter is gathered
// again; momentum exists only there (as in cuda-convnet2).
//   %w.grad {P} -> exchange -> {S(0)}; update.sgd; exchange -> %w {R}
// Small gradients of one mesh are exchanged together, in buckets.
void sync(Graph& graph);

// schedule: brings the nodes into the order in which they are issued, and says which communication,
// with the updates in its midst, runs beside the computation: what has something to hide behind.
// An input gradient that must travel comes before the weight gradient; the rows of a pass set out
// while the pass before it is computed, and what a pass brings to others when it has made it.
//   %x.pass1 = exchange; after pass 0  becomes  %x.pass1 = exchange [comm]; before pass 0
void schedule(Graph& graph);

// lower: from nodes on whole tensors to instructions on each device's boxes, and the exchange
// table. Buffers have no addresses yet.
Plan lower(const Graph& graph);

// events: orders the two streams of each device where one needs what the other does: what it reads
// was written, what it writes has been read, a guard has let it pass.
void assign_events(Plan& plan);

// memory: an address in the arena for every buffer of each device, from lifetimes; results take the
// place of operands where the operation allows it. The best of several greedy orders.
void assign_memory(Plan& plan);

// For passes: what has ended for certain when an instruction begins: the last such instruction of
// each stream of its device (-1: none), which those before it in that stream have preceded. An
// exchange in a bucket begins and ends with the bucket.
struct Clock {
  std::array<int, 2> ended{-1, -1};
  int& operator[](Stream s) { return ended[static_cast<size_t>(s)]; }
  int operator[](Stream s) const { return ended[static_cast<size_t>(s)]; }
};
// Of all instructions of a device, from their streams and events.
std::vector<Clock> clocks(const Plan& plan, const DevicePlan& device);
// The first and the last instruction of the bucket of instruction i; i itself if it is in none.
int begin_of_bucket(const Plan& plan, const DevicePlan& device, int i);
int end_of_bucket(const Plan& plan, const DevicePlan& device, int i);

// For passes: whether every device of `whole` that wants something of it wants all rows of `part`,
// some of its rows, and holds them; and whether that is so of all operands of a join, which then
// needs no communication.
bool has_rows_for(const Value& part, const Value& whole);
bool joins_locally(const Graph& graph, const Node& join);

// For passes: what a layer's rules say about a value in a role; and about an operand or result of a
// node, with the halos that windows need.
Layout layout_of(const Graph& graph, const GraphLayer& layer, const Role& role, const Value& value);
Layout operand_layout(const Graph& graph, const Node& node, size_t i);
Layout result_layout(const Graph& graph, const Node& node, size_t i);

// For passes: whether a value laid out as `have` can be read as `want` on every device of `want`
// without communication (a box of what the device holds, with the same partial index).
bool readable_as(const Shape& shape, const Layout& have, const Layout& want);

// A new value: `value` in another layout, and the exchange node that makes it (not yet in the
// graph). `memory`: the value whose buffers it takes, -1 for its own.
Node make_exchange(Graph& graph, int value, const Layout& layout, NodePhase phase,
                   const std::string& edge, int memory = -1);

}  // namespace convnet
