// Checkpoints: everything a run needs to go on, as logical tensors and texts, in one SafeTensors
// file (FORMAT.md). The bytes are a function of the contents alone: no time, path, device or thread
// count.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "framework/base/shape.h"
#include "framework/base/status.h"
#include "framework/runtime/file.h"
#include "framework/runtime/session.h"

namespace convnet {

// What a checkpoint says besides its tensors.
struct CheckpointHead {
  int64_t step = 0;               // training steps done
  std::string model_name;         // of the model file, without folders; for messages
  std::string model_text;         // the model file
  std::vector<std::string> sets;  // overrides given with --set, in order
  std::map<std::string, std::string>
      options;                   // other options that decide results: "dtype" -> "f64"
  std::string data_fingerprint;  // of the training data; empty if unknown
  std::string program;           // that wrote it: "convnet 0.1.0"; set by reading
};

struct Checkpoint {
  CheckpointHead head;
  // By name, each once: parameters ("conv1.w"), state ("conv1.w.momentum"), "data.mean". Reading
  // gives them in the order of the file.
  std::vector<std::pair<std::string, HostTensor>> tensors;

  const HostTensor* find(const std::string& name) const;  // null if it is not there
};

struct CheckpointInfo {
  struct Tensor {
    std::string name;
    DType dtype = DType::kF32;
    Shape shape;
    std::string checksum;  // XXH3-64 of its bytes, 16 hexadecimal digits
  };
  CheckpointHead head;
  int format = 0;     // version of the format
  int64_t bytes = 0;  // of the file
  std::vector<Tensor> tensors;
};

// "step-00000200.safetensors"
std::string checkpoint_name(int64_t step);

// Writes atomically and durably (file.h). Values are stored in their dtype. kNotFinite if a tensor
// holds a NaN or infinity, kUsage if a text is not UTF-8, kIo if the disk refuses.
Status write_checkpoint(const std::string& path, const Checkpoint& checkpoint);

// Every size, checksum and value is verified before anything is returned: kCheckpoint, or kIo if
// reading fails. Whether the tensors fit a model is for the caller to compare.
Result<Checkpoint> read_checkpoint(const std::string& path,
                                   InputFile::Links links = InputFile::Links::kFollow);

// Verifies as much, keeps no values.
Result<CheckpointInfo> inspect_checkpoint(const std::string& path);

}  // namespace convnet
