#include "framework/runtime/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "framework/base/diagnostics.h"

namespace convnet {

static_assert(std::endian::native == std::endian::little, "SafeTensors files are little-endian");

namespace {

constexpr size_t kLengthBytes = 8;
constexpr std::string_view kMetadataKey = "__metadata__";

struct DTypeName {
  DType dtype;
  std::string_view name;
};
constexpr DTypeName kDTypes[] = {{DType::kF32, "F32"}, {DType::kF64, "F64"}, {DType::kI32, "I32"}};

std::string_view safetensors_dtype(DType dtype) {
  for (const DTypeName& entry : kDTypes)
    if (entry.dtype == dtype) return entry.name;
  return "";
}

std::string in_quotes(std::string_view text) { return "'" + printable(text) + "'"; }

// Receives the JSON's events and accepts only what a header may hold, so there is no tree to build
// and no depth to fear.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(SafeTensorsHeader* header) : header_(*header) {}
  const std::string& error() const { return error_; }

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("true or false"); }
  bool number_float(double, const std::string& text) override {
    return unexpected("the number " + printable(text));
  }
  bool number_integer(int64_t value) override { return unexpected(std::to_string(value)); }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(uint64_t value) override {
    if (place_ != Place::kShape && place_ != Place::kOffsets)
      return unexpected(std::to_string(value));
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      return fail("tensor " + in_quotes(tensor_.name) + ": " + std::to_string(value) +
                  " is too large");
    const auto number = static_cast<int64_t>(value);
    if (place_ == Place::kShape) {
      if (tensor_.shape.rank() == kMaxRank)
        return fail("tensor " + in_quotes(tensor_.name) + " has more than " +
                    std::to_string(kMaxRank) + " dimensions");
      tensor_.shape.append(number);
      return true;
    }
    if (offsets_ == 2)
      return fail("tensor " + in_quotes(tensor_.name) + " has more than two data_offsets");
    (offsets_++ == 0 ? tensor_.begin : tensor_.end) = number;
    return true;
  }

  bool string(std::string& value) override {
    if (place_ == Place::kMetadata) {
      header_.metadata[key_] = value;
      return true;
    }
    if (place_ != Place::kTensor || key_ != "dtype") return unexpected(in_quotes(value));
    for (const DTypeName& entry : kDTypes) {
      if (entry.name != value) continue;
      tensor_.dtype = entry.dtype;
      return true;
    }
    return fail("tensor " + in_quotes(tensor_.name) + " has the type " + in_quotes(value) +
                "; F32, F64 and I32 are read");
  }

  bool key(std::string& value) override {
    if (place_ == Place::kMetadata) {
      if (header_.metadata.count(value) != 0) return fail(in_quotes(value) + " is there twice");
    } else if (!keys_[place_ == Place::kRoot ? 0 : 1].insert(value).second) {
      return fail(in_quotes(value) + " is there twice" +
                  (place_ == Place::kTensor ? " in tensor " + in_quotes(tensor_.name) : ""));
    } else if (place_ == Place::kTensor && value != "dtype" && value != "shape" &&
               value != "data_offsets") {
      return fail("tensor " + in_quotes(tensor_.name) + " has the unknown attribute " +
                  in_quotes(value));
    }
    key_ = value;
    return true;
  }

  bool start_object(size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kRoot;
    } else if (place_ == Place::kRoot && key_ == kMetadataKey) {
      place_ = Place::kMetadata;
    } else if (place_ == Place::kRoot) {
      place_ = Place::kTensor;
      tensor_ = SafeTensor();
      tensor_.name = key_;
      offsets_ = 0;
      keys_[1].clear();
    } else {
      return unexpected("a map");
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensor) {
      for (const char* attribute : {"dtype", "shape", "data_offsets"})
        if (keys_[1].count(attribute) == 0)
          return fail("tensor " + in_quotes(tensor_.name) + " has no " + attribute);
      header_.tensors.push_back(tensor_);
    }
    place_ = place_ == Place::kRoot ? Place::kEnd : Place::kRoot;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ == Place::kTensor && key_ == "shape") {
      place_ = Place::kShape;
    } else if (place_ == Place::kTensor && key_ == "data_offsets") {
      place_ = Place::kOffsets;
    } else {
      return unexpected("a list");
    }
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kOffsets && offsets_ != 2)
      return fail("tensor " + in_quotes(tensor_.name) + " has " + std::to_string(offsets_) +
                  " data_offsets instead of 2");
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    return fail("the header is not JSON at byte " + std::to_string(position + kLengthBytes));
  }

 private:
  enum class Place { kStart, kRoot, kMetadata, kTensor, kShape, kOffsets, kEnd };

  bool fail(std::string message) {
    error_ = std::move(message);
    return false;
  }
  bool unexpected(const std::string& what) {
    return fail("unexpected " + what + " in the header" +
                (key_.empty() ? "" : ", at " + in_quotes(key_)));
  }

  SafeTensorsHeader& header_;
  Place place_ = Place::kStart;
  std::string key_, error_;
  std::set<std::string> keys_[2];  // of the root, and of the tensor
  SafeTensor tensor_;
  int offsets_ = 0;
};

// Sizes against shapes, and the tensors' bytes against the data: each byte belongs to one tensor.
std::string layout_error(SafeTensorsHeader& header) {
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const SafeTensor& a, const SafeTensor& b) {
              return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
            });
  int64_t at = 0;
  const SafeTensor* before = nullptr;
  for (const SafeTensor& tensor : header.tensors) {
    const std::string name = "tensor " + in_quotes(tensor.name);
    if (tensor.end < tensor.begin)
      return name + " ends at " + std::to_string(tensor.end) + ", before its begin at " +
             std::to_string(tensor.begin);
    const auto bytes = safetensors_bytes(tensor.dtype, tensor.shape);
    if (!bytes) return name + ": shape " + tensor.shape.str() + " is too large";
    if (*bytes != tensor.end - tensor.begin)
      return name + " of shape " + tensor.shape.str() + " takes " + std::to_string(*bytes) +
             " bytes, but its data_offsets span " + std::to_string(tensor.end - tensor.begin);
    if (tensor.begin < at)
      return "tensors " + in_quotes(before->name) + " and " + in_quotes(tensor.name) +
             " share bytes at offset " + std::to_string(tensor.begin);
    if (tensor.begin > at)
      return "bytes " + std::to_string(at) + " to " + std::to_string(tensor.begin) +
             " of the data belong to no tensor (hole before " + in_quotes(tensor.name) + ")";
    at = tensor.end;
    before = &tensor;
  }
  if (at > header.data_bytes)
    return "truncated: the tensors need " + std::to_string(at) + " bytes of data, and " +
           std::to_string(header.data_bytes) + " are there";
  if (at < header.data_bytes)
    return std::to_string(header.data_bytes - at) + " trailing bytes after the last tensor";
  return "";
}

}  // namespace

bool safetensors_before(const SafeTensor& a, const SafeTensor& b) {
  const int64_t size_a = dtype_size(a.dtype), size_b = dtype_size(b.dtype);
  return size_a != size_b ? size_a > size_b : a.name < b.name;
}

std::optional<int64_t> safetensors_bytes(DType dtype, const Shape& shape) {
  const auto count = shape.checked_count();
  return count ? checked_mul(*count, dtype_size(dtype)) : std::nullopt;
}

Result<std::string> print_safetensors_header(const SafeTensorsHeader& header) {
  nlohmann::ordered_json json;
  if (!header.metadata.empty()) {
    nlohmann::ordered_json& metadata = json[std::string(kMetadataKey)];
    for (const auto& [key, value] : header.metadata) metadata[key] = value;
  }
  int64_t at = 0;
  for (const SafeTensor& tensor : header.tensors) {
    CHECK(tensor.begin == at && !json.contains(tensor.name));
    CHECK(safetensors_bytes(tensor.dtype, tensor.shape) == tensor.end - tensor.begin);
    at = tensor.end;
    nlohmann::ordered_json& entry = json[tensor.name];
    entry["dtype"] = safetensors_dtype(tensor.dtype);
    entry["shape"] = nlohmann::ordered_json::array();
    for (int i = 0; i < tensor.shape.rank(); ++i) entry["shape"].push_back(tensor.shape[i]);
    entry["data_offsets"] = {tensor.begin, tensor.end};
  }
  std::string text;
  try {
    text = json.is_null() ? "{}" : json.dump();
  } catch (const nlohmann::json::type_error&) {
    return Status(Code::kUsage, "a name or text that is to be stored is not valid UTF-8");
  }
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  std::string out(reinterpret_cast<const char*>(&length), sizeof length);
  return out + text;
}

Result<SafeTensorsHeader> parse_safetensors_header(std::string_view json, int64_t data_bytes) {
  SafeTensorsHeader header;
  header.data_bytes = data_bytes;
  if (json.empty() || json[0] != '{')
    return Status(Code::kCheckpoint, "the header does not begin with '{'");
  // The JSON reader would take a NUL for the end of the text.
  if (json.find('\0') != std::string_view::npos)
    return Status(Code::kCheckpoint, "the header holds a zero byte at byte " +
                                         std::to_string(json.find('\0') + kLengthBytes));
  HeaderReader reader(&header);
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &reader))
    return Status(Code::kCheckpoint, reader.error());
  if (std::string error = layout_error(header); !error.empty())
    return Status(Code::kCheckpoint, std::move(error));
  return header;
}

Result<SafeTensorsHeader> read_safetensors_header(InputFile& file, std::string* raw) {
  const std::string name = "'" + file.path() + "'";
  const auto error = [&name](const std::string& message) {
    return Status(Code::kCheckpoint, name + ": " + message);
  };
  std::string head(static_cast<size_t>(std::min<int64_t>(file.size(), 512)), '\0');
  CONVNET_RETURN_IF_ERROR(file.read(head.data(), static_cast<int64_t>(head.size())));
  uint64_t length = 0;
  if (head.size() > kLengthBytes) std::memcpy(&length, head.data(), kLengthBytes);
  if (head.size() <= kLengthBytes || head[kLengthBytes] != '{') {
    const std::string_view looks = describe_content(head);
    if (looks.empty() && head.size() <= kLengthBytes)
      return error("truncated: " + std::to_string(head.size()) + " bytes hold no header");
    return error("not a SafeTensors file" +
                 (looks.empty() ? "" : "; it looks like " + std::string(looks)));
  }
  if (length == 0 || length > static_cast<uint64_t>(kMaxSafeTensorsHeader))
    return error("the header length " + std::to_string(length) + " is not between 1 and " +
                 std::to_string(kMaxSafeTensorsHeader));
  const auto end = static_cast<int64_t>(kLengthBytes + length);
  if (end > file.size())
    return error("truncated: the header ends at byte " + std::to_string(end) + ", the file at " +
                 std::to_string(file.size()));

  std::string bytes(static_cast<size_t>(end), '\0');
  CONVNET_RETURN_IF_ERROR(file.seek(0));
  CONVNET_RETURN_IF_ERROR(file.read(bytes.data(), end));
  auto header =
      parse_safetensors_header(std::string_view(bytes).substr(kLengthBytes), file.size() - end);
  if (raw != nullptr) *raw = std::move(bytes);
  if (!header.ok()) return header.status().with_context(name);
  return header;
}

}  // namespace convnet
