#include "framework/plan/verify_plan.h"

#include "framework/plan/verify/faults.h"

namespace convnet {

std::vector<PlanFault> verify_plan(const Plan& plan) {
  Faults faults(plan);
  check_structure(plan, faults);
  if (faults.count() > 0) return faults.take();
  check_geometry(plan, faults);
  check_exchanges(plan, faults);
  const bool sound = faults.count() == 0;
  const bool ordered = check_streams(plan, faults);
  if (ordered) check_memory(plan, faults);
  if (!sound) return faults.take();
  check_sums(plan, faults);
  check_program(plan, faults);
  return faults.take();
}

}  // namespace convnet
