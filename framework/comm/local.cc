// The communicator of devices that are threads of one process: everyone reads the others' memory
// between two barriers of the exchange's group.
#include <algorithm>
#include <map>
#include <mutex>
#include <string>

#include "framework/comm/barrier.h"
#include "framework/comm/common_rows.h"
#include "framework/comm/communicator.h"
#include "framework/comm/encoding.h"
#include "framework/comm/exchange_steps.h"

namespace convnet {
namespace {

int participants(const Exchange& e) {
  int n = 0;
  for (size_t m = 0; m < e.group.size(); ++m) n += takes_part(e, m);
  return n;
}

// An exchange and what its members have bound so far.
struct Meeting {
  Meeting(const Plan& plan, const Exchange& e) : rows(plan, e), exchange(rows.exchange()) {
    View nothing;
    nothing.box.append(0, 0);
    in.resize(e.group.size(), nothing);
    out = in;
    for (size_t m = 0; m < e.group.size(); ++m) bound.push_back(!takes_part(e, m));
  }

  // Its work, in phases: a barrier of the members stands before each.
  size_t phases() const { return !rounds.empty() ? 2 * rounds.size() : steps.two_phases ? 3 : 2; }
  void run(size_t phase, size_t member) const {
    if (!rounds.empty()) {
      const EncodedRound& round = rounds[phase / 2];
      if (phase % 2 == 1)
        run(round.steps.members[member].first);
      else if (round.operands[member] != nullptr)
        round.operands[member]->encode();
      return;
    }
    const MemberSteps& mine = steps.members[member];
    run(phase == 0 ? mine.first : phase + 1 < phases() ? mine.second : mine.last);
  }
  static void run(const std::vector<Transfer>& transfers) {
    for (const Transfer& t : transfers) t.run();
  }

  CommonRows rows;
  const Exchange& exchange;
  std::mutex mutex;  // guards what follows until all members are bound; then it is read only
  std::vector<View> in, out;
  std::vector<bool> bound;
  bool ready = false;
  ExchangeSteps steps;
  std::vector<EncodedRound> rounds;  // of an encoded exchange, in place of `steps`
};

// Exchanges that are carried out as one: a bucket, or one alone.
struct Bucket {
  explicit Bucket(int members) : barrier(std::max(1, members)) {}
  std::vector<Meeting*> meetings;  // of the same members
  Barrier barrier;
};

struct Hub {
  explicit Hub(const Plan& plan)
      : everyone(static_cast<int>(std::max<size_t>(1, plan.devices.size()))) {
    std::map<int, Bucket*> known;
    for (const Exchange& e : plan.exchanges) {
      meetings.push_back(std::make_unique<Meeting>(plan, e));
      Bucket*& bucket = known[e.bucket];
      if (e.bucket < 0 || bucket == nullptr) {
        buckets.push_back(std::make_unique<Bucket>(participants(e)));
        bucket = buckets.back().get();
      }
      bucket->meetings.push_back(meetings.back().get());
      bucket_of.push_back(bucket);
    }
  }
  std::vector<std::unique_ptr<Meeting>> meetings;
  std::vector<std::unique_ptr<Bucket>> buckets;
  std::vector<Bucket*> bucket_of;  // per exchange
  Barrier everyone;
};

// All exchanges of a bucket.
class BucketKernel : public Kernel {
 public:
  BucketKernel(std::shared_ptr<Hub> hub, Bucket& bucket, size_t member)
      : hub_(std::move(hub)), bucket_(bucket), member_(member) {}

  void run() override {
    bool more = true;
    for (size_t phase = 0; more; ++phase) {
      if (!bucket_.barrier.wait()) return;
      more = false;
      for (const Meeting* meeting : bucket_.meetings) {
        CHECK(meeting->ready);
        if (phase < meeting->phases()) meeting->run(phase, member_);
        more = more || phase + 1 < meeting->phases();
      }
    }
  }

 private:
  std::shared_ptr<Hub> hub_;  // keeps the bucket
  Bucket& bucket_;
  size_t member_;
};

// Called once all members are bound.
Status prepare(Meeting& meeting) {
  if (meeting.exchange.wire != Wire::kF32) {
    CONVNET_ASSIGN_OR_RETURN(meeting.rounds, encoded_rounds(meeting.exchange, meeting.rows.tensor(),
                                                            meeting.in, meeting.out));
  } else {
    CONVNET_ASSIGN_OR_RETURN(meeting.steps, exchange_steps(meeting.exchange, meeting.rows.tensor(),
                                                           meeting.in, meeting.out));
  }
  meeting.ready = true;
  return Status();
}

class LocalCommunicator : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<Hub> hub, int device) : hub_(std::move(hub)), device_(device) {}

  Result<std::unique_ptr<Kernel>> bind(int id, const View& in, const View& out) override {
    const std::string what = "exchange " + std::to_string(id);
    if (id < 0 || static_cast<size_t>(id) >= hub_->meetings.size())
      return Status(Code::kUsage, what + " is not in the plan");
    Meeting& meeting = *hub_->meetings[static_cast<size_t>(id)];
    const std::vector<int>& group = meeting.exchange.group;
    const auto place = std::find(group.begin(), group.end(), device_);
    const auto member = static_cast<size_t>(place - group.begin());
    if (place == group.end() || !takes_part(meeting.exchange, member))
      return Status(Code::kUsage, what + " has no part for device " + std::to_string(device_));

    const std::lock_guard lock(meeting.mutex);
    if (meeting.bound[member])
      return Status(Code::kUsage, what + " is bound twice on device " + std::to_string(device_));
    meeting.bound[member] = true;
    meeting.in[member] = in;
    meeting.out[member] = out;
    CONVNET_RETURN_IF_ERROR(meeting.rows.renumber(member, meeting.in[member], meeting.out[member])
                                .with_context(what + " (" + meeting.exchange.edge + ")"));
    if (std::find(meeting.bound.begin(), meeting.bound.end(), false) == meeting.bound.end())
      CONVNET_RETURN_IF_ERROR(
          prepare(meeting).with_context(what + " (" + meeting.exchange.edge + ")"));
    Bucket& bucket = *hub_->bucket_of[static_cast<size_t>(id)];
    if (&meeting != bucket.meetings.back()) return std::unique_ptr<Kernel>(new NoKernel);
    return std::unique_ptr<Kernel>(std::make_unique<BucketKernel>(hub_, bucket, member));
  }

  void barrier() override { hub_->everyone.wait(); }

  void abort() override {
    hub_->everyone.abort();
    for (const auto& bucket : hub_->buckets) bucket->barrier.abort();
  }
  bool aborted() const override { return hub_->everyone.aborted(); }

 private:
  std::shared_ptr<Hub> hub_;
  int device_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> local_communicators(const Plan& plan) {
  const auto hub = std::make_shared<Hub>(plan);
  std::vector<std::unique_ptr<Communicator>> all;
  for (size_t d = 0; d < plan.devices.size(); ++d)
    all.push_back(std::make_unique<LocalCommunicator>(hub, static_cast<int>(d)));
  return all;
}

}  // namespace convnet
