#include "framework/comm/mpi/world.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

namespace convnet::mpi {
namespace {

constexpr int64_t kChunk = int64_t{1} << 30;  // MPI counts bytes in an int
constexpr int kNotices = 2;                   // in comms_
// How long those who know of a failure wait for the others to end. They hear of it when they next
// wait for a message.
constexpr double kGrace = 10;
// The same for a rank that somebody waited for in vain: it may have been waiting, too.
constexpr double kGraceOfLost = 1;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Time spent waiting. A process that was stopped meanwhile counts its own absence for little, else
// it would blame the others for it.
class Patience {
 public:
  double waited() {
    const double time = now();
    waited_ += std::min(time - last_, kLongestPause);
    last_ = time;
    return waited_;
  }

  // Gives the core away; the longer it has waited, the longer. A peer on the same cores needs them,
  // and a message that took a millisecond may take a twentieth more.
  void pause() {
    if (waited_ < 0.001) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(waited_ < 0.1 ? std::chrono::microseconds(50)
                                                : std::chrono::microseconds(500));
    }
  }

 private:
  static constexpr double kLongestPause = 1;
  double last_ = now(), waited_ = 0;
};

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", seconds);
  return text;
}

std::string error_text(int error) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(error, text, &length) != MPI_SUCCESS) return "unknown error";
  return std::string(text, static_cast<size_t>(length));
}

}  // namespace

void Flight::reserve(size_t messages) {
  requests.reserve(messages);
  peers.reserve(messages);
}

Result<std::unique_ptr<World>> World::create(double timeout) {
  int provided = MPI_THREAD_SINGLE;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS)
    return Status(Code::kPeer, "MPI does not start");
  if (provided < MPI_THREAD_SERIALIZED)
    return Status(Code::kUsage, "this MPI cannot be called by several threads in turn");
  std::unique_ptr<World> world(new World);
  world->timeout_ = timeout;
  for (MPI_Comm& comm : world->comms_) {
    if (MPI_Comm_dup(MPI_COMM_WORLD, &comm) != MPI_SUCCESS)
      return Status(Code::kPeer, "MPI does not connect the ranks");
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &world->rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &world->size_);
  void* limit = nullptr;
  int known = 0;
  if (MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &limit, &known) == MPI_SUCCESS && known != 0)
    world->tag_limit_ = *static_cast<int*>(limit);

  const auto size = static_cast<size_t>(world->size_);
  for (size_t r = 0; r < size; ++r) world->names_.push_back("rank " + std::to_string(r));
  world->notices_.resize(size);
  world->noticed_.assign(size, false);
  world->notice_requests_.assign(size, MPI_REQUEST_NULL);
  for (int r = 0; r < world->size_; ++r) {
    if (r == world->rank_) continue;
    MPI_Irecv(&world->notices_[static_cast<size_t>(r)], sizeof(Notice), MPI_BYTE, r, 0,
              world->comms_[kNotices], &world->notice_requests_[static_cast<size_t>(r)]);
  }
  return world;
}

void World::send(Channel channel, int to, int tag, const void* data, int64_t bytes,
                 Flight& flight) {
  const std::lock_guard lock(mutex_);
  const auto* at = static_cast<const std::byte*>(data);
  for (int64_t done = 0; done < bytes || done == 0; done += kChunk) {
    flight.requests.push_back(MPI_REQUEST_NULL);
    flight.peers.push_back(to);
    MPI_Isend(at + done, static_cast<int>(std::min(kChunk, bytes - done)), MPI_BYTE, to, tag,
              comm(channel), &flight.requests.back());
  }
}

void World::receive(Channel channel, int from, int tag, void* data, int64_t bytes, Flight& flight) {
  const std::lock_guard lock(mutex_);
  auto* at = static_cast<std::byte*>(data);
  for (int64_t done = 0; done < bytes || done == 0; done += kChunk) {
    flight.requests.push_back(MPI_REQUEST_NULL);
    flight.peers.push_back(from);
    MPI_Irecv(at + done, static_cast<int>(std::min(kChunk, bytes - done)), MPI_BYTE, from, tag,
              comm(channel), &flight.requests.back());
  }
}

bool World::wait(Flight& flight, double seconds, const std::function<std::string()>& what) {
  Patience patience;
  while (true) {
    int error = MPI_SUCCESS, done = 0, peer = -1;
    {
      const std::lock_guard lock(mutex_);
      // One by one, so that what is missing is known, and whose fault an error is.
      size_t left = 0;
      for (size_t i = 0; i < flight.requests.size() && error == MPI_SUCCESS; ++i) {
        error = MPI_Test(&flight.requests[i], &done, MPI_STATUS_IGNORE);
        if (done != 0 && error == MPI_SUCCESS) continue;
        peer = flight.peers[i];
        flight.requests[left] = flight.requests[i];
        flight.peers[left++] = peer;
      }
      if (error == MPI_SUCCESS) {
        flight.requests.resize(left);
        flight.peers.resize(left);
        if (left == 0) return true;
      }
      look_for_notices();
    }
    if (failed_.load(std::memory_order_acquire)) return false;
    if (error != MPI_SUCCESS) {
      fail({Status(Code::kPeer, "the connection to " + name(peer) + " was lost during " + what() +
                                    ": " + error_text(error)),
            peer, false});
      return false;
    }
    if (patience.waited() > seconds) {
      peer = flight.peers.front();
      fail({Status(Code::kPeer, name(rank_) + " has waited " + seconds_text(seconds) + " for " +
                                    name(peer) + ": " + what()),
            peer, false});
      return false;
    }
    patience.pause();
  }
}

void World::look_for_notices() {
  for (size_t r = 0; r < notice_requests_.size(); ++r) {
    if (notice_requests_[r] == MPI_REQUEST_NULL) continue;
    int done = 0;
    // A connection that breaks is no notice.
    if (MPI_Test(&notice_requests_[r], &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done == 0)
      continue;
    noticed_[r] = true;
    Notice& notice = notices_[r];
    notice.text.back() = '\0';
    if (notice.text[0] == '\0' && notice.followed == 0) continue;
    fail({Status(static_cast<Code>(notice.code),
                 names_[r] + " has stopped: " + std::string(notice.text.data())),
          -1, true});
  }
}

void World::fail(Failure failure) {
  std::vector<std::shared_ptr<Member>> members;
  {
    const std::lock_guard lock(failure_mutex_);
    if (failure_) return;
    failure_ = std::move(failure);
    failed_.store(true, std::memory_order_release);
    members = members_;
  }
  for (const auto& member : members) member->abort();
}

std::optional<World::Failure> World::failure() const {
  const std::lock_guard lock(failure_mutex_);
  return failure_;
}

void World::add(std::shared_ptr<Member> member) {
  const std::lock_guard lock(failure_mutex_);
  if (failure_) member->abort();
  members_.push_back(std::move(member));
}

Result<int> World::reserve_tags(int64_t count) {
  if (count > tag_limit_ - next_tag_)
    return Status(Code::kLimit, "the plan has more exchanges than this MPI has tags, which is " +
                                    std::to_string(tag_limit_));
  const int first = next_tag_;
  next_tag_ += static_cast<int>(count);
  return first;
}

std::vector<std::optional<Notice>> World::exchange_notices(const Notice& mine) {
  mine_ = mine;
  std::vector<MPI_Request> sends(static_cast<size_t>(size_), MPI_REQUEST_NULL);
  {
    const std::lock_guard lock(mutex_);
    for (int r = 0; r < size_; ++r)
      if (r != rank_)
        MPI_Isend(&mine_, sizeof mine_, MPI_BYTE, r, 0, comms_[kNotices],
                  &sends[static_cast<size_t>(r)]);
  }
  const bool bad = mine.text[0] != '\0' || mine.followed != 0;
  Patience patience;
  while (true) {
    bool all = true, all_but_lost = true, failed = bad || failed_.load(std::memory_order_acquire);
    {
      const std::lock_guard lock(mutex_);
      look_for_notices();
      std::vector<bool> blamed(noticed_.size(), false);
      if (mine.lost >= 0) blamed[static_cast<size_t>(mine.lost)] = true;
      for (size_t r = 0; r < noticed_.size(); ++r)
        if (noticed_[r] && notices_[r].lost >= 0 && notices_[r].lost < size_)
          blamed[static_cast<size_t>(notices_[r].lost)] = true;
      for (size_t r = 0; r < noticed_.size(); ++r) {
        int sent = 1;
        if (sends[r] != MPI_REQUEST_NULL) MPI_Test(&sends[r], &sent, MPI_STATUS_IGNORE);
        const bool here = static_cast<int>(r) == rank_ || (noticed_[r] && sent != 0);
        all = all && here;
        all_but_lost = all_but_lost && (here || blamed[r]);
      }
    }
    const double waited = patience.waited();
    if (all || (all_but_lost && waited > kGraceOfLost)) break;
    if (waited > (failed ? std::min(kGrace, std::max(timeout_, kGraceOfLost)) : 10 * timeout_))
      break;
    patience.pause();
  }
  std::vector<std::optional<Notice>> all(static_cast<size_t>(size_));
  const std::lock_guard lock(mutex_);
  for (size_t r = 0; r < all.size(); ++r)
    if (noticed_[r]) all[r] = notices_[r];
  all[static_cast<size_t>(rank_)] = mine;
  return all;
}

void World::finalize() {
  const std::lock_guard lock(mutex_);
  MPI_Finalize();
}

void World::end_all(int code) {
  // Whatever MPI does, this process ends.
  std::thread([code] {
    std::this_thread::sleep_for(std::chrono::seconds(5));
    _exit(code);
  }).detach();
  {
    const std::lock_guard lock(mutex_);
    MPI_Abort(MPI_COMM_WORLD, code);
  }
  _exit(code);
}

}  // namespace convnet::mpi
