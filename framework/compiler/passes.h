// The compiler's passes, in the order in which compile.cc runs them. Each says what it gets, what
// it makes and what holds afterwards (verify_graph checks it).
#pragma once

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
void sync(Graph& graph);

// lower: from nodes on whole tensors to instructions on each device's boxes, and the exchange
// table. Buffers have no addresses yet.
Plan lower(const Graph& graph);

// memory: an address in the arena for every buffer of each device, from lifetimes; results take the
// place of operands where the operation allows it. The best of several greedy orders.
void assign_memory(Plan& plan);

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
