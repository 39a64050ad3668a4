// The plans of this folder, and edits of them.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "framework/plan/plan.h"
#include "framework/plan/verify_plan.h"

namespace convnet {

inline std::string read_text(const std::string& path) {
  std::ifstream file(std::string(CONVNET_SOURCE_DIR) + "/" + path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline std::string plan_text(const std::string& name) {
  return read_text("tests/plan/" + name + ".plan");
}

inline Plan parsed(const std::string& text) {
  Result<Plan> plan = parse_plan(text);
  EXPECT_TRUE(plan.ok()) << (plan.ok() ? "" : plan.status().message());
  return plan.ok() ? *std::move(plan) : Plan();
}

inline Plan read_plan(const std::string& name) { return parsed(plan_text(name)); }

// Train plans in which layers split by filters see the batch in passes, those of one device after
// another or an equal share of all, or all at once; with an update after all passes, after each, or
// after two of four; and layers in passes that are split by examples.
inline const std::vector<std::string> kPassPlans = {"whole_batch_2_devices",
                                                    "whole_batch_4_devices",
                                                    "owners_2_devices",
                                                    "owners_4_devices",
                                                    "stripes_2_devices",
                                                    "stripes_4_devices",
                                                    "updates_in_passes_2_devices",
                                                    "updates_in_data_passes_2_devices",
                                                    "updates_of_two_passes_2_devices"};
// Train plans of one to four devices, small enough to be damaged everywhere: split by examples, by
// filters, by input channels, by rows, by groups, and by two of these on a mesh; and those above.
inline const std::vector<std::string> kTrainPlans = [] {
  std::vector<std::string> all = {
      "train_1_device",    "train_2_devices",           "loss_on_1_of_2",
      "branches",          "model_2_devices",           "model_in_2_devices",
      "spatial_2_devices", "added_parts_2_devices",     "groups_2_devices",
      "mesh_4_devices",    "rows_by_examples_4_devices"};
  all.insert(all.end(), kPassPlans.begin(), kPassPlans.end());
  return all;
}();
// And one of three devices, where layers lie on different devices, one is replicated and frozen,
// and there are two losses.
inline const std::vector<std::string> kAllTrainPlans = [] {
  std::vector<std::string> all = kTrainPlans;
  all.push_back("mixed_3_devices");
  return all;
}();

inline std::string fault_text(const std::vector<PlanFault>& faults) {
  std::string s;
  for (const PlanFault& f : faults) s += f.str() + "\n";
  return s;
}

// `text` with its only occurrence (from the `skip`-th on) of `from` replaced.
inline std::string edited(std::string text, const std::string& from, const std::string& to,
                          int skip = 0) {
  size_t at = text.find(from);
  for (; skip > 0 && at != std::string::npos; --skip) at = text.find(from, at + 1);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

}  // namespace convnet
