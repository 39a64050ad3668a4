#include "framework/comm/ranks.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>

namespace convnet {
namespace {

class OneRank : public Ranks {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string name(int) const override { return "the only rank"; }
  int sharing_cores() const override { return 1; }
  Result<std::vector<std::unique_ptr<Communicator>>> communicators(const Plan& plan) override {
    return local_communicators(plan);
  }
  void begin_max(std::span<const int64_t> mine) override {
    CHECK(mine.size() <= kMaxNumbers);
    std::copy(mine.begin(), mine.end(), numbers_.begin());
  }
  Status end_max(std::span<int64_t> largest, const std::string&, Patience) override {
    std::copy_n(numbers_.begin(), largest.size(), largest.begin());
    return Status();
  }
  Result<std::vector<std::string>> all_gather(std::string_view mine, const std::string&,
                                              Patience) override {
    return std::vector<std::string>{std::string(mine)};
  }
  Status send(int, std::span<const std::byte>, const std::string&) override {
    CHECK(false);
    return Status();
  }
  Status receive(int, std::span<std::byte>, const std::string&) override {
    CHECK(false);
    return Status();
  }
  Status failure() const override { return Status(); }
  End finish(const End& mine, bool* speaks) override {
    *speaks = true;
    return mine;
  }
  void leave() override {}

 private:
  std::array<int64_t, kMaxNumbers> numbers_{};
};

std::optional<int> number_of(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return std::nullopt;
  int number = 0;
  const char* end = text + std::strlen(text);
  const auto [last, error] = std::from_chars(text, end, number);
  if (error != std::errc() || last != end || number < 0) return std::nullopt;
  return number;
}

}  // namespace

Status Ranks::broadcast(std::string& bytes, const std::string& what) {
  auto length = static_cast<int64_t>(bytes.size());
  if (rank() != 0) {
    CONVNET_RETURN_IF_ERROR(receive(0, std::as_writable_bytes(std::span(&length, 1)), what));
    bytes.resize(static_cast<size_t>(length));
    return receive(0, std::as_writable_bytes(std::span(bytes)), what);
  }
  for (int to = 1; to < size(); ++to) {
    CONVNET_RETURN_IF_ERROR(send(to, std::as_bytes(std::span(&length, 1)), what));
    CONVNET_RETURN_IF_ERROR(send(to, std::as_bytes(std::span(bytes)), what));
  }
  return Status();
}

Ranks& one_rank() {
  static OneRank ranks;
  return ranks;
}

int first_device(int rank, int ranks, int devices) {
  return static_cast<int>(static_cast<int64_t>(rank) * devices / ranks);
}

int rank_of_device(int device, int ranks, int devices) {
  int rank = static_cast<int>(static_cast<int64_t>(device) * ranks / devices);
  while (first_device(rank + 1, ranks, devices) <= device) ++rank;
  return rank;
}

std::optional<Launch> launched() {
  // Open MPI's mpirun; srun and others that speak PMIx or PMI.
  for (const auto& [rank, size] :
       {std::pair{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
        std::pair{"PMIX_RANK", "SLURM_NTASKS"}, std::pair{"PMI_RANK", "PMI_SIZE"}}) {
    if (const auto number = number_of(rank)) return Launch{*number, number_of(size)};
  }
  return std::nullopt;
}

}  // namespace convnet
