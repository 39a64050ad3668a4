// The backward pass of the logical program against its forward pass.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/plan/verify/program.h"

namespace convnet {
namespace {

// Operand `second` of forward operation `first`: a place where a tensor is read, or its rows under
// another name. The gradient of a tensor is the sum of what comes back through all such places.
using Place = std::pair<int, int>;

// What a tensor of the backward pass can be taken for: the part of the gradient of `tensor` that
// comes back through `places`. `before_act`: of the producer's result before its activation. Of an
// activation this holds for the rows that stand for `examples`; that of a parameter is the sum over
// them.
struct Reading {
  int tensor = -1;
  bool before_act = false;
  Examples examples;
  std::vector<Place> places;  // sorted
  bool operator==(const Reading&) const = default;
};

constexpr size_t kMaxReadings = 4096;

class Gradients {
 public:
  Gradients(const Plan& plan, const Program& program, const std::vector<Loss>& losses,
            Faults& faults)
      : plan_(plan),
        program_(program),
        losses_(losses),
        faults_(faults),
        is_gradient_(plan.tensors.size(), false),
        is_used_(plan.tensors.size(), false),
        is_trained_(plan.tensors.size(), false),
        places_(plan.tensors.size()),
        readings_(plan.tensors.size()) {}

  void run() {
    const size_t before = faults_.count();
    for (const LogicalOp& op : program_.updates) is_trained_[at(op.in[1])] = true;
    for (const LogicalOp& op : program_.ops) classify(op);
    losses();
    find_places();
    if (faults_.count() > before) return;
    for (const LogicalOp& op : program_.ops)
      if (is_gradient(op.out[0])) backward(op);
    if (faults_.count() > before) return;
    for (const LogicalOp& op : program_.updates) update(op);
    all_applied();
    unused();
  }

 private:
  static size_t at(int i) { return static_cast<size_t>(i); }
  const std::string& name(int tensor) const { return plan_.tensors[at(tensor)].name; }
  const std::string& layer_name(int op) const {
    return plan_.layers[at(program_.ops[at(op)].layer)].name;
  }
  bool is_gradient(int tensor) const { return is_gradient_[at(tensor)]; }
  void fault(const LogicalOp& op, const char* rule, std::string message) {
    faults_.in_instr(op.device, op.instr, rule, std::move(message));
  }

  // Forward or backward: everything that depends on the gradient of a loss is backward.
  void classify(const LogicalOp& op) {
    const bool is_backward = op_info(op.op).text.find("bwd") != std::string_view::npos;
    const bool reads_gradient =
        std::any_of(op.in.begin(), op.in.end(), [&](int t) { return is_gradient(t); });
    if ((op.op == Op::kAdd || op.op == Op::kRowsJoin) && reads_gradient) {
      for (int t : op.in)
        if (!is_gradient(t))
          fault(op, "gradient",
                fmt::format("{} the value '{}' {} gradients", op.op == Op::kAdd ? "adds" : "puts",
                            name(t), op.op == Op::kAdd ? "to" : "among"));
    } else if (reads_gradient && !is_backward) {
      fault(op, "gradient", "computes a value of the forward pass from a gradient");
    } else if (is_backward && op.op != Op::kSoftmaxLossBwd) {
      const int dy = op.in[gradient_operand(op.op)];
      if (!is_gradient(dy)) fault(op, "gradient", fmt::format("'{}' is no gradient", name(dy)));
    }
    for (int t : op.out) {
      is_gradient_[at(t)] = is_backward || reads_gradient;
      for (int x : op.in) is_trained_[at(t)] = is_trained_[at(t)] || is_trained_[at(x)];
    }
    for (int t : op.in) is_used_[at(t)] = true;
  }

  // Every loss has its gradient, once, with its weight over the batch.
  void losses() {
    for (const Loss& loss : losses_) {
      int count = 0;
      const double weight = plan_.tensors[at(loss.metrics)].attrs.real("weight");
      for (const LogicalOp& back : program_.ops) {
        if (back.op != Op::kSoftmaxLossBwd || back.in[0] != loss.prob) continue;
        ++count;
        if (back.in[1] != loss.label)
          fault(back, "loss",
                fmt::format("reads the label '{}', the loss reads '{}'", name(back.in[1]),
                            name(loss.label)));
        const double scale = weight / static_cast<double>(plan_.batch);
        if (back.attrs.real("scale") != scale)
          fault(back, "loss",
                fmt::format("the scale is {}, weight {} over the batch {} is {}",
                            back.attrs.real("scale"), weight, plan_.batch, scale));
      }
      if (count > 1 || (count == 0 && weight != 0 && is_trained_[at(loss.x)]))
        fault(program_.ops[at(loss.op)], "loss",
              fmt::format("its gradient is taken {} times, must be once", count));
      if (count > 0) reaches_loss_[loss.op] = true;
    }
    if (losses_.empty()) faults_.in_plan("loss", "a train plan without a loss");
  }

  // Where each tensor is read on the way to a loss.
  void find_places() {
    for (size_t n = program_.ops.size(); n-- > 0;) {
      const LogicalOp& op = program_.ops[n];
      const int i = static_cast<int>(n);
      if (is_gradient(op.out[0]) || op.op == Op::kRowsJoin) continue;
      for (int t : op.out)
        if (!places_[at(t)].empty()) reaches_loss_[i] = true;
      if (!reaches_loss_.contains(i)) continue;
      // The gradient of a loss is that of its scores, whatever it makes on the way.
      const bool is_loss = op.op == Op::kSoftmaxLossFwd || op.op == Op::kSoftmaxNorm;
      const size_t operands = is_loss ? 1 : op.in.size();
      for (size_t k = 0; k < operands; ++k)
        for (const Origin& o : program_.origins[at(op.in[k])])
          places_[at(o.tensor)].emplace_back(i, static_cast<int>(k));
      for (int t : op.out)
        if (is_loss && !places_[at(t)].empty())
          fault(op, "gradient",
                fmt::format("its result '{}' is used for another loss, through layer '{}'; no "
                            "gradient comes back from there",
                            name(t), layer_name(places_[at(t)][0].first)));
    }
    for (auto& p : places_) std::sort(p.begin(), p.end());
  }

  bool is_parameter(int tensor) const {
    return plan_.tensors[at(tensor)].kind == TensorKind::kParameter;
  }

  // Where the gradient of a tensor for some examples comes from.
  std::vector<Place> places_of(int tensor, const Examples& examples) const {
    std::vector<Place> all;
    for (const Place& place : places_[at(tensor)]) {
      const LogicalOp& op = program_.ops[at(place.first)];
      const int rows = is_parameter(tensor) ? op.out[0] : op.in[at(place.second)];
      if (program_.examples[at(rows)].overlaps(examples)) all.push_back(place);
    }
    return all;
  }
  bool complete(const Reading& r) const { return r.places == places_of(r.tensor, r.examples); }

  // What comes back through operand `k` of operation `op`, under the names that its rows had first.
  std::vector<Reading> through(int op, size_t k, const Examples& examples) const {
    std::vector<Reading> all;
    for (const Origin& o : program_.origins_of(program_.ops[at(op)].in[k], examples))
      all.push_back({o.tensor, false, o.examples, {{op, static_cast<int>(k)}}});
    return all;
  }

  static bool has_no_act(const LogicalOp& op) {
    return op.attrs.has("act") && op.attrs.word("act") == "none";
  }

  // Adds a reading and what follows from it without any instruction: where there is no activation,
  // the gradient before it is the same; and the gradient of a sum is that of each of its terms.
  void add_reading(int gradient, const Reading& first) {
    std::vector<Reading> todo{first};
    auto& known = readings_[at(gradient)];
    while (!todo.empty() && known.size() < kMaxReadings) {
      const Reading r = todo.back();
      todo.pop_back();
      if (std::find(known.begin(), known.end(), r) != known.end()) continue;
      known.push_back(r);
      const int p = program_.producer[at(r.tensor)];
      if (p < 0 || !complete(r)) continue;
      const LogicalOp& op = program_.ops[at(p)];
      if (!r.before_act && has_no_act(op)) todo.push_back({r.tensor, true, r.examples, r.places});
      const size_t terms = op.op == Op::kAdd ? op.in.size() : op.op == Op::kBiasFwd ? 1 : 0;
      if (r.before_act)
        for (size_t k = 0; k < terms; ++k)
          for (const Reading& term : through(p, k, r.examples)) todo.push_back(term);
    }
  }

  // A forward operation, and the examples for which a tensor is the gradient of its result.
  struct Forward {
    int op;
    Examples examples;
  };

  // The forward operations whose result's gradient `dy` is, complete, among those that `fits`: of
  // each pass its own; two that read the same operands and whose results are added have one
  // gradient. None and a fault if not all examples of `dy` have one.
  std::vector<Forward> forwards_of(
      const LogicalOp& op, int dy, bool before_act,
      const std::function<bool(const LogicalOp&, const Examples&)>& fits) {
    std::vector<Forward> all;
    Examples found;
    const Reading* partial = nullptr;
    for (const Reading& r : readings_[at(dy)]) {
      const int p = program_.producer[at(r.tensor)];
      if (p < 0 || !fits(program_.ops[at(p)], r.examples)) continue;
      if (!complete(r)) {
        partial = &r;
      } else if (r.before_act == before_act) {
        all.push_back({p, r.examples});
        found = found.with(r.examples);
      }
    }
    const Examples missing = program_.examples[at(dy)].without(found);
    if (!all.empty() && missing.empty()) return all;
    if (partial != nullptr) {
      for (const Place& place : places_of(partial->tensor, partial->examples))
        if (!std::binary_search(partial->places.begin(), partial->places.end(), place)) {
          fault(op, "gradient-incomplete",
                fmt::format(
                    "'{}' lacks the part of the gradient of '{}' that comes through layer '{}'",
                    name(dy), name(partial->tensor), layer_name(place.first)));
          break;
        }
      return {};
    }
    fault(op, "gradient",
          fmt::format("'{}' is {}, not{} the gradient of a result of the same operation with these "
                      "operands and attributes",
                      name(dy), describe(dy),
                      all.empty() ? "" : fmt::format(" for the examples {}", missing.str())));
    return {};
  }

  std::string describe(int gradient) const {
    if (readings_[at(gradient)].empty()) return "no gradient";
    const Reading& r = readings_[at(gradient)][0];
    return fmt::format("the gradient of '{}'{}", name(r.tensor),
                       r.before_act ? " before its activation" : "");
  }

  static bool same_attrs(const LogicalOp& forward, const LogicalOp& backward) {
    for (const auto& [attr, value] : backward.attrs.all()) {
      if (attr == "rows") continue;  // those of its tensors
      const Attrs::Value* other = forward.attrs.find(attr);
      if (other == nullptr || !(*other == value)) return false;
    }
    return true;
  }

  void backward(const LogicalOp& op) {
    switch (op.op) {
      case Op::kSoftmaxLossBwd:
        return loss_backward(op);
      case Op::kActBwd:
        return act_backward(op);
      case Op::kAdd:
        return sum(op);
      case Op::kRowsJoin:
        return rows_join(op);
      default:
        break;
    }
    // Operand of the forward operation -> operand of the backward one that must be the same tensor.
    std::vector<std::pair<size_t, size_t>> same_in, same_out;
    Op forward_op = Op::kConvFwd;
    bool before_act = false;
    size_t first_operand = 0;  // whose gradient result 0 is
    switch (op.op) {
      case Op::kConvBwdData:
      case Op::kFcBwdData:
        forward_op = op.op == Op::kConvBwdData ? Op::kConvFwd : Op::kFcFwd;
        same_in = {{1, 1}};
        before_act = true;
        break;
      case Op::kConvBwdWeight:
      case Op::kFcBwdWeight:
        forward_op = op.op == Op::kConvBwdWeight ? Op::kConvFwd : Op::kFcFwd;
        same_in = {{0, 0}};
        before_act = true;
        first_operand = 1;
        break;
      case Op::kBiasBwd:
        forward_op = Op::kBiasFwd;
        before_act = true;
        first_operand = 1;
        break;
      case Op::kPoolMaxBwd:
        forward_op = Op::kPoolMaxFwd;
        same_in = {{0, 0}};
        break;
      case Op::kPoolAvgBwd:
        forward_op = Op::kPoolAvgFwd;
        break;
      case Op::kLrnBwd:
        forward_op = Op::kLrnFwd;
        same_in = {{0, 0}};
        same_out = {{0, 1}, {1, 2}};
        break;
      case Op::kDropoutBwd:
        forward_op = Op::kDropoutFwd;
        break;
      case Op::kConcatBwd:
        forward_op = Op::kConcatFwd;
        break;
      default:
        return;
    }
    const auto fits = [&](const LogicalOp& f, const Examples& examples) {
      if (f.op != forward_op || !same_attrs(f, op)) return false;
      for (const auto& [theirs, ours] : same_in)
        if (!program_.same_values(f.in[theirs], op.in[ours], examples)) return false;
      for (const auto& [theirs, ours] : same_out)
        if (!program_.same_values(f.out[theirs], op.in[ours], examples)) return false;
      return op.op == Op::kConcatBwd ? f.in.size() == op.out.size()
                                     : f.in.size() >= first_operand + op.out.size();
    };
    const int dy = op.in[gradient_operand(op.op)];
    const std::vector<Forward> forwards = forwards_of(op, dy, before_act, fits);
    for (size_t i = 0; i < op.out.size(); ++i) {
      const size_t operand = first_operand + i;
      if (first_operand == 1) {
        of_parameter(op.out[i], operand, forwards, program_.examples[at(dy)]);
        continue;
      }
      for (const Forward& f : forwards)
        for (const Reading& r : through(f.op, operand, f.examples)) add_reading(op.out[i], r);
    }
  }

  // A gradient of a parameter sums over examples, of each pass those of its own.
  void of_parameter(int gradient, size_t operand, const std::vector<Forward>& forwards,
                    const Examples& examples) {
    std::set<int> parameters;
    for (const Forward& f : forwards) parameters.insert(program_.ops[at(f.op)].in[operand]);
    for (int w : parameters) {
      std::vector<Forward> its;
      for (const Forward& f : forwards)
        if (program_.ops[at(f.op)].in[operand] == w) its.push_back(f);
      choose(gradient, static_cast<int>(operand), its, examples, {w, false, examples, {}});
    }
  }

  // Adds a reading for each choice of operations that takes each of the examples left once.
  void choose(int gradient, int operand, const std::vector<Forward>& forwards, const Examples& left,
              Reading so_far) {
    if (readings_[at(gradient)].size() >= kMaxReadings) return;
    if (left.empty()) {
      std::sort(so_far.places.begin(), so_far.places.end());
      so_far.places.erase(std::unique(so_far.places.begin(), so_far.places.end()),
                          so_far.places.end());
      return add_reading(gradient, so_far);
    }
    const Examples first(left.first(), left.first() + 1);
    for (const Forward& f : forwards) {
      if (!f.examples.contains(first) || !left.contains(f.examples)) continue;
      Reading next = so_far;
      next.places.emplace_back(f.op, operand);
      choose(gradient, operand, forwards, left.without(f.examples), next);
    }
  }

  void loss_backward(const LogicalOp& op) {
    for (const Loss& loss : losses_)
      if (loss.prob == op.in[0]) {
        for (const Reading& r : through(loss.op, 0, program_.examples[at(loss.x)]))
          add_reading(op.out[0], r);
        return;
      }
    fault(op, "loss", fmt::format("'{}' is no result of a loss", name(op.in[0])));
  }

  void act_backward(const LogicalOp& op) {
    const int y = op.in[0];
    const std::vector<Forward> all =
        forwards_of(op, op.in[1], false, [&](const LogicalOp& forward, const Examples& examples) {
          return forward.attrs.has("act") && same_attrs(forward, op) &&
                 program_.same_values(forward.out[0], y, examples);
        });
    for (const Forward& f : all) {
      const LogicalOp& forward = program_.ops[at(f.op)];
      const int result = forward.out[0];
      if (forward.op == Op::kActFwd)
        for (const Reading& r : through(f.op, 0, f.examples)) add_reading(op.out[0], r);
      else
        add_reading(op.out[0], {result, true, f.examples, places_of(result, f.examples)});
    }
  }

  void rows_join(const LogicalOp& op) {
    for (int source : op.in)
      for (Reading r : readings_[at(source)]) {
        r.examples = r.examples.common(program_.examples[at(op.out[0])]);
        if (!r.examples.empty()) add_reading(op.out[0], r);
      }
  }

  // A sum of parts of one gradient that come through different places.
  void sum(const LogicalOp& op) {
    if (!has_no_act(op)) return fault(op, "gradient", "gradients are added without an activation");
    std::vector<Reading> found;
    for (const Reading& r : readings_[at(op.in[0])]) join(op, 1, r, &found);
    for (const Reading& r : found) add_reading(op.out[0], r);
    if (found.empty())
      fault(op, "gradient",
            fmt::format("'{}' is {} and '{}' is {}; they are not different parts of "
                        "one gradient",
                        name(op.in[0]), describe(op.in[0]), name(op.in[1]), describe(op.in[1])));
  }

  void join(const LogicalOp& op, size_t operand, const Reading& so_far,
            std::vector<Reading>* found) {
    if (operand == op.in.size()) {
      found->push_back(so_far);
      return;
    }
    for (const Reading& r : readings_[at(op.in[operand])]) {
      if (r.tensor != so_far.tensor || r.before_act != so_far.before_act) continue;
      // Sums over other examples are no rows of which some can be left out.
      if (is_parameter(r.tensor) && !(r.examples == so_far.examples)) continue;
      Reading both{r.tensor, r.before_act, r.examples.common(so_far.examples), {}};
      if (both.examples.empty()) continue;
      std::merge(r.places.begin(), r.places.end(), so_far.places.begin(), so_far.places.end(),
                 std::back_inserter(both.places));
      if (std::adjacent_find(both.places.begin(), both.places.end()) != both.places.end()) continue;
      join(op, operand + 1, both, found);
      if (found->size() >= kMaxReadings) return;
    }
  }

  // The losses' scales are over the whole batch; an update by some of its examples makes up for
  // that.
  void update(const LogicalOp& op) {
    const int dw = op.in[0], w = op.in[1];
    is_used_[at(dw)] = true;
    const Examples& examples = program_.examples[at(dw)];
    const double scale = static_cast<double>(plan_.batch) / static_cast<double>(examples.count());
    const double recorded = op.attrs.has("scale") ? op.attrs.real("scale") : 1;
    if (recorded != scale)
      fault(op, "update-scale",
            fmt::format("scales the gradient of {} examples by {}, the batch of {} is {} times as "
                        "many",
                        examples.count(), recorded, plan_.batch, scale));
    Examples& applied = applied_[w];
    if (applied.overlaps(examples))
      fault(op, "updated-twice",
            fmt::format("'{}' is updated by gradients of the examples {} twice", name(w),
                        applied.common(examples).str()));
    applied = applied.with(examples);
    const Reading* partial = nullptr;
    for (const Reading& r : readings_[at(dw)]) {
      if (r.tensor != w) continue;
      if (complete(r)) return;
      partial = &r;
    }
    if (partial != nullptr)
      for (const Place& place : places_of(w, partial->examples))
        if (!std::binary_search(partial->places.begin(), partial->places.end(), place))
          return fault(op, "gradient-incomplete",
                       fmt::format("'{}' lacks the part of the gradient of '{}' that comes through "
                                   "layer '{}'",
                                   name(dw), name(w), layer_name(place.first)));
    fault(op, "gradient",
          fmt::format("'{}' is {}, must be the complete gradient of '{}'", name(dw), describe(dw),
                      name(w)));
  }

  // All examples of the batch lead to an update of each parameter that is trained.
  void all_applied() {
    const Examples batch(0, plan_.batch);
    for (const LogicalOp& op : program_.updates) {
      const Examples& applied = applied_[op.in[1]];
      if (!(applied == batch))
        fault(op, "gradient-incomplete",
              fmt::format("nothing updates '{}' by the gradient of the examples {}", name(op.in[1]),
                          batch.without(applied).str()));
    }
  }

  // A gradient of anything that depends on a parameter that is trained leads to an update.
  void unused() {
    for (size_t t = 0; t < plan_.tensors.size(); ++t) {
      if (!is_gradient_[t] || is_used_[t] || readings_[t].empty()) continue;
      const Reading& r = readings_[t][0];
      if (is_trained_[at(r.tensor)])
        fault(*program_.producer_of(static_cast<int>(t)), "unused-gradient",
              fmt::format("'{}', {}, is not used", name(static_cast<int>(t)),
                          describe(static_cast<int>(t))));
    }
  }

  const Plan& plan_;
  const Program& program_;
  const std::vector<Loss>& losses_;
  Faults& faults_;
  std::vector<bool> is_gradient_, is_used_,
      is_trained_;                          // per tensor; trained: depends on an updated parameter
  std::map<int, bool> reaches_loss_;        // forward operations
  std::map<int, Examples> applied_;         // per parameter, those that updated it
  std::vector<std::vector<Place>> places_;  // per tensor, sorted
  std::vector<std::vector<Reading>> readings_;  // per tensor of the backward pass
};

}  // namespace

void check_gradients(const Plan& plan, const Program& program, const std::vector<Loss>& losses,
                     Faults& faults) {
  Gradients(plan, program, losses, faults).run();
}

}  // namespace convnet
