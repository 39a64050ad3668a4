#include "framework/base/utf8.h"

#include <cstdint>
#include <iterator>

namespace convnet {
namespace {

struct Range {
  char32_t first, last;
};

// Unicode's combining blocks, joiners and variation selectors.
constexpr Range kZeroWidth[] = {{0x300, 0x36f},   {0x483, 0x489},   {0x591, 0x5bd},
                                {0x610, 0x61a},   {0x64b, 0x65f},   {0x1ab0, 0x1aff},
                                {0x1dc0, 0x1dff}, {0x200b, 0x200d}, {0x20d0, 0x20ff},
                                {0xfe00, 0xfe0f}, {0xfe20, 0xfe2f}, {0xfeff, 0xfeff}};
// East Asian Width W and F, and the emoji blocks.
constexpr Range kWide[] = {
    {0x1100, 0x115f},   {0x2e80, 0x303e},   {0x3041, 0x33ff},   {0x3400, 0x4dbf},
    {0x4e00, 0x9fff},   {0xa000, 0xa4cf},   {0xa960, 0xa97f},   {0xac00, 0xd7a3},
    {0xf900, 0xfaff},   {0xfe30, 0xfe6f},   {0xff00, 0xff60},   {0xffe0, 0xffe6},
    {0x1f300, 0x1f64f}, {0x1f680, 0x1f6ff}, {0x1f900, 0x1f9ff}, {0x20000, 0x3fffd}};

template <size_t N>
bool within(const Range (&ranges)[N], char32_t code) {
  for (const Range& range : ranges) {
    if (code >= range.first && code <= range.last) return true;
  }
  return false;
}

void append_hex(uint32_t value, int digits, std::string* out) {
  static constexpr char kDigits[] = "0123456789abcdef";
  for (int i = digits - 1; i >= 0; --i) out->push_back(kDigits[(value >> (4 * i)) & 15]);
}

}  // namespace

Utf8Char decode_utf8(std::string_view text, size_t offset) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(offset);
  if (lead < 0x80) return {lead, 1, true};
  int bytes;
  char32_t code, smallest;
  if (lead >= 0xc2 && lead <= 0xdf) {
    bytes = 2, code = lead & 0x1f, smallest = 0x80;
  } else if (lead >= 0xe0 && lead <= 0xef) {
    bytes = 3, code = lead & 0x0f, smallest = 0x800;
  } else if (lead >= 0xf0 && lead <= 0xf4) {
    bytes = 4, code = lead & 0x07, smallest = 0x10000;
  } else {
    return {lead, 1, false};
  }
  if (text.size() - offset < static_cast<size_t>(bytes)) return {lead, 1, false};
  for (int i = 1; i < bytes; ++i) {
    const uint8_t next = byte(offset + static_cast<size_t>(i));
    if ((next & 0xc0) != 0x80) return {lead, 1, false};
    code = (code << 6) | (next & 0x3f);
  }
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  if (code < smallest || code > 0x10ffff || surrogate) return {lead, 1, false};
  return {code, bytes, true};
}

bool is_control(char32_t code) {
  return code < 0x20 || (code >= 0x7f && code <= 0x9f) || (code >= 0x200e && code <= 0x200f) ||
         (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

int display_width(char32_t code) {
  if (code < 0x300) return 1;
  if (within(kZeroWidth, code)) return 0;
  return within(kWide, code) ? 2 : 1;
}

void append_printable(std::string_view text, size_t offset, const Utf8Char& character,
                      std::string* out) {
  if (character.valid && !is_control(character.code)) {
    out->append(text.substr(offset, static_cast<size_t>(character.bytes)));
  } else if (character.code < 0x100) {
    out->append("\\x");
    append_hex(character.code, 2, out);
  } else {
    out->append("\\u");
    append_hex(character.code, 4, out);
  }
}

}  // namespace convnet
