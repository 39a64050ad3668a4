// The directory of a run: who owns it, its log, its model file, its checkpoints.
//
//   DIR/lock                                  held while a run is alive; names its process and host
//   DIR/model.yaml                            copy of the model file
//   DIR/log.jsonl                             one JSON object a line (log_file.h)
//   DIR/checkpoints/step-00000200.safetensors
//
// At every moment the checkpoints under their names are complete and durable.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "framework/base/status.h"
#include "framework/runtime/checkpoint.h"
#include "framework/runtime/log_file.h"

namespace convnet {

class RunDirectory {
 public:
  enum class Mode {
    kNew,  // made if it is not there (parents too); kUsage if it holds checkpoints of another run
    kResume,  // must be there
  };
  // Takes the lock (kBusy, naming the holder, if a live run has it), removes temporary files of
  // killed runs, and proves, before any step is computed, that files can be written and that two
  // checkpoints of `checkpoint_bytes` fit (kIo).
  static Result<std::unique_ptr<RunDirectory>> open(const std::string& path, Mode mode,
                                                    int64_t checkpoint_bytes);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string checkpoint_path(int64_t step) const;
  // Steps of the checkpoints that are there, rising.
  Result<std::vector<int64_t>> steps() const;

  // The newest checkpoint that verifies. Each newer one that does not adds a line to `warnings`,
  // naming it, what is wrong, and the one taken instead. kCheckpoint if none is left, listing all.
  Result<Checkpoint> newest(std::vector<std::string>* warnings) const;

  // Copies the model file as model.EXTENSION, with the extension of `name`.
  Status write_model(std::string_view name, std::string_view text);

  // Writes a checkpoint; once it is durable, deletes older ones but the `keep` (>= 2) newest of
  // those up to this step. Those of later steps, which a run resumed from an earlier one passes
  // again, stay until they are overwritten. An old one that cannot be deleted is no error of the
  // save.
  Status save(const Checkpoint& checkpoint, int keep);

  LogFile& log() { return *log_; }

 private:
  RunDirectory(std::string path, int lock);
  std::string path_;
  int lock_;
  std::unique_ptr<LogFile> log_;
};

}  // namespace convnet
