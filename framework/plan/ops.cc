#include "framework/plan/ops.h"

#include "framework/base/check.h"

namespace convnet {
namespace {

constexpr OpInfo kOps[] = {
#define OP(name, text, in_min, in_max, out_min, out_max, inplace, doc) \
  {Op::name, text, in_min, in_max, out_min, out_max, inplace, doc},
#include "framework/plan/ops.def"
#undef OP
};

}  // namespace

const OpInfo& op_info(Op op) {
  const auto i = static_cast<size_t>(op);
  CHECK(i < std::size(kOps));
  return kOps[i];
}

const OpInfo* find_op(std::string_view text) {
  for (const OpInfo& info : kOps)
    if (info.text == text) return &info;
  return nullptr;
}

}  // namespace convnet
