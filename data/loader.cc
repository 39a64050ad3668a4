#include "data/loader.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "framework/base/random.h"

namespace convnet {

namespace {

// Where the example for one lane comes from.
struct Pick {
  int64_t example = 0;
  int64_t top = 0, left = 0;  // of the window, in the padded image
  bool mirror = false;
};

}  // namespace

struct Loader::Impl {
  // Memory of one thread: 16 examples, and a row of each.
  struct Scratch {
    std::vector<uint8_t> pixels;  // [16][C][H][W]
    std::vector<float> rows;      // [16][W of a window]
  };
  // The batch that the workers fill.
  struct Job {
    int64_t index = -1;      // of the batch; -1: none
    int64_t next_block = 0;  // blocks of 16 examples handed out
    int64_t left = 0;        // blocks that are not done
    int64_t failed_block = -1;
    Status status;  // of the first block that failed
  };

  std::shared_ptr<const Dataset> dataset;
  LoaderOptions options;
  Shape source, window;  // [C, H, W] before and after padding and cropping
  std::vector<float> mean;
  int64_t blocks = 0;
  int64_t first_block = 0, end_block = 0;  // those that are filled
  std::array<Batch, 2> buffers;            // the caller's, and the one that is filled
  size_t back = 0;
  Scratch scratch;  // of the calling thread

  std::mutex mutex;
  std::condition_variable work, done;
  Job job;
  bool stop = false;
  std::vector<std::thread> threads;

  Status prepare();
  Scratch make_scratch() const;
  Status start_threads();
  void run_worker(Scratch memory);

  int64_t count(int64_t index) const;
  Pick pick(int64_t position) const;
  Status fill(Batch& batch, int64_t block, Scratch& memory) const;
  void fill_row(const Pick& pick, const uint8_t* pixels, int64_t c, int64_t y, float* row) const;

  void begin(int64_t index);
  Result<const Batch*> get_now(int64_t index);
  Result<const Batch*> get_prefetched(int64_t index);
};

Status Loader::Impl::prepare() {
  source = dataset->example_shape();
  const std::string name = "data set '" + dataset->name() + "'";
  const int64_t rows = source[1] + 2 * options.pad, columns = source[2] + 2 * options.pad;
  window = options.crop > 0 ? Shape{source[0], options.crop, options.crop}
                            : Shape{source[0], rows, columns};
  if (window[1] > rows || window[2] > columns)
    return Status(Code::kData, name + ": a crop of " + std::to_string(options.crop) + " x " +
                                   std::to_string(options.crop) + " pixels is larger than the " +
                                   std::to_string(rows) + " x " + std::to_string(columns) +
                                   " pixels of an image" +
                                   (options.pad > 0 ? " with its padding" : ""));
  if (options.mean) {
    const Shape& shape = options.mean->shape;
    if (!(shape == source) && !(shape == Shape{source[0]}))
      return Status(Code::kData, name + ": the mean has shape " + shape.str() +
                                     ", but the images have " + source.str());
    mean.assign(options.mean->values.begin(), options.mean->values.end());
  }
  blocks = (options.batch + kLanes - 1) / kLanes;
  first_block = options.end < 0 ? 0 : std::min(options.begin / kLanes, blocks);
  end_block = options.end < 0
                  ? blocks
                  : std::clamp((options.end + kLanes - 1) / kLanes, first_block, blocks);
  const auto example = window.checked_count();
  const auto values = example ? checked_mul(*example, blocks * kLanes) : std::nullopt;
  if (!values || *values > (int64_t{1} << 40))
    return Status(Code::kLimit, name + ": a batch of " + std::to_string(options.batch) +
                                    " examples of " + window.str() + " is too large");
  for (size_t i = 0; i < (options.workers > 0 ? 2u : 1u); ++i) {
    buffers[i].data.resize(static_cast<size_t>(*values));
    buffers[i].label.resize(static_cast<size_t>(blocks * kLanes));
  }
  if (options.workers == 0) scratch = make_scratch();
  return Status();
}

Loader::Impl::Scratch Loader::Impl::make_scratch() const {
  Scratch memory;
  memory.pixels.resize(static_cast<size_t>(kLanes * source.count()));
  memory.rows.resize(static_cast<size_t>(kLanes * window[2]));
  return memory;
}

Status Loader::Impl::start_threads() {
  // Signals are for the main thread.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status status;
  try {
    for (int i = 0; i < options.workers; ++i)
      threads.emplace_back(&Impl::run_worker, this, make_scratch());
  } catch (const std::system_error&) {
    status = Status(Code::kLimit, "cannot start " + std::to_string(options.workers) +
                                      " threads for data; the system allows " +
                                      std::to_string(threads.size()));
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status;
}

// Real examples in batch `index`.
int64_t Loader::Impl::count(int64_t index) const {
  if (options.training) return options.batch;
  const int64_t full = dataset->examples() / options.batch;
  if (index < full) return options.batch;
  return index == full ? dataset->examples() % options.batch : 0;
}

// What stands at a position of the stream. Only the stream's numbers go in, so nothing has to be
// saved for a run to resume.
Pick Loader::Impl::pick(int64_t position) const {
  static const uint64_t kOrder = name_key("data.order"), kTop = name_key("data.crop.top"),
                        kLeft = name_key("data.crop.left"), kMirror = name_key("data.mirror");
  const int64_t examples = dataset->examples();
  const auto epoch = static_cast<uint64_t>(position / examples);
  const int64_t rest_rows = source[1] + 2 * options.pad - window[1];
  const int64_t rest_columns = source[2] + 2 * options.pad - window[2];
  Pick pick;
  pick.example = position % examples;
  if (!options.training) {
    pick.top = rest_rows / 2;
    pick.left = rest_columns / 2;
    return pick;
  }
  if (options.shuffle)
    pick.example = static_cast<int64_t>(random_permutation(random_key(options.seed, kOrder, epoch),
                                                           static_cast<uint64_t>(pick.example),
                                                           static_cast<uint64_t>(examples)));
  const auto id = static_cast<uint64_t>(pick.example);
  const auto below = [this, epoch, id](uint64_t purpose, int64_t n) {
    return static_cast<int64_t>(
        random_below(random_key(options.seed, purpose, epoch), id, static_cast<uint64_t>(n)));
  };
  pick.top = below(kTop, rest_rows + 1);
  pick.left = below(kLeft, rest_columns + 1);
  pick.mirror = options.mirror && below(kMirror, 2) == 1;
  return pick;
}

// Row y of channel c of an example's window, [W of the window].
void Loader::Impl::fill_row(const Pick& pick, const uint8_t* pixels, int64_t c, int64_t y,
                            float* row) const {
  const int64_t columns = window[2];
  const int64_t source_row = y + pick.top - options.pad;
  std::fill(row, row + columns, 0.0f);
  if (source_row < 0 || source_row >= source[1]) return;
  const int64_t offset = (c * source[1] + source_row) * source[2];
  const auto scale = static_cast<float>(options.scale);
  const float channel_mean = mean.empty() ? 0.0f : mean[static_cast<size_t>(c)];
  const float* pixel_mean =
      options.mean && options.mean->shape.rank() == 3 ? mean.data() + offset : nullptr;
  // The part of the window that lies in the image, as source columns.
  const int64_t shift = pick.left - options.pad;
  const int64_t begin = std::max<int64_t>(0, shift);
  const int64_t end = std::min(source[2], shift + columns);
  for (int64_t x = begin; x < end; ++x) {
    const float value = static_cast<float>(pixels[offset + x]);
    row[x - shift] = (value - (pixel_mean != nullptr ? pixel_mean[x] : channel_mean)) * scale;
  }
  if (pick.mirror) std::reverse(row, row + columns);
}

// Fills the 16 examples of a block. Blocks share nothing, so any number of threads may do it.
Status Loader::Impl::fill(Batch& batch, int64_t block, Scratch& memory) const {
  std::array<Pick, kLanes> picks;
  const int64_t first = block * kLanes;
  const int64_t lanes = std::clamp<int64_t>(batch.count - first, 0, kLanes);
  const int64_t source_count = source.count();
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    int32_t& label = batch.label[static_cast<size_t>(first + lane)];
    label = -1;
    if (lane >= lanes) continue;
    Pick& chosen = picks[static_cast<size_t>(lane)];
    chosen = pick(batch.index * options.batch + first + lane);
    CONVNET_RETURN_IF_ERROR(
        dataset->read(chosen.example, memory.pixels.data() + lane * source_count, &label));
    // A label is used as an address by the loss.
    if (label < 0 || label >= dataset->classes())
      return Status(Code::kData, "data set '" + dataset->name() + "': example " +
                                     std::to_string(chosen.example) + " has label " +
                                     std::to_string(label) + ", but there are " +
                                     std::to_string(dataset->classes()) + " classes");
  }
  const int64_t columns = window[2];
  float* rows = memory.rows.data();
  std::fill(memory.rows.begin(), memory.rows.end(), 0.0f);
  float* out = batch.data.data() + block * window.count() * kLanes;
  for (int64_t c = 0; c < window[0]; ++c)
    for (int64_t y = 0; y < window[1]; ++y) {
      for (int64_t lane = 0; lane < lanes; ++lane)
        fill_row(picks[static_cast<size_t>(lane)], memory.pixels.data() + lane * source_count, c, y,
                 rows + lane * columns);
      for (int64_t x = 0; x < columns; ++x, out += kLanes)
        for (int64_t lane = 0; lane < kLanes; ++lane) out[lane] = rows[lane * columns + x];
    }
  return Status();
}

void Loader::Impl::run_worker(Scratch memory) {
  std::unique_lock<std::mutex> lock(mutex);
  while (true) {
    work.wait(lock, [this] { return stop || (job.index >= 0 && job.next_block < end_block); });
    if (stop) return;
    const int64_t block = job.next_block++;
    Batch& batch = buffers[back];
    lock.unlock();
    Status status = fill(batch, block, memory);
    lock.lock();
    // The first block that failed, whichever thread met it first.
    if (!status.ok() && (job.failed_block < 0 || block < job.failed_block)) {
      job.failed_block = block;
      job.status = std::move(status);
    }
    if (--job.left == 0) done.notify_one();
  }
}

// Hands batch `index` to the workers; the mutex is held and no job runs.
void Loader::Impl::begin(int64_t index) {
  buffers[back].index = index;
  buffers[back].count = count(index);
  job = Job();
  job.index = index;
  job.next_block = first_block;
  job.left = end_block - first_block;
  work.notify_all();
}

Result<const Batch*> Loader::Impl::get_now(int64_t index) {
  Batch& batch = buffers[0];
  batch.index = index;
  batch.count = count(index);
  for (int64_t block = first_block; block < end_block; ++block)
    CONVNET_RETURN_IF_ERROR(fill(batch, block, scratch));
  return &batch;
}

Result<const Batch*> Loader::Impl::get_prefetched(int64_t index) {
  std::unique_lock<std::mutex> lock(mutex);
  const auto finished = [this] { return job.left == 0; };
  done.wait(lock, finished);
  if (job.index != index) {
    begin(index);
    done.wait(lock, finished);
  }
  job.index = -1;
  if (!job.status.ok()) return job.status;
  const Batch* batch = &buffers[back];
  back = 1 - back;
  if (count(index + 1) > 0) begin(index + 1);
  return batch;
}

Loader::Loader() : impl_(std::make_unique<Impl>()) {}

Loader::~Loader() {
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->stop = true;
  }
  impl_->work.notify_all();
  for (std::thread& thread : impl_->threads) thread.join();
}

Result<std::unique_ptr<Loader>> Loader::create(std::shared_ptr<const Dataset> dataset,
                                               LoaderOptions options) {
  CHECK(dataset != nullptr && options.batch > 0 && options.pad >= 0 && options.crop >= 0 &&
        options.workers >= 0);
  std::unique_ptr<Loader> loader(new Loader());
  loader->impl_->dataset = std::move(dataset);
  loader->impl_->options = std::move(options);
  try {
    CONVNET_RETURN_IF_ERROR(loader->impl_->prepare());
    CONVNET_RETURN_IF_ERROR(loader->impl_->start_threads());
  } catch (const std::bad_alloc&) {
    return Status(Code::kLimit, "no memory for batches of " +
                                    std::to_string(loader->impl_->options.batch) + " examples of " +
                                    loader->impl_->window.str());
  }
  return loader;
}

Shape Loader::example_shape() const { return impl_->window; }

int64_t Loader::examples() const { return impl_->dataset->examples(); }

Result<const Batch*> Loader::get(int64_t index) {
  CHECK(index >= 0);
  // The position in the stream of examples must be a number.
  if (!checked_mul(index + 2, impl_->options.batch))
    return Status(Code::kLimit, "batch " + std::to_string(index) + " is too far into the stream");
  return impl_->options.workers == 0 ? impl_->get_now(index) : impl_->get_prefetched(index);
}

}  // namespace convnet
