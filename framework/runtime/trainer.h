// The trainer: steps, tests, checkpoints and the log of a run, until it is done, stopped by a
// signal, or its loss is not finite.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "framework/base/status.h"
#include "framework/runtime/batch_source.h"
#include "framework/runtime/checkpoint.h"
#include "framework/runtime/progress.h"
#include "framework/runtime/run_directory.h"
#include "framework/runtime/schedule.h"
#include "framework/runtime/session.h"
#include "framework/runtime/tester.h"

namespace convnet {

// How often something is done: every so many steps, or at the first step by which so many more
// epochs are done. Both 0: only at the end of the training.
struct Interval {
  int64_t steps = 0;
  int64_t epochs = 0;
  // Whether it is due when `step` steps of `batch` examples are done, of a data set of `examples`.
  bool due(int64_t step, int64_t batch, int64_t examples) const;
};

// Steps until so many epochs are done: the last one may reach into the next epoch.
int64_t steps_of_epochs(int64_t epochs, int64_t batch, int64_t examples);

struct TrainOptions {
  int64_t steps = 0;       // of the whole training
  int64_t first_step = 0;  // steps that are done already: the resumed checkpoint's
  RateSchedule schedule;   // its total_steps are those of the whole training
  Interval test;
  Interval checkpoint;
  int keep = 2;           // checkpoints, >= 2
  int64_t log_every = 1;  // steps between "step" lines of the log; they hold means over these steps
  CheckpointHead head;    // of the checkpoints, but for the step
  // Tensors of the checkpoints besides the session's: "data.mean".
  std::vector<std::pair<std::string, HostTensor>> data_tensors;
  ProgressOptions progress;
  bool handle_signals = true;  // as signals.h says, while training
};

// Called on the calling thread; each may be empty.
struct TrainCallbacks {
  std::function<void(int64_t step, const StepResult& result)> after_step;  // steps done
  std::function<void(int64_t step, const Evaluation& evaluation)> after_test;
  std::function<void(int64_t step, const std::string& path)> after_checkpoint;
};

struct TrainOutcome {
  int64_t step = 0;                // steps done
  int signal = 0;                  // that stopped it; 0: done. The process exits with 128 + signal
  MetricSums last_step;            // of the last step run
  std::optional<Evaluation> test;  // the last complete one
  std::optional<int64_t> checkpoint_step;  // of the last checkpoint written
};

// Trains `session` (a training plan, holding the values to go on from) up to options.steps. `test`,
// a session of the test plan that shares its parameters, and `test_data` may be null; so may
// `directory`: then nothing is written. kNotFinite if a loss or a parameter is not finite: the last
// checkpoint stays. Among several ranks all call it; the directory is rank 0's, and the others show
// and write nothing. A checkpoint that cannot be written is tried again at the next one due; the
// second failure in a row, and a failure at the end or after a signal, is the error.
Result<TrainOutcome> train(Session& session, Session* test, BatchSource& data,
                           BatchSource* test_data, const TrainOptions& options,
                           RunDirectory* directory, const TrainCallbacks& callbacks = {});

// All parameters and state of the session, in the plan's order: the tensors of a checkpoint. Of
// several ranks rank 0 gets the values.
Result<std::vector<std::pair<std::string, HostTensor>>> kept_tensors(const Session& session);

// Writes them back, so that training goes on bit for bit; rank 0's checkpoint counts. kCheckpoint
// names what is missing, of
// another shape, or left over; tensors called "data.*" are for others.
Status restore(Session& session, const Checkpoint& checkpoint);

// Bytes of a checkpoint's tensors (for RunDirectory::open), header not included.
int64_t checkpoint_bytes(const Plan& plan);

}  // namespace convnet
