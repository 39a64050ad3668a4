// The communicator of devices that are threads of one process: everyone reads the others' memory
// between two barriers of the exchange's group.
#include <algorithm>
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
  Meeting(const Plan& plan, const Exchange& e)
      : rows(plan, e), exchange(rows.exchange()), barrier(std::max(1, participants(e))) {
    View nothing;
    nothing.box.append(0, 0);
    in.resize(e.group.size(), nothing);
    out = in;
    for (size_t m = 0; m < e.group.size(); ++m) bound.push_back(!takes_part(e, m));
  }

  CommonRows rows;
  const Exchange& exchange;
  Barrier barrier;
  std::mutex mutex;  // guards what follows until all members are bound; then it is read only
  std::vector<View> in, out;
  std::vector<bool> bound;
  bool ready = false;
  ExchangeSteps steps;
  std::vector<EncodedRound> rounds;  // of an encoded exchange, in place of `steps`
};

struct Hub {
  explicit Hub(const Plan& plan)
      : everyone(static_cast<int>(std::max<size_t>(1, plan.devices.size()))) {
    for (const Exchange& e : plan.exchanges) meetings.push_back(std::make_unique<Meeting>(plan, e));
  }
  std::vector<std::unique_ptr<Meeting>> meetings;
  Barrier everyone;
};

class ExchangeKernel : public Kernel {
 public:
  ExchangeKernel(std::shared_ptr<Hub> hub, Meeting& meeting, size_t member)
      : hub_(std::move(hub)), meeting_(meeting), member_(member) {}

  void run() override {
    CHECK(meeting_.ready);
    for (const EncodedRound& round : meeting_.rounds) {
      if (!meeting_.barrier.wait()) return;
      if (round.operands[member_] != nullptr) round.operands[member_]->encode();
      if (!meeting_.barrier.wait()) return;
      for (const Transfer& t : round.steps.members[member_].first) t.run();
    }
    if (!meeting_.rounds.empty()) return;
    const ExchangeSteps& steps = meeting_.steps;
    const MemberSteps& mine = steps.members[member_];
    if (!meeting_.barrier.wait()) return;
    for (const Transfer& t : mine.first) t.run();
    if (steps.two_phases) {
      if (!meeting_.barrier.wait()) return;
      for (const Transfer& t : mine.second) t.run();
    }
    if (!meeting_.barrier.wait()) return;
    for (const Transfer& t : mine.last) t.run();
  }

 private:
  std::shared_ptr<Hub> hub_;  // keeps the meeting
  Meeting& meeting_;
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
    return std::unique_ptr<Kernel>(std::make_unique<ExchangeKernel>(hub_, meeting, member));
  }

  void barrier() override { hub_->everyone.wait(); }

  void abort() override {
    hub_->everyone.abort();
    for (const auto& meeting : hub_->meetings) meeting->barrier.abort();
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
