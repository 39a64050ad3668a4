// If this fails, a plan cannot be printed, stored, compared or read back, or a damaged file crashes
// us.
#include <clocale>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "tests/plan/plan_files.h"

namespace convnet {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(PlanText, FilesPrintAsTheyStand) {
  for (const std::string name : {"train_1_device", "train_2_devices", "loss_on_1_of_2", "branches",
                                 "mixed_3_devices", "test_1_device"}) {
    const std::string text = plan_text(name);
    EXPECT_EQ(print_plan(parsed(text)), text) << name;
  }
}

// Plans that make no sense, but use everything that a plan can say.
class RandomPlan {
 public:
  explicit RandomPlan(uint64_t seed) : random_(seed) {}

  Plan make() {
    Plan p;
    p.model = name();
    p.source = name();
    p.phase = below(2) ? Plan::Phase::kTrain : Plan::Phase::kTest;
    p.dtype = static_cast<DType>(below(3));
    p.batch = integer();
    p.seed = random_();
    p.shards = list();
    for (int n = below(4); n > 0; --n)
      p.layers.push_back({unique(), name(), static_cast<int>(integer() % 100000)});
    for (int n = 1 + below(6); n > 0; --n) {
      const auto kind = static_cast<TensorKind>(below(6));
      const auto format = static_cast<Format>(below(2));
      p.tensors.push_back({unique(), kind, static_cast<DType>(below(3)), format, shape(), attrs()});
    }
    for (int n = below(4); n > 0; --n) p.exchanges.push_back(exchange(p));
    for (int n = below(4); n > 0; --n) p.devices.push_back(device(p));
    return p;
  }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  int64_t integer() {
    switch (below(6)) {
      case 0:
        return std::numeric_limits<int64_t>::max();
      case 1:
        return std::numeric_limits<int64_t>::min();
      case 2:
        return static_cast<int64_t>(random_());
      default:
        return below(1000) - 100;
    }
  }
  double real() {
    switch (below(6)) {
      case 0:
        return std::numeric_limits<double>::infinity();
      case 1:
        return -0.0;
      case 2:
        return std::numeric_limits<double>::denorm_min();
      case 3:
        return below(100);
      default: {
        double v;
        const uint64_t bits = random_();
        std::memcpy(&v, &bits, sizeof v);
        return std::isnan(v) ? 0.1 : v;
      }
    }
  }
  std::string name() {
    static const std::vector<std::string> kOdd = {
        "",   "inf",  "nan", "1e5", "-3", "a b", "%x",       "a->b", "#",  "a\"b",
        "\\", "\n\t", "@",   "x:1", "-",  "0/1", "\x01\xff", "[1]",  "a=b"};
    if (below(3) == 0) return kOdd[static_cast<size_t>(below(static_cast<int>(kOdd.size())))];
    std::string s;
    for (int n = 1 + below(8); n > 0; --n) s += "abcXYZ019_./-"[below(13)];
    return s;
  }
  std::string unique() { return name() + "." + std::to_string(count_++); }
  std::vector<int64_t> list() {
    std::vector<int64_t> v;
    for (int n = below(4); n > 0; --n) v.push_back(integer());
    return v;
  }
  Attrs attrs() {
    Attrs a;
    for (int n = below(4); n > 0; --n) {
      switch (below(4)) {
        case 0:
          a.set(unique(), integer());
          break;
        case 1:
          a.set(unique(), real());
          break;
        case 2:
          a.set(unique(), name());
          break;
        default:
          a.set(unique(), list());
          break;
      }
    }
    return a;
  }
  Shape shape() {
    Shape s;
    for (int n = below(kMaxRank + 1); n > 0; --n) s.append(below(50));
    return s;
  }
  Box box() {
    Box b;
    for (int n = below(kMaxRank + 1); n > 0; --n) {
      const int lo = below(20);
      b.append(lo, lo + below(5));
    }
    return b;
  }
  Part part() { return {box(), below(3), 1 + below(3)}; }
  int layer(const Plan& p) { return below(static_cast<int>(p.layers.size()) + 1) - 1; }
  int tensor(const Plan& p) { return below(static_cast<int>(p.tensors.size())); }
  Exchange exchange(const Plan& p) {
    Exchange e;
    e.kind = static_cast<Exchange::Kind>(below(9));
    e.order = static_cast<Exchange::Order>(below(3));
    e.wire = static_cast<Wire>(below(kWires));
    e.tensor = tensor(p);
    if (below(3) == 0) e.into = tensor(p);
    for (int n = below(4); n > 0; --n) {
      e.group.push_back(below(100));
      e.from.push_back(part());
      e.to.push_back(below(2) ? part() : Part());
      if (below(3) == 0)  // the usual way to say "nothing"
        for (int i = p.tensors[static_cast<size_t>(e.tensor)].shape.rank(); i > 0; --i)
          e.to.back() = i == 1 ? e.to.back() : Part();
    }
    e.bytes = integer();
    e.edge = name();
    e.layer = layer(p);
    return e;
  }
  DevicePlan device(const Plan& p) {
    DevicePlan d;
    d.arena_bytes = integer();
    d.arena_bound = integer();
    for (int n = below(5); n > 0; --n) {
      const int t = tensor(p);
      Part q = part();
      if (below(2)) q = {Box(p.tensors[static_cast<size_t>(t)].shape), 0, 1};
      const auto region = static_cast<Buffer::Region>(below(3));
      const int64_t offset = below(2) ? integer() : -1;
      d.buffers.push_back({unique(), t, q, region, offset, integer()});
    }
    if (d.buffers.empty()) return d;
    for (int n = below(6); n > 0; --n) {
      Instr i;
      i.op = static_cast<Op>(below(static_cast<int>(Op::kExchange) + 1));
      for (int k = below(3); k > 0; --k) i.in.push_back(operand(d));
      for (int k = below(3); k > 0; --k) i.out.push_back(operand(d));
      i.attrs = attrs();
      i.layer = layer(p);
      d.instrs.push_back(i);
    }
    return d;
  }
  Operand operand(const DevicePlan& d) {
    const int b = below(static_cast<int>(d.buffers.size()));
    return {b, below(2) ? d.buffers[static_cast<size_t>(b)].part.box : box()};
  }

  std::mt19937_64 random_;
  int count_ = 0;
};

TEST(PlanText, EveryPlanReadsBackAsItself) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const Plan plan = RandomPlan(seed).make();
    const std::string text = print_plan(plan);
    const Result<Plan> back = parse_plan(text);
    ASSERT_TRUE(back.ok()) << "seed " << seed << ": " << back.status().message() << "\n" << text;
    ASSERT_TRUE(*back == plan) << "seed " << seed << "\n" << text << "\n---\n" << print_plan(*back);
    ASSERT_EQ(print_plan(*back), text) << "seed " << seed;
  }
}

TEST(PlanText, CommentsBlankLinesAndSpacesDoNotMatter) {
  const std::string text = plan_text("train_1_device");
  std::string loose = "# a comment before anything\n\n";
  for (char c : text) {
    if (c == '\n')
      loose += "  # \"end\r\n\n";
    else if (c == ' ')
      loose += " \t ";
    else
      loose += c;
  }
  EXPECT_TRUE(parsed(loose) == parsed(text));
}

TEST(PlanText, ReadsWithoutALineEndAtTheEnd) {
  std::string text = plan_text("train_1_device");
  text.pop_back();
  EXPECT_TRUE(parsed(text) == read_plan("train_1_device"));
}

TEST(PlanText, RealsDoNotDependOnTheLocale) {
  const char* before = std::setlocale(LC_ALL, nullptr);
  const std::string saved = before == nullptr ? "C" : before;
  for (const char* locale : {"de_DE.UTF-8", "fr_FR.UTF-8", "C.UTF-8"}) {
    std::setlocale(LC_ALL, locale);  // those that this machine has
    EXPECT_EQ(print_plan(read_plan("branches")), plan_text("branches")) << locale;
  }
  std::setlocale(LC_ALL, saved.c_str());
}

TEST(PlanText, TellsIntegersFromReals) {
  const std::string text = plan_text("branches");
  const Plan plan = parsed(edited(text, "alpha=0.1", "alpha=1.0"));
  const Plan other = parsed(edited(text, "alpha=0.1", "alpha=1"));
  EXPECT_FALSE(plan == other);
  EXPECT_THAT(print_plan(plan), HasSubstr("alpha=1.0 "));
  EXPECT_THAT(print_plan(other), HasSubstr("alpha=1 "));
}

// A plan that breaks its own rules must still print: it is what one looks at to find out why.
TEST(PlanText, PrintsBrokenReferences) {
  Plan plan = read_plan("train_2_devices");
  plan.devices[0].instrs[0].in[0].buffer = 1000;
  plan.devices[0].instrs[1].layer = 1000;
  plan.devices[0].buffers[0].tensor = -5;
  plan.exchanges[0].from.pop_back();
  const std::string text = print_plan(plan);
  EXPECT_THAT(text, HasSubstr("%?1000"));
  EXPECT_THAT(text, HasSubstr("@?1000"));
  EXPECT_FALSE(parse_plan(text).ok());
}

std::string error_of(const std::string& text) {
  const Result<Plan> plan = parse_plan(text);
  if (plan.ok()) return "no error";
  EXPECT_EQ(plan.status().code(), Code::kUsage);
  return plan.status().message();
}

TEST(PlanText, ErrorsNameLineAndColumn) {
  const std::string text = plan_text("train_1_device");
  EXPECT_EQ(error_of(""), "1:1: expected 'plan'");
  EXPECT_EQ(error_of(edited(text, "plan 1", "plan 2")),
            "1:6: version 2 of plans; this program reads version 1");
  EXPECT_EQ(error_of(edited(text, "batch 32", "batch many")),
            "6:7: expected the batch, a whole number");
  EXPECT_EQ(error_of(edited(text, "batch 32", "batch 99999999999999999999")),
            "6:7: the batch is out of range: 99999999999999999999");
  EXPECT_EQ(error_of(edited(text, "batch 32", "batch 32 33")), "6:10: the line should end here");
  EXPECT_EQ(error_of(edited(text, "phase train", "phase training")), "4:7: 'training' is no phase");
  EXPECT_EQ(error_of(edited(text, "layer pool1", "layer conv1")),
            "11:7: layer 'conv1' is declared twice");
  EXPECT_EQ(error_of(edited(text, "tensor label input", "tensor label imput")),
            "16:14: 'imput' is no kind of tensor");
  EXPECT_EQ(error_of(edited(text, "classes=3", "classes=3 classes=4")),
            "16:59: attribute 'classes' is given twice");
  EXPECT_EQ(error_of(edited(text, "std=0.25", "std=0.2.5")), "17:71: not a number: 0.2.5");
  EXPECT_EQ(error_of(edited(text, "conv.fwd %data", "conv.fwd %dada")), "63:13: no buffer 'dada'");
  EXPECT_EQ(error_of(edited(text, "conv.fwd", "conv.forward")),
            "63:3: 'conv.forward' begins no line of a plan");
  EXPECT_THAT(error_of(edited(text, "act=relu @conv1:7", "act=relu @conv1:8")),
              HasSubstr("layer 'conv1' is on line 7, not 8"));
  EXPECT_THAT(error_of(edited(text, "%data = data", "%data = data[0:32,5:3]")),
              HasSubstr("the range 5:3 must have 0 <= begin <= end"));
  EXPECT_THAT(error_of(edited(text, "source tiny.yaml", "source \"tiny.yaml")),
              StartsWith("3:8: the quote is not closed"));
  EXPECT_THAT(error_of(edited(text, "source tiny.yaml", "source \"ti\\qny\"")),
              StartsWith("3:11: an escape is one of"));
  EXPECT_THAT(error_of(edited(text, "[32,2,6,6]", "[1,1,1,1,1,1,1]")),
              HasSubstr("a shape has at most 6 extents, this one 7"));
  EXPECT_THAT(error_of(text + "device 0 arena=0 bound=0\n"),
              HasSubstr("device 0 where device 1 should follow"));
  EXPECT_THAT(error_of(text + "layer late type=conv line=1\n"),
              HasSubstr("a layer must stand before the first device"));
  EXPECT_THAT(error_of(text + "%late = data input bytes=0\n"),
              HasSubstr("buffers stand before the device's instructions"));
}

TEST(PlanText, ErrorsShowControlCharactersEscaped) {
  const std::string message =
      error_of(edited(plan_text("train_1_device"), "conv.fwd %data", "conv.fwd %\"\\x1b[2J\""));
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
}

TEST(PlanText, RefusesTooLargeATextBeforeReadingIt) {
  EXPECT_THAT(error_of(std::string((size_t{64} << 20) + 1, '#')), HasSubstr("more than the limit"));
}

// Neither the reader nor the verifier may crash on what comes out of a damaged file.
void survive(const std::string& text) {
  const Result<Plan> plan = parse_plan(text);
  if (!plan.ok()) {
    ASSERT_EQ(plan.status().code(), Code::kUsage);
    ASSERT_FALSE(plan.status().message().empty());
    return;
  }
  verify_plan(*plan);
  ASSERT_EQ(print_plan(parsed(print_plan(*plan))), print_plan(*plan));
}

TEST(PlanText, SurvivesEveryTruncation) {
  const std::string text = plan_text("train_1_device");
  for (size_t n = 0; n < text.size(); ++n) survive(text.substr(0, n));
}

TEST(PlanText, SurvivesRandomDamage) {
  std::mt19937_64 random(1);
  const std::string alphabet = "0123456789[]:,=%@-> \n\"#.abexz/";
  for (const std::string name : {"train_2_devices", "loss_on_1_of_2", "branches"}) {
    const std::string original = plan_text(name);
    for (int round = 0; round < 3000; ++round) {
      std::string text = original;
      for (auto edits = 1 + random() % 3; edits > 0; --edits) {
        const size_t at = random() % text.size();
        switch (random() % 5) {
          case 0:
            text[at] = static_cast<char>(random());
            break;
          case 1:
            text[at] = alphabet[random() % alphabet.size()];
            break;
          case 2:
            text.insert(at, 1, alphabet[random() % alphabet.size()]);
            break;
          case 3:
            text.erase(at, 1 + random() % 20);
            break;
          default:
            text.insert(at, text.substr(random() % text.size(), random() % 40));
            break;
        }
      }
      survive(text);
    }
  }
}

std::string example_of_the_format_page() {
  const std::string page = read_text("framework/plan/FORMAT.md");
  const size_t begin = page.find("```plan\n") + 8;
  return page.substr(begin, page.find("```", begin) - begin);
}

// Numbers changed to extremes, where sizes would overflow.
TEST(PlanText, SurvivesExtremeNumbers) {
  const std::string text = example_of_the_format_page();
  const auto is_digit = [&](size_t i) {
    return i < text.size() && text[i] >= '0' && text[i] <= '9';
  };
  for (size_t at = 0; at < text.size(); ++at) {
    if (!is_digit(at) || (at > 0 && is_digit(at - 1))) continue;
    size_t end = at;
    while (is_digit(end)) ++end;
    for (const char* n : {"0", "9223372036854775807", "4611686018427387904", "1099511627776"}) {
      std::string damaged = text;
      survive(damaged.replace(at, end - at, n));
    }
  }
}

TEST(PlanText, ExampleOfTheFormatPageIsAGoodPlan) {
  const std::string text = example_of_the_format_page();
  const Plan plan = parsed(text);
  EXPECT_EQ(fault_text(verify_plan(plan)), "");
  EXPECT_EQ(print_plan(plan), text);
}

// Every rule that the verifier names stands on the page, and no other.
TEST(PlanText, FormatPageListsTheRules) {
  const std::string page = read_text("framework/plan/FORMAT.md");
  for (const char* rule : {"header",
                           "shards",
                           "name",
                           "index",
                           "tensor",
                           "part",
                           "region",
                           "size",
                           "offset",
                           "arena",
                           "operands",
                           "operand-kind",
                           "attribute",
                           "box",
                           "phase",
                           "group",
                           "shape",
                           "coverage",
                           "complete",
                           "in-place",
                           "use-before-definition",
                           "written-twice",
                           "overlap",
                           "unused-buffer",
                           "partial",
                           "cover",
                           "pattern",
                           "bytes",
                           "wire",
                           "order",
                           "exchange-order",
                           "exchange-view",
                           "exchange-issue",
                           "deadlock",
                           "cuts",
                           "loss-coverage",
                           "guard",
                           "guard-order",
                           "updated-twice",
                           "read-after-update",
                           "stale",
                           "residency",
                           "one-definition",
                           "loss",
                           "gradient",
                           "gradient-incomplete",
                           "unused-gradient",
                           "dropout-key"})
    EXPECT_THAT(page, HasSubstr("| `" + std::string(rule) + "` |"));
}

}  // namespace
}  // namespace convnet
