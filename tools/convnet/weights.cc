#include "tools/convnet/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

namespace convnet::cli {

namespace fs = std::filesystem;

Result<std::string> find_checkpoint(const std::string& path, Output& output) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) {
    return Status(Code::kCheckpoint, fmt::format("{}: no such file or directory", path));
  }
  if (error) return Status(Code::kIo, fmt::format("cannot look at {}: {}", path, error.message()));
  if (status.type() != fs::file_type::directory) return path;

  const fs::path folder = fs::path(path) / "checkpoints";
  std::vector<std::string> files;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::string file_name = it->path().filename().string();
    if (file_name.starts_with("step-") && file_name.ends_with(".safetensors")) {
      files.push_back(it->path().string());
    }
  }
  // Numbers are written with a fixed number of digits until they outgrow it.
  std::sort(files.begin(), files.end(), [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() > b.size() : a > b;
  });
  std::string first_fault;
  for (const std::string& file : files) {
    Result<CheckpointInfo> info = inspect_checkpoint(file);
    if (info.ok()) return file;
    output.note("warning: " + info.status().message() + "; trying the one before");
    if (first_fault.empty()) first_fault = info.status().message();
  }
  return Status(Code::kCheckpoint,
                files.empty()
                    ? fmt::format("{} holds no checkpoint: not the directory of a run, or "
                                  "the run has saved none yet",
                                  path)
                    : fmt::format("no checkpoint of {} is whole", path));
}

Status load_weights(const Checkpoint& checkpoint, const std::string& file, Session& session) {
  std::vector<std::string> missing;
  for (const Tensor& tensor : session.plan().tensors) {
    if (tensor.kind != TensorKind::kParameter) continue;
    if (session.ranks().rank() != 0) {
      CONVNET_RETURN_IF_ERROR(session.write(tensor.name, HostTensor()));
      continue;
    }
    const HostTensor* value = checkpoint.find(tensor.name);
    if (value == nullptr) {
      missing.push_back(tensor.name);
      continue;
    }
    if (!(value->shape == tensor.shape)) {
      return Status(Code::kCheckpoint,
                    fmt::format("{}: {} is {} when the model wants {}", file, tensor.name,
                                value->shape.str(), tensor.shape.str()));
    }
    CONVNET_RETURN_IF_ERROR(session.write(tensor.name, *value));
  }
  if (missing.empty()) return Status();
  return Status(Code::kCheckpoint,
                fmt::format("{} lacks {} of the model: {}", file,
                            counted(static_cast<int64_t>(missing.size()), "parameter"),
                            fmt::join(missing, ", ")));
}

}  // namespace convnet::cli
