// The SafeTensors container: named tensors behind a JSON header. Written deterministically, read
// strictly: what this reader accepts has one meaning. See FORMAT.md for the bytes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "framework/base/shape.h"
#include "framework/base/status.h"
#include "framework/runtime/file.h"

namespace convnet {

// F32, F64 and I32 are what the program knows.
struct SafeTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  int64_t begin = 0, end = 0;  // bytes, from the end of the header
};

struct SafeTensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<SafeTensor> tensors;  // in the order of their bytes
  int64_t data_bytes = 0;
};

// The order in which a writer lays tensors down: wide elements first, so that all of them are
// aligned, then by name.
bool safetensors_before(const SafeTensor& a, const SafeTensor& b);

// Bytes of a tensor's values; nothing if the product overflows.
std::optional<int64_t> safetensors_bytes(DType dtype, const Shape& shape);

// The file up to the first tensor's bytes: length, JSON (metadata first, both in the order given by
// the header), spaces up to a multiple of 8. `tensors` must be contiguous from 0. Metadata must be
// UTF-8 (else kUsage).
Result<std::string> print_safetensors_header(const SafeTensorsHeader& header);

// Reads and checks the header at the start of `file`: its length against `kMaxSafeTensorsHeader`
// and the file, no key twice, no unknown type or attribute, sizes that fit their shapes, tensors
// that cover the data without holes or overlaps, and the file's exact size. Errors are kCheckpoint
// (kIo if reading fails) and name the file, which stands at its start before, and at the first
// tensor's first byte afterwards. `raw`, if given, gets the header's bytes, its length included,
// even if they are then found to be wrong.
inline constexpr int64_t kMaxSafeTensorsHeader = 100'000'000;
Result<SafeTensorsHeader> read_safetensors_header(InputFile& file, std::string* raw = nullptr);

// The same for a text that is the JSON part of a header; errors do not name the file.
Result<SafeTensorsHeader> parse_safetensors_header(std::string_view json, int64_t data_bytes);

}  // namespace convnet
