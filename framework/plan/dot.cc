#include "framework/plan/dot.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "framework/base/amounts.h"
#include "framework/plan/summary.h"

namespace convnet {
namespace {

// Light fills, one a set of devices; beyond the last they repeat.
constexpr const char* kFills[] = {"#dbe9f6", "#fde2c8", "#dff0d8", "#eadcf1",
                                  "#fbd5d5", "#e8e4d9", "#d5f0ee", "#f7f3c6"};

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

// What a device holds of a tensor: the dimensions that are cut, by their letters.
std::string part_text(const Part& part, const Tensor& tensor) {
  std::string out;
  const bool parameter = tensor.kind == TensorKind::kParameter;
  const char* letters = parameter ? "KCRS" : "NCHW";
  for (int d = 0; d < part.box.rank(); ++d) {
    if (part.box.lo(d) == 0 && part.box.hi(d) == tensor.shape[d]) continue;
    out += fmt::format("{}{} {}:{}", out.empty() ? "" : ", ", letters[std::min(d, 3)],
                       part.box.lo(d), part.box.hi(d));
  }
  if (out.empty()) out = "all";
  if (part.of > 1) out += fmt::format(", sum {} of {}", part.k + 1, part.of);
  return out;
}

// "0-3" or "0, 2, 5".
std::string devices_text(const std::vector<int>& devices) {
  std::string out;
  for (size_t i = 0; i < devices.size();) {
    size_t end = i + 1;
    while (end < devices.size() && devices[end] == devices[end - 1] + 1) ++end;
    out += (out.empty() ? "" : ", ") + std::to_string(devices[i]);
    if (end - i > 1) out += "-" + std::to_string(devices[end - 1]);
    i = end;
  }
  return out;
}

class Drawing {
 public:
  explicit Drawing(const Plan& plan) : plan_(plan), summary_(summarise(plan)) {}

  std::string run() {
    read_devices();
    read_exchanges();
    out_ = fmt::format(
        "digraph {} {{\n  label={};\n  node [shape=box, style=filled, fontname=\"sans-serif\"];\n"
        "  edge [fontname=\"sans-serif\", fontsize=11];\n",
        quoted(plan_.model),
        quoted(fmt::format("{}, {} plan, {} device{}, batch {}", plan_.model,
                           plan_.phase == Plan::Phase::kTrain ? "train" : "test",
                           plan_.devices.size(), plan_.devices.size() == 1 ? "" : "s",
                           plan_.batch)));
    for (const std::string& input : inputs_)
      out_ += fmt::format("  {} [shape=ellipse, fillcolor=white];\n", quoted(input));
    for (size_t l = 0; l < plan_.layers.size(); ++l) draw_layer(static_cast<int>(l));
    for (const auto& way : ways_) draw_edge(way);
    return out_ + "}\n";
  }

 private:
  using Way = std::pair<std::string, std::string>;

  // Tensors of sub-batches are named for the whole: "fc6.pass2" stands with "fc6".
  static std::string whole_name(const std::string& tensor) {
    const size_t at = tensor.find(".pass");
    return at == std::string::npos ? tensor : tensor.substr(0, at);
  }

  const Tensor& tensor_of(const DevicePlan& device, const Operand& o) const {
    return plan_.tensors[static_cast<size_t>(device.buffers[static_cast<size_t>(o.buffer)].tensor)];
  }

  // Results and operands of the forward pass.
  void read_devices() {
    std::map<std::string, std::string> maker;                // of tensors
    std::vector<std::pair<std::string, std::string>> reads;  // tensor, layer
    for (size_t d = 0; d < plan_.devices.size(); ++d) {
      const DevicePlan& device = plan_.devices[d];
      for (const Instr& instr : device.instrs) {
        if (instr.layer < 0 || instr.out.empty() || instr.op == Op::kExchange ||
            instr.op == Op::kUpdateSgd || instr.op == Op::kGuard)
          continue;
        const std::string& layer = plan_.layers[static_cast<size_t>(instr.layer)].name;
        for (const Operand& o : instr.in)
          if (tensor_of(device, o).kind == TensorKind::kParameter)
            parameters_[instr.layer][tensor_of(device, o).name][static_cast<int>(d)] =
                part_text(device.buffers[static_cast<size_t>(o.buffer)].part, tensor_of(device, o));
        const std::string result = whole_name(tensor_of(device, instr.out[0]).name);
        if (result.find(".grad") != std::string::npos) continue;
        if (result == layer || result == layer + ".prob") {
          Part part = device.buffers[static_cast<size_t>(instr.out[0].buffer)].part;
          part.box = instr.out[0].box;
          results_[instr.layer].try_emplace(static_cast<int>(d),
                                            part_text(part, tensor_of(device, instr.out[0])));
          passes_[instr.layer].insert(tensor_of(device, instr.out[0]).name);
        }
        maker.emplace(result, layer);
        for (const Operand& o : instr.in) {
          const Tensor& t = tensor_of(device, o);
          if (t.kind == TensorKind::kParameter || t.kind == TensorKind::kMetric) continue;
          reads.emplace_back(whole_name(t.name), layer);
          if (t.kind == TensorKind::kInput) maker.emplace(whole_name(t.name), whole_name(t.name));
          if (t.kind == TensorKind::kInput) inputs_.insert(whole_name(t.name));
        }
      }
    }
    for (const auto& [tensor, layer] : reads) {
      const auto at = maker.find(tensor);
      if (at != maker.end() && at->second != layer) ways_.insert({at->second, layer});
    }
  }

  struct Sum {
    int count = 0;
    int64_t bytes = 0;
  };
  using Sums = std::map<std::pair<int, std::string>, Sum>;  // by direction, kind

  static std::string text_of(const Sums& sums, const char* separator) {
    std::string out;
    for (const auto& [key, sum] : sums) {
      if (!out.empty()) out += separator;
      out += std::string(direction_name(static_cast<PlanSummary::Direction>(key.first))) + ": ";
      if (sum.count > 1) out += std::to_string(sum.count) + " x ";
      out += key.second + ", " + bytes_text(sum.bytes);
    }
    return out;
  }

  void read_exchanges() {
    for (const PlanSummary::Edge& e : summary_.edges) {
      if (e.devices < 2) continue;
      const size_t arrow = e.edge.find("->");
      const std::pair<int, std::string> key{static_cast<int>(e.direction),
                                            exchange_kind_name(e.kind)};
      Sum* sum = nullptr;
      if (arrow == std::string::npos) {
        sum = &within_[e.layer][key];
      } else {
        Way way{e.edge.substr(0, arrow), e.edge.substr(arrow + 2)};
        // The gradient goes back along the same arrow.
        if (!ways_.contains(way) && ways_.contains({way.second, way.first}))
          std::swap(way.first, way.second);
        ways_.insert(way);
        sum = &along_[way][key];
      }
      ++sum->count;
      sum->bytes += e.bytes;
    }
  }

  static std::string held_text(const std::map<int, std::string>& held) {
    std::vector<std::pair<std::string, std::vector<int>>> groups;
    for (const auto& [device, text] : held) {
      const auto at = std::find_if(groups.begin(), groups.end(),
                                   [&](const auto& group) { return group.first == text; });
      if (at == groups.end())
        groups.push_back({text, {device}});
      else
        at->second.push_back(device);
    }
    std::string out;
    for (const auto& [text, devices] : groups)
      out += fmt::format("{}: {}\\l", devices_text(devices), text);
    return out;
  }

  void draw_layer(int l) {
    const Layer& layer = plan_.layers[static_cast<size_t>(l)];
    std::string label = fmt::format("{} ({})", layer.name, layer.type);
    const size_t passes = passes_[l].size();
    if (passes > 1) label += fmt::format(", {} passes", passes);
    label += "\\n" + held_text(results_[l]);
    for (const auto& [name, held] : parameters_[l]) {
      // Biases are cut as the weights are.
      if (name.ends_with(".w")) label += "weights\\l" + held_text(held);
    }
    if (const auto at = within_.find(layer.name); at != within_.end())
      label += text_of(at->second, "\\l") + "\\l";
    std::vector<int> devices;
    for (const auto& [device, text] : results_[l]) devices.push_back(device);
    const size_t set = fills_.emplace(devices, fills_.size()).first->second;
    out_ += fmt::format("  {} [label=\"{}\", fillcolor=\"{}\"];\n", quoted(layer.name), label,
                        kFills[set % std::size(kFills)]);
  }

  void draw_edge(const Way& way) {
    const auto at = along_.find(way);
    out_ += fmt::format("  {} -> {}", quoted(way.first), quoted(way.second));
    if (at != along_.end())
      out_ +=
          fmt::format(" [label=\"{}\", color=\"#b03030\", penwidth=2]", text_of(at->second, "\\n"));
    out_ += ";\n";
  }

  const Plan& plan_;
  const PlanSummary summary_;
  std::string out_;
  std::map<int, std::map<int, std::string>> results_;  // by layer and device: what it makes
  std::map<int, std::set<std::string>> passes_;        // by layer: its results, one a pass
  std::map<int, std::map<std::string, std::map<int, std::string>>> parameters_;
  std::set<std::string> inputs_;
  std::set<Way> ways_;
  std::map<Way, Sums> along_;
  std::map<std::string, Sums> within_;
  std::map<std::vector<int>, size_t> fills_;
};

}  // namespace

std::string print_dot(const Plan& plan) { return Drawing(plan).run(); }

}  // namespace convnet
