#include <charconv>
#include <cmath>
#include <string_view>

#include "framework/plan/names.h"
#include "framework/plan/plan.h"

namespace convnet {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Whether the reader takes it for one name without quotes.
bool is_plain(std::string_view s, bool may_begin_with_digit) {
  if (s.empty() || !(is_letter(s[0]) || (may_begin_with_digit && is_digit(s[0])))) return false;
  for (char c : s)
    if (!is_letter(c) && !is_digit(c) && c != '.' && c != '/' && c != '-' && c != '@') return false;
  return true;
}

class Printer {
 public:
  explicit Printer(const Plan& plan) : plan_(plan) {}

  std::string run() {
    header();
    for (const Layer& layer : plan_.layers) {
      text("layer ").name(layer.name).text(" type=").word(layer.type).text(" line=");
      number(layer.line).line_end();
    }
    blank_line(!plan_.tensors.empty());
    for (const Tensor& tensor : plan_.tensors) {
      text("tensor ").name(tensor.name).text(" ").text(tensor_kind_name(tensor.kind)).text(" ");
      text(dtype_name(tensor.dtype)).text(" ").text(format_name(tensor.format)).text(" ");
      shape(tensor.shape).attrs(tensor.attrs).line_end();
    }
    blank_line(!plan_.exchanges.empty());
    for (size_t id = 0; id < plan_.exchanges.size(); ++id) exchange(id);
    for (size_t d = 0; d < plan_.devices.size(); ++d) device(d);
    return std::move(out_);
  }

 private:
  void header() {
    text("plan 1").line_end();
    text("model ").name(plan_.model).line_end();
    text("source ").name(plan_.source).line_end();
    text("phase ").text(phase_name(plan_.phase)).line_end();
    text("dtype ").text(dtype_name(plan_.dtype)).line_end();
    text("batch ").number(plan_.batch).line_end();
    text("seed ").number(plan_.seed).line_end();
    text("shards ").list(plan_.shards).line_end();
    blank_line(!plan_.layers.empty());
  }

  void exchange(size_t id) {
    const Exchange& e = plan_.exchanges[id];
    text("exchange ").number(id).text(" ").text(exchange_kind_name(e.kind)).text(" ");
    tensor_name(e.tensor);
    if (e.into != -1) text(" into=").tensor_name(e.into);
    text(" order=").text(exchange_order_name(e.order));
    if (e.wire != Wire::kF32) text(" wire=").text(to_string(e.wire));
    if (e.bucket != -1) text(" bucket=").number(e.bucket);
    text(" bytes=").number(e.bytes).text(" edge=").word(e.edge).layer(e.layer).line_end();
    const int rank = has_tensor(e.tensor) ? tensor(e.tensor).shape.rank() : 0;
    for (size_t m = 0; m < e.group.size(); ++m) {
      text("  ").number(e.group[m]).text(": ");
      m < e.from.size() ? part(e.from[m], rank) : text("?");
      text(" -> ");
      m < e.to.size() ? part(e.to[m], rank) : text("?");
      line_end();
    }
  }

  void device(size_t d) {
    const DevicePlan& device = plan_.devices[d];
    blank_line(true);
    text("device ").number(d).text(" arena=").number(device.arena_bytes).text(" bound=");
    number(device.arena_bound).line_end();
    for (const Buffer& b : device.buffers) {
      text("  %").name(b.name).text(" = ").tensor_name(b.tensor);
      if (!has_tensor(b.tensor) || b.part.box != Box(tensor(b.tensor).shape))
        text(b.part.box.str());
      if (b.part.k != 0 || b.part.of != 1) text(" ").number(b.part.k).text("/").number(b.part.of);
      text(" ").text(region_name(b.region));
      if (b.offset != -1) text(" offset=").number(b.offset);
      text(" bytes=").number(b.bytes).line_end();
    }
    for (const Instr& instr : device.instrs) {
      text("  ").text(op_info(instr.op).text);
      for (const Operand& operand : instr.in) this->operand(device, operand);
      if (!instr.out.empty()) text(" ->");
      for (const Operand& operand : instr.out) this->operand(device, operand);
      attrs(instr.attrs).streams(instr).layer(instr.layer).line_end();
    }
  }

  void operand(const DevicePlan& device, const Operand& operand) {
    text(" %");
    const auto i = static_cast<size_t>(operand.buffer);
    if (operand.buffer < 0 || i >= device.buffers.size()) {
      text("?").number(operand.buffer).text(operand.box.str());
      return;
    }
    name(device.buffers[i].name);
    if (operand.box != device.buffers[i].part.box) text(operand.box.str());
  }

  Printer& part(const Part& p, int rank) {
    const bool whole_sum = p.k == 0 && p.of == 1;
    Box nothing;
    for (int i = 0; i < rank; ++i) nothing.append(0, 0);
    if (rank > 0 && whole_sum && p.box == nothing) return text("-");
    text(p.box.str());
    if (!whole_sum) text(" ").number(p.k).text("/").number(p.of);
    return *this;
  }

  Printer& attrs(const Attrs& attrs) {
    for (const auto& [attr_name, value] : attrs.all()) {
      text(" ").name(attr_name, false).text("=");
      if (const auto* i = std::get_if<int64_t>(&value)) number(*i);
      if (const auto* r = std::get_if<double>(&value)) real(*r);
      if (const auto* w = std::get_if<std::string>(&value)) word(*w);
      if (const auto* l = std::get_if<std::vector<int64_t>>(&value)) list(*l);
    }
    return *this;
  }

  Printer& streams(const Instr& instr) {
    if (instr.stream == Stream::kCompute && instr.wait == -1 && instr.signal == -1) return *this;
    text(" |");
    if (instr.stream != Stream::kCompute) text(" ").text(stream_name(instr.stream));
    if (instr.wait != -1) text(" wait=").number(instr.wait);
    if (instr.signal != -1) text(" signal=").number(instr.signal);
    return *this;
  }

  Printer& layer(int index) {
    if (index == -1) return *this;
    if (index < 0 || static_cast<size_t>(index) >= plan_.layers.size())
      return text(" @?").number(index);
    const Layer& l = plan_.layers[static_cast<size_t>(index)];
    return text(" @").name(l.name).text(":").number(l.line);
  }

  bool has_tensor(int index) const {
    return index >= 0 && static_cast<size_t>(index) < plan_.tensors.size();
  }
  const Tensor& tensor(int index) const { return plan_.tensors[static_cast<size_t>(index)]; }
  Printer& tensor_name(int index) {
    return has_tensor(index) ? name(tensor(index).name) : text("?").number(index);
  }

  Printer& text(std::string_view s) {
    out_ += s;
    return *this;
  }
  void line_end() { out_ += '\n'; }
  void blank_line(bool wanted) {
    if (wanted) out_ += '\n';
  }
  Printer& name(std::string_view s, bool may_begin_with_digit = true) {
    return is_plain(s, may_begin_with_digit) ? text(s) : quoted(s);
  }
  // A word as a value, where a number could stand as well.
  Printer& word(std::string_view s) {
    return is_plain(s, false) && s != "inf" && s != "nan" ? text(s) : quoted(s);
  }
  Printer& quoted(std::string_view s) {
    static constexpr char kHex[] = "0123456789abcdef";
    out_ += '"';
    for (char c : s) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        out_ += '\\';
        out_ += c;
      } else if (c == '\n') {
        out_ += "\\n";
      } else if (c == '\t') {
        out_ += "\\t";
      } else if (byte < 0x20 || byte >= 0x7f) {
        out_ += "\\x";
        out_ += kHex[byte >> 4];
        out_ += kHex[byte & 15];
      } else {
        out_ += c;
      }
    }
    out_ += '"';
    return *this;
  }
  template <typename T>
  Printer& number(T value) {
    char buffer[24];
    return text({buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr});
  }
  // The shortest digits that read back as the same double, and that no one takes for an integer.
  Printer& real(double value) {
    const double size = std::fabs(value);
    const bool plain = value == 0 || (size >= 1e-5 && size < 1e15);
    char buffer[64];
    const auto end =
        plain ? std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed)
              : std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
    const std::string_view s(buffer, static_cast<size_t>(end.ptr - buffer));
    text(s);
    return s.find_first_of(".en") == s.npos ? text(".0") : *this;
  }
  Printer& list(const std::vector<int64_t>& values) {
    text("[");
    for (size_t i = 0; i < values.size(); ++i) text(i ? "," : "").number(values[i]);
    return text("]");
  }
  Printer& shape(const Shape& s) {
    text("[");
    for (int i = 0; i < s.rank(); ++i) text(i ? "," : "").number(s[i]);
    return text("]");
  }

  const Plan& plan_;
  std::string out_;
};

}  // namespace

std::string print_plan(const Plan& plan) { return Printer(plan).run(); }

}  // namespace convnet
