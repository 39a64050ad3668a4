#include "tests/kernels/kernel_case.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>

#include "framework/backends/reference/reference.h"
#ifdef CONVNET_HAVE_CPU
#include "framework/backends/cpu/cpu.h"
#endif

namespace convnet::kernels {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kGuardBytes = 256;
constexpr unsigned char kGuardByte = 0xFF;  // NaN in f32 and f64, no example in labels

size_t position(const Shape& shape, const std::array<int64_t, kMaxRank>& index) {
  int64_t p = 0;
  for (int i = 0; i < shape.rank(); ++i) p = p * shape[i] + index[static_cast<size_t>(i)];
  return static_cast<size_t>(p);
}

// Calls f(position in the tensor, element of the buffer) for all elements of `stored`.
void for_each_stored(const Slot& slot, const std::function<void(size_t, size_t, bool in_box)>& f) {
  std::array<int64_t, kMaxRank> index{};
  const int rank = slot.stored.rank();
  const int64_t lanes = slot.format == Format::kBlocked ? kLanes : 1;
  const std::function<void(int, int64_t, bool)> walk = [&](int dim, int64_t element, bool inside) {
    if (dim == rank) {
      const int64_t n = index[0] - slot.stored.lo(0);
      f(position(slot.data.shape, index), static_cast<size_t>(element * lanes + n % lanes), inside);
      return;
    }
    for (int64_t i = slot.stored.lo(dim); i < slot.stored.hi(dim); ++i) {
      index[static_cast<size_t>(dim)] = i;
      const int64_t relative = i - slot.stored.lo(dim);
      walk(dim + 1, dim == 0 ? relative / lanes : element * slot.stored.extent(dim) + relative,
           inside && i >= slot.box.lo(dim) && i < slot.box.hi(dim));
    }
  };
  walk(0, 0, true);
}

DType slot_dtype(const Slot& slot, DType real) {
  switch (slot.kind) {
    case Slot::Kind::kReal:
      return real;
    case Slot::Kind::kLabel:
      return DType::kI32;
    case Slot::Kind::kMetrics:
      return DType::kF64;
  }
  return real;
}

void store(void* data, DType dtype, size_t i, double value) {
  switch (dtype) {
    case DType::kF32:
      static_cast<float*>(data)[i] = static_cast<float>(value);
      break;
    case DType::kF64:
      static_cast<double*>(data)[i] = value;
      break;
    case DType::kI32:
      static_cast<int32_t*>(data)[i] = static_cast<int32_t>(value);
      break;
  }
}

double load(const void* data, DType dtype, size_t i) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<const float*>(data)[i];
    case DType::kF64:
      return static_cast<const double*>(data)[i];
    case DType::kI32:
      return static_cast<const int32_t*>(data)[i];
  }
  return 0;
}

// Memory of one slot with guards on both sides.
class Memory {
 public:
  Memory(Backend& backend, const Slot& slot, DType dtype, bool operand)
      : backend_(backend), dtype_(dtype) {
    count_ = static_cast<size_t>(stored_count(slot.format, slot.stored));
    bytes_ = static_cast<int64_t>(count_) * dtype_size(dtype);
    auto memory = backend.allocate(2 * kGuardBytes + bytes_);
    EXPECT_TRUE(memory.ok());
    base_ = static_cast<unsigned char*>(*memory);
    std::memset(base_, kGuardByte, static_cast<size_t>(2 * kGuardBytes + bytes_));
    // Lanes past the last example may hold anything finite (labels: -1); what lies beside the box
    // in other dimensions must not be looked at. Results begin as poison everywhere.
    for (size_t i = 0; i < count_; ++i)
      store(data(), dtype, i, slot.kind == Slot::Kind::kLabel ? -1 : operand ? 77 : kNan);
    if (operand)
      for_each_stored(slot, [&](size_t at, size_t element, bool in_box) {
        const bool poison = !in_box && slot.kind != Slot::Kind::kLabel;
        store(data(), dtype, element, poison ? kNan : slot.data.values[at]);
      });
    before_.assign(base_, base_ + 2 * kGuardBytes + bytes_);
  }
  ~Memory() { backend_.free_memory(base_, 2 * kGuardBytes + bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void* data() const { return base_ + kGuardBytes; }
  DType dtype() const { return dtype_; }

  bool unchanged() const { return std::memcmp(base_, before_.data(), before_.size()) == 0; }
  bool guards_unchanged() const {
    const auto tail = static_cast<size_t>(kGuardBytes + bytes_);
    return std::memcmp(base_, before_.data(), kGuardBytes) == 0 &&
           std::memcmp(base_ + tail, before_.data() + tail, kGuardBytes) == 0;
  }
  bool element_unchanged(size_t i) const {
    const auto size = static_cast<size_t>(dtype_size(dtype_));
    return std::memcmp(base_ + kGuardBytes + i * size, before_.data() + kGuardBytes + i * size,
                       size) == 0;
  }

 private:
  Backend& backend_;
  DType dtype_;
  size_t count_ = 0;
  int64_t bytes_ = 0;
  unsigned char* base_ = nullptr;
  std::vector<unsigned char> before_;
};

ThreadTeam& team(int threads) {
  static std::map<int, std::unique_ptr<ThreadTeam>> teams;
  auto& t = teams[threads];
  if (!t) t = std::make_unique<ThreadTeam>(threads);
  return *t;
}

View view(const Slot& slot, const Memory& memory) {
  View v;
  v.data = memory.data();
  v.dtype = memory.dtype();
  v.format = slot.format;
  v.shape = slot.data.shape;
  v.stored = slot.stored;
  v.box = slot.box;
  v.rows = slot.rows;
  return v;
}

// A lane of a block that the box touches, but of no example of the box: may be written.
bool spare_lane(const Slot& slot, size_t at) {
  if (slot.format != Format::kBlocked) return false;
  int64_t inner = 1;
  for (int i = 1; i < slot.data.shape.rank(); ++i) inner *= slot.data.shape[i];
  const int64_t n = static_cast<int64_t>(at) / inner;
  const int64_t origin = slot.stored.lo(0);
  return (n < slot.box.lo(0) || n >= slot.box.hi(0)) &&
         (n - origin) / kLanes >= (slot.box.lo(0) - origin) / kLanes &&
         (n - origin) / kLanes <= (slot.box.hi(0) - 1 - origin) / kLanes;
}

Array read_result(const Slot& slot, const Memory& memory, const std::string& what) {
  Array result(slot.data.shape, kNan);
  int strays = 0, missing = 0;
  for_each_stored(slot, [&](size_t at, size_t element, bool in_box) {
    const double value = load(memory.data(), memory.dtype(), element);
    if (in_box) {
      result.values[at] = value;
      missing += std::isnan(value) && !slot.may_be_nan;
    } else if (!spare_lane(slot, at)) {
      strays += !memory.element_unchanged(element);
    }
  });
  EXPECT_EQ(strays, 0) << what << ": wrote beside the box of " << slot.name;
  EXPECT_EQ(missing, 0) << what << ": NaN or nothing written in " << slot.name;
  return result;
}

std::string attr_text(const Attrs::Value& value) {
  if (const auto* i = std::get_if<int64_t>(&value)) return std::to_string(*i);
  if (const auto* d = std::get_if<double>(&value)) return std::to_string(*d);
  if (const auto* w = std::get_if<std::string>(&value)) return *w;
  std::string s = "[";
  for (const int64_t i : std::get<std::vector<int64_t>>(value))
    s += (s.size() > 1 ? "," : "") + std::to_string(i);
  return s + "]";
}

}  // namespace

double& Array::at(int64_t a, int64_t b, int64_t c, int64_t d) {
  return values[position(shape, {a, b, c, d, 0, 0})];
}
double Array::at(int64_t a, int64_t b, int64_t c, int64_t d) const {
  return values[position(shape, {a, b, c, d, 0, 0})];
}

void for_each_position(const Shape& shape, const Box& box, const std::function<void(size_t)>& f) {
  Slot slot;
  slot.format = Format::kPlain;
  slot.data.shape = shape;
  slot.stored = slot.box = box;
  for_each_stored(slot, [&](size_t at, size_t, bool) { f(at); });
}

namespace {
Slot& add_slot(std::vector<Slot>& slots, std::string name, Slot::Kind kind, Format format,
               Array values) {
  Slot& slot = slots.emplace_back();
  slot.name = std::move(name);
  slot.kind = kind;
  slot.format = format;
  slot.box = slot.stored = Box(values.shape);
  slot.data = std::move(values);
  return slot;
}
}  // namespace

Slot& Case::activation(std::string name, Array values) {
  return add_slot(in, std::move(name), Slot::Kind::kReal, Format::kBlocked, std::move(values));
}
Slot& Case::parameter(std::string name, Array values) {
  return add_slot(in, std::move(name), Slot::Kind::kReal, Format::kPlain, std::move(values));
}
Slot& Case::label(Array values) {
  return add_slot(in, "label", Slot::Kind::kLabel, Format::kBlocked, std::move(values));
}
Slot& Case::result(std::string name, const Shape& shape, Format format) {
  return add_slot(out, std::move(name), Slot::Kind::kReal, format, Array(shape));
}
Slot& Case::metrics(int64_t count) {
  return add_slot(out, "metrics", Slot::Kind::kMetrics, Format::kPlain, Array(Shape{count}));
}

std::string Case::str() const {
  std::string s(op_info(op).text);
  const auto slots = [&](const std::vector<Slot>& list) {
    for (const Slot& slot : list) {
      s += " " + slot.name + Box(slot.data.shape).str();
      if (!(slot.box == Box(slot.data.shape))) s += " box" + slot.box.str();
      if (!(slot.stored == slot.box)) s += " in" + slot.stored.str();
      if (slot.alias >= 0) s += " at operand " + std::to_string(slot.alias);
    }
  };
  slots(in);
  s += " ->";
  slots(out);
  for (const auto& [name, value] : attrs.all()) s += " " + name + "=" + attr_text(value);
  return s;
}

const std::vector<Engine>& engines() {
  static const std::vector<Engine> all = [] {
    const std::shared_ptr<Backend> reference_backend = make_reference_backend();
    std::vector<Engine> list{{"reference f32", DType::kF32, reference_backend, true},
                             {"reference f64", DType::kF64, reference_backend, true}};
#ifdef CONVNET_HAVE_CPU
    for (const CpuIsa isa : {CpuIsa::kAvx2, CpuIsa::kAvx512})
      if (cpu_supports(isa)) {
        const std::shared_ptr<Backend> backend = make_cpu_backend(isa);
        list.push_back({backend->name(), DType::kF32, backend, false});
      }
#endif
    return list;
  }();
  return all;
}

const Engine& reference(DType dtype) { return engines()[dtype == DType::kF32 ? 0 : 1]; }

std::vector<Engine> cpu_engines() { return {engines().begin() + 2, engines().end()}; }

Outcome try_run(const Case& c, const Engine& engine, int threads) {
  const std::string what = c.str() + " on " + engine.name + ", threads " + std::to_string(threads);
  Backend& backend = *engine.backend;
  std::vector<std::unique_ptr<Memory>> in, out;
  Instr instr;
  instr.op = c.op;
  instr.attrs = c.attrs;
  StepState state;
  state.step = c.step;
  state.rate = c.rate;
  state.seed = c.seed;
  Binding binding{instr, {}, {}, state, team(threads)};
  for (const Slot& slot : c.in) {
    in.push_back(std::make_unique<Memory>(backend, slot, slot_dtype(slot, engine.dtype), true));
    binding.in.push_back(view(slot, *in.back()));
  }
  for (const Slot& slot : c.out) {
    out.push_back(std::make_unique<Memory>(backend, slot, slot_dtype(slot, engine.dtype), false));
    const auto& memory = slot.alias < 0 ? out.back() : in[static_cast<size_t>(slot.alias)];
    binding.out.push_back(view(slot, *memory));
  }
  Outcome outcome;
  auto kernel = backend.bind(binding);
  if (!kernel.ok()) {
    outcome.bound = kernel.status();
    return outcome;
  }
  (*kernel)->run();
  std::vector<bool> shared(c.in.size());
  for (size_t i = 0; i < c.out.size(); ++i) {
    const int alias = c.out[i].alias;
    if (alias >= 0) shared[static_cast<size_t>(alias)] = true;
    const Memory& memory = alias < 0 ? *out[i] : *in[static_cast<size_t>(alias)];
    EXPECT_TRUE(memory.guards_unchanged()) << what << ": wrote around " << c.out[i].name;
    outcome.out.push_back(read_result(c.out[i], memory, what));
  }
  for (size_t i = 0; i < c.in.size(); ++i)
    EXPECT_TRUE(shared[i] || in[i]->unchanged()) << what << ": changed " << c.in[i].name;
  outcome.stop = state.stop;
  return outcome;
}

std::vector<Array> run(const Case& c, const Engine& engine, int threads) {
  Outcome outcome = try_run(c, engine, threads);
  EXPECT_TRUE(outcome.bound.ok()) << c.str() << " on " << engine.name << ": "
                                  << outcome.bound.message();
  if (!outcome.bound.ok())
    for (const Slot& slot : c.out) outcome.out.emplace_back(slot.data.shape, kNan);
  return std::move(outcome.out);
}

namespace {
void expect_identical(const Array& got, const Array& want, const Box& box, bool signs_of_zero,
                      const std::string& what) {
  ASSERT_EQ(got.shape, want.shape) << what;
  int wrong = 0;
  size_t first = 0;
  for_each_position(got.shape, box, [&](size_t i) {
    if (std::memcmp(&got.values[i], &want.values[i], sizeof(double)) == 0) return;
    if (!signs_of_zero && got.values[i] == 0 && want.values[i] == 0) return;
    if (wrong++ == 0) first = i;
  });
  if (wrong > 0)
    ADD_FAILURE() << what << ": " << wrong << " of " << box.count() << " differ, first element "
                  << first << " of " << got.shape.str() << ": " << got.values[first]
                  << " instead of " << want.values[first];
}
}  // namespace

void expect_equal(const Array& got, const Array& want, const Box& box, const std::string& what) {
  expect_identical(got, want, box, false, what);
}

void expect_equal(const Array& got, const Array& want, const std::string& what) {
  expect_identical(got, want, Box(got.shape), false, what);
}

void expect_same_bits(const Array& got, const Array& want, const std::string& what) {
  expect_identical(got, want, Box(got.shape), true, what);
}

void expect_near(const Array& got, const Array& want, const Array& bound, const std::string& what) {
  ASSERT_EQ(got.shape, want.shape) << what;
  for (size_t i = 0; i < got.values.size(); ++i)
    if (!(std::fabs(got.values[i] - want.values[i]) <= bound.values[i])) {
      ADD_FAILURE() << what << ": element " << i << " of " << got.shape.str() << " is "
                    << got.values[i] << " instead of " << want.values[i] << ", off by "
                    << std::fabs(got.values[i] - want.values[i]) << ", bound " << bound.values[i];
      return;
    }
}

Rng::Rng(uint64_t seed) : std::mt19937_64(seed) {
  const char* other = std::getenv("CONVNET_KERNEL_SEED");
  if (other != nullptr) this->seed(seed + 1'000'003 * std::strtoull(other, nullptr, 10));
}

int64_t pick(Rng& rng, std::initializer_list<int64_t> choices) {
  return choices.begin()[rng() % choices.size()];
}

int64_t between(Rng& rng, int64_t lo, int64_t hi) {
  return lo + static_cast<int64_t>(rng() % static_cast<uint64_t>(hi - lo + 1));
}

Array random_array(Rng& rng, const Shape& shape, Fill fill) {
  Array a(shape);
  for (double& v : a.values)
    v = fill == Fill::kIntegers ? static_cast<double>(between(rng, -3, 3))
                                : static_cast<double>(between(rng, -(1 << 23), 1 << 23)) * 0x1p-22;
  return a;
}

}  // namespace convnet::kernels
