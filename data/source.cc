#include "data/source.h"

#include <sys/stat.h>

#include <cstdlib>
#include <utility>

#include "data/idx.h"
#include "data/loader.h"
#include "framework/model/model.pb.h"

namespace convnet {

namespace {

constexpr const char* kImages = "-images-idx3-ubyte";
constexpr const char* kLabels = "-labels-idx1-ubyte";

// Data sets that a package brings, by the first part of their path.
struct Package {
  std::string_view dataset, command;
};
constexpr Package kPackages[] = {{"fashion-mnist", "apt-get install dataset-fashion-mnist"}};

bool exists(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0;
}

// PATH or PATH.gz, whichever is there; empty if neither is.
std::string plain_or_gzip(const std::string& path) {
  if (exists(path)) return path;
  return exists(path + ".gz") ? path + ".gz" : "";
}

std::string join(const std::string& folder, const std::string& name) {
  if (folder.empty()) return name;
  return folder.back() == '/' ? folder + name : folder + "/" + name;
}

Status not_found(const std::string& prefix, const std::vector<DataPaths::Folder>& folders) {
  const std::string name = printable(prefix);
  std::string message = "data set '" + name + "' not found: no file '" + name + kImages + "' or '" +
                        name + kImages + ".gz'";
  for (size_t i = 0; i < folders.size(); ++i) {
    message += i == 0 ? " in " : i + 1 == folders.size() ? " or " : ", ";
    message += "'" + folders[i].path + "' (" + folders[i].origin + ")";
  }
  message += "\nhelp: ";
  for (const Package& package : kPackages)
    if (prefix.compare(0, package.dataset.size() + 1, std::string(package.dataset) + "/") == 0)
      message += std::string(package.command) + ", or ";
  return Status(Code::kData, message + "name the folder that holds it with --data DIR");
}

Result<std::shared_ptr<const Dataset>> open_idx(const std::string& prefix, const DataPaths& paths,
                                                int64_t classes) {
  std::vector<DataPaths::Folder> folders = paths.folders;
  if (!prefix.empty() && prefix[0] == '/') folders.clear();
  std::vector<std::string> candidates = {prefix};
  if (!folders.empty()) candidates.clear();
  for (const DataPaths::Folder& folder : folders) candidates.push_back(join(folder.path, prefix));
  for (const std::string& candidate : candidates) {
    const std::string images = plain_or_gzip(candidate + kImages);
    if (images.empty()) continue;
    const std::string labels = plain_or_gzip(candidate + kLabels);
    if (labels.empty())
      return Status(Code::kData, "'" + images + "' is there, but neither '" + candidate + kLabels +
                                     "' nor '" + candidate + kLabels + ".gz'");
    return read_idx(prefix, images, labels, classes);
  }
  return not_found(prefix, folders);
}

LoaderOptions loader_options(const DataOptions& options, const SourceOptions& source) {
  LoaderOptions loader;
  loader.batch = source.batch;
  loader.pad = options.pad;
  loader.crop = options.crop;
  loader.mean = source.mean;
  loader.scale = options.scale;
  loader.seed = source.seed;
  loader.begin = source.begin;
  loader.end = source.end;
  loader.workers = source.workers;
  return loader;
}

Result<std::unique_ptr<BatchSource>> make_source(std::shared_ptr<const Dataset> dataset,
                                                 LoaderOptions options, const Shape& input) {
  const std::string name = dataset->name();
  const Shape full = dataset->example_shape();
  const bool cut = options.crop > 0 || options.pad > 0;
  CONVNET_ASSIGN_OR_RETURN(std::unique_ptr<Loader> loader,
                           Loader::create(std::move(dataset), std::move(options)));
  if (!(loader->example_shape() == input))
    return Status(Code::kData, "examples of data set '" + name + "' have shape " +
                                   loader->example_shape().str() +
                                   (cut ? " (cut from " + full.str() + ")" : "") +
                                   ", but the model's input is " + input.str());
  return std::unique_ptr<BatchSource>(std::move(loader));
}

}  // namespace

DataOptions data_options(const schema::Source& source, DataRole role) {
  DataOptions options;
  options.idx = source.idx();
  if (source.has_synthetic()) {
    const schema::Synthetic& from = source.synthetic();
    SyntheticOptions& to = options.synthetic.emplace();
    for (uint32_t extent : from.shape()) to.shape.append(extent);
    to.classes = from.classes();
    to.examples = static_cast<int64_t>(from.examples());
    to.noise = from.noise();
    to.seed = from.seed();
    to.stream = role == DataRole::kTrain ? "train" : "test";
  }
  options.crop = source.crop();
  options.pad = source.pad();
  options.mirror = source.mirror();
  switch (source.mean()) {
    case schema::Source::none:
      options.mean = Mean::kNone;
      break;
    case schema::Source::channel:
      options.mean = Mean::kChannel;
      break;
    case schema::Source::pixel:
      options.mean = Mean::kPixel;
      break;
  }
  options.mean_values.assign(source.mean_values().begin(), source.mean_values().end());
  options.scale = source.scale();
  options.shuffle = source.shuffle();
  return options;
}

std::optional<DataOptions> data_options(const schema::Data& data, DataRole role) {
  if (role == DataRole::kTrain)
    return data.has_train() ? std::optional(data_options(data.train(), role)) : std::nullopt;
  if (!data.has_test()) return std::nullopt;
  const schema::Source& test = data.test();
  DataOptions options = data_options(test, role);
  if (data.has_train()) {
    const DataOptions train = data_options(data.train(), DataRole::kTrain);
    if (!test.has_mean() && test.mean_values().empty()) {
      options.mean = train.mean;
      options.mean_values = train.mean_values;
    }
    if (!test.has_scale()) options.scale = train.scale;
  }
  return options;
}

DataPaths data_paths(const std::string& model_folder, const std::string& data_folder) {
  DataPaths paths;
  const auto add = [&paths](const std::string& path, const char* origin) {
    if (!path.empty()) paths.folders.push_back({path, origin});
  };
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  add(model_folder.empty() ? "." : model_folder, "beside the model file");
  add(data_folder, "--data");
  add(variable("CONVNET_DATA"), "CONVNET_DATA");
  if (const std::string xdg = variable("XDG_DATA_HOME"); !xdg.empty()) {
    add(join(xdg, "convnet/datasets"), "XDG_DATA_HOME");
  } else if (const std::string home = variable("HOME"); !home.empty()) {
    add(join(home, ".local/share/convnet/datasets"), "your data sets");
  }
  add("/usr/share/datasets", "the system's data sets");
  return paths;
}

Result<std::shared_ptr<const Dataset>> open_dataset(const DataOptions& options,
                                                    const DataPaths& paths, int64_t classes) {
  if (!options.synthetic) return open_idx(options.idx, paths, classes);
  if (options.synthetic->classes > classes)
    return Status(Code::kData, "synthetic data of " + std::to_string(options.synthetic->classes) +
                                   " classes, but the model's label has " +
                                   std::to_string(classes));
  return synthetic_dataset(*options.synthetic);
}

Result<std::optional<HostTensor>> source_mean(const DataOptions& options, const Dataset* training,
                                              const HostTensor* stored) {
  if (!options.mean_values.empty()) {
    HostTensor given;
    given.shape = Shape{static_cast<int64_t>(options.mean_values.size())};
    given.values = options.mean_values;
    return std::optional(std::move(given));
  }
  if (options.mean == Mean::kNone) return std::optional<HostTensor>();
  const int rank = options.mean == Mean::kChannel ? 1 : 3;
  if (stored != nullptr) {
    if (stored->shape.rank() != rank)
      return Status(Code::kCheckpoint, "the mean in the checkpoint has shape " +
                                           stored->shape.str() + ", but the model file asks for " +
                                           (rank == 1 ? "one value per channel" : "one per pixel"));
    return std::optional(*stored);
  }
  if (training == nullptr)
    return Status(
        Code::kData,
        "the mean of the training data is asked for, but there are no training data and no "
        "checkpoint that holds it");
  CONVNET_ASSIGN_OR_RETURN(HostTensor mean, compute_mean(*training, options.mean));
  return std::optional(std::move(mean));
}

Result<std::unique_ptr<BatchSource>> make_train_source(const DataOptions& options,
                                                       std::shared_ptr<const Dataset> dataset,
                                                       const SourceOptions& source) {
  LoaderOptions loader = loader_options(options, source);
  loader.training = true;
  loader.shuffle = options.shuffle;
  loader.mirror = options.mirror;
  return make_source(std::move(dataset), std::move(loader), source.input);
}

Result<std::unique_ptr<BatchSource>> make_test_source(const DataOptions& options,
                                                      std::shared_ptr<const Dataset> dataset,
                                                      const SourceOptions& source) {
  return make_source(std::move(dataset), loader_options(options, source), source.input);
}

}  // namespace convnet
