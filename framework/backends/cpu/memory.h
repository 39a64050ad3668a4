// Memory of the cpu backend: anonymous mappings, zeroed, in huge pages where the system has them.
#pragma once

#include <cstdint>
#include <memory>

#include "framework/base/status.h"

namespace convnet::cpu {

// At least `bytes` bytes, aligned to 4096 (to 2 MiB from that size on). kLimit if there is no room.
Result<void*> map_memory(int64_t bytes);
void unmap_memory(void* memory, int64_t bytes);

// Working memory of a backend's kernels, one piece a thread. Kernels of a backend run one after the
// other, so all share it; it grows while they are bound and stays put while they run.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  Status reserve(int threads, int64_t floats);
  float* of(int thread) const { return memory_ + thread * floats_; }

 private:
  float* memory_ = nullptr;
  int threads_ = 0;
  int64_t floats_ = 0;
};

}  // namespace convnet::cpu
