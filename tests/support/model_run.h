// For tests that go all the way: a model given as text is bound, compiled for some devices, and run
// on batches made here.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "framework/base/diagnostics.h"
#include "framework/compiler/compile.h"
#include "framework/model/binder.h"
#include "framework/runtime/session.h"

namespace convnet {

// The model of a YAML text; aborts with the diagnostics if it has mistakes.
std::unique_ptr<BoundModel> bind_text(const std::string& yaml);

// The plan of a model that has no mistakes, verified.
Plan compile_model(const BoundModel& model, const CompileOptions& options);

// A session with freshly initialised parameters, all devices on the reference backend.
std::unique_ptr<Session> reference_session(const Plan& plan);

// A batch of `count` examples for a plan: values are odd multiples of 1/16 in (-1, 1), so never at
// the kink of a relu; labels uniform over the classes; examples past `count` are padding.
Batch random_batch(const Plan& plan, uint64_t seed, int64_t count);

// All parameters and states of a session by name.
std::map<std::string, HostTensor> read_all(const Session& session);

// Largest |a - b| / max(1, |a|) over all tensors; infinity if names or shapes differ.
double largest_difference(const std::map<std::string, HostTensor>& a,
                          const std::map<std::string, HostTensor>& b);

}  // namespace convnet
