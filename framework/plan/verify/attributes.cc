// Which attributes each operation has, of what kind and in what range.
#include <fmt/format.h>

#include <limits>
#include <span>
#include <string>
#include <variant>

#include "framework/plan/verify/faults.h"

namespace convnet {
namespace {

struct AttrRule {
  enum class Kind {
    kInteger,
    kReal,  // or an integer
    kWord,  // one of `words`
    kPair,  // two integers: rows, columns
    kList,  // at least one integer
    kCuts,  // at least two integers, rising
  };
  const char* name;
  Kind kind;
  double min = 0, max = 0;  // of each number
  const char* words = "";   // separated by spaces
  bool below_max = false;   // max itself is out
  bool optional = false;
};
using K = AttrRule::Kind;

constexpr double kMaxWindow = 65536;
constexpr double kMaxCount = 1 << 30;
constexpr double kMaxReal = 1e30;
constexpr double kMaxBatch = 16777216;
constexpr double kAnyInteger = std::numeric_limits<double>::infinity();

constexpr const char* kActs = "none relu tanh sigmoid";

constexpr AttrRule kConvWindow[] = {{"stride", K::kPair, 1, kMaxWindow},
                                    {"pad", K::kPair, 0, kMaxWindow},
                                    {"dilation", K::kPair, 1, kMaxWindow},
                                    {"groups", K::kInteger, 1, kMaxCount}};
constexpr AttrRule kAct[] = {{"act", K::kWord, 0, 0, kActs}};
constexpr AttrRule kRealAct[] = {{"act", K::kWord, 0, 0, "relu tanh sigmoid"}};
constexpr AttrRule kCuts[] = {{"cuts", K::kCuts, 0, kMaxBatch}};
constexpr AttrRule kActChan[] = {{"act", K::kWord, 0, 0, kActs},
                                 {"channel_cuts", K::kCuts, 0, kMaxCount, "", false, true}};
constexpr AttrRule kFilter[] = {{"filter_cuts", K::kCuts, 0, kMaxCount, "", false, true}};
constexpr AttrRule kClass[] = {{"class_cuts", K::kCuts, 0, kMaxCount, "", false, false}};
constexpr AttrRule kCuts3[] = {{"cuts", K::kCuts, 0, kMaxBatch},
                               {"row_cuts", K::kCuts, 0, kMaxCount, "", false, true},
                               {"column_cuts", K::kCuts, 0, kMaxCount, "", false, true}};
constexpr AttrRule kMetr[] = {{"cuts", K::kCuts, 0, kMaxBatch},
                              {"classes", K::kInteger, 1, kMaxCount}};
constexpr AttrRule kPool[] = {{"kernel", K::kPair, 1, kMaxWindow},
                              {"stride", K::kPair, 1, kMaxWindow},
                              {"pad", K::kPair, 0, kMaxWindow}};
constexpr AttrRule kLrn[] = {{"size", K::kInteger, 1, kMaxWindow},
                             {"alpha", K::kReal, 0, kMaxReal},
                             {"beta", K::kReal, 0, kMaxReal},
                             {"k", K::kReal, 0, kMaxReal}};
constexpr AttrRule kDropout[] = {{"rate", K::kReal, 0, 1, "", true},
                                 {"key", K::kInteger, -kAnyInteger, kAnyInteger},
                                 {"rows", K::kList, 0, kMaxBatch, "", false, true}};
constexpr AttrRule kTop[] = {{"top", K::kList, 1, kMaxCount}};
constexpr AttrRule kScale[] = {{"scale", K::kReal, 0, kMaxReal}};
constexpr AttrRule kUpdate[] = {{"rate", K::kReal, 0, kMaxReal},
                                {"decay", K::kReal, 0, kMaxReal},
                                {"momentum", K::kReal, 0, 1, "", true},
                                {"scale", K::kReal, 0, kMaxReal, "", false, true}};
constexpr AttrRule kId[] = {{"id", K::kInteger, 0, kMaxCount}};

// Two tables at most make up an operation's attributes.
struct OpAttrs {
  std::span<const AttrRule> first, second;
};

OpAttrs attrs_of(Op op) {
  switch (op) {
    case Op::kConvFwd:
      return {kConvWindow, kActChan};
    case Op::kConvBwdData:
      return {kConvWindow, kFilter};
    case Op::kConvBwdWeight:
      return {kConvWindow, kCuts3};
    case Op::kFcFwd:
      return {kActChan, {}};
    case Op::kBiasFwd:
      return {kAct, {}};
    case Op::kBiasBwd:
      return {kCuts3, {}};
    case Op::kSoftmaxStats:
    case Op::kSoftmaxNorm:
      return {kClass, {}};
    case Op::kSoftmaxMetrics:
      return {kTop, kMetr};
    case Op::kFcBwdData:
      return {kFilter, {}};
    case Op::kFcBwdWeight:
      return {kCuts, {}};
    case Op::kPoolMaxFwd:
    case Op::kPoolMaxBwd:
    case Op::kPoolAvgFwd:
    case Op::kPoolAvgBwd:
      return {kPool, {}};
    case Op::kActFwd:
    case Op::kActBwd:
      return {kRealAct, {}};
    case Op::kLrnFwd:
    case Op::kLrnBwd:
      return {kLrn, {}};
    case Op::kDropoutFwd:
    case Op::kDropoutBwd:
      return {kDropout, {}};
    case Op::kConcatFwd:
    case Op::kConcatBwd:
    case Op::kRowsJoin:
    case Op::kSum:
      return {};
    case Op::kAdd:
      return {kAct, {}};
    case Op::kSoftmaxLossFwd:
      return {kTop, kCuts};
    case Op::kSoftmaxLossBwd:
      return {kScale, {}};
    case Op::kUpdateSgd:
      return {kUpdate, {}};
    case Op::kGuard:
      return {};
    case Op::kExchange:
      return {kId, {}};
  }
  return {};
}

// What is wrong with the value, or nothing.
std::string wrong(const AttrRule& rule, const Attrs::Value& value) {
  const auto out_of_range = [&](double v) {
    return !(v >= rule.min && (rule.below_max ? v < rule.max : v <= rule.max));
  };
  const auto range = [&](const std::string& v) {
    return fmt::format("is {}, must be at least {} and {} {}", v, rule.min,
                       rule.below_max ? "below" : "at most", rule.max);
  };
  const auto* integer = std::get_if<int64_t>(&value);
  const auto* real = std::get_if<double>(&value);
  const auto* word = std::get_if<std::string>(&value);
  const auto* list = std::get_if<std::vector<int64_t>>(&value);
  switch (rule.kind) {
    case K::kInteger:
      if (integer == nullptr) return "must be a whole number";
      return out_of_range(static_cast<double>(*integer)) ? range(std::to_string(*integer)) : "";
    case K::kReal: {
      if (integer == nullptr && real == nullptr) return "must be a number";
      const double v = integer != nullptr ? static_cast<double>(*integer) : *real;
      return out_of_range(v) ? range(fmt::format("{}", v)) : "";
    }
    case K::kWord:
      if (word == nullptr) return fmt::format("must be one of: {}", rule.words);
      return word->find(' ') == word->npos && !word->empty() &&
                     fmt::format(" {} ", rule.words).find(" " + *word + " ") != std::string::npos
                 ? ""
                 : fmt::format("is '{}', must be one of: {}", *word, rule.words);
    case K::kPair:
    case K::kList:
    case K::kCuts:
      break;
  }
  if (list == nullptr) return "must be a list of whole numbers";
  if (rule.kind == K::kPair && list->size() != 2)
    return fmt::format("has {} entries, must have 2", list->size());
  const size_t least = rule.kind == K::kCuts ? 2 : 1;
  if (list->size() < least) return fmt::format("has {} entries, needs {}", list->size(), least);
  for (size_t i = 0; i < list->size(); ++i) {
    const int64_t v = (*list)[i];
    if (out_of_range(static_cast<double>(v))) return range(fmt::format("{} at {}", v, i));
    if (rule.kind == K::kCuts && i > 0 && v <= (*list)[i - 1])
      return fmt::format("must rise, but {} follows {}", v, (*list)[i - 1]);
  }
  return "";
}

}  // namespace

void check_attrs(const Plan& plan, int device, int instr, Faults& faults) {
  const Instr& i = plan.devices[static_cast<size_t>(device)].instrs[static_cast<size_t>(instr)];
  const OpAttrs rules = attrs_of(i.op);
  size_t known = 0;
  for (const auto& table : {rules.first, rules.second})
    for (const AttrRule& rule : table) {
      const Attrs::Value* value = i.attrs.find(rule.name);
      if (value == nullptr) {
        if (rule.optional) continue;
        faults.in_instr(device, instr, "attribute", fmt::format("has no '{}'", rule.name));
        continue;
      }
      ++known;
      const std::string what = wrong(rule, *value);
      if (!what.empty())
        faults.in_instr(device, instr, "attribute", fmt::format("'{}' {}", rule.name, what));
    }
  if (i.attrs.all().size() == known) return;
  for (const auto& [name, value] : i.attrs.all()) {
    bool listed = false;
    for (const auto& table : {rules.first, rules.second})
      for (const AttrRule& rule : table) listed |= name == rule.name;
    if (!listed)
      faults.in_instr(device, instr, "attribute",
                      fmt::format("has '{}', which this operation does not know", name));
  }
}

}  // namespace convnet
