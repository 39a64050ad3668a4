#include "framework/runtime/checkpoint.h"

#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

#include "framework/base/diagnostics.h"
#include "framework/runtime/safetensors.h"

namespace convnet {

namespace {

constexpr int kFormat = 1;
constexpr int64_t kMaxStep = 1'000'000'000'000'000;
constexpr int64_t kChunk = 16384;  // elements converted at a time
// A header begins with these bytes, its checksum's 16 digits and a quote: "checksum" sorts before
// all other keys. The checksum is over the whole header, length included, with these digits zero.
constexpr std::string_view kHeaderStart = "{\"__metadata__\":{\"checksum\":\"";
constexpr size_t kChecksumAt = 8 + kHeaderStart.size();
constexpr size_t kDigits = 16;
constexpr std::string_view kNoChecksum = "0000000000000000";

class Hash {
 public:
  Hash() : state_(XXH3_createState(), XXH3_freeState) {
    CHECK(state_ != nullptr);
    XXH3_64bits_reset(state_.get());
  }
  void add(const void* data, size_t bytes) { XXH3_64bits_update(state_.get(), data, bytes); }
  std::string digits() const {
    char text[kDigits + 1];
    std::snprintf(text, sizeof text, "%016llx",
                  static_cast<unsigned long long>(XXH3_64bits_digest(state_.get())));
    return text;
  }

 private:
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state_;
};

// Calls sink(bytes) -> Status for the values in their stored form, a chunk at a time.
template <typename T, typename Sink>
Status store_as(const HostTensor& tensor, Sink sink) {
  std::vector<T> chunk;
  const auto count = static_cast<int64_t>(tensor.values.size());
  for (int64_t begin = 0; begin < count; begin += kChunk) {
    const int64_t end = std::min(count, begin + kChunk);
    chunk.assign(tensor.values.begin() + begin, tensor.values.begin() + end);
    CONVNET_RETURN_IF_ERROR(sink(
        std::string_view(reinterpret_cast<const char*>(chunk.data()), chunk.size() * sizeof(T))));
  }
  return Status();
}

template <typename Sink>
Status store(const HostTensor& tensor, Sink sink) {
  switch (tensor.dtype) {
    case DType::kF32:
      return store_as<float>(tensor, sink);
    case DType::kF64:
      return store_as<double>(tensor, sink);
    case DType::kI32:
      return store_as<int32_t>(tensor, sink);
  }
  return Status();
}

// Reads a tensor's bytes in chunks into `hash`, and its values, all of them finite, into `values`
// if that is not null.
template <typename T>
Status load_as(InputFile& file, const SafeTensor& tensor, Hash& hash, std::vector<double>* values,
               std::string* non_finite) {
  const int64_t count = (tensor.end - tensor.begin) / static_cast<int64_t>(sizeof(T));
  std::vector<T> chunk(static_cast<size_t>(std::min(count, kChunk)));
  if (values != nullptr) values->reserve(static_cast<size_t>(count));
  for (int64_t begin = 0; begin < count; begin += kChunk) {
    const auto n = static_cast<size_t>(std::min(count - begin, kChunk));
    CONVNET_RETURN_IF_ERROR(file.read(chunk.data(), static_cast<int64_t>(n * sizeof(T))));
    hash.add(chunk.data(), n * sizeof(T));
    for (size_t i = 0; i < n; ++i) {
      const auto value = static_cast<double>(chunk[i]);
      if (!std::isfinite(value) && non_finite->empty())
        *non_finite = (std::isnan(value) ? "nan" : "inf") + std::string(" at element ") +
                      std::to_string(begin + static_cast<int64_t>(i));
      if (values != nullptr) values->push_back(value);
    }
  }
  return Status();
}

Status load(InputFile& file, const SafeTensor& tensor, Hash& hash, std::vector<double>* values,
            std::string* non_finite) {
  switch (tensor.dtype) {
    case DType::kF32:
      return load_as<float>(file, tensor, hash, values, non_finite);
    case DType::kF64:
      return load_as<double>(file, tensor, hash, values, non_finite);
    case DType::kI32:
      return load_as<int32_t>(file, tensor, hash, values, non_finite);
  }
  return Status();
}

bool starts_with(const std::string& text, std::string_view start) {
  return text.compare(0, start.size(), start) == 0;
}

std::string numbered(std::string_view key, size_t i) {
  char digits[24];
  std::snprintf(digits, sizeof digits, "%06zu", i);
  return std::string(key) + digits;
}

// A decimal number without sign or leading zeros; -1 if it is none, or above `max`.
int64_t parse_number(const std::string& text, int64_t max) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > max ||
      std::to_string(value) != text)
    return -1;
  return value;
}

std::map<std::string, std::string> metadata_of(const CheckpointHead& head) {
  std::map<std::string, std::string> metadata = {
      {"checksum", std::string(kNoChecksum)},
      {"data_fingerprint", head.data_fingerprint},
      {"format", std::to_string(kFormat)},
      {"model", head.model_text},
      {"model_name", head.model_name.substr(head.model_name.rfind('/') + 1)},
      {"program", "convnet " CONVNET_VERSION},
      {"step", std::to_string(head.step)}};
  for (const auto& [name, value] : head.options) metadata["option." + name] = value;
  for (size_t i = 0; i < head.sets.size(); ++i) metadata[numbered("set.", i)] = head.sets[i];
  return metadata;
}

// Takes the metadata apart; `checksums` gets those of the tensors. Empty, or what is wrong.
std::string parse_metadata(const std::map<std::string, std::string>& metadata, CheckpointHead* head,
                           std::map<std::string, std::string>* checksums) {
  const auto format = metadata.find("format");
  if (format == metadata.end()) return "the entry 'format' is missing";
  if (parse_number(format->second, kFormat) != kFormat)
    return "written in format " + printable(format->second) + "; this program reads format " +
           std::to_string(kFormat);
  const std::map<std::string_view, std::string*> texts = {
      {"data_fingerprint", &head->data_fingerprint},
      {"model", &head->model_text},
      {"model_name", &head->model_name},
      {"program", &head->program}};
  size_t found = 0;
  bool has_step = false;
  for (const auto& [key, value] : metadata) {
    if (const auto text = texts.find(key); text != texts.end()) {
      *text->second = value;
      ++found;
    } else if (key == "step") {
      head->step = parse_number(value, kMaxStep);
      if (head->step < 0)
        return "step '" + printable(value) + "' is not a number from 0 to " +
               std::to_string(kMaxStep);
      has_step = true;
    } else if (starts_with(key, "option.")) {
      head->options[key.substr(7)] = value;
    } else if (starts_with(key, "xxh3.")) {
      (*checksums)[key.substr(5)] = value;
    } else if (key == numbered("set.", head->sets.size())) {
      head->sets.push_back(value);
    } else if (key != "format" && key != "checksum") {
      return "unknown entry '" + printable(key) + "'";
    }
  }
  if (!has_step) return "the entry 'step' is missing";
  if (found != texts.size())
    return "one of the entries model, model_name, program, data_fingerprint is missing";
  return "";
}

// Reads and verifies a whole checkpoint; `tensors` may be null.
Result<CheckpointInfo> scan(const std::string& path, InputFile::Links links,
                            std::vector<std::pair<std::string, HostTensor>>* tensors) {
  CONVNET_ASSIGN_OR_RETURN(InputFile file, InputFile::open(path, Code::kCheckpoint, links));
  const auto error = [&path](const std::string& message) {
    return Status(Code::kCheckpoint, "'" + path + "': " + message);
  };
  std::string raw;
  Result<SafeTensorsHeader> header = read_safetensors_header(file, &raw);
  const bool ours =
      raw.size() >= kChecksumAt + kDigits && raw.compare(8, kHeaderStart.size(), kHeaderStart) == 0;
  if (ours) {
    const std::string wanted = raw.substr(kChecksumAt, kDigits);
    raw.replace(kChecksumAt, kDigits, kNoChecksum);
    Hash hash;
    hash.add(raw.data(), raw.size());
    if (hash.digits() != wanted)
      return error("damaged: the header's checksum is " + hash.digits() + ", it should be " +
                   printable(wanted));
  }
  if (!header.ok()) return header.status();
  if (!ours) return error("a SafeTensors file, but not a checkpoint of convnet");

  CheckpointInfo info;
  info.format = kFormat;
  info.bytes = file.size();
  std::map<std::string, std::string> checksums;
  if (std::string wrong = parse_metadata(header->metadata, &info.head, &checksums); !wrong.empty())
    return error(wrong);
  if (checksums.size() != header->tensors.size())
    return error(std::to_string(header->tensors.size()) + " tensors, but " +
                 std::to_string(checksums.size()) + " checksums of tensors");
  for (const SafeTensor& tensor : header->tensors) {
    const std::string name = "tensor '" + printable(tensor.name) + "'";
    Hash hash;
    std::string non_finite;
    HostTensor host{tensor.shape, tensor.dtype, {}};
    CONVNET_RETURN_IF_ERROR(
        load(file, tensor, hash, tensors != nullptr ? &host.values : nullptr, &non_finite));
    const auto wanted = checksums.find(tensor.name);
    if (wanted == checksums.end()) return error(name + " has no checksum");
    if (hash.digits() != wanted->second)
      return error("damaged: the checksum of " + name + " is " + hash.digits() + ", it should be " +
                   printable(wanted->second));
    if (!non_finite.empty()) return error(name + " holds " + non_finite);
    info.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, hash.digits()});
    if (tensors != nullptr) tensors->emplace_back(tensor.name, std::move(host));
  }
  return info;
}

}  // namespace

const HostTensor* Checkpoint::find(const std::string& name) const {
  for (const auto& [tensor_name, tensor] : tensors)
    if (tensor_name == name) return &tensor;
  return nullptr;
}

std::string checkpoint_name(int64_t step) {
  char name[64];
  std::snprintf(name, sizeof name, "step-%08lld.safetensors", static_cast<long long>(step));
  return name;
}

Status write_checkpoint(const std::string& path, const Checkpoint& checkpoint) {
  CHECK(checkpoint.head.step >= 0 && checkpoint.head.step <= kMaxStep);
  SafeTensorsHeader header;
  header.metadata = metadata_of(checkpoint.head);
  std::map<std::string, const HostTensor*> by_name;
  for (const auto& [name, tensor] : checkpoint.tensors) {
    CHECK_MSG(by_name.emplace(name, &tensor).second, name);
    CHECK_MSG(tensor.shape.checked_count() == static_cast<int64_t>(tensor.values.size()), name);
    const auto bad = std::find_if(tensor.values.begin(), tensor.values.end(),
                                  [](double value) { return !std::isfinite(value); });
    if (bad != tensor.values.end())
      return Status(Code::kNotFinite, "tensor '" + printable(name) + "' holds " +
                                          std::to_string(*bad) + " at element " +
                                          std::to_string(bad - tensor.values.begin()) +
                                          "; no checkpoint is written");
    Hash hash;
    CONVNET_RETURN_IF_ERROR(store(tensor, [&hash](std::string_view bytes) {
      hash.add(bytes.data(), bytes.size());
      return Status();
    }));
    header.metadata["xxh3." + name] = hash.digits();
    header.tensors.push_back({name, tensor.dtype, tensor.shape, 0, 0});
  }
  std::sort(header.tensors.begin(), header.tensors.end(), safetensors_before);
  for (SafeTensor& tensor : header.tensors) {
    tensor.begin = header.data_bytes;
    tensor.end = tensor.begin + *safetensors_bytes(tensor.dtype, tensor.shape);
    header.data_bytes = tensor.end;
  }
  CONVNET_ASSIGN_OR_RETURN(std::string text, print_safetensors_header(header));
  if (static_cast<int64_t>(text.size()) > kMaxSafeTensorsHeader)
    return Status(Code::kLimit, "the model file and the names of " +
                                    std::to_string(header.tensors.size()) +
                                    " tensors do not fit the header of a checkpoint");
  CHECK(text.compare(8, kHeaderStart.size(), kHeaderStart) == 0);
  Hash hash;
  hash.add(text.data(), text.size());
  text.replace(kChecksumAt, kDigits, hash.digits());

  CONVNET_ASSIGN_OR_RETURN(
      const std::unique_ptr<OutputFile> file,
      OutputFile::create(path, static_cast<int64_t>(text.size()) + header.data_bytes));
  CONVNET_RETURN_IF_ERROR(file->write(text));
  for (const SafeTensor& tensor : header.tensors)
    CONVNET_RETURN_IF_ERROR(store(*by_name.at(tensor.name),
                                  [&file](std::string_view bytes) { return file->write(bytes); }));
  return file->commit();
}

Result<Checkpoint> read_checkpoint(const std::string& path, InputFile::Links links) {
  Checkpoint checkpoint;
  CONVNET_ASSIGN_OR_RETURN(CheckpointInfo info, scan(path, links, &checkpoint.tensors));
  checkpoint.head = std::move(info.head);
  return checkpoint;
}

Result<CheckpointInfo> inspect_checkpoint(const std::string& path) {
  return scan(path, InputFile::Links::kFollow, nullptr);
}

}  // namespace convnet
