// Partial sums: over what each runs, that together they count everything once, and in which order
// they may be added.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "framework/plan/names.h"
#include "framework/plan/verify/examples.h"
#include "framework/plan/verify/faults.h"
#include "framework/plan/verify/geometry.h"

namespace convnet {
namespace {

// What a sum may run over. A sum over several is nested in this order, the first outermost, and its
// parts are numbered in this order, the last fastest.
enum Level { kRows, kColumns, kChannels, kExamples, kLevels };

// One dimension of an operand that an instruction sums over.
struct Summed {
  Level level;
  size_t operand;
  int dim;
  const char* cuts;  // the attribute that cuts the sum
  const char* what;
};

constexpr Summed kExamplesOfScores = {kExamples, 0, 0, "cuts", "examples"};

std::vector<Summed> summed(Op op) {
  switch (op) {
    case Op::kConvFwd:
    case Op::kFcFwd:
      return {{kChannels, 0, 1, "channel_cuts", "channels"}};
    case Op::kConvBwdData:
    case Op::kFcBwdData:
      return {{kChannels, 0, 1, "filter_cuts", "filters"}};
    case Op::kConvBwdWeight:
      return {{kRows, 1, 2, "row_cuts", "rows"},
              {kColumns, 1, 3, "column_cuts", "columns"},
              {kExamples, 1, 0, "cuts", "examples"}};
    case Op::kFcBwdWeight:
      return {{kExamples, 1, 0, "cuts", "examples"}};
    case Op::kBiasBwd:
      return {{kRows, 0, 2, "row_cuts", "rows"},
              {kColumns, 0, 3, "column_cuts", "columns"},
              {kExamples, 0, 0, "cuts", "examples"}};
    case Op::kSoftmaxLossFwd:
    case Op::kSoftmaxMetrics:
      return {kExamplesOfScores};
    default:
      return {};
  }
}

// One instruction's part of a sum.
struct Sum {
  int device = 0, instr = 0;
  Part part;
  std::array<Range, kLevels> over;  // {0, 1} where it sums over nothing
};

// All of one tensor; of the metrics of a loss in passes, those of one pass.
struct Sums {
  int tensor = 0;
  Examples examples;  // of the rows summed; of metrics only
  int base = 0;       // the number of the first part of the pass
  int of = 0;         // of how many parts
  std::vector<Sum> all;
  std::vector<Summed> levels;
  std::array<std::vector<int64_t>, kLevels> shards;  // boundaries; {0, extent} where not cut
};

class SumCheck {
 public:
  SumCheck(const Plan& plan, Faults& faults) : plan_(plan), faults_(faults) {}

  void run() {
    for (size_t d = 0; d < plan_.devices.size(); ++d)
      for (size_t i = 0; i < plan_.devices[d].instrs.size(); ++i)
        collect(static_cast<int>(d), static_cast<int>(i));
    const size_t before = faults_.count();
    for (auto& [tensor, passes] : sums_) {
      number(tensor, &passes);
      for (const Sums& sums : passes) check(sums);
    }
    if (faults_.count() > before) return;
    for (size_t id = 0; id < plan_.exchanges.size(); ++id) {
      targets(static_cast<int>(id));
      order(static_cast<int>(id));
    }
    guards();
  }

 private:
  const std::string& name(int tensor) const {
    return plan_.tensors[static_cast<size_t>(tensor)].name;
  }

  void collect(int d, int i) {
    const DevicePlan& device = plan_.devices[static_cast<size_t>(d)];
    const Instr& instr = device.instrs[static_cast<size_t>(i)];
    if (instr.op == Op::kSoftmaxStats || instr.op == Op::kSoftmaxNorm) {
      const Operand& x = instr.in[0];
      cuts(d, i, "class_cuts", "classes", x, 1,
           expected_shards(tensor_of(plan_, device, x).shape[1]));
      return;
    }
    const std::vector<Summed> levels = summed(instr.op);
    if (levels.empty()) return;
    Sum sum{d, i, {}, {}};
    sum.over.fill({0, 1});
    std::array<std::vector<int64_t>, kLevels> shards;
    shards.fill({0, 1});
    for (const Summed& s : levels) {
      const Operand& o = instr.in[s.operand];
      const int64_t extent = tensor_of(plan_, device, o).shape[s.dim];
      sum.over[s.level] = {o.box.lo(s.dim), o.box.hi(s.dim)};
      shards[s.level] = {0, extent};
      if (!instr.attrs.has(s.cuts)) continue;
      shards[s.level] = s.level == kExamples ? shards_of_examples(tensor_of(plan_, device, o))
                                             : expected_shards(extent);
      cuts(d, i, s.cuts, s.what, o, s.dim, shards[s.level]);
    }
    for (size_t r = instr.op == Op::kSoftmaxLossFwd ? 1 : 0; r < instr.out.size(); ++r) {
      const Buffer& b = buffer_of(device, instr.out[r]);
      sum.part = b.part;
      const Tensor& x = tensor_of(plan_, device, instr.in[0]);
      const bool metric = plan_.tensors[static_cast<size_t>(b.tensor)].kind == TensorKind::kMetric;
      const Examples examples = metric ? Examples(plan_, x) : Examples();
      auto& passes = sums_[b.tensor];
      auto pass = std::find_if(passes.begin(), passes.end(),
                               [&](const Sums& other) { return other.examples == examples; });
      if (pass == passes.end())
        pass = passes.insert(passes.end(), Sums{b.tensor, examples, 0, 0, {}, levels, shards});
      pass->all.push_back(sum);
    }
  }

  // Passes, by rising first example, have an equal number of parts each.
  void number(int tensor, std::vector<Sums>* passes) {
    std::sort(passes->begin(), passes->end(), [](const Sums& a, const Sums& b) {
      return !a.examples.empty() && a.examples.first() < b.examples.first();
    });
    const int of = passes->front().all[0].part.of, n = static_cast<int>(passes->size());
    if (of % n != 0) {
      const Sum& s = passes->front().all[0];
      faults_.in_instr(s.device, s.instr, "partial",
                       fmt::format("makes '{}' in {} parts, which are no equal number for each of "
                                   "its {} passes",
                                   name(tensor), of, n));
    }
    for (int m = 0; m < n; ++m) {
      (*passes)[static_cast<size_t>(m)].base = m * (of / n);
      (*passes)[static_cast<size_t>(m)].of = of / n;
    }
  }

  // An exchange makes complete values, or the complete metrics of a pass.
  void targets(int id) {
    const Exchange& e = plan_.exchanges[static_cast<size_t>(id)];
    for (const Part& p : e.to)
      if (!p.box.empty() && p.of != 1 && p.of != passes_of(e.tensor)) {
        faults_.in_exchange(id, "partial",
                            fmt::format("brings partial sum {} of {}, must bring {}", p.k, p.of,
                                        passes_of(e.tensor) == 1
                                            ? std::string("complete values")
                                            : fmt::format("complete values or one of the {} passes",
                                                          passes_of(e.tensor))));
        return;
      }
  }
  int passes_of(int tensor) const {
    const auto found = sums_.find(tensor);
    return found == sums_.end() ? 1 : static_cast<int>(found->second.size());
  }

  // A guard looks at the same number on all devices: of the step, or of one pass.
  void guards() {
    for (size_t d = 0; d < plan_.devices.size(); ++d)
      for (size_t i = 0; i < plan_.devices[d].instrs.size(); ++i) {
        const Instr& instr = plan_.devices[d].instrs[i];
        if (instr.op != Op::kGuard) continue;
        const Buffer& b = buffer_of(plan_.devices[d], instr.in[0]);
        if (b.part.of != 1 && b.part.of != passes_of(b.tensor))
          faults_.in_instr(
              static_cast<int>(d), static_cast<int>(i), "complete",
              fmt::format("{} holds partial sum {} of {}, must be complete{}",
                          operand_name(plan_.devices[d], instr.in[0]), b.part.k, b.part.of,
                          passes_of(b.tensor) > 1 ? " or all of a pass" : ""));
      }
  }

  // Those of a sub-batch are the ones of a batch of so many examples.
  std::vector<int64_t> shards_of_examples(const Tensor& t) const {
    return t.attrs.has("rows") ? expected_batch_shards(t.shape[0]) : plan_.shards;
  }

  // The canonical boundaries inside the range, and its ends.
  void cuts(int d, int i, const char* attr, const char* what, const Operand& o, int dim,
            const std::vector<int64_t>& shards) {
    const auto& cuts =
        plan_.devices[static_cast<size_t>(d)].instrs[static_cast<size_t>(i)].attrs.list(attr);
    const int64_t lo = o.box.lo(dim), hi = o.box.hi(dim);
    std::vector<int64_t> expected{lo};
    for (int64_t s : shards)
      if (s > lo && s < hi) expected.push_back(s);
    expected.push_back(hi);
    if (cuts != expected)
      faults_.in_instr(d, i, "cuts",
                       fmt::format("the {} are {}, the canonical shards of the {} {}:{} are {}",
                                   attr, text(cuts), what, lo, hi, text(expected)));
  }

  static std::string text(const std::vector<int64_t>& values) {
    return fmt::format("[{}]", fmt::join(values, ","));
  }
  // "the rows 0:4, the examples 0:16"; only what is not summed whole by all.
  static std::string text(const Sums& sums, const std::array<Range, kLevels>& over) {
    std::string s;
    for (const Summed& l : sums.levels)
      s += fmt::format("{}the {} {}:{}", s.empty() ? "" : ", ", l.what, over[l.level].lo,
                       over[l.level].hi);
    return s;
  }

  void check(const Sums& sums) {
    const int tensor = sums.tensor, passes = passes_of(tensor), of = sums.of * passes;
    std::vector<const Sum*> parts(static_cast<size_t>(sums.of), nullptr);
    for (const Sum& s : sums.all) {
      if (s.part.of != of) {
        faults_.in_instr(s.device, s.instr, "partial",
                         fmt::format("makes '{}' in {} parts, elsewhere it is made in {}",
                                     name(tensor), s.part.of, of));
        return;
      }
      if (of == 1) continue;  // check_geometry has seen to it
      if (s.part.k < sums.base || s.part.k >= sums.base + sums.of) {
        faults_.in_instr(s.device, s.instr, "partial",
                         fmt::format("makes part {} of '{}', the parts of the examples {} are {} "
                                     "to {}",
                                     s.part.k, name(tensor), sums.examples.str(), sums.base,
                                     sums.base + sums.of - 1));
        return;
      }
      const Sum*& first = parts[static_cast<size_t>(s.part.k - sums.base)];
      if (first != nullptr && first->over != s.over)
        faults_.in_instr(
            s.device, s.instr, "partial",
            fmt::format("sums {} to part {} of '{}', elsewhere that part sums {}",
                        text(sums, s.over), s.part.k, name(tensor), text(sums, first->over)));
      if (first != nullptr && is_final_metric(tensor))
        faults_.in_instr(
            s.device, s.instr, "loss-coverage",
            fmt::format("makes part {} of '{}' a second time", s.part.k, name(tensor)));
      if (first == nullptr) first = &s;
    }
    if (of > 1) product(tensor, sums, parts);
  }

  // The parts are all combinations of consecutive ranges, one list of ranges a level, each used in
  // its place: then everything is summed once.
  void product(int tensor, const Sums& sums, const std::vector<const Sum*>& parts) {
    const int layer = layer_of(sums.all[0]);
    for (size_t k = 0; k < parts.size(); ++k)
      if (parts[k] == nullptr) {
        faults_.in_layer(
            layer, "partial",
            fmt::format("part {} of {} of '{}' is not made", sums.base + static_cast<int>(k),
                        sums.all[0].part.of, name(tensor)));
        return;
      }
    std::array<std::vector<int64_t>, kLevels> bounds;
    for (const Summed& l : sums.levels) {
      bounds[l.level] = bounds_of(parts, l.level);
      const int64_t extent = sums.shards[l.level].back();
      int64_t end = 0;
      for (const Sum* s : parts) end = std::max(end, s->over[l.level].hi);
      if (bounds[l.level].front() != 0 || end != extent) {
        faults_.in_layer(layer, "partial",
                         fmt::format("the parts of '{}' sum the {} {}:{} of {}", name(tensor),
                                     l.what, bounds[l.level].front(), end, extent));
        return;
      }
      bounds[l.level].push_back(extent);
    }
    size_t n = 1;
    for (const Summed& l : sums.levels) n *= bounds[l.level].size() - 1;
    for (size_t k = 0; k < parts.size(); ++k) {
      std::array<Range, kLevels> expected = parts[k]->over;
      size_t rest = k;
      for (size_t l = sums.levels.size(); l-- > 0;) {
        const auto& b = bounds[sums.levels[l].level];
        const size_t at = rest % (b.size() - 1);
        rest /= b.size() - 1;
        expected[sums.levels[l].level] = {b[at], b[at + 1]};
      }
      if (parts[k]->over == expected && n == parts.size()) continue;
      faults_.in_instr(
          parts[k]->device, parts[k]->instr, "partial",
          fmt::format("part {} of {} of '{}' sums {}, must sum {}: all parts together are {} "
                      "ranges, each of which must be summed once and in this order",
                      parts[k]->part.k, parts[k]->part.of, name(tensor), text(sums, parts[k]->over),
                      text(sums, expected), n));
      return;
    }
  }

  // Where the ranges of the parts begin.
  static std::vector<int64_t> bounds_of(const std::vector<const Sum*>& parts, Level level) {
    std::vector<int64_t> bounds;
    for (const Sum* s : parts) bounds.push_back(s->over[level].lo);
    std::sort(bounds.begin(), bounds.end());
    bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
    return bounds;
  }

  int layer_of(const Sum& s) const {
    return plan_.devices[static_cast<size_t>(s.device)].instrs[static_cast<size_t>(s.instr)].layer;
  }

  // Metrics whose parts nothing adds up: the host does.
  bool is_final_metric(int tensor) const {
    if (plan_.tensors[static_cast<size_t>(tensor)].kind != TensorKind::kMetric) return false;
    for (const Exchange& e : plan_.exchanges)
      if (e.tensor == tensor) return false;
    for (const DevicePlan& d : plan_.devices)
      for (const Instr& i : d.instrs)
        if (i.op == Op::kSum && buffer_of(d, i.out[0]).tensor == tensor) return false;
    return true;
  }

  // Parts are added by the balanced tree where that is the very tree by which one device would add
  // all, else by rank.
  void order(int id) {
    const Exchange& e = plan_.exchanges[static_cast<size_t>(id)];
    if (e.order == Exchange::Order::kNone) return;
    const auto found = sums_.find(e.tensor);
    std::string why = "they are sums of the parts of several sums";
    bool tree = false;
    if (found != sums_.end()) {
      const Sums* of_pass = &found->second.front();
      const int of = of_pass->all[0].part.of;
      for (const Part& p : e.from) {
        if (p.box.empty()) continue;
        if (p.of != of) {
          faults_.in_exchange(
              id, "partial",
              fmt::format("adds {} parts of '{}', which is made in {}", p.of, name(e.tensor), of));
          return;
        }
        of_pass = &found->second[static_cast<size_t>(p.k / of_pass->of)];
      }
      const Sums& sums = *of_pass;
      Nest nest{sums, {}};
      std::vector<const Sum*> parts;
      for (const Sum& s : sums.all) parts.push_back(&s);
      why.clear();
      for (const Summed& l : sums.levels) {
        auto& b = nest.bounds[l.level];
        b = bounds_of(parts, l.level);
        b.push_back(sums.shards[l.level].back());
        if (b.size() > 2 || sums.shards[l.level].size() > 2)
          why += fmt::format("{}the parts {} of the {} follow the shards {}",
                             why.empty() ? "" : ", ", text(b), l.what, text(sums.shards[l.level]));
      }
      tree = nest.is_tree(0, 0, static_cast<size_t>(sums.of));
    }
    const auto canonical = tree ? Exchange::Order::kTree : Exchange::Order::kRank;
    if (e.order != canonical)
      faults_.in_exchange(
          id, "order",
          fmt::format(
              "records order={}; its parts are {} of the canonical tree, so the order is {} "
              "({})",
              exchange_order_name(e.order), tree ? "subtrees" : "no subtrees",
              exchange_order_name(canonical), why));
  }

  // The nest of trees by which one device adds: at each level a balanced tree over the canonical
  // shards, whose leaves are the whole nest of the inner levels.
  struct Nest {
    const Sums& sums;
    std::array<std::vector<int64_t>, kLevels> bounds;  // of the parts, by level

    size_t parts(size_t level) const { return bounds[sums.levels[level].level].size() - 1; }

    // Whether the balanced tree over the parts [k, k + n), which are all of this level and those
    // inside, is the nest above the parts.
    bool is_tree(size_t level, size_t k, size_t n) const {
      if (level == sums.levels.size()) return true;
      const Level l = sums.levels[level].level;
      return subtrees(level, k, n, 0, parts(level), 0, sums.shards[l].size() - 1);
    }

    // The same of the parts [p, q) of this level, which should be the shards [lo, hi).
    bool subtrees(size_t level, size_t k, size_t n, size_t p, size_t q, size_t lo,
                  size_t hi) const {
      const Level l = sums.levels[level].level;
      const auto& b = bounds[l];
      const auto& shards = sums.shards[l];
      if (b[p] != shards[lo] || b[q] != shards[hi]) return false;
      if (n == 1) return true;
      if (q - p == 1) return hi - lo == 1 && is_tree(level + 1, k, n);
      if (hi - lo == 1) return false;
      const size_t shard = lo + (hi - lo) / 2;
      const auto middle =
          static_cast<size_t>(std::lower_bound(b.begin(), b.end(), shards[shard]) - b.begin());
      const size_t half = (middle - p) * (n / (q - p));
      return half == n / 2 && subtrees(level, k, half, p, middle, lo, shard) &&
             subtrees(level, k + half, n - half, middle, q, shard, hi);
    }
  };

  const Plan& plan_;
  Faults& faults_;
  std::map<int, std::vector<Sums>> sums_;  // by tensor, a loss in passes has several
};

}  // namespace

void check_sums(const Plan& plan, Faults& faults) { SumCheck(plan, faults).run(); }

}  // namespace convnet
