// If this fails, devices compute with values that are not those the plan says they exchanged, or
// their sums depend on where the summands lie.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <thread>
#include <type_traits>
#include <vector>

#include "framework/comm/communicator.h"
#include "tests/comm/exchange_case.h"

namespace convnet {
namespace {

enum class Memory {
  kApart,    // operands and results in buffers of their own
  kInPlace,  // the operand is a box of the buffer of the result (or the other way round)
  kShifted,  // the result's memory begins inside the operand's: nothing lines up
};

// Runs one exchange on as many threads as it has members, and checks every element of every result.
template <typename T>
void check(Exchange exchange, const Tensor& tensor, Memory memory = Memory::kApart) {
  constexpr DType kType = std::is_same_v<T, float>    ? DType::kF32
                          : std::is_same_v<T, double> ? DType::kF64
                                                      : DType::kI32;
  Plan plan;
  plan.tensors.push_back(tensor);
  plan.tensors[0].dtype = kType;
  const size_t members = exchange.group.size();
  plan.devices.resize(
      static_cast<size_t>(*std::max_element(exchange.group.begin(), exchange.group.end())) + 1);
  plan.exchanges.push_back(exchange);
  auto communicators = local_communicators(plan);
  ASSERT_EQ(communicators.size(), plan.devices.size());

  const T untouched = static_cast<T>(-12345);
  std::vector<std::vector<T>> in_memory(members), out_memory(members);
  std::vector<View> in(members), out(members);
  std::vector<std::unique_ptr<Kernel>> kernels(members);
  for (size_t m = 0; m < members; ++m) {
    const Part& from = exchange.from[m];
    const Part& to = exchange.to[m];
    Box in_stored = from.box, out_stored = to.box;
    if (memory == Memory::kInPlace) {
      if (out_stored.empty() || in_stored.contains(out_stored)) out_stored = in_stored;
      if (in_stored.empty() || out_stored.contains(in_stored)) in_stored = out_stored;
      ASSERT_TRUE(in_stored == out_stored);
    } else if (memory == Memory::kApart) {
      // Buffers that hold more than the boxes.
      if (!in_stored.empty()) in_stored = Box(tensor.shape);
    }
    const auto in_count = static_cast<size_t>(stored_count(tensor.format, in_stored));
    const auto out_count = static_cast<size_t>(stored_count(tensor.format, out_stored));
    in_memory[m].assign(in_count + out_count + 3, untouched);
    out_memory[m].assign(out_count, untouched);
    T* in_data = in_memory[m].data();
    T* out_data = out_memory[m].data();
    if (memory == Memory::kInPlace) out_data = in_data;
    if (memory == Memory::kShifted) out_data = in_data + 3;
    each_element(tensor, in_stored, from.box, [&](int64_t logical, int64_t place) {
      in_data[place] = value<T>(logical, from.k);
    });
    in[m] = {in_data, kType, tensor.format, tensor.shape, in_stored, from.box, from.k};
    out[m] = {out_data, kType, tensor.format, tensor.shape, out_stored, to.box, 0};
    if (from.box.empty() && to.box.empty()) continue;  // takes no part
    auto kernel = communicators[static_cast<size_t>(exchange.group[m])]->bind(0, in[m], out[m]);
    ASSERT_TRUE(kernel.ok()) << kernel.status().message();
    kernels[m] = *std::move(kernel);
  }

  const int repeats = memory == Memory::kApart ? 2 : 1;
  std::vector<std::thread> threads;
  for (size_t m = 0; m < members; ++m)
    threads.emplace_back([&, m] {
      for (int r = 0; r < repeats && kernels[m] != nullptr; ++r) kernels[m]->run();
    });
  for (std::thread& t : threads) t.join();

  int of = 1;
  for (const Part& from : exchange.from) of = std::max(of, from.of);
  for (size_t m = 0; m < members; ++m) {
    std::vector<bool> written(static_cast<size_t>(stored_count(tensor.format, out[m].stored)),
                              false);
    int64_t wrong = 0;
    const T* data = static_cast<const T*>(out[m].data);
    each_element(tensor, out[m].stored, out[m].box, [&](int64_t logical, int64_t place) {
      written[static_cast<size_t>(place)] = true;
      const T expected = exchange.order == Exchange::Order::kRank ? rank_sum<T>(logical, of)
                                                                  : tree_sum<T>(logical, 0, of);
      wrong += data[place] != expected;
    });
    EXPECT_EQ(wrong, 0) << exchange_kind_name(exchange.kind) << " of " << tensor.shape.str()
                        << ", member " << m << " of " << members;
    if (memory != Memory::kApart || tensor.format != Format::kPlain) continue;
    int64_t stray = 0;
    for (size_t i = 0; i < written.size(); ++i) stray += !written[i] && data[i] != untouched;
    EXPECT_EQ(stray, 0);
  }
}

TEST(LocalExchange, EveryKindAndGroupSizeIsTheSerialResult) {
  const Tensor tensors[] = {tensor_of({1}, Format::kPlain),
                            tensor_of({15}, Format::kPlain),
                            tensor_of({16}, Format::kPlain),
                            tensor_of({17}, Format::kPlain),
                            tensor_of({9, 33}, Format::kPlain),
                            tensor_of({6, 5, 3, 2}, Format::kPlain),
                            tensor_of({11, 1031}, Format::kPlain),
                            tensor_of({40, 6, 3, 5}, Format::kBlocked),
                            tensor_of({128, 7, 5, 3}, Format::kBlocked),
                            tensor_of({100}, Format::kBlocked)};
  for (const Tensor& t : tensors) {
    for (int members : {1, 2, 3, 4, 5}) {
      for (Exchange::Kind kind : kKinds) {
        for (int dim = 0; dim < std::min(2, t.shape.rank()); ++dim) {
          check<float>(make(kind, t, members, dim, Exchange::Order::kTree), t);
          check<double>(make(kind, t, members, dim, Exchange::Order::kRank), t);
        }
        check<int32_t>(make(kind, t, members, 0, Exchange::Order::kTree), t);
      }
    }
  }
}

TEST(LocalExchange, EightDevices) {
  const Tensor weights = tensor_of({64, 577}, Format::kPlain);
  const Tensor values = tensor_of({256, 3, 4, 4}, Format::kBlocked);
  for (Exchange::Kind kind : kKinds) {
    check<float>(make(kind, weights, 8, 0, Exchange::Order::kTree), weights);
    check<float>(make(kind, values, 8, 0, Exchange::Order::kTree), values);
  }
}

// Nobody overwrites what others still read.
TEST(LocalExchange, InPlace) {
  for (const Tensor& t : {tensor_of({7, 9}, Format::kPlain), tensor_of({30, 1031}, Format::kPlain),
                          tensor_of({80, 5, 3, 3}, Format::kBlocked)}) {
    for (int members : {2, 3, 5, 8}) {
      for (Exchange::Kind kind :
           {Exchange::Kind::kAllGather, Exchange::Kind::kReduceScatter, Exchange::Kind::kAllReduce,
            Exchange::Kind::kBroadcast, Exchange::Kind::kReduce, Exchange::Kind::kGather,
            Exchange::Kind::kScatter}) {
        for (int repeat = 0; repeat < 5; ++repeat)
          check<float>(make(kind, t, members, 0, Exchange::Order::kTree), t, Memory::kInPlace);
      }
    }
  }
}

TEST(LocalExchange, ResultOverlapsOperandOutOfStep) {
  for (const Tensor& t :
       {tensor_of({12, 9}, Format::kPlain), tensor_of({30, 1031}, Format::kPlain)})
    for (int members : {2, 3, 5})
      for (Exchange::Kind kind : kKinds)
        check<float>(make(kind, t, members, 0, Exchange::Order::kTree), t, Memory::kShifted);
}

// Rows with a border of the neighbours' rows: boxes that overlap, of which one complete source is
// taken.
TEST(LocalExchange, Halo) {
  const Tensor t = tensor_of({32, 3, 13, 5}, Format::kBlocked);
  for (int members : {2, 3, 4}) {
    Exchange e;
    for (int m = 0; m < members; ++m) {
      const Box rows = split(t, 2, m, members);
      Box wide = rows;
      wide.set(2, std::max<int64_t>(0, rows.lo(2) - 2), std::min<int64_t>(13, rows.hi(2) + 3));
      e.group.push_back(m);
      e.from.push_back({rows, 0, 1});
      e.to.push_back({wide, 0, 1});
    }
    check<float>(e, t);
  }
}

// Partial sums that cover part of the tensor only: where one is missing, it adds nothing.
TEST(LocalExchange, PartialSumsOfDifferentBoxes) {
  Plan plan;
  plan.tensors.push_back(tensor_of({8}, Format::kPlain));
  plan.devices.resize(3);
  Exchange e;
  const std::pair<int64_t, int64_t> ranges[] = {{0, 5}, {3, 8}, {4, 4}};
  for (int m = 0; m < 3; ++m) {
    Box from, to;
    from.append(ranges[m].first, ranges[m].second);
    to.append(0, m == 0 ? 8 : 0);
    e.group.push_back(m);
    e.from.push_back({from, m, 3});
    e.to.push_back({to, 0, 1});
  }
  e.order = Exchange::Order::kTree;
  plan.exchanges.push_back(e);
  auto communicators = local_communicators(plan);
  std::vector<std::vector<float>> in = {{1, 2, 3, 4, 5}, {10, 20, 30, 40, 50}};
  std::vector<float> out(8, -1);
  std::vector<std::unique_ptr<Kernel>> kernels;
  // The third device has nothing and wants nothing.
  EXPECT_EQ(communicators[2]->bind(0, View(), View()).status().message(),
            "exchange 0 has no part for device 2");
  for (size_t m = 0; m < 2; ++m) {
    const View from{in[m].data(),  DType::kF32,   Format::kPlain,     Shape{8},
                    e.from[m].box, e.from[m].box, static_cast<int>(m)};
    const View to{out.data(), DType::kF32, Format::kPlain, Shape{8}, e.to[m].box, e.to[m].box, 0};
    auto kernel = communicators[m]->bind(0, from, to);
    ASSERT_TRUE(kernel.ok()) << kernel.status().message();
    kernels.push_back(*std::move(kernel));
  }
  std::vector<std::thread> threads;
  for (auto& kernel : kernels) threads.emplace_back([&] { kernel->run(); });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(out, (std::vector<float>{1, 2, 3, 14, 25, 30, 40, 50}));
}

Status bind_all(const Exchange& e, const Tensor& t) {
  Plan plan;
  plan.tensors.push_back(t);
  plan.devices.resize(e.group.size());
  plan.exchanges.push_back(e);
  auto communicators = local_communicators(plan);
  static std::vector<float> memory(1 << 16);
  for (size_t m = 0; m < e.group.size(); ++m) {
    const View from{memory.data(), DType::kF32,   t.format,   t.shape,
                    e.from[m].box, e.from[m].box, e.from[m].k};
    const View to{memory.data(), DType::kF32, t.format, t.shape, e.to[m].box, e.to[m].box, 0};
    auto kernel = communicators[static_cast<size_t>(e.group[m])]->bind(0, from, to);
    if (!kernel.ok()) return kernel.status();
  }
  return Status();
}

TEST(LocalExchange, RefusesWhatItCannotDo) {
  const Tensor t = tensor_of({8}, Format::kPlain);
  Exchange hole = make(Exchange::Kind::kAllGather, t, 2, 0, Exchange::Order::kNone);
  hole.from[0].box.set(0, 0, 3);
  EXPECT_EQ(bind_all(hole, t).message(),
            "exchange 0 (test): no device holds [3:4] of 't', which device 1 is to get");

  const Tensor blocked = tensor_of({64, 2}, Format::kBlocked);
  Exchange torn = make(Exchange::Kind::kAllGather, blocked, 2, 0, Exchange::Order::kNone);
  torn.from[0].box.set(0, 0, 40);
  torn.from[1].box.set(0, 40, 64);
  EXPECT_EQ(
      bind_all(torn, blocked).message(),
      "exchange 0 (test): the operand on device 1, [0:40,0:2], does not cut the batch at multiples "
      "of 16 examples");
  EXPECT_TRUE(bind_all(make(Exchange::Kind::kAllGather, t, 64, 0, Exchange::Order::kNone), t).ok());
  EXPECT_EQ(bind_all(make(Exchange::Kind::kAllGather, t, 65, 0, Exchange::Order::kNone), t).code(),
            Code::kLimit);
}

TEST(LocalCommunicator, AbortEndsAnExchangeThatWaits) {
  const Tensor t = tensor_of({8}, Format::kPlain);
  const Exchange e = make(Exchange::Kind::kAllReduce, t, 2, 0, Exchange::Order::kTree);
  Plan plan;
  plan.tensors.push_back(t);
  plan.devices.resize(2);
  plan.exchanges.push_back(e);
  auto communicators = local_communicators(plan);
  std::vector<float> memory(32);
  std::vector<std::unique_ptr<Kernel>> kernels;
  for (size_t m = 0; m < 2; ++m) {
    const View view{memory.data() + 16 * m, DType::kF32,  t.format, t.shape,
                    Box(t.shape),           Box(t.shape), 0};
    auto kernel = communicators[static_cast<size_t>(e.group[m])]->bind(0, view, view);
    ASSERT_TRUE(kernel.ok());
    kernels.push_back(*std::move(kernel));
  }
  std::thread alone([&] { kernels[0]->run(); });
  communicators[1]->abort();
  alone.join();
  communicators[0]->barrier();  // returns at once
}

}  // namespace
}  // namespace convnet
