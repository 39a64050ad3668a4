// The operations of a loss, in one piece or over ranges of classes: their shapes and boxes, and
// that those of one loss belong together.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "framework/plan/verify/geometry.h"
#include "framework/plan/verify/program.h"

namespace convnet {
namespace {

constexpr int64_t kStatistics = 3;  // of a shard: maximum, sum of exponentials, score of the label

class LossGeometry : InstrGeometry {
 public:
  using InstrGeometry::InstrGeometry;

  void run() {
    switch (instr_.op) {
      case Op::kSoftmaxLossFwd:
        return fused();
      case Op::kSoftmaxStats:
        return statistics();
      case Op::kSoftmaxNorm:
        return norm();
      case Op::kSoftmaxMetrics:
        return metrics();
      case Op::kSoftmaxLossBwd:
        scores(in(0), in(1));
        if (same_shape(in(0), out(0))) same_box(in(0), out(0));
        return;
      default:
        return;
    }
  }

 private:
  // [N, classes, 1, 1], and the label of the same examples.
  void scores(const Operand& x, const Operand& label) {
    agree("the number of rows", shape(x)[2], 1);
    agree("the number of columns", shape(x)[3], 1);
    equals(label, 0, range(x, 0), "examples");
    const Attrs::Value* classes = tensor_of(plan_, device_, label).attrs.find("classes");
    if (classes != nullptr && std::holds_alternative<int64_t>(*classes))
      agree("the number of classes of the label", std::get<int64_t>(*classes), shape(x)[1]);
  }

  void fused() {
    const Operand &x = in(0), &y = out(0);
    if (!same_shape(x, y)) return;
    same_box(x, y);
    whole(x, 1, "classes");
    scores(x, in(1));
    counts(x, out(1), shape(x)[1]);
  }

  // The metrics, summed over the examples of `over`.
  void counts(const Operand& over, const Operand& metrics, int64_t classes) {
    const auto& top = instr_.attrs.list("top");
    for (int64_t k : top)
      if (k > classes)
        fault("attribute", fmt::format("'top' asks for the best {} of {} classes", k, classes));
    if (tensor_of(plan_, device_, metrics).attrs.list("top") != top)
      fault("attribute", fmt::format("'top' is not that of {}", name(metrics)));
    whole(metrics, 0, "entries");
    sums_over(over, {0}, {metrics});
  }

  // A tensor of `each` entries for each canonical shard of the classes.
  bool of_shards(const Operand& o, int64_t each, size_t shards) {
    return agree("the number of entries for the shards of the classes", shape(o)[1],
                 each * static_cast<int64_t>(shards)) &
           agree("the number of rows", shape(o)[2], 1) &
           agree("the number of columns", shape(o)[3], 1);
  }

  // The canonical shards that the classes of x are, counted from 0; {0, 0} and a fault if x holds
  // part of one.
  Range shards_of(const Operand& x, const std::vector<int64_t>& bounds) {
    const auto lo = std::find(bounds.begin(), bounds.end(), x.box.lo(1));
    const auto hi = std::find(bounds.begin(), bounds.end(), x.box.hi(1));
    if (lo != bounds.end() && hi != bounds.end()) return {lo - bounds.begin(), hi - bounds.begin()};
    fault("coverage", fmt::format("{} has the classes {}:{}, must have whole canonical shards, "
                                  "which meet at {}",
                                  name(x), x.box.lo(1), x.box.hi(1), fmt::join(bounds, ", ")));
    return {};
  }

  void statistics() {
    const Operand &x = in(0), &stats = out(0);
    scores(x, in(1));
    const auto bounds = expected_shards(shape(x)[1]);
    if (!of_shards(stats, kStatistics, bounds.size() - 1)) return;
    equals(stats, 0, range(x, 0), "examples");
    const Range shards = shards_of(x, bounds);
    if (shards.hi > 0)
      equals(stats, 1, {kStatistics * shards.lo, kStatistics * shards.hi}, "statistics");
  }

  void norm() {
    const Operand &x = in(0), &stats = in(2), &prob = out(0), &ranks = out(1);
    scores(x, in(1));
    if (same_shape(x, prob)) same_box(x, prob);
    const auto bounds = expected_shards(shape(x)[1]);
    if (!of_shards(stats, kStatistics, bounds.size() - 1) | !of_shards(ranks, 1, bounds.size() - 1))
      return;
    equals(stats, 0, range(x, 0), "examples");
    whole(stats, 1, "statistics");
    equals(ranks, 0, range(x, 0), "examples");
    const Range shards = shards_of(x, bounds);
    if (shards.hi > 0) equals(ranks, 1, shards, "shards");
  }

  void metrics() {
    const Operand &stats = in(0), &ranks = in(1), &label = in(2);
    const int64_t classes = instr_.attrs.integer("classes");
    const size_t shards = expected_shards(classes).size() - 1;
    if (!of_shards(stats, kStatistics, shards) | !of_shards(ranks, 1, shards)) return;
    whole(stats, 1, "statistics");
    whole(ranks, 1, "shards");
    equals(ranks, 0, range(stats, 0), "examples");
    equals(label, 0, range(stats, 0), "examples");
    counts(stats, out(0), classes);
  }
};

class Losses {
 public:
  Losses(const Plan& plan, const Program& program, Faults& faults)
      : plan_(plan), program_(program), faults_(faults) {}

  std::vector<Loss> run() {
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      const LogicalOp& op = program_.ops[i];
      if (op.op == Op::kSoftmaxLossFwd)
        found_.push_back({static_cast<int>(i), op.in[0], op.in[1], op.out[0], op.out[1]});
      else if (op.op == Op::kSoftmaxNorm)
        norm(static_cast<int>(i), op);
      else if (op.op == Op::kSoftmaxMetrics)
        metrics(op);
    }
    std::map<int, std::vector<Loss*>> passes;  // by metrics
    for (Loss& loss : found_) passes[loss.metrics].push_back(&loss);
    for (auto& [tensor, all] : passes) number(tensor, &all);
    return std::move(found_);
  }

 private:
  const std::string& name(int tensor) const {
    return plan_.tensors[static_cast<size_t>(tensor)].name;
  }
  void fault(const LogicalOp& op, std::string message) {
    faults_.in_instr(op.device, op.instr, "loss", std::move(message));
  }

  // What makes the metrics of a loss.
  const LogicalOp& maker(const Loss& loss) const {
    const LogicalOp& op = program_.ops[static_cast<size_t>(loss.op)];
    if (op.op == Op::kSoftmaxLossFwd) return op;
    return *std::find_if(program_.ops.begin(), program_.ops.end(), [&](const LogicalOp& other) {
      return other.op == Op::kSoftmaxMetrics && other.in[1] == op.out[1];
    });
  }
  const Examples& examples(const Loss& loss) const {
    return program_.examples[static_cast<size_t>(loss.x)];
  }

  // The passes of one loss are the same operation, and count every example of the batch once.
  void number(int metrics, std::vector<Loss*>* passes) {
    std::sort(passes->begin(), passes->end(), [&](const Loss* a, const Loss* b) {
      return examples(*a).first() < examples(*b).first();
    });
    Examples all;
    const LogicalOp& first = maker(*passes->front());
    for (size_t m = 0; m < passes->size(); ++m) {
      Loss& loss = *(*passes)[m];
      loss.pass = static_cast<int>(m);
      const LogicalOp& op = maker(loss);
      if (op.op != first.op || op.layer != first.layer || !(op.attrs == first.attrs))
        fault(op, fmt::format("makes '{}', which another operation makes of the examples {}",
                              name(metrics), examples(*passes->front()).str()));
      if (all.overlaps(examples(loss)))
        fault(op, fmt::format("counts the examples {} in '{}' a second time",
                              all.common(examples(loss)).str(), name(metrics)));
      all = all.with(examples(loss));
    }
    const Examples batch(0, plan_.batch);
    if (!(all == batch))
      fault(first, fmt::format("nothing counts the examples {} in '{}'", batch.without(all).str(),
                               name(metrics)));
  }

  // Statistics of the same scores and label, and one sum of metrics.
  void norm(int index, const LogicalOp& op) {
    const LogicalOp* stats = program_.producer_of(op.in[2]);
    if (stats == nullptr || stats->op != Op::kSoftmaxStats || stats->in[0] != op.in[0] ||
        stats->in[1] != op.in[1])
      return fault(op, fmt::format("'{}' must be the statistics of '{}' and '{}'", name(op.in[2]),
                                   name(op.in[0]), name(op.in[1])));
    const LogicalOp* sum = nullptr;
    int count = 0;
    for (const LogicalOp& other : program_.ops)
      if (other.op == Op::kSoftmaxMetrics && other.in[1] == op.out[1]) {
        sum = &other;
        ++count;
      }
    if (count != 1)
      return fault(op, fmt::format("its metrics are made {} times, must be once", count));
    found_.push_back({index, op.in[0], op.in[1], op.out[0], sum->out[0]});
  }

  void metrics(const LogicalOp& op) {
    const LogicalOp* norm = program_.producer_of(op.in[1]);
    if (norm == nullptr || norm->op != Op::kSoftmaxNorm || norm->out[1] != op.in[1])
      return fault(op, fmt::format("'{}' must be the ranks of a loss", name(op.in[1])));
    if (op.in[0] != norm->in[2] || op.in[2] != norm->in[1])
      return fault(
          op, fmt::format("reads '{}' and '{}', the ranks are those of '{}' and '{}'",
                          name(op.in[0]), name(op.in[2]), name(norm->in[2]), name(norm->in[1])));
    const int64_t classes = plan_.tensors[static_cast<size_t>(norm->in[0])].shape[1];
    if (op.attrs.integer("classes") != classes)
      fault(op, fmt::format("counts {} classes, '{}' has {}", op.attrs.integer("classes"),
                            name(norm->in[0]), classes));
  }

  const Plan& plan_;
  const Program& program_;
  Faults& faults_;
  std::vector<Loss> found_;
};

}  // namespace

void check_loss_geometry(const Plan& plan, int device, int instr, Faults& faults) {
  LossGeometry(plan, device, instr, faults).run();
}

std::vector<Loss> check_losses(const Plan& plan, const Program& program, Faults& faults) {
  return Losses(plan, program, faults).run();
}

}  // namespace convnet
