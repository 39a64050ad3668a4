// Where things end in a YAML text: yaml-cpp's events say only where they begin.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace convnet {

// Past the anchor (&a) and tag (!t) that may stand before a node at `begin`; `tag` gets the tag's
// place.
size_t skip_properties(std::string_view text, size_t begin, std::string_view* tag);

// Past the closing quote of the string that begins at `begin` with a quote; nothing if there is
// none (yaml-cpp takes the rest of the file for the string).
std::optional<size_t> quoted_end(std::string_view text, size_t begin);

// Past the first line of a plain or block scalar; `value` is its value if that is one line of the
// text.
size_t plain_end(std::string_view text, size_t begin, std::string_view value);

// Past the alias (*name) at `begin`.
size_t alias_end(std::string_view text, size_t begin);

// Past the bracket that closes a flow list or map whose last item ends at `from`.
size_t flow_end(std::string_view text, size_t from, char bracket);

// A bracket of a flow collection that is not closed, and the place where that shows: another
// bracket that does not fit, a line that looks like the block around the collection, or the end of
// the text.
struct Unclosed {
  size_t bracket;
  size_t at;
};
// The first one from `begin` on.
std::optional<Unclosed> find_unclosed(std::string_view text, size_t begin);

// Whether there is nothing but blanks, comments and document marks.
bool is_blank(std::string_view text);

}  // namespace convnet
