// From what a model file says about data to batches: options, where data sets are looked up, and
// how sources are made of them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/mean.h"
#include "data/synthetic.h"
#include "framework/base/diagnostics.h"
#include "framework/base/status.h"
#include "framework/runtime/batch_source.h"
#include "framework/runtime/session.h"

namespace convnet {

struct BoundModel;
namespace schema {
class Data;
class Source;
}  // namespace schema

// A schema::Source, without protobuf.
struct DataOptions {
  std::string idx;                            // prefix of IDX files; empty: synthetic
  std::optional<SyntheticOptions> synthetic;  // its stream is "test" for test data
  int64_t crop = 0, pad = 0;                  // crop 0: none
  bool mirror = false;
  Mean mean = Mean::kNone;
  std::vector<double> mean_values;  // one per channel; instead of mean
  double scale = 1;
  bool shuffle = true;
};

enum class DataRole { kTrain, kTest };
DataOptions data_options(const schema::Source& source, DataRole role);
// The train or test source of a model; mean and scale of a test source that gives none are those of
// train. Nothing if the model has no such source.
std::optional<DataOptions> data_options(const schema::Data& data, DataRole role);

// What a model file's data section says that cannot be right, whatever the data sets hold: shapes,
// means or numbers of classes that contradict `input`.
void check_data(const BoundModel& model, Diagnostics& diagnostics);

// Folders in which a relative data path is looked up, in this order.
struct DataPaths {
  struct Folder {
    std::string path;
    std::string origin;  // "beside the model file", "--data"
  };
  std::vector<Folder> folders;
};
// Beside the model file (an empty folder is the current one); under --data (empty: not given);
// under $CONVNET_DATA; under $XDG_DATA_HOME/convnet/datasets (without it
// ~/.local/share/convnet/datasets); under /usr/share/datasets.
DataPaths data_paths(const std::string& model_folder, const std::string& data_folder);

// Opens the data set of a source. `classes`: those of the model, which labels must be below;
// synthetic data must not have more. kData; if nothing is found, the message lists where it was
// looked for and what would help.
Result<std::shared_ptr<const Dataset>> open_dataset(const DataOptions& options,
                                                    const DataPaths& paths, int64_t classes);

// The mean that a source subtracts: none; the values given; or the training data's: `stored`, from
// a checkpoint, if that is given (kCheckpoint if it is not of the kind asked for), else computed
// from `training` (kData if that is null too). What is returned is what to store as "data.mean".
Result<std::optional<HostTensor>> source_mean(const DataOptions& options, const Dataset* training,
                                              const HostTensor* stored);

struct SourceOptions {
  int64_t batch = 1;  // examples per step, the plan's
  Shape input;        // [C, H, W] of the model's input; kData if the examples have another shape
  std::optional<HostTensor> mean;  // from source_mean
  int64_t begin = 0, end = -1;     // the part of each batch that is wanted, as LoaderOptions say
  uint64_t seed = 1;               // of order and augmentation
  int workers = 1;                 // threads that prepare the next batch; 0: none
};
// An endless stream, shuffled and augmented as the options say.
Result<std::unique_ptr<BatchSource>> make_train_source(const DataOptions& options,
                                                       std::shared_ptr<const Dataset> dataset,
                                                       const SourceOptions& source);
// One pass in order; crops are from the centre, mirror and shuffle are ignored.
Result<std::unique_ptr<BatchSource>> make_test_source(const DataOptions& options,
                                                      std::shared_ptr<const Dataset> dataset,
                                                      const SourceOptions& source);

}  // namespace convnet
