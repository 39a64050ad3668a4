// Summary of a plan for people: what it holds, computes and sends.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "framework/plan/plan.h"

namespace convnet {

struct PlanSummary {
  // Bytes of one device.
  struct Device {
    int64_t parameters = 0;  // resident: parameters, their state, input of a step
    int64_t state = 0;
    int64_t inputs = 0;
    int64_t arena = 0;        // activations, gradients and workspace share it
    int64_t arena_bound = 0;  // the least that any placement needs
    // Of the arena, at its peak: parameter gradients, and results of exchanges.
    int64_t workspace = 0;
    int64_t flops_forward = 0, flops_backward = 0;  // of a step; backward includes updates
    int64_t sent = 0, received = 0;                 // bytes on the wire of a step
    int64_t instructions = 0;
  };
  enum class Direction { kForward, kBackward, kSync };
  // One exchange.
  struct Edge {
    std::string tensor, edge, layer;  // what moves, for what, and of which layer
    Exchange::Kind kind = Exchange::Kind::kBoxes;
    Exchange::Order order = Exchange::Order::kNone;
    Wire wire = Wire::kF32;
    Direction direction = Direction::kForward;
    int64_t devices = 0;
    int64_t bytes = 0;  // the most that one device sends or receives
  };

  std::string model;
  Plan::Phase phase = Plan::Phase::kTrain;
  DType dtype = DType::kF32;
  int64_t batch = 0;
  int64_t parameters = 0;  // numbers that are trained, each counted once
  std::vector<Device> devices;
  std::vector<Edge> edges;
  int64_t flops_forward = 0, flops_backward = 0;  // all devices together
  // Sums over the exchanges of the busiest device's bytes.
  int64_t bytes_forward = 0, bytes_backward = 0, bytes_sync = 0;
};

// Of a plan that verify_plan accepts.
PlanSummary summarise(const Plan& plan);

std::string print_summary(const PlanSummary& summary);
// The same as a JSON object, one line.
std::string summary_json(const PlanSummary& summary);

const char* direction_name(PlanSummary::Direction direction);  // "forward"

}  // namespace convnet
