// If this fails, results depend on the machine, the threads or the batch: the product's first
// promise is broken.
#include <gtest/gtest.h>

#include "tests/kernels/specs.h"

namespace convnet::kernels {
namespace {

TEST(Determinism, ThreadsAndInstructionSetsDoNotChangeBits) {
  for (const Op op : numeric_ops()) {
    Rng rng(500 + static_cast<uint64_t>(op));
    for (int i = 0; i < 12; ++i) {
      Case c = random_case(op, rng, Fill::kFloats);
      if (i % 2) c = with_cuts(std::move(c), rng);
      std::vector<Array> first;
      for (const Engine& engine : cpu_engines())
        for (const int threads : {1, 2, 3, 8}) {
          const auto got = run(c, engine, threads);
          if (first.empty()) first = got;
          for (size_t r = 0; r < got.size(); ++r)
            expect_same_bits(
                got[r], first[r],
                c.str() + " on " + engine.name + " threads " + std::to_string(threads));
        }
    }
  }
}

// Layers that are cut for the caches and the threads.
TEST(Determinism, LargeLayersToo) {
  Rng rng(550);
  const ConvSpec specs[] = {
      {17, 256, 6, 6, 64, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1},
      {33, 3, 67, 67, 48, {11, 11}, {4, 4}, {2, 2}, {1, 1}, 1},
      {1, 24, 40, 40, 130, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 1},
  };
  std::vector<Case> cases;
  for (const Op op : {Op::kConvFwd, Op::kConvBwdData, Op::kConvBwdWeight})
    for (const ConvSpec& spec : specs) cases.push_back(conv_case(op, spec, rng, Fill::kFloats));
  for (const Op op : {Op::kFcFwd, Op::kFcBwdData, Op::kFcBwdWeight})
    cases.push_back(fc_case(op, Shape{65, 64, 5, 5}, 530, rng, Fill::kFloats));
  for (const Case& c : cases) {
    std::vector<Array> first;
    for (const Engine& engine : cpu_engines())
      for (const int threads : {1, 2, 3, 8}) {
        const auto got = run(c, engine, threads);
        if (first.empty()) first = got;
        for (size_t r = 0; r < got.size(); ++r)
          expect_same_bits(got[r], first[r],
                           c.str() + " on " + engine.name + " threads " + std::to_string(threads));
      }
  }
}

TEST(Determinism, TheSameTwice) {
  for (const Op op : numeric_ops()) {
    Rng rng(600 + static_cast<uint64_t>(op));
    const Case c = random_case(op, rng, Fill::kFloats);
    for (const Engine& engine : engines()) {
      const auto once = run(c, engine, 3), again = run(c, engine, 3);
      for (size_t r = 0; r < once.size(); ++r)
        expect_same_bits(again[r], once[r], c.str() + " on " + engine.name);
    }
  }
}

// 48 examples at once against three times 16: as batches of their own, and as boxes of the whole,
// whose element indices (for dropout) are those of the whole.
TEST(Determinism, AnExamplesResultDoesNotDependOnItsBatch) {
  for (const Op op : numeric_ops()) {
    if (op == Op::kUpdateSgd || op == Op::kSum) continue;  // have no examples
    if (op == Op::kRowsJoin) continue;                     // its operands have rows of their own
    Rng rng(700 + static_cast<uint64_t>(op));
    for (int i = 0; i < 6; ++i) {
      const Case whole = random_case(op, rng, Fill::kFloats, 48);
      for (const Engine& engine : engines()) {
        const auto want = run(whole, engine, 2);
        for (const bool own_batch : {false, true}) {
          if (own_batch && (op == Op::kDropoutFwd || op == Op::kDropoutBwd)) continue;
          for (int64_t lo = 0; lo < 48; lo += 16) {
            const Case part = slice_examples(whole, lo, lo + 16, own_batch);
            const auto got = run(part, engine, 2);
            for (size_t r = 0; r < got.size(); ++r) {
              if (whole.out[r].format != Format::kBlocked) continue;
              const Case expected = [&] {  // the slice of the whole's result, by the same function
                Case results = whole;
                results.out[r].data = want[r];
                return slice_examples(results, lo, lo + 16, true);
              }();
              Case sliced = part;
              sliced.out[r].data = got[r];
              if (!own_batch) sliced = slice_examples(sliced, lo, lo + 16, true);
              expect_same_bits(sliced.out[r].data, expected.out[r].data,
                               part.str() + " on " + engine.name);
            }
          }
        }
      }
    }
  }
}

// balanced(i..j) = balanced(i..m) + balanced(m..j), over the shards that are not empty.
std::vector<double> balanced(const std::vector<std::vector<double>>& shards, size_t lo, size_t hi,
                             bool f32) {
  if (hi - lo == 1) return shards[lo];
  const size_t mid = (lo + hi) / 2;
  const auto a = balanced(shards, lo, mid, f32), b = balanced(shards, mid, hi, f32);
  if (a.empty()) return b;
  if (b.empty()) return a;
  std::vector<double> sum(a.size());
  for (size_t i = 0; i < a.size(); ++i)
    sum[i] =
        f32 ? static_cast<float>(static_cast<float>(a[i]) + static_cast<float>(b[i])) : a[i] + b[i];
  return sum;
}

// A sum over examples is the tree over the canonical shards: computed at once, or shard by shard
// (as several devices do) and then added in the tree, it has the same bits.
TEST(Determinism, SumsOverExamplesAreTheTreeOfTheirShards) {
  const std::vector<std::vector<int64_t>> grids = {
      {0, 48}, {0, 16, 48}, {0, 16, 32, 48}, {0, 16, 16, 32, 32, 48, 48, 48}, {0, 0, 32, 48}};
  for (const Op op : {Op::kConvBwdWeight, Op::kFcBwdWeight, Op::kSoftmaxLossFwd}) {
    Rng rng(800 + static_cast<uint64_t>(op));
    for (size_t i = 0; i < 15; ++i) {
      Case whole = random_case(op, rng, Fill::kFloats, 48);
      const auto& cuts = grids[i % grids.size()];
      whole.attrs.set("cuts", cuts);
      for (const Engine& engine : engines()) {
        const auto want = run(whole, engine);
        for (size_t r = 0; r < want.size(); ++r) {
          if (whole.out[r].format == Format::kBlocked) continue;
          std::vector<std::vector<double>> shards;
          for (size_t s = 0; s + 1 < cuts.size(); ++s) {
            shards.emplace_back();
            if (cuts[s] < cuts[s + 1])
              shards.back() =
                  run(slice_examples(whole, cuts[s], cuts[s + 1], i % 2 == 0), engine)[r].values;
          }
          const bool f32 = engine.dtype == DType::kF32 && whole.out[r].kind != Slot::Kind::kMetrics;
          Array tree(want[r].shape);
          tree.values = balanced(shards, 0, shards.size(), f32);
          expect_same_bits(want[r], tree, whole.str() + " on " + engine.name);
        }
      }
    }
  }
}

// A device that sums some of the canonical shards has exactly its branch of the tree by which one
// device sums all of them: on 2, 4 and 8 devices the bits are those of one.
TEST(Determinism, SumsOverOtherDimensionsAreTheTreeOfTheirShards) {
  for (const Op op : {Op::kConvFwd, Op::kConvBwdData, Op::kConvBwdWeight, Op::kFcFwd,
                      Op::kFcBwdData, Op::kBiasBwd}) {
    Rng rng(850 + static_cast<uint64_t>(op));
    for (int i = 0; i < 24; ++i) {
      Case whole = random_case(op, rng, Fill::kFloats);
      const std::vector<SummedDim> dims = summed_dims(whole);
      if (dims.empty()) continue;
      if (whole.attrs.has("act")) whole.attrs.set("act", "none");
      if (op == Op::kConvFwd || op == Op::kFcFwd) whole.in.resize(2);  // the bias comes afterwards
      // The outermost dimension is divided; those within it keep all of their shards.
      const size_t outer = static_cast<size_t>(i) % dims.size();
      for (size_t d = outer; d < dims.size(); ++d)
        whole.attrs.set(dims[d].cuts,
                        canonical_cuts(whole.in[dims[d].operand].data.shape[dims[d].dim]));
      const SummedDim& dim = dims[outer];
      const std::vector<int64_t> cuts = whole.attrs.list(dim.cuts);
      const auto shards = static_cast<int64_t>(cuts.size()) - 1;
      for (const Engine& engine : engines()) {
        const auto want = run(whole, engine, 2);
        for (int64_t devices = 1; devices <= shards; devices *= 2) {
          std::vector<std::vector<std::vector<double>>> parts(want.size());
          for (int64_t device = 0; device < devices; ++device) {
            const int64_t lo = device * shards / devices, hi = (device + 1) * shards / devices;
            Case part = whole;
            part.attrs.set(dim.cuts,
                           std::vector<int64_t>(cuts.begin() + lo, cuts.begin() + hi + 1));
            Slot& slot = part.in[dim.operand];
            slot.box.set(dim.dim, cuts[static_cast<size_t>(lo)], cuts[static_cast<size_t>(hi)]);
            if (i % 3 == 0) slot.stored = slot.box;
            const auto got = run(part, engine, 1 + i % 3);
            for (size_t r = 0; r < got.size(); ++r) parts[r].push_back(got[r].values);
          }
          for (size_t r = 0; r < want.size(); ++r) {
            Array tree(want[r].shape);
            tree.values = balanced(parts[r], 0, parts[r].size(), engine.dtype == DType::kF32);
            expect_equal(want[r], tree,
                         whole.str() + " on " + std::to_string(devices) + " of " + engine.name);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace convnet::kernels
