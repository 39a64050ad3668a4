// Checkpoints given by path: a file, or the directory of a run and then its newest whole one.
#pragma once

#include <string>

#include "framework/base/status.h"
#include "framework/runtime/checkpoint.h"
#include "framework/runtime/session.h"
#include "tools/convnet/output.h"

namespace convnet::cli {

// The file that `path` means. Takes no lock: the run may be alive. Damaged checkpoints that are
// newer are named in warnings.
Result<std::string> find_checkpoint(const std::string& path, Output& output);

// Writes all parameters of the session's plan; of several ranks rank 0's checkpoint counts.
// kCheckpoint names what is missing or of another
// shape.
Status load_weights(const Checkpoint& checkpoint, const std::string& file, Session& session);

}  // namespace convnet::cli
