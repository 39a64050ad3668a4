// Plans damaged on purpose: how many mutants the verifier rejects, a line a class and one for all.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/plan/plan_files.h"

namespace convnet {

struct Counts {
  int mutants = 0, rejected = 0, by_arena = 0, equivalent = 0, missed = 0;
  void print(const std::string& name) const {
    std::printf(
        "%-38s %6d mutants, %6d rejected (%d by the arena's size alone), %4d equivalent, %d "
        "missed\n",
        name.c_str(), mutants, rejected, by_arena, equivalent, missed);
  }
};

// Of all classes that this run has damaged plans by.
class Total : public ::testing::Environment {
 public:
  void TearDown() override {
    if (all.mutants == 0) return;
    all.print("all mutations");
    // tools/test prints this file at its end; each test may be a process of its own.
    if (const char* path = std::getenv("CONVNET_TEST_REPORT"); path != nullptr)
      std::ofstream(path, std::ios::app)
          << fmt::format("damaged plans: {} mutants, {} rejected, {} equivalent, {} survived\n",
                         all.mutants, all.rejected, all.equivalent, all.missed);
  }
  static inline Counts all;
};

// One class of damage over all plans.
class Score {
 public:
  // Of a class with many mutants one in `one_in` is tried, always the same ones; all if
  // CONVNET_ALL_MUTANTS is set.
  explicit Score(std::string name, unsigned one_in = 1)
      : name_(std::move(name)),
        one_in_(std::getenv("CONVNET_ALL_MUTANTS") == nullptr ? one_in : 1) {}
  ~Score() {
    counts_.print(name_);
    Total::all.mutants += counts_.mutants;
    Total::all.rejected += counts_.rejected;
    Total::all.by_arena += counts_.by_arena;
    Total::all.equivalent += counts_.equivalent;
    Total::all.missed += counts_.missed;
    EXPECT_GT(counts_.mutants, 0) << name_;
    EXPECT_EQ(counts_.missed, 0) << name_;
  }

  // Whether the next mutant is left out.
  bool skips() { return random_() % one_in_ != 0; }

  // `same`: shows that a plan that was not rejected computes the same.
  void take(const Plan& plan, const std::string& what, const std::function<bool()>& same = {}) {
    ++counts_.mutants;
    const std::vector<PlanFault> faults = verify_plan(plan);
    // That the arena's recorded sizes are off is a cheap way to notice; the damage itself must
    // show.
    const bool beyond_arena = std::any_of(faults.begin(), faults.end(),
                                          [](const PlanFault& f) { return f.rule != "arena"; });
    if (beyond_arena) {
      ++counts_.rejected;
    } else if (same && same()) {
      ++counts_.equivalent;
    } else if (!faults.empty() && arena_counts_) {
      ++counts_.rejected;
      ++counts_.by_arena;
    } else {
      ++counts_.missed;
      ADD_FAILURE() << name_ << " not noticed: " << what;
    }
  }
  void let_arena_count() { arena_counts_ = true; }

 private:
  std::string name_;
  unsigned one_in_;
  std::mt19937 random_{1};
  Counts counts_;
  bool arena_counts_ = false;
};

inline std::string place(const Plan& plan, size_t d, size_t i) {
  return plan.model + " device " + std::to_string(d) + " instruction " + std::to_string(i) + " " +
         std::string(op_info(plan.devices[d].instrs[i].op).text);
}

// Every buffer in a place of its own, so that damage is not noticed for memory that is used again.
inline Plan roomy(Plan plan) {
  for (DevicePlan& d : plan.devices) {
    d.arena_bytes = 0;
    for (Buffer& b : d.buffers) {
      if (b.region != Buffer::Region::kArena) continue;
      b.offset = d.arena_bytes;
      d.arena_bytes += b.bytes;
    }
  }
  return plan;
}

inline void for_each_instr(const std::vector<std::string>& plans,
                           const std::function<void(const Plan&, size_t, size_t)>& f) {
  for (const std::string& name : plans)
    for (const Plan& plan : {read_plan(name), roomy(read_plan(name))})
      for (size_t d = 0; d < plan.devices.size(); ++d)
        for (size_t i = 0; i < plan.devices[d].instrs.size(); ++i) f(plan, d, i);
}

inline void for_each_exchange(const std::vector<std::string>& plans,
                              const std::function<void(const Plan&, size_t)>& f) {
  for (const std::string& name : plans) {
    const Plan plan = read_plan(name);
    for (size_t id = 0; id < plan.exchanges.size(); ++id) f(plan, id);
  }
}

// The box with one side moved by a step; nothing if that leaves nothing.
inline std::vector<Box> shrunk(const Box& box, bool blocked) {
  std::vector<Box> all;
  for (int i = 0; i < box.rank(); ++i) {
    const int64_t step = blocked && i == 0 ? kLanes : 1;
    if (box.extent(i) <= step) continue;
    Box b = box;
    b.set(i, box.lo(i) + step, box.hi(i));
    all.push_back(b);
    b.set(i, box.lo(i), box.hi(i) - step);
    all.push_back(b);
  }
  return all;
}

inline bool is_blocked(const Plan& plan, int tensor) {
  return plan.tensors[static_cast<size_t>(tensor)].format == Format::kBlocked;
}

}  // namespace convnet
