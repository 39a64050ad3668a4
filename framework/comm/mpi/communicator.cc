// Exchanges that stay on a rank are done in its memory, as in a program that runs alone. One that
// crosses ranks is done in rounds: the members of a rank pack what others need, one of them sends
// and receives the rank's messages, then each makes its result from memory and from what came in,
// in the plan's order. What arrives when makes no difference.
#include "framework/comm/mpi/communicator.h"

#include <algorithm>
#include <map>
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
      : rows(plan, e), exchange(rows.exchange()), ranks(std::move(r)) {
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
  size_t leader = 0;       // the member that sends and receives
  std::mutex mutex;        // guards what follows until all members are bound; then it is read only
  std::vector<View> in, out;
  std::vector<bool> bound;
  struct Phase {
    std::unique_ptr<Packing> packing;
    ExchangeSteps steps;
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

// Exchanges that are carried out as one: a bucket, or one alone.
struct Bucket {
  explicit Bucket(int members_here) : barrier(std::max(1, members_here)) {}
  std::vector<Meeting*> meetings;  // of the same members
  Barrier barrier;                 // of those of this rank
  Flight flight;

  // Room for so many more messages at once, that a step need not allocate it.
  void reserve(size_t more) {
    const std::lock_guard lock(mutex_);
    flight.reserve(messages_ += more);
  }

 private:
  std::mutex mutex_;
  size_t messages_ = 0;
};

struct Hub : Member {
  Hub(World& w, const Plan& plan, int first_tag)
      : world(w),
        local(local_communicators(plan)),
        everyone(first_device(w.rank() + 1, w.size(), static_cast<int>(plan.devices.size())) -
                 first_device(w.rank(), w.size(), static_cast<int>(plan.devices.size()))),
        barrier_tag(first_tag) {
    const auto devices = static_cast<int>(plan.devices.size());
    int tag = first_tag + 1;
    std::map<int, Bucket*> known;
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
      bucket_of.push_back(nullptr);
      if (crosses) {
        meetings.back() = std::make_unique<Meeting>(plan, e, std::move(ranks), world.rank());
        meetings.back()->text = text_of(plan, e);
        meetings.back()->tag = tag;
        Bucket*& bucket = known[e.bucket];
        if (e.bucket < 0 || bucket == nullptr) {
          buckets.push_back(std::make_unique<Bucket>(meetings.back()->members_here(world.rank())));
          bucket = buckets.back().get();
        }
        bucket->meetings.push_back(meetings.back().get());
        bucket_of.back() = bucket;
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
    for (const auto& bucket : buckets) bucket->barrier.abort();
  }

  World& world;
  std::vector<std::unique_ptr<Communicator>> local;
  std::vector<std::unique_ptr<Meeting>> meetings;  // by exchange; null: it stays on one rank
  std::vector<std::unique_ptr<Bucket>> buckets;
  std::vector<Bucket*> bucket_of;  // by exchange, likewise
  Barrier everyone;                // the devices of this rank
  int barrier_tag;
  std::byte nothing{};
};

// All exchanges of a bucket.
class CrossingKernel : public Kernel {
 public:
  CrossingKernel(std::shared_ptr<Hub> hub, Bucket& bucket, size_t member)
      : hub_(std::move(hub)), bucket_(bucket), member_(member) {}

  void run() override {
    Barrier& barrier = bucket_.barrier;
    const bool leads = member_ == bucket_.meetings.front()->leader;
    size_t phases = 0;
    for (const Meeting* meeting : bucket_.meetings) {
      CHECK(meeting->ready);
      phases = std::max(phases, meeting->phases.size());
    }
    for (size_t i = 0; i < phases; ++i) {
      for_each_phase(i, [&](Meeting::Phase& phase, int) { phase.packing->pack(member_); });
      if (!barrier.wait()) return;
      if (leads) {
        if (!transport(i)) return;
        for_each_phase(i, [](Meeting::Phase& phase, int) { phase.packing->unpack(); });
      }
      if (!barrier.wait()) return;
      for_each_phase(i, [&](Meeting::Phase& phase, int) {
        for (const Transfer& t : phase.steps.members[member_].first) t.run();
      });
      if (!barrier.wait()) return;
      for_each_phase(i, [&](Meeting::Phase& phase, int) {
        for (const Transfer& t : phase.steps.members[member_].last) t.run();
      });
    }
  }

 private:
  // Calls f(phase i, its tag) of each exchange that has so many.
  template <typename F>
  void for_each_phase(size_t i, F&& f) {
    for (Meeting* meeting : bucket_.meetings)
      if (i < meeting->phases.size()) f(meeting->phases[i], meeting->tag + static_cast<int>(i));
  }

  bool transport(size_t i) {
    World& world = hub_->world;
    constexpr World::Channel kDevices = World::Channel::kDevices;
    for_each_phase(i, [&](Meeting::Phase& phase, int tag) {
      for (const auto& p : phase.packing->incoming())
        world.receive(kDevices, p.peer, tag, p.data.get(), p.bytes, bucket_.flight);
    });
    for_each_phase(i, [&](Meeting::Phase& phase, int tag) {
      for (const auto& p : phase.packing->outgoing())
        world.send(kDevices, p.peer, tag, p.data.get(), p.bytes, bucket_.flight);
    });
    return world.wait(bucket_.flight, world.timeout(), [this] {
      const size_t others = bucket_.meetings.size() - 1;
      return bucket_.meetings.front()->text +
             (others == 0 ? "" : " and " + std::to_string(others) + " more of its bucket");
    });
  }

  std::shared_ptr<Hub> hub_;  // keeps the bucket
  Bucket& bucket_;
  size_t member_;
};

// Called once all members of this rank are bound.
Status prepare(Meeting& meeting, Bucket& bucket, int rank) {
  const Tensor& tensor = meeting.rows.tensor();
  CONVNET_RETURN_IF_ERROR(check_wire(meeting.exchange, tensor));
  CONVNET_ASSIGN_OR_RETURN(std::vector<Round> rounds,
                           make_rounds(meeting.exchange, tensor, meeting.ranks));
  const size_t count = rounds.size();
  size_t messages = 0;  // of a phase, the most
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
    messages =
        std::max(messages, phase.packing->incoming().size() + phase.packing->outgoing().size());
    meeting.phases.push_back(std::move(phase));
  }
  bucket.reserve(messages);
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
    Bucket& bucket = *hub_->bucket_of[static_cast<size_t>(id)];
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
      CONVNET_RETURN_IF_ERROR(prepare(meeting, bucket, hub_->world.rank())
                                  .with_context(what + " (" + meeting.exchange.edge + ")"));
    if (&meeting != bucket.meetings.back()) return std::unique_ptr<Kernel>(new NoKernel);
    return std::unique_ptr<Kernel>(std::make_unique<CrossingKernel>(hub_, bucket, member));
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
