// One instruction with its operands, made by hand and run on any backend. Every run also checks
// what must hold for all kernels: memory outside the results' boxes unchanged, operands unchanged,
// results written in full; what lies in a buffer beside an operand's box is poison.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "framework/backends/backend.h"

namespace convnet::kernels {

// Values of a logical tensor, row-major.
struct Array {
  Shape shape;
  std::vector<double> values;

  Array() = default;
  explicit Array(const Shape& s, double value = 0)
      : shape(s), values(static_cast<size_t>(s.count()), value) {}
  double& at(int64_t a, int64_t b = 0, int64_t c = 0, int64_t d = 0);
  double at(int64_t a, int64_t b = 0, int64_t c = 0, int64_t d = 0) const;
};

// Calls f(position) with the row-major position in a tensor of `shape` of every element of `box`.
void for_each_position(const Shape& shape, const Box& box, const std::function<void(size_t)>& f);

struct Slot {
  enum class Kind { kReal, kLabel, kMetrics };  // in the engine's type, i32, f64
  std::string name;
  Kind kind = Kind::kReal;
  Format format = Format::kBlocked;
  Array data;  // operands: the values; results: only the shape is used
  Box box, stored;
  int alias = -1;             // results: lies in the memory of this operand
  bool may_be_nan = false;    // results: else NaN counts as not written
  std::vector<int64_t> rows;  // which examples it holds, if not all of the batch
};

struct Case {
  Op op = Op::kAdd;
  Attrs attrs;
  std::vector<Slot> in, out;
  int64_t step = 0;
  double rate = 1;
  uint64_t seed = 1;

  // Each adds a slot whose box and memory are the whole tensor.
  Slot& activation(std::string name, Array values);
  Slot& parameter(std::string name, Array values);
  Slot& label(Array values);
  Slot& result(std::string name, const Shape& shape, Format format = Format::kBlocked);
  Slot& metrics(int64_t count);

  std::string str() const;  // in one line
};

struct Engine {
  std::string name;
  DType dtype;
  std::shared_ptr<Backend> backend;
  bool is_reference;
};

// All that this machine can run: the reference in f32 and f64, the cpu backend per instruction set.
const std::vector<Engine>& engines();
const Engine& reference(DType dtype);
std::vector<Engine> cpu_engines();

struct Outcome {
  std::vector<Array> out;  // of the results' logical shapes; NaN outside the box
  bool stop = false;
  Status bound;  // why the backend has no kernel for it; then `out` is empty
};

// Fails the test if the kernel breaks a rule; a refusal is only returned.
Outcome try_run(const Case& c, const Engine& engine, int threads = 1);
// The same; a refusal fails the test too.
std::vector<Array> run(const Case& c, const Engine& engine, int threads = 1);

// Equal values inside the box (of an array's whole if not given); zeros of either sign are equal.
void expect_equal(const Array& got, const Array& want, const Box& box, const std::string& what);
void expect_equal(const Array& got, const Array& want, const std::string& what);
// Equal bits.
void expect_same_bits(const Array& got, const Array& want, const std::string& what);
// |got - want| <= bound element by element.
void expect_near(const Array& got, const Array& want, const Array& bound, const std::string& what);

// A source of cases. The environment's CONVNET_KERNEL_SEED, if there is one, gives other cases.
class Rng : public std::mt19937_64 {
 public:
  explicit Rng(uint64_t seed);
};
int64_t pick(Rng& rng, std::initializer_list<int64_t> choices);
int64_t between(Rng& rng, int64_t lo, int64_t hi);  // both included

// Integers in [-3, 3], or floats (exact in f32) of magnitude up to about 2.
enum class Fill { kIntegers, kFloats };
Array random_array(Rng& rng, const Shape& shape, Fill fill);

}  // namespace convnet::kernels
