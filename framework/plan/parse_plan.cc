#include <limits>
#include <unordered_map>
#include <utility>

#include "framework/base/diagnostics.h"
#include "framework/plan/names.h"
#include "framework/plan/plan.h"
#include "framework/plan/plan_scanner.h"

namespace convnet {
namespace {

// A plan of a thousand layers on a hundred devices has about a tenth of this.
constexpr size_t kMaxText = size_t{64} << 20;
constexpr size_t kMaxDevices = 4096;

class Parser {
 public:
  explicit Parser(std::string_view text) : in_(text) {}

  Result<Plan> run() {
    if (!header() || !body()) return in_.status();
    return std::move(plan_);
  }

 private:
  using Index = std::unordered_map<std::string, int>;

  bool line(std::string_view word) {
    return (in_.next_line() || in_.fail_here("expected '" + std::string(word) + "'")) &&
           in_.keyword(word);
  }

  // One of the words of an enumeration.
  template <typename E>
  bool choice(E* value, std::optional<E> (*find)(std::string_view), std::string_view what) {
    if (!in_.ok()) return false;
    const std::string_view word = in_.bare_word();
    const auto found = find(word);
    if (!found)
      return in_.fail("'" + std::string(word.substr(0, 80)) + "' is no " + std::string(what));
    *value = *found;
    return true;
  }

  bool take_name(std::string* value, std::string_view what) {
    auto s = in_.name(what);
    if (!s) return false;
    *value = *std::move(s);
    return true;
  }

  // NAME=integer.
  template <typename T>
  bool field(std::string_view word, T* value) {
    return in_.keyword(word) && in_.expect("=", "after '" + std::string(word) + "'") &&
           in_.integer(value, word);
  }

  bool declare(Index* index, const std::string& name, size_t i, std::string_view what) {
    if (i >= static_cast<size_t>(std::numeric_limits<int>::max()))
      return in_.fail("too many declarations of a " + std::string(what));
    if (index->emplace(name, static_cast<int>(i)).second) return true;
    return in_.fail(std::string(what) + " '" + printable(name) + "' is declared twice");
  }

  bool refer(const Index& index, int* value, std::string_view what) {
    const auto name = in_.name("a " + std::string(what) + "'s name");
    if (!name) return false;
    const auto found = index.find(*name);
    if (found == index.end())
      return in_.fail("no " + std::string(what) + " '" + printable(*name) + "'");
    *value = found->second;
    return true;
  }

  bool header() {
    int version = 0;
    if (!line("plan") || !in_.integer(&version, "the version")) return false;
    if (version != 1)
      return in_.fail("version " + std::to_string(version) +
                      " of plans; this program reads version 1");
    return in_.end_line() &&  //
           line("model") && take_name(&plan_.model, "the model's name") && in_.end_line() &&
           line("source") && take_name(&plan_.source, "the model file's name") && in_.end_line() &&
           line("phase") && choice(&plan_.phase, find_phase, "phase") && in_.end_line() &&
           line("dtype") && choice(&plan_.dtype, find_dtype, "element type") && in_.end_line() &&
           line("batch") && in_.integer(&plan_.batch, "the batch") && in_.end_line() &&
           line("seed") && in_.integer(&plan_.seed, "the seed") && in_.end_line() &&
           line("shards") && in_.list(&plan_.shards, "a boundary") && in_.end_line();
  }

  bool body() {
    while (in_.next_line()) {
      const char first = in_.peek();
      if (first == '%') {
        if (!buffer()) return false;
        continue;
      }
      if (first >= '0' && first <= '9') {
        if (!member()) return false;
        continue;
      }
      const std::string word(in_.bare_word());
      const bool done = word == "layer"                               ? layer()
                        : word == "tensor"                            ? tensor()
                        : word == "exchange" && plan_.devices.empty() ? exchange()
                        : word == "device"                            ? device()
                                                                      : instr(word);
      if (!done) return false;
    }
    return in_.ok();
  }

  // Layers, tensors and exchanges stand before the devices.
  bool before_devices(std::string_view what) {
    return plan_.devices.empty() ||
           in_.fail("a " + std::string(what) + " must stand before the first device");
  }

  bool layer() {
    Layer l;
    if (!before_devices("layer") || !take_name(&l.name, "a layer's name") ||
        !declare(&layers_, l.name, plan_.layers.size(), "layer") || !in_.keyword("type") ||
        !in_.expect("=", "after 'type'") || !take_name(&l.type, "a layer's type") ||
        !field("line", &l.line))
      return false;
    plan_.layers.push_back(std::move(l));
    return in_.end_line();
  }

  bool tensor() {
    Tensor t;
    if (!before_devices("tensor") || !take_name(&t.name, "a tensor's name") ||
        !declare(&tensors_, t.name, plan_.tensors.size(), "tensor") ||
        !choice(&t.kind, find_tensor_kind, "kind of tensor") ||
        !choice(&t.dtype, find_dtype, "element type") || !choice(&t.format, find_format, "format"))
      return false;
    const auto shape = in_.shape();
    if (!shape) return false;
    t.shape = *shape;
    if (!in_.attrs(&t.attrs)) return false;
    plan_.tensors.push_back(std::move(t));
    return in_.end_line();
  }

  bool layer_reference(int* index) {
    if (!in_.take("@")) return true;
    int line_number = 0;
    if (!refer(layers_, index, "layer") || !in_.expect(":", "after a layer's name") ||
        !in_.integer(&line_number, "a line number"))
      return false;
    const Layer& l = plan_.layers[static_cast<size_t>(*index)];
    return l.line == line_number ||
           in_.fail("layer '" + printable(l.name) + "' is on line " + std::to_string(l.line) +
                    ", not " + std::to_string(line_number));
  }

  bool exchange() {
    Exchange e;
    uint64_t id = 0;
    if (!in_.integer(&id, "the exchange's number")) return false;
    if (id != plan_.exchanges.size())
      return in_.fail("exchange " + std::to_string(id) + " where exchange " +
                      std::to_string(plan_.exchanges.size()) + " should follow");
    if (!choice(&e.kind, find_exchange_kind, "kind of exchange") ||
        !refer(tensors_, &e.tensor, "tensor") || !into(&e) || !in_.keyword("order") ||
        !in_.expect("=", "after 'order'") ||
        !choice(&e.order, find_exchange_order, "order of sums") || !wire(&e) || !bucket(&e) ||
        !field("bytes", &e.bytes) || !in_.keyword("edge") || !in_.expect("=", "after 'edge'") ||
        !take_name(&e.edge, "the edge's name") || !layer_reference(&e.layer))
      return false;
    plan_.exchanges.push_back(std::move(e));
    return in_.end_line();
  }

  // "into=NAME", if it comes next.
  bool into(Exchange* e) {
    if (in_.peek() != 'i') return true;
    return in_.keyword("into") && in_.expect("=", "after 'into'") &&
           refer(tensors_, &e->into, "tensor");
  }

  // "wire=CODEC", if it comes next.
  bool wire(Exchange* e) {
    if (in_.peek() != 'w') return true;
    return in_.keyword("wire") && in_.expect("=", "after 'wire'") &&
           choice(&e->wire, parse_wire, "encoding");
  }

  // "bucket=N", if it comes next.
  bool bucket(Exchange* e) {
    if (!in_.take("bucket=")) return true;
    return in_.integer(&e->bucket, "the bucket");
  }

  // "k/of", if it comes next.
  bool sum_index(Part* p) {
    const char c = in_.peek();
    if (c < '0' || c > '9') return true;
    return (in_.integer(&p->k, "which partial sum") && in_.expect("/", "after which partial sum") &&
            in_.integer(&p->of, "how many partial sums"));
  }

  // "  0: part -> part" after an exchange.
  bool member() {
    if (plan_.exchanges.empty() || !plan_.devices.empty())
      return in_.fail_here("a member must follow its exchange");
    Exchange& e = plan_.exchanges.back();
    const int rank = plan_.tensors[static_cast<size_t>(e.tensor)].shape.rank();
    int device = 0;
    Part from, to;
    if (!in_.integer(&device, "a device") || !in_.expect(":", "after a device") ||
        !member_part(&from, rank) || !in_.expect("->", "between what a device has and wants") ||
        !member_part(&to, rank))
      return false;
    e.group.push_back(device);
    e.from.push_back(from);
    e.to.push_back(to);
    return in_.end_line();
  }

  // A box with the partial sum it holds; '-' is nothing.
  bool member_part(Part* p, int rank) {
    if (in_.peek() == '-') {
      in_.take("-");
      for (int i = 0; i < rank; ++i) p->box.append(0, 0);
      return true;
    }
    const auto box = in_.box();
    if (!box) return false;
    p->box = *box;
    return sum_index(p);
  }

  bool device() {
    uint64_t id = 0;
    if (!in_.integer(&id, "the device's number")) return false;
    if (id != plan_.devices.size())
      return in_.fail("device " + std::to_string(id) + " where device " +
                      std::to_string(plan_.devices.size()) + " should follow");
    if (plan_.devices.size() == kMaxDevices)
      return in_.fail("a plan has at most " + std::to_string(kMaxDevices) + " devices");
    DevicePlan d;
    if (!field("arena", &d.arena_bytes) || !field("bound", &d.arena_bound)) return false;
    plan_.devices.push_back(std::move(d));
    buffers_.clear();
    return in_.end_line();
  }

  bool buffer() {
    if (plan_.devices.empty()) return in_.fail_here("a buffer must follow its device");
    DevicePlan& d = plan_.devices.back();
    if (!d.instrs.empty()) return in_.fail_here("buffers stand before the device's instructions");
    Buffer b;
    if (!in_.expect("%", "before a buffer's name") || !take_name(&b.name, "a buffer's name") ||
        !declare(&buffers_, b.name, d.buffers.size(), "buffer") ||
        !in_.expect("=", "after a buffer's name") || !refer(tensors_, &b.tensor, "tensor"))
      return false;
    b.part.box = Box(plan_.tensors[static_cast<size_t>(b.tensor)].shape);
    if (in_.peek() == '[') {
      const auto box = in_.box();
      if (!box) return false;
      b.part.box = *box;
    }
    if (!sum_index(&b.part) || !choice(&b.region, find_region, "region of memory")) return false;
    if (in_.peek() == 'o' && !field("offset", &b.offset)) return false;
    if (!field("bytes", &b.bytes)) return false;
    d.buffers.push_back(std::move(b));
    return in_.end_line();
  }

  bool operands(std::vector<Operand>* operands) {
    const DevicePlan& d = plan_.devices.back();
    while (in_.take("%")) {
      Operand o;
      if (!refer(buffers_, &o.buffer, "buffer")) return false;
      o.box = d.buffers[static_cast<size_t>(o.buffer)].part.box;
      if (in_.peek() == '[') {
        const auto box = in_.box();
        if (!box) return false;
        o.box = *box;
      }
      operands->push_back(o);
    }
    return in_.ok();
  }

  bool instr(const std::string& op_name) {
    const OpInfo* info = find_op(op_name);
    if (info == nullptr)
      return in_.fail("'" + op_name.substr(0, 80) + "' begins no line of a plan");
    if (plan_.devices.empty()) return in_.fail("an instruction must follow its device");
    Instr i;
    i.op = info->op;
    if (!operands(&i.in)) return false;
    if (in_.take("->") && !operands(&i.out)) return false;
    if (!in_.attrs(&i.attrs) || !streams(&i) || !layer_reference(&i.layer)) return false;
    plan_.devices.back().instrs.push_back(std::move(i));
    return in_.end_line();
  }

  // "| comm wait=N signal=N", each part of it only if it says something.
  bool streams(Instr* i) {
    if (!in_.take("|")) return true;
    if (in_.peek() == 'c') {
      if (!in_.keyword(stream_name(Stream::kComm))) return false;
      i->stream = Stream::kComm;
    }
    const bool waits = in_.peek() == 'w';
    if (waits && !field("wait", &i->wait)) return false;
    const bool signals = in_.peek() == 's';
    return (!signals || field("signal", &i->signal)) &&
           (waits || signals || i->stream == Stream::kComm ||
            in_.fail("expected 'comm', 'wait' or 'signal' after '|'"));
  }

  PlanScanner in_;
  Plan plan_;
  Index layers_, tensors_, buffers_;  // buffers of the current device
};

}  // namespace

Result<Plan> parse_plan(const std::string& text) {
  if (text.size() > kMaxText)
    return Status(Code::kUsage, "the plan has " + std::to_string(text.size()) +
                                    " bytes, more than the limit of " + std::to_string(kMaxText));
  return Parser(text).run();
}

}  // namespace convnet
