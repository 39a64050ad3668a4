// The list of plan operations: what an instruction can do. ops.def is the list; each entry states
// operands, results and attributes. An instruction is the *logical* operation restricted to the
// boxes of its operands: the same conv.fwd with the same attributes computes a whole layer on one
// device or a shard of it on many, because strides, pads, groups and random counters refer to
// logical indices.
#pragma once

#include <cstdint>
#include <string_view>

namespace convnet {

enum class Op : uint8_t {
#define OP(name, text, in_min, in_max, out_min, out_max, inplace, doc) name,
#include "framework/plan/ops.def"
#undef OP
};

struct OpInfo {
  Op op;
  std::string_view text;  // its name in the plan
  int in_min, in_max;     // operands (in_max -1: any number)
  int out_min, out_max;   // results
  // Result 0 may use the memory of this operand when it is the operand's last use; -1: never.
  int inplace;
  std::string_view doc;
};

const OpInfo& op_info(Op op);
// nullptr if there is no such operation.
const OpInfo* find_op(std::string_view text);

}  // namespace convnet
