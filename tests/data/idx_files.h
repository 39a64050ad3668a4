// IDX files made in a test.
#pragma once

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/runtime/temporary_folder.h"

namespace convnet {

inline std::string big_endian(uint32_t value) {
  std::string bytes;
  for (int shift : {24, 16, 8, 0}) bytes += static_cast<char>(value >> shift & 255);
  return bytes;
}

// Header of an IDX file of bytes.
inline std::string idx_header(const std::vector<uint32_t>& dims) {
  std::string bytes = big_endian(0x0800 + static_cast<uint32_t>(dims.size()));
  for (uint32_t extent : dims) bytes += big_endian(extent);
  return bytes;
}

inline std::string gzip(const std::string& bytes) {
  std::string out(compressBound(bytes.size()) + 64, '\0');
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

// Five images of 2 rows and 3 columns, pixel = 10 * image + place, and labels 0 1 2 0 1.
inline std::string small_images() {
  std::string bytes = idx_header({5, 2, 3});
  for (int n = 0; n < 5; ++n)
    for (int i = 0; i < 6; ++i) bytes += static_cast<char>(10 * n + i);
  return bytes;
}
inline std::string small_labels() { return idx_header({5}) + std::string("\0\1\2\0\1", 5); }

}  // namespace convnet
