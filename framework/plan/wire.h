// How the elements of an exchange are written on the wire: the names of the codecs and the bytes a
// piece of a message takes. framework/comm/codecs encodes and decodes.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace convnet {

enum class Wire : uint8_t {
  kF32,         // as in memory
  kBf16,        // upper half of an f32, nearest even
  kF16,         // IEEE binary16, nearest even
  kU8Tree,      // dynamic tree, relative to the absolute maximum of the piece
  kU8Lin,       // k / 127 of the absolute maximum of the piece
  kU8Static,    // static tree over eight decades below the piece's power of ten
  kU8Mantissa,  // a decimal digit and exponent, below the piece's power of ten
  kOnebit,      // a sign an element, two values a piece; what is lost is added to the next step's
};
inline constexpr int kWires = 8;

std::string_view to_string(Wire wire);
std::optional<Wire> parse_wire(std::string_view name);

// Bytes of a piece of `count` f32 elements. A piece without elements takes none.
int64_t encoded_bytes(Wire wire, int64_t count);

}  // namespace convnet
