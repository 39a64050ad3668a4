// If this fails, devices that share an encoded value hold different numbers, or a result depends on
// which devices share a process.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "framework/comm/codecs/codec.h"
#include "framework/comm/communicator.h"
#include "framework/comm/packing.h"
#include "framework/plan/cost.h"
#include "tests/comm/exchange_case.h"

namespace convnet {
namespace {

constexpr Wire kEncodings[] = {Wire::kBf16,  Wire::kF16,      Wire::kU8Tree,
                               Wire::kU8Lin, Wire::kU8Static, Wire::kU8Mantissa};

using Values = std::map<int64_t, float>;  // by logical index

// What a piece that holds these values decodes to; lanes beyond the batch are zeros.
Values through(Wire wire, const Tensor& tensor, const Box& box, const Values& values) {
  const int64_t count = stored_count(tensor.format, box);
  std::vector<float> x(static_cast<size_t>(count), 0.0f);
  std::vector<std::byte> bytes(static_cast<size_t>(encoded_bytes(wire, count)));
  each_element(tensor, box, box, [&](int64_t logical, int64_t place) {
    x[static_cast<size_t>(place)] = values.at(logical);
  });
  encode(wire, x, bytes);
  decode(wire, bytes, x);
  Values decoded;
  each_element(tensor, box, box, [&](int64_t logical, int64_t place) {
    decoded[logical] = x[static_cast<size_t>(place)];
  });
  return decoded;
}

// The pieces of an all-reduce, as FORMAT.md cuts them.
std::vector<Box> pieces_of(const Tensor& tensor, int members) {
  const auto blocks = [&](int d) {
    const bool by_blocks = d == 0 && tensor.format == Format::kBlocked;
    return by_blocks ? (tensor.shape[0] + kLanes - 1) / kLanes : tensor.shape[d];
  };
  int along = -1;
  for (int d = 0; d < tensor.shape.rank() && along < 0; ++d)
    if (blocks(d) >= members) along = d;
  if (along < 0) {
    along = 0;
    for (int d = 1; d < tensor.shape.rank(); ++d)
      if (blocks(d) > blocks(along)) along = d;
  }
  std::vector<Box> pieces;
  for (int m = 0; m < members; ++m) pieces.push_back(split(tensor, along, m, members));
  return pieces;
}

float sum_of(const std::vector<Values>& parts, int64_t logical, size_t lo, size_t hi) {
  if (hi - lo == 1) return parts[lo].at(logical);
  const size_t mid = lo + (hi - lo) / 2;
  return sum_of(parts, logical, lo, mid) + sum_of(parts, logical, mid, hi);
}

// Every complete value of the exchange, worked out on the logical tensor.
Values expected(const Exchange& e, const Tensor& tensor) {
  std::vector<Values> parts;
  for (const Part& from : e.from) {
    Values mine;
    each_element(tensor, from.box, from.box,
                 [&](int64_t logical, int64_t) { mine[logical] = value<float>(logical, from.k); });
    if (from.box.empty()) continue;
    if (parts.size() <= static_cast<size_t>(from.k)) parts.resize(static_cast<size_t>(from.k) + 1);
    parts[static_cast<size_t>(from.k)].merge(through(e.wire, tensor, from.box, mine));
  }
  Values sums;
  for (const auto& [logical, first] : parts[0])
    sums[logical] = sum_of(parts, logical, 0, parts.size());
  if (e.kind != Exchange::Kind::kAllReduce) return sums;
  Values again;
  for (const Box& piece : pieces_of(tensor, static_cast<int>(e.group.size())))
    if (!piece.empty()) again.merge(through(e.wire, tensor, piece, sums));
  return again;
}

// Memory of the members, operands filled; results are in buffers of their own, or in place.
struct Memory {
  Memory(const Exchange& e, const Tensor& tensor, bool in_place) {
    for (size_t m = 0; m < e.group.size(); ++m) {
      const Box whole(tensor.shape);
      const auto count = static_cast<size_t>(stored_count(tensor.format, whole));
      operands.emplace_back(count, 1e30f);  // also in lanes that stand for no example
      results.emplace_back(count, -1.0f);
      float* data = operands[m].data();
      each_element(tensor, whole, e.from[m].box, [&](int64_t logical, int64_t place) {
        data[place] = value<float>(logical, e.from[m].k);
      });
      in.push_back(
          {data, DType::kF32, tensor.format, tensor.shape, whole, e.from[m].box, e.from[m].k});
      out.push_back({in_place ? data : results[m].data(), DType::kF32, tensor.format, tensor.shape,
                     whole, e.to[m].box, 0});
    }
  }
  void expect(const Values& wanted, const Tensor& tensor, const std::string& what) const {
    int64_t wrong = 0;
    for (const View& v : out)
      each_element(tensor, v.stored, v.box, [&](int64_t logical, int64_t place) {
        wrong += std::bit_cast<uint32_t>(static_cast<const float*>(v.data)[place]) !=
                 std::bit_cast<uint32_t>(wanted.at(logical));
      });
    EXPECT_EQ(wrong, 0) << what;
  }
  std::vector<std::vector<float>> operands, results;
  std::vector<View> in, out;
};

void run_on_threads(const Exchange& e, const Tensor& tensor, const Memory& memory, int times) {
  Plan plan;
  plan.tensors.push_back(tensor);
  plan.devices.resize(e.group.size());
  plan.exchanges.push_back(e);
  auto communicators = local_communicators(plan);
  std::vector<std::unique_ptr<Kernel>> kernels(e.group.size());
  for (size_t m = 0; m < e.group.size(); ++m) {
    if (!takes_part(e, m)) continue;
    auto kernel =
        communicators[static_cast<size_t>(e.group[m])]->bind(0, memory.in[m], memory.out[m]);
    ASSERT_TRUE(kernel.ok()) << kernel.status().message();
    kernels[m] = *std::move(kernel);
  }
  std::vector<std::thread> threads;
  for (const auto& kernel : kernels)
    threads.emplace_back([&kernel, times] {
      for (int i = 0; i < times && kernel != nullptr; ++i) kernel->run();
    });
  for (std::thread& t : threads) t.join();
}

// As ranks do, without what carries their messages.
void run_on_ranks(const Exchange& e, const Tensor& tensor, const std::vector<int>& ranks,
                  const Memory& memory) {
  auto rounds = make_rounds(e, tensor, ranks);
  ASSERT_TRUE(rounds.ok()) << rounds.status().message();
  for (size_t r = 0; r < rounds->size(); ++r) {
    std::vector<View> in = r == 0 ? memory.in : memory.out;
    for (size_t m = 0; m < in.size(); ++m) in[m].box = (*rounds)[r].exchange.from[m].box;
    std::vector<std::unique_ptr<Packing>> all;
    for (int rank = 0; rank <= *std::max_element(ranks.begin(), ranks.end()); ++rank)
      all.push_back(std::make_unique<Packing>((*rounds)[r], tensor, ranks, rank, in));
    for (size_t m = 0; m < in.size(); ++m) all[static_cast<size_t>(ranks[m])]->pack(m);
    for (size_t to = 0; to < all.size(); ++to)
      for (const Packing::Parcel& incoming : all[to]->incoming())
        for (const Packing::Parcel& outgoing : all[static_cast<size_t>(incoming.peer)]->outgoing())
          if (outgoing.peer == static_cast<int>(to)) {
            ASSERT_EQ(outgoing.bytes, incoming.bytes);
            std::memcpy(incoming.data.get(), outgoing.data.get(),
                        static_cast<size_t>(incoming.bytes));
          }
    for (const auto& packing : all) packing->unpack();
    for (const auto& packing : all)
      for (const MemberSteps& steps : packing->steps(memory.out).members)
        for (const Transfer& t : steps.first) t.run();
  }
}

TEST(EncodedExchange, AllDevicesHoldTheDecodedValues) {
  const Tensor tensors[] = {tensor_of({3}, Format::kPlain), tensor_of({9, 33}, Format::kPlain),
                            tensor_of({11, 1031}, Format::kPlain),
                            tensor_of({40, 6, 3, 5}, Format::kBlocked),
                            tensor_of({128, 7, 5, 3}, Format::kBlocked)};
  for (const Tensor& t : tensors)
    for (int members : {2, 3, 4})
      for (Exchange::Kind kind : kKinds)
        for (Wire wire : kEncodings) {
          // The codecs differ in nothing that the number of members could matter to.
          if (members != 3 && wire != Wire::kF16 && wire != Wire::kU8Tree) continue;
          Exchange e = make(kind, t, members, 0, Exchange::Order::kTree);
          e.wire = wire;
          const Values wanted = expected(e, t);
          const std::string what = std::string(exchange_kind_name(kind)) + " of " + t.shape.str() +
                                   " as " + std::string(to_string(wire)) + ", " +
                                   std::to_string(members) + " members";
          for (const bool in_place : {false, true}) {
            const Memory memory(e, t, in_place);
            run_on_threads(e, t, memory, in_place ? 1 : 2);
            memory.expect(wanted, t, what);
          }
          std::vector<int> apart, together;
          for (int m = 0; m < members; ++m) apart.push_back(m), together.push_back(m / 2);
          for (const auto& ranks : {apart, together}) {
            const Memory memory(e, t, false);
            run_on_ranks(e, t, ranks, memory);
            memory.expect(wanted, t, what + ", on ranks");
          }
        }
}

TEST(EncodedExchange, MessagesHaveTheBytesOfTheirCodes) {
  const Tensor t = tensor_of({8, 100}, Format::kPlain);
  Exchange e = make(Exchange::Kind::kReduceScatter, t, 4, 0, Exchange::Order::kTree);
  for (const auto& [wire, segment] :
       {std::pair{Wire::kF32, 800}, {Wire::kF16, 400}, {Wire::kU8Tree, 204}}) {
    e.wire = wire;
    EXPECT_EQ(wire_bytes(e, t, t), 3 * segment);
    const auto rounds = make_rounds(e, t, {0, 1, 2, 3});
    ASSERT_TRUE(rounds.ok());
    EXPECT_EQ((*rounds)[0].messages.size(), 12u);
    for (const Message& message : (*rounds)[0].messages)
      EXPECT_EQ(message.bytes, (segment + 7) / 8 * 8);
  }
}

TEST(EncodedExchange, RefusesWhatItCannotEncode) {
  const Tensor t = tensor_of({8}, Format::kPlain);
  Exchange e = make(Exchange::Kind::kReduceScatter, t, 2, 0, Exchange::Order::kTree);
  e.wire = Wire::kOnebit;
  EXPECT_EQ(check_wire(e, t).code(), Code::kUsage);
  e.wire = Wire::kU8Tree;
  EXPECT_TRUE(check_wire(e, t).ok());
  Tensor doubles = t;
  doubles.dtype = DType::kF64;
  EXPECT_EQ(check_wire(e, doubles).code(), Code::kUsage);
}

}  // namespace
}  // namespace convnet
