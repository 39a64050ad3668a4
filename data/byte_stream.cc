#include "data/byte_stream.h"

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "framework/runtime/file.h"

namespace convnet {

namespace {

class PlainStream : public ByteStream {
 public:
  explicit PlainStream(InputFile file) : file_(std::move(file)) {}
  Result<int64_t> read(void* data, int64_t bytes) override {
    const int64_t n = std::min(bytes, file_.size() - file_.position());
    CONVNET_RETURN_IF_ERROR(file_.read(data, n));
    return n;
  }
  int64_t upper_bound() const override { return file_.size(); }

 private:
  InputFile file_;
};

class GzipStream : public ByteStream {
 public:
  explicit GzipStream(InputFile file) : file_(std::move(file)), input_(size_t{1} << 16) {}
  ~GzipStream() override { inflateEnd(&zlib_); }

  Status start() {
    // 15: the largest window; + 16: a gzip header and trailer, with CRC-32 and length, are
    // required.
    if (inflateInit2(&zlib_, 15 + 16) != Z_OK)
      return Status(Code::kLimit, "no memory to decompress '" + file_.path() + "'");
    return Status();
  }

  Result<int64_t> read(void* data, int64_t bytes) override {
    int64_t done = 0;
    while (done < bytes && !ended_) {
      if (zlib_.avail_in == 0) {
        const int64_t n =
            std::min(static_cast<int64_t>(input_.size()), file_.size() - file_.position());
        if (n == 0) return error("truncated gzip data");
        CONVNET_RETURN_IF_ERROR(file_.read(input_.data(), n));
        zlib_.next_in = input_.data();
        zlib_.avail_in = static_cast<uInt>(n);
      }
      const auto room =
          static_cast<uInt>(std::min<int64_t>(bytes - done, std::numeric_limits<int32_t>::max()));
      zlib_.next_out = static_cast<Bytef*>(data) + done;
      zlib_.avail_out = room;
      const int result = inflate(&zlib_, Z_NO_FLUSH);
      done += room - zlib_.avail_out;
      if (result == Z_STREAM_END) {
        // A file may hold several gzip members, one after the other; anything else is damage.
        ended_ = zlib_.avail_in == 0 && file_.position() == file_.size();
        if (!ended_) inflateReset(&zlib_);
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        return error(std::string("damaged gzip data (") +
                     (zlib_.msg != nullptr ? zlib_.msg : "unknown") + ")");
      }
    }
    return done;
  }

  int64_t upper_bound() const override {
    return file_.size() > std::numeric_limits<int64_t>::max() / 1032
               ? std::numeric_limits<int64_t>::max()
               : file_.size() * 1032;
  }

 private:
  Status error(const std::string& message) const {
    return Status(Code::kData, "'" + file_.path() + "': " + message);
  }

  InputFile file_;
  std::vector<Bytef> input_;
  z_stream zlib_{};
  bool ended_ = false;
};

}  // namespace

Result<std::unique_ptr<ByteStream>> ByteStream::open(const std::string& path) {
  CONVNET_ASSIGN_OR_RETURN(InputFile file, InputFile::open(path, Code::kData));
  if (path.size() < 3 || path.compare(path.size() - 3, 3, ".gz") != 0)
    return std::unique_ptr<ByteStream>(std::make_unique<PlainStream>(std::move(file)));
  auto stream = std::make_unique<GzipStream>(std::move(file));
  CONVNET_RETURN_IF_ERROR(stream->start());
  return std::unique_ptr<ByteStream>(std::move(stream));
}

}  // namespace convnet
