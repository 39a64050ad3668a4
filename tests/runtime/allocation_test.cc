// If this fails, steps allocate memory: they may then fail in the middle of a run, and slow down as
// the heap fragments.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "framework/backends/reference/reference.h"
#include "framework/plan/cost.h"
#include "framework/runtime/session.h"
#include "tests/runtime/fc_plan.h"
#include "tests/runtime/synthetic_batches.h"

namespace {

std::atomic<int64_t> g_others{0};  // allocations of threads other than the one that tests
std::atomic<int64_t> g_mine{0};
thread_local bool t_tests = false;

void* counted(std::size_t bytes) {
  (t_tests ? g_mine : g_others).fetch_add(1, std::memory_order_relaxed);
  void* memory = std::malloc(bytes > 0 ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes); }
void* operator new[](std::size_t bytes) { return counted(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace convnet {
namespace {

TEST(Step, DevicesAllocateNothing) {
  t_tests = true;
  SessionOptions options;
  options.backend = [](int) { return Result<std::unique_ptr<Backend>>(make_reference_backend()); };
  options.threads = 2;
  for (const auto& [devices, wire] :
       {std::pair{1, Wire::kF32}, {3, Wire::kF32}, {3, Wire::kU8Tree}}) {
    FcNet net;
    net.hidden = 90;
    net.features = 60;  // gradients large enough for the two-phase all-reduce
    Plan plan = FcPlan::train(net, devices);
    for (Exchange& e : plan.exchanges) {
      const Tensor& tensor = plan.tensors[static_cast<size_t>(e.tensor)];
      if (tensor.dtype != DType::kF32 || tensor.kind != TensorKind::kGradient) continue;
      e.wire = wire;
      e.bytes = wire_bytes(e, tensor, tensor);
    }
    auto session = Session::create(plan, options);
    ASSERT_TRUE(session.ok());
    (*session)->initialise();
    SyntheticBatches data(1000, net.batch, net.features, net.classes, true);
    const Batch batch = **data.get(0);
    const int64_t others = g_others.load();
    ASSERT_TRUE((*session)->run(batch, 0, 0.1).ok());
    EXPECT_EQ(g_others.load(), others);
    // The caller gets metrics: a list, and two lists in its one entry; a copy on the way at most.
    const int64_t mine = g_mine.load();
    for (int64_t step = 1; step < 4; ++step) ASSERT_TRUE((*session)->run(batch, step, 0.1)->finite);
    EXPECT_EQ(g_others.load(), others);
    EXPECT_LE(g_mine.load() - mine, 3 * 8);
  }
}

}  // namespace
}  // namespace convnet
