// Communicator: carries out the exchanges of a plan between the devices of a session. One object
// per device; all of them issue the same exchanges in the same order (the plan's). The box copy
// that an exchange's `from` and `to` spell out is its meaning; a pattern is only a faster way to do
// it.
#pragma once

#include <memory>
#include <vector>

#include "framework/backends/backend.h"
#include "framework/base/status.h"
#include "framework/plan/plan.h"

namespace convnet {

class Communicator {
 public:
  virtual ~Communicator() = default;

  // Prepares exchange `id` for this device with its operand and result (a View whose box is empty
  // if the device holds or wants nothing). Called for every exchange of the device's plan before
  // the first step. The kernel blocks until this device's part is done and its source may be
  // overwritten; of a bucket the kernel of the last exchange does so for all, and the others do
  // nothing. Exchanges of a device's two streams may run at the same time.
  virtual Result<std::unique_ptr<Kernel>> bind(int id, const View& in, const View& out) = 0;

  // Blocks until every device of the session has called it.
  virtual void barrier() = 0;

  // Makes every device's pending and later calls return at once (an error somewhere); idempotent.
  virtual void abort() = 0;
  // True once that has happened: what exchanges were to bring is then not there.
  virtual bool aborted() const = 0;
};

// What the kernel of an exchange is that is carried out with a later one of its bucket.
class NoKernel : public Kernel {
 public:
  void run() override {}
};

// Communicators of one process: one per device, devices being threads that read each other's
// memory. Sums are taken element by element in the exchange's order, so results do not depend on
// timing.
std::vector<std::unique_ptr<Communicator>> local_communicators(const Plan& plan);

}  // namespace convnet
