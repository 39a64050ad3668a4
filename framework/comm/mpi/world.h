// World: the messages of this process. It alone calls MPI.
//
// MPI is initialised with MPI_THREAD_SERIALIZED: any thread calls it, one at a time, under one lock
// that is never held while waiting. So the thread that needs a message looks for it itself, whether
// it is the main thread or a device's, without a thread between them whose wake-up every message
// would have to wait for. Nothing blocks in MPI: whoever waits tests, watches the clock and the
// other ranks' notices, and yields.
#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "framework/base/status.h"

namespace convnet::mpi {

// What uses the world's messages. It lives as long as the world, because a message may still come
// in after its user has given up.
class Member {
 public:
  virtual ~Member() = default;
  // Ends all waiting; any thread.
  virtual void abort() = 0;
};

// Messages under way. Their memory must stay until all are done, or the program ends.
struct Flight {
  std::vector<MPI_Request> requests;
  std::vector<int> peers;
  void reserve(size_t messages);
};

// How a rank ended, as it tells the others.
struct Notice {
  // The whole fits a message that MPI sends without waiting for its receiver.
  static constexpr size_t kTextBytes = 3800;
  int32_t code = 0;
  int32_t lost = -1;     // the rank it was waiting for; -1: it did not end for that
  int32_t followed = 0;  // 1: it only ended because another rank had
  std::array<char, kTextBytes> text{};
};

class World {
 public:
  // kPeer, kUsage: MPI does not start as it should.
  static Result<std::unique_ptr<World>> create(double timeout);
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  double timeout() const { return timeout_; }
  const std::string& name(int rank) const { return names_[static_cast<size_t>(rank)]; }
  void set_names(std::vector<std::string> names) { names_ = std::move(names); }

  // `channel`: messages of one channel and tag arrive in the order they were sent in.
  enum class Channel { kDevices, kMain };
  void send(Channel channel, int to, int tag, const void* data, int64_t bytes, Flight& flight);
  void receive(Channel channel, int from, int tag, void* data, int64_t bytes, Flight& flight);

  // Until all messages of the flight are done. False if the ranks stop: because one of them told
  // so, or because nothing came for `seconds`. `what` names what is waited for: "all_reduce of
  // ...".
  bool wait(Flight& flight, double seconds, const std::function<std::string()>& what);

  // Why the ranks stop; nothing while they run. Any thread.
  struct Failure {
    Status status;
    int lost = -1;         // the rank that did not answer
    bool foreign = false;  // another rank's notice
  };
  std::optional<Failure> failure() const;

  // The notices of all ranks; waits for those that are alive. Nothing from those that are not.
  std::vector<std::optional<Notice>> exchange_notices(const Notice& mine);

  void add(std::shared_ptr<Member> member);
  // Tags of the devices' channel that nobody else uses; the same on all ranks if they ask in the
  // same order. kLimit if there are none left.
  Result<int> reserve_tags(int64_t count);

  void finalize();
  [[noreturn]] void end_all(int code);

 private:
  World() = default;
  void fail(Failure failure);
  void look_for_notices();  // under mutex_
  MPI_Comm comm(Channel channel) const { return comms_[static_cast<size_t>(channel)]; }

  int rank_ = 0, size_ = 1;
  double timeout_ = 60;
  int tag_limit_ = 32767, next_tag_ = 0;
  std::vector<std::string> names_;
  std::array<MPI_Comm, 3> comms_{};  // devices, main thread, notices

  std::mutex mutex_;  // MPI; and the notices
  std::vector<Notice> notices_;
  std::vector<MPI_Request> notice_requests_;
  std::vector<bool> noticed_;
  Notice mine_;  // while it is being sent

  mutable std::mutex failure_mutex_;
  std::optional<Failure> failure_;
  std::atomic<bool> failed_{false};
  std::vector<std::shared_ptr<Member>> members_;
};

}  // namespace convnet::mpi
