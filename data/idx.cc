#include "data/idx.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <new>
#include <utility>
#include <vector>

#include "data/byte_stream.h"
#include "framework/runtime/file.h"

namespace convnet {

namespace {

constexpr int kUnsignedByte = 0x08;
constexpr int64_t kMaxExtent = 65536;
constexpr int64_t kChunk = int64_t{16} << 20;

std::string hex(uint32_t value, int digits) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%0*x", digits, value);
  return text;
}

const char* type_name(int type) {
  switch (type) {
    case 0x09:
      return " (signed bytes)";
    case 0x0b:
      return " (16-bit integers)";
    case 0x0c:
      return " (32-bit integers)";
    case 0x0d:
      return " (floats)";
    case 0x0e:
      return " (doubles)";
    default:
      return "";
  }
}

struct IdxFile {
  std::string path;
  const char* what;  // "images" or "labels"
  int rank;          // dimensions that it must have
  std::unique_ptr<ByteStream> stream;
  Shape shape;

  Status error(const std::string& message) const {
    return Status(Code::kData, "'" + path + "': " + message);
  }
  int64_t header_bytes() const { return 4 + 4 * rank; }
};

Status read_header(IdxFile& file) {
  std::array<uint8_t, 16> header{};
  const int64_t size = file.header_bytes();
  CONVNET_ASSIGN_OR_RETURN(const int64_t n, file.stream->read(header.data(), size));
  const std::string_view head(reinterpret_cast<const char*>(header.data()), static_cast<size_t>(n));
  const std::string wanted = hex(kUnsignedByte << 8 | static_cast<uint32_t>(file.rank), 8);
  if (n >= 2 && head.substr(0, 2) == "\x1f\x8b")
    return file.error("this is gzip data; it is read as such if its name ends in .gz");
  if (n < 4)
    return file.error(std::to_string(n) + " bytes, but the header of an IDX file of " + file.what +
                      " has " + std::to_string(size));
  const auto word = [&header](size_t i) {
    return uint32_t{header[i]} << 24 | uint32_t{header[i + 1]} << 16 |
           uint32_t{header[i + 2]} << 8 | header[i + 3];
  };
  const uint32_t magic = word(0);
  const int type = header[2], rank = header[3];
  if (magic >> 16 != 0) {
    const std::string_view looks = describe_content(head);
    return file.error("not an IDX file: it begins with " + hex(magic, 8) + ", one of " + file.what +
                      " with " + wanted +
                      (looks.empty() ? "" : "; it looks like " + std::string(looks)));
  }
  if (type != kUnsignedByte)
    return file.error("elements of type " + hex(static_cast<uint32_t>(type), 2) + type_name(type) +
                      ", but only 0x08 (unsigned bytes) are read (magic " + hex(magic, 8) + ")");
  if (rank != file.rank)
    return file.error(std::to_string(rank) + (rank == 1 ? " dimension" : " dimensions") + ", but " +
                      file.what + " have " + std::to_string(file.rank) + " (magic " +
                      hex(magic, 8) + " instead of " + wanted + ")" +
                      (rank == 4 - file.rank ? "; are the image and label files swapped?" : ""));
  if (n < size)
    return file.error(std::to_string(n) + " bytes, but the header of an IDX file of " + file.what +
                      " has " + std::to_string(size));
  for (int i = 0; i < file.rank; ++i) file.shape.append(word(4 + 4 * static_cast<size_t>(i)));
  if (file.shape[0] == 0) return file.error(std::string("it holds 0 ") + file.what);
  for (int i = 1; i < file.rank; ++i)
    if (file.shape[i] < 1 || file.shape[i] > kMaxExtent)
      return file.error("images of " + std::to_string(file.shape[1]) + " x " +
                        std::to_string(file.shape[2]) + " pixels; each side must be 1 to " +
                        std::to_string(kMaxExtent));
  return Status();
}

// The elements, exactly as many as the header says.
Result<std::vector<uint8_t>> read_elements(IdxFile& file) {
  // At most 2^32 * 2^16 * 2^16 would not fit; each factor is bounded, the product must be checked.
  const auto count = file.shape.checked_count();
  const std::string header_says = "the header says " + std::to_string(file.shape[0]) + " " +
                                  file.what +
                                  (file.rank == 3 ? " of " + std::to_string(file.shape[1]) + " x " +
                                                        std::to_string(file.shape[2]) + " bytes"
                                                  : "");
  const int64_t most = file.stream->upper_bound() - file.header_bytes();
  if (!count || *count > most)
    return file.error(header_says + ", but at most " + std::to_string(most) +
                      " bytes can follow: truncated");
  const int64_t memory =
      static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<int64_t>(sysconf(_SC_PAGESIZE));
  if (*count > memory)
    return Status(Code::kLimit, "'" + file.path + "' needs " + std::to_string(*count) +
                                    " bytes of memory; this machine has " + std::to_string(memory));
  std::vector<uint8_t> elements;
  // By and by, so that memory follows what is really there.
  while (static_cast<int64_t>(elements.size()) < *count) {
    const auto at = static_cast<int64_t>(elements.size());
    const int64_t wanted = std::min(kChunk, *count - at);
    elements.resize(static_cast<size_t>(at + wanted));
    CONVNET_ASSIGN_OR_RETURN(const int64_t n, file.stream->read(elements.data() + at, wanted));
    if (n < wanted)
      return file.error("truncated: " + header_says + ", which are " + std::to_string(*count) +
                        " bytes, but " + std::to_string(at + n) + " follow");
  }
  uint8_t extra;
  CONVNET_ASSIGN_OR_RETURN(const int64_t n, file.stream->read(&extra, 1));
  if (n > 0)
    return file.error("trailing bytes: " + header_says + ", which are " + std::to_string(*count) +
                      " bytes, but more follow");
  return elements;
}

}  // namespace

Result<std::shared_ptr<const Dataset>> read_idx(const std::string& name,
                                                const std::string& images_path,
                                                const std::string& labels_path, int64_t classes) {
  IdxFile images{images_path, "images", 3, nullptr, {}};
  IdxFile labels{labels_path, "labels", 1, nullptr, {}};
  for (IdxFile* file : {&images, &labels}) {
    CONVNET_ASSIGN_OR_RETURN(file->stream, ByteStream::open(file->path));
    CONVNET_RETURN_IF_ERROR(read_header(*file));
  }
  if (images.shape[0] != labels.shape[0])
    return Status(Code::kData, "'" + images_path + "' holds " + std::to_string(images.shape[0]) +
                                   " images, but '" + labels_path + "' holds " +
                                   std::to_string(labels.shape[0]) + " labels");
  try {
    CONVNET_ASSIGN_OR_RETURN(std::vector<uint8_t> classes_of, read_elements(labels));
    CONVNET_ASSIGN_OR_RETURN(std::vector<uint8_t> pixels, read_elements(images));
    return memory_dataset(name, Shape{1, images.shape[1], images.shape[2]}, std::move(pixels),
                          std::move(classes_of), classes, "'" + labels_path + "'");
  } catch (const std::bad_alloc&) {
    return Status(Code::kLimit, "no memory for the data set '" + name + "'");
  }
}

}  // namespace convnet
