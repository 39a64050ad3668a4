#include <charconv>

#include "framework/graph/graph.h"
#include "framework/graph/layer_def.h"

namespace convnet {
namespace {

const char* kind_name(TensorKind kind) {
  switch (kind) {
    case TensorKind::kInput:
      return "input";
    case TensorKind::kActivation:
      return "activation";
    case TensorKind::kParameter:
      return "parameter";
    case TensorKind::kState:
      return "state";
    case TensorKind::kGradient:
      return "gradient";
    case TensorKind::kMetric:
      return "metric";
  }
  return "?";
}

const char* phase_name(NodePhase phase) {
  switch (phase) {
    case NodePhase::kForward:
      return "forward";
    case NodePhase::kBackward:
      return "backward";
    case NodePhase::kUpdate:
      return "update";
  }
  return "?";
}

std::string real(double x) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, x).ptr;
  return std::string(text, end);
}

std::string attr_text(const Attrs& attrs) {
  std::string s;
  for (const auto& [name, value] : attrs.all()) {
    s += " " + name + "=";
    if (const auto* i = std::get_if<int64_t>(&value)) s += std::to_string(*i);
    if (const auto* d = std::get_if<double>(&value)) s += real(*d);
    if (const auto* w = std::get_if<std::string>(&value)) s += *w;
    if (const auto* l = std::get_if<std::vector<int64_t>>(&value)) {
      s += "[";
      for (size_t i = 0; i < l->size(); ++i) s += (i ? "," : "") + std::to_string((*l)[i]);
      s += "]";
    }
  }
  return s;
}

}  // namespace

std::string Graph::str() const {
  std::string s = "graph " + model + " batch=" + std::to_string(batch) +
                  " devices=" + std::to_string(devices) + "\n";
  for (const GraphLayer& l : layers) {
    s += "layer " + l.name + " " + l.type;
    if (!l.rules.empty()) s += " " + replicated(l.mesh).str() + " parallel=";
    for (size_t a = 0; a < l.rules.size(); ++a)
      s += (a ? "," : "") + std::string(mode_name(l.rules[a]->mode));
    s += "\n";
  }
  for (const Value& v : values) {
    s += "value %" + v.name + " " + kind_name(v.kind) + " " + dtype_name(v.dtype) + v.shape.str();
    if (!v.layout.empty()) s += " @" + v.layout.str();
    if (&value(v.tensor) != &v) s += " of=%" + value(v.tensor).name;
    if (&value(v.memory) != &v) s += " in=%" + value(v.memory).name;
    s += attr_text(v.attrs) + "\n";
  }
  for (const Node& n : nodes) {
    s += std::string(phase_name(n.phase)) + " " + std::string(op_info(n.op).text);
    for (size_t i = 0; i < n.in.size(); ++i) {
      s += " %" + value(n.in[i].value).name;
      if (i < n.in_layout.size() && n.in_layout[i] != value(n.in[i].value).layout)
        s += "@" + n.in_layout[i].str();
    }
    s += " ->";
    for (const Use& use : n.out) s += " %" + value(use.value).name;
    s += attr_text(n.attrs);
    if (!n.edge.empty()) s += " (" + n.edge + ")";
    if (n.wire != Wire::kF32) s += " wire=" + std::string(to_string(n.wire));
    if (n.bucket >= 0) s += " bucket=" + std::to_string(n.bucket);
    if (n.stream == Stream::kComm) s += " | " + std::string(stream_name(n.stream));
    if (!n.forward_states.empty()) s += " fwd=" + n.forward_states;
    if (!n.backward_states.empty()) s += " bwd=" + n.backward_states;
    if (n.layer >= 0) s += " layer=" + layer(n.layer).name;
    s += "\n";
  }
  return s;
}

}  // namespace convnet
