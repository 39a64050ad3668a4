#include "framework/plan/wire.h"

namespace convnet {
namespace {

constexpr std::string_view kNames[kWires] = {"f32",   "bf16",     "f16",        "u8tree",
                                             "u8lin", "u8static", "u8mantissa", "onebit"};

}  // namespace

std::string_view to_string(Wire wire) { return kNames[static_cast<int>(wire)]; }

std::optional<Wire> parse_wire(std::string_view name) {
  for (int i = 0; i < kWires; ++i)
    if (kNames[i] == name) return static_cast<Wire>(i);
  return std::nullopt;
}

int64_t encoded_bytes(Wire wire, int64_t count) {
  if (count == 0) return 0;
  switch (wire) {
    case Wire::kF32:
      return 4 * count;
    case Wire::kBf16:
    case Wire::kF16:
      return 2 * count;
    case Wire::kU8Tree:
    case Wire::kU8Lin:
    case Wire::kU8Static:
    case Wire::kU8Mantissa:
      return 4 + count;  // the scale, then a byte an element
    case Wire::kOnebit:
      return 8 + (count + 7) / 8;  // both values, then a bit an element
  }
  return 0;
}

}  // namespace convnet
