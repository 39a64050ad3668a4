// Codecs of the wire: f32 arrays to bytes and back (framework/plan/wire.h names them and counts the
// bytes). The bits depend on the elements of the piece alone: not on the instruction set, on
// threads, or on where the piece lies in memory. Every receiver, and an owner that keeps the value
// it shares, uses the decoded elements, so that all devices hold the same bits.
//
// A piece with a NaN or an infinity must not come out finite: bf16 and f16 keep it where it is (and
// f16 sends what rounds past 65504 as infinity); with the 8-bit codecs and onebit, all elements of
// the piece are decoded as NaN.
#pragma once

#include <cstddef>
#include <span>

#include "framework/plan/wire.h"

namespace convnet {

// `to` takes encoded_bytes(wire, from.size()). Not for kOnebit. Values round to the nearest; of two
// equally near, the 8-bit codecs take the one nearer to zero, bf16 and f16 the even one.
void encode(Wire wire, std::span<const float> from, std::span<std::byte> to);

// The inverse, for every codec. Exact: encoding the result again gives the same elements (but for
// onebit).
void decode(Wire wire, std::span<const std::byte> from, std::span<float> to);

// kOnebit: encodes from + residual, one bit an element: the mean of those below zero, and the mean
// of the rest. Leaves in residual what the receivers will not see.
void encode_onebit(std::span<const float> from, std::span<float> residual, std::span<std::byte> to);

}  // namespace convnet
