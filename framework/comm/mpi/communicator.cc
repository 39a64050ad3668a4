// Exchanges that stay on a rank are done in its memory, as in a program that runs alone. One that
// crosses ranks is done in rounds: the members of a rank pack what others need, one of them sends
// and receives the rank's messages, then each makes its result from memory and from what came in,
// in the plan's order. What arrives when makes no difference.
#include "framework/comm/mpi/communicator.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "framework/comm/barrier.h"
#include "framework/comm/common_rows.h"
#include "framework/comm/packing.h"
#include "framework/comm/ranks.h"

namespace convnet::mpi {
namespace {

// An exchange between ranks: what the members of this one have bound so far, and its rounds.
struct Meeting {
  Meeting(const Plan& plan, const Exchange& e, std::vector<int> r, int rank)
      : rows(plan, e),
        exchange(rows.exchange()),
        ranks(std::move(r)),
        barrier(std::max(1, members_here(rank))) {
    View nothing;
    nothing.box.append(0, 0);
    in.resize(ranks.size(), nothing);
    out = in;
    bound.resize(ranks.size());
    for (size_t m = 0; m < ranks.size(); ++m) bound[m] = ranks[m] != rank || !takes_part(e, m);
    leader = static_cast<size_t>(std::find(bound.begin(), bound.end(), false) - bound.begin());
  }
  int members_here(int rank) const {
    int n = 0;
    for (size_t m = 0; m < ranks.size(); ++m) n += ranks[m] == rank && takes_part(exchange, m);
    return n;
  }

  CommonRows rows;
  const Exchange& exchange;
  std::vector<int> ranks;  // of each member
  std::string text;        // for people: "all_reduce of 'conv1.w.grad' for 'conv1' (m.yaml:7)"
  int tag = 0;             // of the first round
  Barrier barrier;         // of the members of this rank
  size_t leader = 0;       // the member that sends and receives
  std::mutex mutex;        // guards what follows until all members are bound; then it is read only
  std::vector<View> in, out;
  std::vector<bool> bound;
  struct Phase {
    std::unique_ptr<Packing> packing;
    ExchangeSteps steps;
    Flight flight;
  };
  std::vector<Phase> phases;
  bool ready = false;
};

std::string text_of(const Plan& plan, const Exchange& exchange) {
  const std::string& tensor = plan.tensors[static_cast<size_t>(exchange.tensor)].name;
  std::string text = std::string(exchange_kind_name(exchange.kind)) + " of '" + tensor + "'";
  if (!exchange.edge.empty() && exchange.edge != tensor) text += " on edge " + exchange.edge;
  if (exchange.layer < 0 || static_cast<size_t>(exchange.layer) >= plan.layers.size()) return text;
  const Layer& layer = plan.layers[static_cast<size_t>(exchange.layer)];
  return text + " for '" + layer.name + "' (" + plan.source + ":" + std::to_string(layer.line) +
         ")";
}

struct Hub : Member {
  Hub(World& w, const Plan& plan, int first_tag)
      : world(w),
        local(local_communicators(plan)),
        everyone(first_device(w.rank() + 1, w.size(), static_cast<int>(plan.devices.size())) -
                 first_device(w.rank(), w.size(), static_cast<int>(plan.devices.size()))),
        barrier_tag(first_tag) {
    const auto devices = static_cast<int>(plan.devices.size());
    int tag = first_tag + 1;
    for (const Exchange& e : plan.exchanges) {
      std::vector<int> ranks;
      for (int device : e.group) ranks.push_back(rank_of_device(device, world.size(), devices));
      int rank_of_all = -1;
      bool crosses = false;
      for (size_t m = 0; m < ranks.size(); ++m) {
        if (!takes_part(e, m)) continue;
        crosses = crosses || (rank_of_all >= 0 && ranks[m] != rank_of_all);
        rank_of_all = ranks[m];
      }
      meetings.push_back(nullptr);
      if (crosses) {
        meetings.back() = std::make_unique<Meeting>(plan, e, std::move(ranks), world.rank());
        meetings.back()->text = text_of(plan, e);
        meetings.back()->tag = tag;
      }
      tag += 2;
    }
  }
  static int64_t tags(const Plan& plan) {
    return 1 + 2 * static_cast<int64_t>(plan.exchanges.size());
  }

  void abort() override {
    for (const auto& communicator : local) communicator->abort();
    everyone.abort();
    for (const auto& meeting : meetings)
      if (meeting) meeting->barrier.abort();
  }

  World& world;
  std::vector<std::unique_ptr<Communicator>> local;
  std::vector<std::unique_ptr<Meeting>> meetings;  // by exchange; null: it stays on one rank
  Barrier everyone;                                // the devices of this rank
  int barrier_tag;
  std::byte nothing{};
};

class CrossingKernel : public Kernel {
 public:
  CrossingKernel(std::shared_ptr<Hub> hub, Meeting& meeting, size_t member)
      : hub_(std::move(hub)), meeting_(meeting), member_(member) {}

  void run() override {
    CHECK(meeting_.ready);
    Barrier& barrier = meeting_.barrier;
    for (size_t i = 0; i < meeting_.phases.size(); ++i) {
      Meeting::Phase& phase = meeting_.phases[i];
      phase.packing->pack(member_);
      if (!barrier.wait()) return;
      if (member_ == meeting_.leader && !transport(phase, meeting_.tag + static_cast<int>(i)))
        return;
      if (member_ == meeting_.leader) phase.packing->unpack();
      if (!barrier.wait()) return;
      const MemberSteps& mine = phase.steps.members[member_];
      for (const Transfer& t : mine.first) t.run();
      if (!barrier.wait()) return;
      for (const Transfer& t : mine.last) t.run();
    }
  }

 private:
  bool transport(Meeting::Phase& phase, int tag) {
    World& world = hub_->world;
    for (const auto& parcel : phase.packing->incoming())
      world.receive(World::Channel::kDevices, parcel.peer, tag, parcel.data.get(), parcel.bytes,
                    phase.flight);
    for (const auto& parcel : phase.packing->outgoing())
      world.send(World::Channel::kDevices, parcel.peer, tag, parcel.data.get(), parcel.bytes,
                 phase.flight);
    return world.wait(phase.flight, world.timeout(), [this] { return meeting_.text; });
  }

  std::shared_ptr<Hub> hub_;  // keeps the meeting
  Meeting& meeting_;
  size_t member_;
};

// Called once all members of this rank are bound.
Status prepare(Meeting& meeting, int rank) {
  const Tensor& tensor = meeting.rows.tensor();
  CONVNET_RETURN_IF_ERROR(check_wire(meeting.exchange, tensor));
  CONVNET_ASSIGN_OR_RETURN(std::vector<Round> rounds,
                           make_rounds(meeting.exchange, tensor, meeting.ranks));
  const size_t count = rounds.size();
  for (size_t i = 0; i < count; ++i) {
    // Between two rounds the pieces lie in the results.
    std::vector<View> in = i == 0 ? meeting.in : meeting.out, out = meeting.out;
    for (size_t m = 0; m < in.size() && count > 1; ++m) {
      if (meeting.ranks[m] != rank) continue;
      in[m].box = rounds[i].exchange.from[m].box;
      out[m].box = rounds[i].exchange.to[m].box;
    }
    Meeting::Phase phase;
    phase.packing =
        std::make_unique<Packing>(std::move(rounds[i]), tensor, meeting.ranks, rank, std::move(in));
    phase.steps = phase.packing->steps(out);
    phase.flight.reserve(phase.packing->incoming().size() + phase.packing->outgoing().size());
    meeting.phases.push_back(std::move(phase));
  }
  meeting.ready = true;
  return Status();
}

class RankCommunicator : public Communicator {
 public:
  RankCommunicator(std::shared_ptr<Hub> hub, int device, bool first)
      : hub_(std::move(hub)), device_(device), first_(first) {}

  Result<std::unique_ptr<Kernel>> bind(int id, const View& in, const View& out) override {
    const std::string what = "exchange " + std::to_string(id);
    if (id < 0 || static_cast<size_t>(id) >= hub_->meetings.size())
      return Status(Code::kUsage, what + " is not in the plan");
    if (hub_->meetings[static_cast<size_t>(id)] == nullptr)
      return hub_->local[static_cast<size_t>(device_)]->bind(id, in, out);
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
      CONVNET_RETURN_IF_ERROR(prepare(meeting, hub_->world.rank())
                                  .with_context(what + " (" + meeting.exchange.edge + ")"));
    return std::unique_ptr<Kernel>(std::make_unique<CrossingKernel>(hub_, meeting, member));
  }

  void barrier() override {
    if (!hub_->everyone.wait()) return;
    if (first_) {
      World& world = hub_->world;
      Flight flight;
      for (int r = 0; r < world.size(); ++r) {
        if (r == world.rank()) continue;
        world.receive(World::Channel::kDevices, r, hub_->barrier_tag, &hub_->nothing, 0, flight);
        world.send(World::Channel::kDevices, r, hub_->barrier_tag, &hub_->nothing, 0, flight);
      }
      if (!world.wait(flight, world.timeout(), [] { return "barrier of all devices"; })) return;
    }
    hub_->everyone.wait();
  }

  void abort() override { hub_->abort(); }
  bool aborted() const override { return hub_->everyone.aborted(); }

 private:
  std::shared_ptr<Hub> hub_;
  int device_;
  bool first_;  // of its rank
};

}  // namespace

Result<std::vector<std::unique_ptr<Communicator>>> communicators(World& world, const Plan& plan) {
  CONVNET_ASSIGN_OR_RETURN(const int tag, world.reserve_tags(Hub::tags(plan)));
  const auto hub = std::make_shared<Hub>(world, plan, tag);
  world.add(hub);
  const auto devices = static_cast<int>(plan.devices.size());
  std::vector<std::unique_ptr<Communicator>> all(plan.devices.size());
  const int first = first_device(world.rank(), world.size(), devices);
  for (int d = first; d < first_device(world.rank() + 1, world.size(), devices); ++d)
    all[static_cast<size_t>(d)] = std::make_unique<RankCommunicator>(hub, d, d == first);
  return all;
}

}  // namespace convnet::mpi
