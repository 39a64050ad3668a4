#include "framework/comm/ranks.h"

#include <mpi.h>
#include <sched.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "framework/comm/mpi/communicator.h"
#include "framework/comm/mpi/join.h"
#include "framework/comm/mpi/world.h"

namespace convnet {
namespace {

using mpi::Flight;
using mpi::Notice;
using mpi::World;

constexpr int kTagMax = 0, kTagGather = 1, kTagData = 2;
constexpr auto kMain = World::Channel::kMain;

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

// The cores that this process may use, as bytes.
std::string core_set() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return "";
  return std::string(reinterpret_cast<const char*>(&set), sizeof set);
}

class MpiRanks : public Ranks {
 public:
  explicit MpiRanks(std::unique_ptr<World> world)
      : world_(std::move(world)), theirs_(static_cast<size_t>(world_->size())) {}

  // Learns who the others are.
  Status meet() {
    const std::string host = host_name();
    CONVNET_ASSIGN_OR_RETURN(const auto hosts, all_gather(host, "its start", Patience::kWork));
    CONVNET_ASSIGN_OR_RETURN(const auto cores,
                             all_gather(core_set(), "its start", Patience::kWork));
    std::vector<std::string> names;
    for (size_t r = 0; r < hosts.size(); ++r) {
      names.push_back("rank " + std::to_string(r) + " on " + hosts[r]);
      const auto mine = static_cast<size_t>(rank());
      if (r != mine && hosts[r] == host && cores[r] == cores[mine]) ++sharing_;
    }
    world_->set_names(std::move(names));
    return Status();
  }

  int rank() const override { return world_->rank(); }
  int size() const override { return world_->size(); }
  std::string name(int rank) const override { return world_->name(rank); }
  int sharing_cores() const override { return sharing_; }

  Result<std::vector<std::unique_ptr<Communicator>>> communicators(const Plan& plan) override {
    const auto devices = static_cast<int>(plan.devices.size());
    if (size() > devices)
      return Status(Code::kUsage,
                    std::to_string(size()) + " processes for " + std::to_string(devices) +
                        (devices == 1 ? " device" : " devices") +
                        ": each needs one at least; start fewer, or ask for more with --devices");
    const std::string text = print_plan(plan);
    const XXH64_hash_t hash = XXH3_64bits(text.data(), text.size());
    CONVNET_ASSIGN_OR_RETURN(const auto hashes,
                             all_gather({reinterpret_cast<const char*>(&hash), sizeof hash},
                                        "its plan", Patience::kWork));
    for (size_t r = 0; r < hashes.size(); ++r)
      if (hashes[r] != hashes[0])
        return Status(Code::kUsage, name(static_cast<int>(r)) + " has another plan than rank 0: " +
                                        "all must be started with the same program, model file "
                                        "and options");
    return mpi::communicators(*world_, plan);
  }

  void begin_max(std::span<const int64_t> mine) override {
    CHECK(mine.size() <= kMaxNumbers && numbers_.requests.empty());
    std::copy(mine.begin(), mine.end(), mine_.begin());
    for_each_peer([&](int peer) {
      world_->receive(kMain, peer, kTagMax, theirs_[static_cast<size_t>(peer)].data(), kNumberBytes,
                      numbers_);
      world_->send(kMain, peer, kTagMax, mine_.data(), kNumberBytes, numbers_);
    });
  }

  Status end_max(std::span<int64_t> largest, const std::string& what, Patience patience) override {
    if (!world_->wait(numbers_, seconds(patience), [&] { return what; })) return failure();
    std::copy_n(mine_.begin(), largest.size(), largest.begin());
    for_each_peer([&](int peer) {
      for (size_t i = 0; i < largest.size(); ++i)
        largest[i] = std::max(largest[i], theirs_[static_cast<size_t>(peer)][i]);
    });
    return Status();
  }

  Result<std::vector<std::string>> all_gather(std::string_view mine, const std::string& what,
                                              Patience patience) override {
    const auto n = static_cast<size_t>(size());
    struct Bytes {
      std::vector<int64_t> length;
      std::vector<std::string> data;
    };
    const auto bytes = keep<Bytes>();
    bytes->length.resize(n);
    bytes->data.resize(n);
    const auto own = static_cast<size_t>(rank());
    bytes->length[own] = static_cast<int64_t>(mine.size());
    bytes->data[own] = mine;
    Flight flight;
    for_each_peer([&](int peer) {
      world_->receive(kMain, peer, kTagGather, &bytes->length[static_cast<size_t>(peer)],
                      sizeof(int64_t), flight);
      world_->send(kMain, peer, kTagGather, &bytes->length[own], sizeof(int64_t), flight);
    });
    if (!world_->wait(flight, seconds(patience), [&] { return what; })) return failure();
    for_each_peer([&](int peer) {
      const auto p = static_cast<size_t>(peer);
      bytes->data[p].resize(static_cast<size_t>(bytes->length[p]));
      world_->receive(kMain, peer, kTagGather, bytes->data[p].data(), bytes->length[p], flight);
      world_->send(kMain, peer, kTagGather, bytes->data[own].data(), bytes->length[own], flight);
    });
    if (!world_->wait(flight, seconds(patience), [&] { return what; })) return failure();
    release();
    return std::move(bytes->data);
  }

  Status send(int to, std::span<const std::byte> data, const std::string& what) override {
    const auto bytes = keep<std::vector<std::byte>>();
    bytes->assign(data.begin(), data.end());
    Flight flight;
    world_->send(kMain, to, kTagData, bytes->data(), static_cast<int64_t>(data.size()), flight);
    if (!world_->wait(flight, seconds(Patience::kWork), [&] { return what; })) return failure();
    release();
    return Status();
  }

  Status receive(int from, std::span<std::byte> data, const std::string& what) override {
    const auto bytes = keep<std::vector<std::byte>>();
    bytes->resize(data.size());
    Flight flight;
    world_->receive(kMain, from, kTagData, bytes->data(), static_cast<int64_t>(data.size()),
                    flight);
    if (!world_->wait(flight, seconds(Patience::kWork), [&] { return what; })) return failure();
    std::copy(bytes->begin(), bytes->end(), data.begin());
    release();
    return Status();
  }

  Status failure() const override {
    const auto failure = world_->failure();
    return failure ? failure->status : Status();
  }

  End finish(const End& mine, bool* speaks) override {
    const auto failure = world_->failure();
    Notice notice;
    notice.code = mine.code;
    const bool followed = failure && failure->foreign;
    notice.followed = followed ? 1 : 0;
    if (!followed) {
      const size_t n = std::min(mine.text.size(), Notice::kTextBytes - 1);
      std::memcpy(notice.text.data(), mine.text.data(), n);
      if (failure) notice.lost = failure->lost;
    }
    const auto notices = world_->exchange_notices(notice);
    return choose(mine, notices, speaks);
  }

  void leave() override {
    if (!failed_) {
      world_->finalize();
      return;
    }
    // The one that prints goes first, and takes the others with it.
    if (!speaks_) ::sleep(2);
    world_->end_all(code_);
  }

 private:
  static constexpr int64_t kNumberBytes = kMaxNumbers * sizeof(int64_t);

  // The end that counts: an error before the loss of a rank, which may follow from it; of losses
  // that of a rank that has not been heard of since; of several the lowest rank's.
  End choose(const End& mine, const std::vector<std::optional<Notice>>& notices, bool* speaks) {
    int best = -1, best_class = 0, first_here = -1;
    bool all_here = true;
    for (int r = 0; r < size(); ++r) {
      const auto& notice = notices[static_cast<size_t>(r)];
      all_here = all_here && notice.has_value();
      if (!notice) continue;
      if (first_here < 0) first_here = r;
      if (notice->text[0] == '\0') continue;
      int what = 0;
      if (notice->lost >= 0 && notice->lost < size())
        what = notices[static_cast<size_t>(notice->lost)] ? 2 : 1;
      if (best >= 0 && what >= best_class) continue;
      best = r;
      best_class = what;
    }
    speaks_ = *speaks = first_here == rank();
    End end = mine;
    end.rank = rank();
    if (best >= 0) {
      end.rank = best;
      end.code = notices[static_cast<size_t>(best)]->code;
      // A notice may be too short for the whole text.
      end.text =
          best == rank() ? mine.text : std::string(notices[static_cast<size_t>(best)]->text.data());
    } else if (!all_here) {
      end.code = static_cast<int>(Code::kPeer);
      for (int r = 0; r < size(); ++r)
        if (!notices[static_cast<size_t>(r)]) end.text += (end.text.empty() ? "" : ", ") + name(r);
      end.text = "lost at the end of the run: " + end.text;
    }
    failed_ = !end.text.empty();
    code_ = end.code;
    return end;
  }

  template <typename F>
  void for_each_peer(F&& f) const {
    for (int r = 0; r < size(); ++r)
      if (r != rank()) f(r);
  }

  double seconds(Patience patience) const {
    return patience == Patience::kStep ? world_->timeout() : 10 * world_->timeout();
  }

  // Memory of messages, which must stay if waiting for them is given up.
  template <typename T>
  std::shared_ptr<T> keep() {
    auto memory = std::make_shared<T>();
    kept_.push_back(memory);
    return memory;
  }
  void release() { kept_.pop_back(); }

  std::unique_ptr<World> world_;
  int sharing_ = 1;
  Flight numbers_;
  std::array<int64_t, kMaxNumbers> mine_{};
  std::vector<std::array<int64_t, kMaxNumbers>> theirs_;  // by rank
  std::vector<std::shared_ptr<void>> kept_;
  bool failed_ = false, speaks_ = true;
  int code_ = 0;
};

}  // namespace

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return "MPI";
  const std::string version(text, static_cast<size_t>(length));
  return version.substr(0, version.find(','));
}

Result<std::unique_ptr<Ranks>> join_ranks(double timeout) {
  CONVNET_ASSIGN_OR_RETURN(std::unique_ptr<World> world, World::create(timeout));
  const std::optional<Launch> launch = launched();
  if (launch && launch->size.value_or(1) > 1 && world->size() == 1)
    return Status(Code::kUsage, "the launcher has started " + std::to_string(*launch->size) +
                                    " processes, but this program's MPI (" + mpi_version() +
                                    ") knows of one: they are not of the same MPI");
  auto ranks = std::make_unique<MpiRanks>(std::move(world));
  CONVNET_RETURN_IF_ERROR(ranks->meet());
  return std::unique_ptr<Ranks>(std::move(ranks));
}

}  // namespace convnet
