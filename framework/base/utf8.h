// UTF-8, one character at a time: the only decoder that texts from outside go through.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace convnet {

struct Utf8Char {
  char32_t code = 0;
  int bytes = 1;       // consumed; 1 for a byte that begins no character
  bool valid = false;  // overlong forms, surrogates and values above U+10FFFF are not valid
};

// The character at `offset`, which must be inside the text.
Utf8Char decode_utf8(std::string_view text, size_t offset);

// True for characters that a terminal obeys or hides instead of showing: C0 and C1 controls (also
// tab and newline), and the marks that change the direction of writing.
bool is_control(char32_t code);

// Columns on a terminal: 0 for combining marks, 2 for East Asian wide characters and emoji, else 1.
int display_width(char32_t code);

// Appends the character, or, if it is a control or not valid, its escape (\x1b, \u202e).
void append_printable(std::string_view text, size_t offset, const Utf8Char& character,
                      std::string* out);

}  // namespace convnet
