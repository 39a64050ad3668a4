// The bytes of a file, in order, decompressed on the way if it is gzip.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "framework/base/status.h"

namespace convnet {

class ByteStream {
 public:
  // A name that ends in ".gz" is read as gzip. Errors: kData.
  static Result<std::unique_ptr<ByteStream>> open(const std::string& path);
  virtual ~ByteStream() = default;
  // Up to `bytes` bytes; fewer only at the end of the stream. At the end of gzip data its checksum
  // is verified, so a caller that wants all of a stream asks for one byte more than it expects.
  virtual Result<int64_t> read(void* data, int64_t bytes) = 0;
  // The stream cannot hold more bytes than this: deflate compresses at most 1032 to 1.
  virtual int64_t upper_bound() const = 0;
};

}  // namespace convnet
