// Indices, counts, kinds, sizes: everything that the other checks take for granted.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>

#include "framework/plan/names.h"
#include "framework/plan/rows.h"
#include "framework/plan/verify/faults.h"

namespace convnet {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kMaxElements = int64_t{1} << 40;  // of a tensor; keeps products far from overflow

// What each operand and result is:
//   x  activation, or the data (read only)    w  parameter    s  state     l  label
//   y  activation                             g  gradient     m  metrics   v  anything
//   p  gradient or metrics
// The last letter holds for all that follow.
struct Roles {
  std::string_view in, out;
};

Roles roles_of(Op op) {
  switch (op) {
    case Op::kConvFwd:
    case Op::kFcFwd:
      return {"xw", "y"};
    case Op::kConvBwdData:
    case Op::kFcBwdData:
      return {"yw", "y"};
    case Op::kConvBwdWeight:
    case Op::kFcBwdWeight:
      return {"xy", "g"};
    case Op::kPoolMaxFwd:
    case Op::kPoolMaxBwd:
    case Op::kPoolAvgFwd:
    case Op::kPoolAvgBwd:
    case Op::kActFwd:
    case Op::kActBwd:
    case Op::kLrnFwd:
    case Op::kLrnBwd:
    case Op::kDropoutFwd:
    case Op::kDropoutBwd:
    case Op::kConcatFwd:
    case Op::kConcatBwd:
    case Op::kAdd:
    case Op::kRowsJoin:
      return {"x", "y"};
    case Op::kBiasFwd:
      return {"yw", "y"};
    case Op::kBiasBwd:
      return {"y", "g"};
    case Op::kSum:
      return {"p", "p"};
    case Op::kSoftmaxLossFwd:
      return {"xl", "ym"};
    case Op::kSoftmaxStats:
      return {"xl", "y"};
    case Op::kSoftmaxNorm:
      return {"xly", "y"};
    case Op::kSoftmaxMetrics:
      return {"yyl", "m"};
    case Op::kSoftmaxLossBwd:
      return {"yl", "y"};
    case Op::kUpdateSgd:
      return {"gws", "ws"};
    case Op::kGuard:
      return {"m", ""};
    case Op::kExchange:
      return {"v", "v"};
  }
  return {"v", "v"};
}

bool is_label(const Tensor& t) { return t.kind == TensorKind::kInput && t.dtype == DType::kI32; }

bool has_role(const Tensor& t, char role) {
  switch (role) {
    case 'x':
      return t.kind == TensorKind::kActivation || (t.kind == TensorKind::kInput && !is_label(t));
    case 'y':
      return t.kind == TensorKind::kActivation;
    case 'w':
      return t.kind == TensorKind::kParameter;
    case 's':
      return t.kind == TensorKind::kState;
    case 'g':
      return t.kind == TensorKind::kGradient;
    case 'l':
      return is_label(t);
    case 'm':
      return t.kind == TensorKind::kMetric;
    case 'p':
      return t.kind == TensorKind::kGradient || t.kind == TensorKind::kMetric;
    default:
      return true;
  }
}

const char* role_text(char role) {
  switch (role) {
    case 'x':
      return "an activation or the data";
    case 'y':
      return "an activation";
    case 'w':
      return "a parameter";
    case 's':
      return "a parameter's state";
    case 'g':
      return "a parameter's gradient";
    case 'l':
      return "a label";
    case 'm':
      return "metrics";
    case 'p':
      return "a parameter's gradient or metrics";
    default:
      return "a tensor";
  }
}

class Structure {
 public:
  Structure(const Plan& plan, Faults& faults) : plan_(plan), faults_(faults) {}

  void run() {
    header();
    names();
    for (const Tensor& t : plan_.tensors) tensor(t);
    for (size_t id = 0; id < plan_.exchanges.size(); ++id) exchange(static_cast<int>(id));
    // Sizes of boxes may be computed only if all tensors have sane sizes.
    if (faults_.count() > 0) return;
    for (size_t d = 0; d < plan_.devices.size(); ++d) device(static_cast<int>(d));
  }

 private:
  bool has_layer(int layer) const {
    return layer >= 0 && static_cast<size_t>(layer) < plan_.layers.size();
  }
  bool has_tensor(int index) const {
    return index >= 0 && static_cast<size_t>(index) < plan_.tensors.size();
  }

  void header() {
    if (plan_.devices.empty()) faults_.in_plan("header", "the plan has no device");
    if (plan_.batch < 1 || plan_.batch > 16777216)
      faults_.in_plan("header", fmt::format("the batch is {}, must be 1 to 16777216", plan_.batch));
    if (plan_.dtype != DType::kF32 && plan_.dtype != DType::kF64)
      faults_.in_plan("header", fmt::format("the element type is {}, must be f32 or f64",
                                            dtype_name(plan_.dtype)));
    const auto& s = plan_.shards;
    if (s.size() < 2 || s.front() != 0 || s.back() != plan_.batch) {
      faults_.in_plan(
          "shards",
          fmt::format("the canonical shards must reach from 0 to the batch, {}", plan_.batch));
      return;
    }
    for (size_t i = 1; i < s.size(); ++i) {
      if (s[i] <= s[i - 1])
        faults_.in_plan("shards", fmt::format("boundary {} follows {}; shards must not be empty",
                                              s[i], s[i - 1]));
      if (s[i] % kLanes != 0 && i + 1 < s.size())
        faults_.in_plan("shards",
                        fmt::format("boundary {} is no multiple of {} examples", s[i], kLanes));
    }
  }

  template <typename List>
  void unique(const List& list, const char* what, int on_device) {
    std::unordered_set<std::string_view> seen;
    for (const auto& entry : list) {
      std::string message;
      if (entry.name.empty())
        message = fmt::format("a {} without a name", what);
      else if (!seen.insert(entry.name).second)
        message = fmt::format("two {}s are called '{}'", what, entry.name);
      else
        continue;
      on_device < 0 ? faults_.in_plan("name", message)
                    : faults_.in_device(on_device, "name", message);
    }
  }

  void names() {
    unique(plan_.layers, "layer", -1);
    unique(plan_.tensors, "tensor", -1);
    for (size_t d = 0; d < plan_.devices.size(); ++d)
      unique(plan_.devices[d].buffers, "buffer", static_cast<int>(d));
  }

  void tensor(const Tensor& t) {
    const auto fault = [&](const std::string& message) {
      faults_.in_plan("tensor", fmt::format("'{}' {}", t.name, message));
    };
    const auto count = t.shape.checked_count();
    if (t.shape.rank() < 1 || !count || *count < 1 || *count > kMaxElements) {
      fault(fmt::format(
          "has the shape {}, must have at least one extent, all of them at least 1, and "
          "at most 2^40 elements",
          t.shape.str()));
      return;
    }
    const auto expect = [&](DType dtype, Format format, int rank) {
      if (t.dtype != dtype)
        fault(fmt::format("is {}, a tensor of this kind in this plan is {}", dtype_name(t.dtype),
                          dtype_name(dtype)));
      if (t.format != format)
        fault(fmt::format("is {}, a tensor of this kind is {}", format_name(t.format),
                          format_name(format)));
      if (rank > 0 && t.shape.rank() != rank)
        fault(fmt::format("has {} dimensions, a tensor of this kind has {}", t.shape.rank(), rank));
      if (format == Format::kBlocked && !t.attrs.has("rows") && t.shape[0] != plan_.batch)
        fault(fmt::format("has {} examples, the batch is {}", t.shape[0], plan_.batch));
    };
    sub_batch(t, fault);
    switch (t.kind) {
      case TensorKind::kInput: {
        const auto* input = find<std::string>(t, "input");
        if (input == nullptr || (*input != "data" && *input != "label"))
          fault("must have input=data or input=label");
        else if (*input == "label")
          expect(DType::kI32, Format::kBlocked, 1);
        else
          expect(plan_.dtype, Format::kBlocked, 4);
        break;
      }
      case TensorKind::kActivation:
        expect(plan_.dtype, Format::kBlocked, 4);
        break;
      case TensorKind::kParameter: {
        expect(plan_.dtype, Format::kPlain, 0);
        init(t, fault);
        break;
      }
      case TensorKind::kState: {
        expect(plan_.dtype, Format::kPlain, 0);
        const auto* word = find<std::string>(t, "init");
        if (word == nullptr || *word != "constant" || !real(t, "value"))
          fault("must have init=constant and a value");
        break;
      }
      case TensorKind::kGradient:
        expect(plan_.dtype, Format::kPlain, 0);
        break;
      case TensorKind::kMetric:
        metric(t, expect, fault);
        break;
    }
  }

  template <typename T>
  static const T* find(const Tensor& t, const char* name) {
    const Attrs::Value* v = t.attrs.find(name);
    return v == nullptr ? nullptr : std::get_if<T>(v);
  }
  static std::optional<double> real(const Tensor& t, const char* name) {
    if (const auto* i = find<int64_t>(t, name)) return static_cast<double>(*i);
    if (const auto* r = find<double>(t, name); r != nullptr && std::isfinite(*r)) return *r;
    return std::nullopt;
  }

  template <typename Fault>
  void sub_batch(const Tensor& t, const Fault& fault) const {
    if (!t.attrs.has("rows")) return;
    const auto* rows = find<std::vector<int64_t>>(t, "rows");
    if (t.format != Format::kBlocked)
      fault("has 'rows', which only activations and inputs have");
    else if (rows == nullptr)
      fault("must have a list as 'rows'");
    else if (const std::string bad = rows_fault(*rows, t.shape[0], plan_.batch); !bad.empty())
      fault(fmt::format("'rows' {}", bad));
  }

  template <typename Fault>
  static void init(const Tensor& t, const Fault& fault) {
    const auto* word = find<std::string>(t, "init");
    const bool good = word != nullptr && (*word == "constant"  ? real(t, "value").has_value()
                                          : *word == "normal"  ? real(t, "mean") && real(t, "std")
                                          : *word == "uniform" ? real(t, "lo") && real(t, "hi")
                                                               : false);
    if (!good)
      fault(
          "must have init=constant with value, init=normal with mean and std, or init=uniform with "
          "lo and hi");
  }

  template <typename Expect, typename Fault>
  static void metric(const Tensor& t, const Expect& expect, const Fault& fault) {
    expect(DType::kF64, Format::kPlain, 1);
    const auto* word = find<std::string>(t, "metric");
    const auto* top = find<std::vector<int64_t>>(t, "top");
    const auto weight = real(t, "weight");
    if (word == nullptr || *word != "loss" || top == nullptr || !weight || *weight < 0) {
      fault("must have metric=loss, a weight of at least 0, and top");
    } else if (t.shape[0] != static_cast<int64_t>(top->size()) + 2) {
      fault(fmt::format("has {} entries, needs 2 and one for each of the {} of top", t.shape[0],
                        top->size()));
    }
  }

  void exchange(int id) {
    const Exchange& e = plan_.exchanges[static_cast<size_t>(id)];
    if (!has_tensor(e.tensor)) {
      faults_.in_exchange(id, "index",
                          fmt::format("moves tensor {} of {}", e.tensor, plan_.tensors.size()));
      return;
    }
    if (!has_layer(e.layer))
      faults_.in_exchange(id, "index",
                          fmt::format("names layer {} of {}", e.layer, plan_.layers.size()));
    const Tensor& t = plan_.tensors[static_cast<size_t>(e.tensor)];
    if (e.into >= 0 && !into(id, e, t)) return;
    const Tensor& target = plan_.tensors[static_cast<size_t>(e.target())];
    if (e.from.size() != e.group.size() || e.to.size() != e.group.size()) {
      faults_.in_exchange(id, "group",
                          fmt::format("has {} members but {} sources and {} destinations",
                                      e.group.size(), e.from.size(), e.to.size()));
      return;
    }
    if (e.group.empty()) faults_.in_exchange(id, "group", "has no member");
    std::set<int> members;
    for (int d : e.group) {
      if (d < 0 || static_cast<size_t>(d) >= plan_.devices.size())
        faults_.in_exchange(id, "group",
                            fmt::format("names device {} of {}", d, plan_.devices.size()));
      if (!members.insert(d).second)
        faults_.in_exchange(id, "group", fmt::format("names device {} twice", d));
    }
    for (size_t m = 0; m < e.group.size(); ++m)
      for (const Part* p : {&e.from[m], &e.to[m]}) {
        const std::string bad = wrong_part(p == &e.to[m] ? target : t, *p);
        if (!bad.empty())
          faults_.in_exchange(id, "part", fmt::format("at device {}: {}", e.group[m], bad));
      }
  }

  // The other tensor is the same but for its rows.
  bool into(int id, const Exchange& e, const Tensor& t) {
    if (!has_tensor(e.into)) {
      faults_.in_exchange(id, "index",
                          fmt::format("moves into tensor {} of {}", e.into, plan_.tensors.size()));
      return false;
    }
    const Tensor& other = plan_.tensors[static_cast<size_t>(e.into)];
    bool same = e.into != e.tensor && t.kind == other.kind && t.dtype == other.dtype &&
                t.format == other.format && t.shape.rank() == other.shape.rank() &&
                t.format == Format::kBlocked;
    for (int i = 1; same && i < t.shape.rank(); ++i) same = t.shape[i] == other.shape[i];
    if (!same)
      faults_.in_exchange(
          id, "into",
          fmt::format("goes from '{}' into '{}', which must differ in the rows only", t.name,
                      other.name));
    return same;
  }

  // What is wrong with a part of this tensor, or nothing. A part may be empty: of a device that
  // only gives or only takes in an exchange.
  std::string wrong_part(const Tensor& t, const Part& p) const {
    if (p.of < 1 || p.k < 0 || p.k >= p.of) return fmt::format("partial sum {} of {}", p.k, p.of);
    if (p.box.rank() != t.shape.rank())
      return fmt::format("the box {} has {} dimensions, '{}' has {}", p.box.str(), p.box.rank(),
                         t.name, t.shape.rank());
    if (p.box.empty()) return "";
    if (!Box(t.shape).contains(p.box))
      return fmt::format("the box {} lies outside '{}', {}", p.box.str(), t.name, t.shape.str());
    if (p.of > 1 && t.kind != TensorKind::kActivation && t.kind != TensorKind::kGradient &&
        t.kind != TensorKind::kMetric)
      return fmt::format("partial sums of '{}', which is {}", t.name, tensor_kind_name(t.kind));
    return block_fault(t, p.box);
  }

  // Blocked boxes are whole blocks of sixteen examples; only the batch's last block may be shorter.
  static std::string block_fault(const Tensor& t, const Box& box) {
    if (t.format != Format::kBlocked) return "";
    if (box.lo(0) % kLanes != 0)
      return fmt::format("the box {} begins at example {}, no multiple of {}", box.str(), box.lo(0),
                         kLanes);
    if (box.hi(0) % kLanes != 0 && box.hi(0) != t.shape[0])
      return fmt::format("the box {} ends at example {}, no multiple of {}", box.str(), box.hi(0),
                         kLanes);
    return "";
  }

  void device(int d) {
    const DevicePlan& device = plan_.devices[static_cast<size_t>(d)];
    std::unordered_set<int> resident;
    bool sound = true;
    for (const Buffer& b : device.buffers) sound &= buffer(d, b, &resident);
    for (size_t i = 0; i < device.instrs.size(); ++i) {
      const bool indices = instr(d, static_cast<int>(i));
      if (sound && indices) boxes(d, static_cast<int>(i));
    }
  }

  // False if the buffer may not even be looked at.
  bool buffer(int d, const Buffer& b, std::unordered_set<int>* resident) {
    const auto fault = [&](const char* rule, const std::string& message) {
      faults_.in_device(d, rule, fmt::format("buffer '%{}': {}", b.name, message));
    };
    if (!has_tensor(b.tensor)) {
      fault("index", fmt::format("tensor {} of {}", b.tensor, plan_.tensors.size()));
      return false;
    }
    const Tensor& t = plan_.tensors[static_cast<size_t>(b.tensor)];
    const std::string bad = wrong_part(t, b.part);
    if (!bad.empty()) {
      fault("part", bad);
      return b.part.box.rank() == t.shape.rank() && Box(t.shape).contains(b.part.box);
    }
    // An input that an exchange brought from elsewhere lies in the arena.
    const auto region =
        t.kind == TensorKind::kInput && b.region != Buffer::Region::kArena ? Buffer::Region::kInput
        : t.kind == TensorKind::kParameter || t.kind == TensorKind::kState ? Buffer::Region::kState
                                                                           : Buffer::Region::kArena;
    if (b.region != region)
      fault("region",
            fmt::format("lies in the region {}, a tensor of kind {} lies in {}",
                        region_name(b.region), tensor_kind_name(t.kind), region_name(region)));
    if (region == Buffer::Region::kState && !resident->insert(b.tensor).second)
      fault("region", fmt::format("a second buffer of '{}', which is found by its name", t.name));
    const int64_t bytes =
        (stored_count(t.format, b.part.box) * dtype_size(t.dtype) + kAlignment - 1) / kAlignment *
        kAlignment;
    if (b.bytes != bytes)
      fault("size",
            fmt::format("has {} bytes, its box {} needs {}", b.bytes, b.part.box.str(), bytes));
    if (b.region != Buffer::Region::kArena) {
      if (b.offset != -1)
        fault("offset", fmt::format("has the offset {} outside the arena", b.offset));
      return true;
    }
    if (b.offset < 0 || b.offset % kAlignment != 0 || b.offset > int64_t{1} << 60)
      fault("offset",
            fmt::format("has the offset {}, must be a multiple of {}", b.offset, kAlignment));
    return true;
  }

  // False if an operand names a buffer that is not there.
  bool instr(int d, int i) {
    const DevicePlan& device = plan_.devices[static_cast<size_t>(d)];
    const Instr& instr = device.instrs[static_cast<size_t>(i)];
    const OpInfo& info = op_info(instr.op);
    if (!has_layer(instr.layer))
      faults_.in_instr(d, i, "index",
                       fmt::format("names layer {} of {}", instr.layer, plan_.layers.size()));
    check_attrs(plan_, d, i, faults_);
    phase(d, i, instr);
    count(d, i, "operands", instr.in.size(), info.in_min, info.in_max);
    count(d, i, "results", instr.out.size(), info.out_min, info.out_max);
    const Roles roles = roles_of(instr.op);
    return operands(d, i, "operand", instr.in, roles.in) &
           operands(d, i, "result", instr.out, roles.out);
  }

  void phase(int d, int i, const Instr& instr) {
    if (plan_.phase != Plan::Phase::kTest) return;
    const std::string_view text = op_info(instr.op).text;
    if (text.find("bwd") != text.npos || instr.op == Op::kUpdateSgd || instr.op == Op::kDropoutFwd)
      faults_.in_instr(d, i, "phase", "has no place in a test plan");
  }

  void count(int d, int i, const char* what, size_t n, int min, int max) {
    if (n < static_cast<size_t>(min) || (max >= 0 && n > static_cast<size_t>(max)))
      faults_.in_instr(d, i, "operands",
                       fmt::format("has {} {}, takes {}{}", n, what, min,
                                   max < 0      ? " or more"
                                   : max == min ? ""
                                                : fmt::format(" to {}", max)));
  }

  bool operands(int d, int i, const char* what, const std::vector<Operand>& list,
                std::string_view roles) {
    const DevicePlan& device = plan_.devices[static_cast<size_t>(d)];
    bool sound = true;
    for (size_t n = 0; n < list.size(); ++n) {
      const int index = list[n].buffer;
      if (index < 0 || static_cast<size_t>(index) >= device.buffers.size()) {
        faults_.in_instr(
            d, i, "index",
            fmt::format("{} {} is buffer {} of {}", what, n, index, device.buffers.size()));
        sound = false;
        continue;
      }
      const Buffer& b = device.buffers[static_cast<size_t>(index)];
      if (!has_tensor(b.tensor) || roles.empty()) continue;
      const Tensor& t = plan_.tensors[static_cast<size_t>(b.tensor)];
      const char role = roles[std::min(n, roles.size() - 1)];
      if (!has_role(t, role))
        faults_.in_instr(d, i, "operand-kind",
                         fmt::format("{} {}, '%{}', is {}, must be {}", what, n, b.name,
                                     tensor_kind_name(t.kind), role_text(role)));
    }
    return sound;
  }

  // A member of an exchange may hold or want nothing; a part of a concatenation may have no channel
  // in the range.
  static bool may_be_empty(const Instr& instr, bool is_operand) {
    return instr.op == Op::kExchange || instr.op == (is_operand ? Op::kConcatFwd : Op::kConcatBwd);
  }

  void boxes(int d, int i) {
    const DevicePlan& device = plan_.devices[static_cast<size_t>(d)];
    const Instr& instr = device.instrs[static_cast<size_t>(i)];
    for (const auto* list : {&instr.in, &instr.out})
      for (const Operand& o : *list) {
        const Buffer& b = buffer_of(device, o);
        const Tensor& t = plan_.tensors[static_cast<size_t>(b.tensor)];
        if (o.box.rank() != b.part.box.rank())
          faults_.in_instr(d, i, "box",
                           fmt::format("'%{}{}' has {} dimensions, must have {}", b.name,
                                       o.box.str(), o.box.rank(), b.part.box.rank()));
        else if (o.box.empty() && may_be_empty(instr, list == &instr.in))
          continue;
        else if (o.box.empty())
          faults_.in_instr(d, i, "box", fmt::format("'%{}{}' is empty", b.name, o.box.str()));
        else if (!b.part.box.contains(o.box))
          faults_.in_instr(d, i, "box",
                           fmt::format("'%{}{}' lies outside its buffer's {}", b.name, o.box.str(),
                                       b.part.box.str()));
        else if (const std::string bad = block_fault(t, o.box); !bad.empty())
          faults_.in_instr(d, i, "box", bad);
      }
  }

  const Plan& plan_;
  Faults& faults_;
};

}  // namespace

void check_structure(const Plan& plan, Faults& faults) { Structure(plan, faults).run(); }

}  // namespace convnet
