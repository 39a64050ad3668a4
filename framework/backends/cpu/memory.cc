#include "framework/backends/cpu/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <string>

namespace convnet::cpu {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kHugePage = int64_t{2} << 20;

int64_t rounded(int64_t bytes) {
  const int64_t page = bytes >= kHugePage ? kHugePage : kPage;
  return (std::max<int64_t>(bytes, 1) + page - 1) / page * page;
}

}  // namespace

Result<void*> map_memory(int64_t bytes) {
  const Status no_room(Code::kLimit, "cannot allocate " + std::to_string(bytes) + " bytes");
  if (bytes < 0 || bytes > INT64_MAX - 2 * kHugePage) return no_room;
  const int64_t size = rounded(bytes);
  const int64_t extra = size >= kHugePage ? kHugePage : 0;
  void* mapped = mmap(nullptr, static_cast<size_t>(size + extra), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return no_room;
  if (extra == 0) return mapped;
  // Give back what lies before and behind the aligned part.
  char* const begin = static_cast<char*>(mapped);
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const auto before = static_cast<int64_t>((kHugePage - address % kHugePage) % kHugePage);
  if (before > 0) munmap(begin, static_cast<size_t>(before));
  if (extra > before) munmap(begin + before + size, static_cast<size_t>(extra - before));
  madvise(begin + before, static_cast<size_t>(size), MADV_HUGEPAGE);
  return static_cast<void*>(begin + before);
}

void unmap_memory(void* memory, int64_t bytes) {
  if (memory != nullptr) munmap(memory, static_cast<size_t>(rounded(bytes)));
}

Scratch::~Scratch() {
  unmap_memory(memory_, threads_ * floats_ * static_cast<int64_t>(sizeof(float)));
}

Status Scratch::reserve(int threads, int64_t floats) {
  // Whole pages and one line more, so that the pieces do not all begin in the same cache set.
  const int64_t piece = (floats + 1023) / 1024 * 1024 + 16;
  if (threads <= threads_ && piece <= floats_) return Status();
  const int new_threads = std::max(threads, threads_);
  const int64_t new_floats = std::max(piece, floats_);
  CONVNET_ASSIGN_OR_RETURN(
      void* memory, map_memory(new_threads * new_floats * static_cast<int64_t>(sizeof(float))));
  unmap_memory(memory_, threads_ * floats_ * static_cast<int64_t>(sizeof(float)));
  memory_ = static_cast<float*>(memory);
  threads_ = new_threads;
  floats_ = new_floats;
  return Status();
}

}  // namespace convnet::cpu
