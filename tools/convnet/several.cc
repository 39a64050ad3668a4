#include "tools/convnet/several.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "framework/comm/mpi/join.h"
#include "framework/plan/rows.h"

namespace convnet::cli {
namespace {

constexpr uint64_t kDefaultTimeout = 60;

// Numbers and texts one after the other; read back in the same order by a process of the same
// program.
class Writer {
 public:
  void number(int64_t value) { bytes(&value, sizeof value); }
  void text(std::string_view value) {
    number(static_cast<int64_t>(value.size()));
    bytes(value.data(), value.size());
  }
  void bytes(const void* data, size_t size) { data_.append(static_cast<const char*>(data), size); }
  std::string& data() { return data_; }

 private:
  std::string data_;
};

class Reader {
 public:
  explicit Reader(std::string_view data) : data_(data) {}
  int64_t number() {
    int64_t value = 0;
    bytes(&value, sizeof value);
    return value;
  }
  std::string text() {
    std::string value(static_cast<size_t>(number()), '\0');
    bytes(value.data(), value.size());
    return value;
  }
  void bytes(void* to, size_t size) {
    CHECK(size <= data_.size());
    std::memcpy(to, data_.data(), size);
    data_.remove_prefix(size);
  }

 private:
  std::string_view data_;
};

std::string written(const Checkpoint& checkpoint, const std::vector<std::string>& words) {
  Writer out;
  const CheckpointHead& head = checkpoint.head;
  out.number(head.step);
  out.text(head.model_name);
  out.text(head.model_text);
  out.text(head.data_fingerprint);
  out.number(static_cast<int64_t>(head.sets.size()));
  for (const std::string& set : head.sets) out.text(set);
  out.number(static_cast<int64_t>(head.options.size()));
  for (const auto& [option, value] : head.options) {
    out.text(option);
    out.text(value);
  }
  out.number(static_cast<int64_t>(words.size()));
  for (const std::string& word : words) out.text(word);
  for (const auto& [name, tensor] : checkpoint.tensors) {
    if (!name.starts_with("data.")) continue;
    out.text(name);
    out.number(static_cast<int64_t>(tensor.dtype));
    out.number(tensor.shape.rank());
    for (int d = 0; d < tensor.shape.rank(); ++d) out.number(tensor.shape[d]);
    out.number(static_cast<int64_t>(tensor.values.size()));
    out.bytes(tensor.values.data(), tensor.values.size() * sizeof(double));
  }
  out.text("");
  return std::move(out.data());
}

void read_back(std::string_view bytes, Checkpoint& checkpoint, std::vector<std::string>& words) {
  Reader in(bytes);
  CheckpointHead& head = checkpoint.head;
  head.step = in.number();
  head.model_name = in.text();
  head.model_text = in.text();
  head.data_fingerprint = in.text();
  for (int64_t n = in.number(); n > 0; --n) head.sets.push_back(in.text());
  for (int64_t n = in.number(); n > 0; --n) {
    const std::string option = in.text();
    head.options[option] = in.text();
  }
  words.clear();
  for (int64_t n = in.number(); n > 0; --n) words.push_back(in.text());
  for (std::string name = in.text(); !name.empty(); name = in.text()) {
    HostTensor tensor;
    tensor.dtype = static_cast<DType>(in.number());
    for (int64_t n = in.number(); n > 0; --n) tensor.shape.append(in.number());
    tensor.values.resize(static_cast<size_t>(in.number()));
    in.bytes(tensor.values.data(), tensor.values.size() * sizeof(double));
    checkpoint.tensors.emplace_back(name, std::move(tensor));
  }
}

// An error of another rank says which.
std::string with_rank(const std::string& text, const std::string& rank) {
  constexpr std::string_view kStart = "convnet: ";
  const bool plain = text.starts_with(kStart);
  return fmt::format("convnet: {}: {}", rank, plain ? text.substr(kStart.size()) : "\n" + text);
}

}  // namespace

void RanksArgument::declare(CommandLine& line) {
  line.number("--timeout", "SECONDS", &timeout, 1, 1'000'000,
              "of several processes: one that does not answer for so long is lost, and ends the "
              "run; 60 if not given");
}

int RanksArgument::run(Output& output, const std::function<int(Ranks&)>& body) const {
  if (!launched().has_value()) return body(one_rank());
  auto joined = join_ranks(static_cast<double>(timeout.value_or(kDefaultTimeout)));
  if (!joined.ok()) return output.fail(joined.status());
  Ranks& ranks = **joined;
  output.join(ranks.rank() == 0);
  const int code = output.finish(body(ranks));
  bool speaks = false;
  const Ranks::End end = ranks.finish({code, output.kept_error(), ranks.rank()}, &speaks);
  if (speaks && !end.text.empty()) {
    const bool lost = end.code == static_cast<int>(Code::kPeer);
    output.write_error(end.rank == 0 || lost ? end.text
                                             : with_rank(end.text, ranks.name(end.rank)));
  }
  ranks.leave();
  return end.code;
}

Status share(Ranks& ranks, Checkpoint& checkpoint, std::vector<std::string>& words) {
  if (ranks.size() == 1) return Status();
  std::string bytes;
  if (ranks.rank() == 0) bytes = written(checkpoint, words);
  CONVNET_RETURN_IF_ERROR(ranks.broadcast(bytes, "the checkpoint"));
  if (ranks.rank() != 0) read_back(bytes, checkpoint, words);
  return Status();
}

Status check_same_data(Ranks& ranks, const std::string& fingerprint) {
  CONVNET_ASSIGN_OR_RETURN(
      const auto all, ranks.all_gather(fingerprint, "its training data", Ranks::Patience::kWork));
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r] != all[0]) {
      return Status(Code::kData, fmt::format("{} has other training data than rank 0: {} and {}",
                                             ranks.name(static_cast<int>(r)), all[r], all[0]));
    }
  }
  return Status();
}

std::pair<int64_t, int64_t> examples_of_rank(const Plan& plan, const Ranks& ranks) {
  const auto devices = static_cast<int>(plan.devices.size());
  if (ranks.size() > devices) return {0, plan.batch};
  int64_t begin = plan.batch, end = 0;
  for (int d = first_device(ranks.rank(), ranks.size(), devices);
       d < first_device(ranks.rank() + 1, ranks.size(), devices); ++d) {
    for (const Buffer& buffer : plan.devices[static_cast<size_t>(d)].buffers) {
      if (buffer.region != Buffer::Region::kInput || buffer.part.box.empty()) continue;
      const RowMap rows = row_map(plan.tensors[static_cast<size_t>(buffer.tensor)]);
      for (const auto& s : rows.segments(buffer.part.box.lo(0), buffer.part.box.hi(0))) {
        begin = std::min(begin, s.example);
        end = std::max(end, s.example + s.count);
      }
    }
  }
  return {std::min(begin, end), end};
}

}  // namespace convnet::cli
