// If this fails, a run resumes from damaged numbers, or the same run writes different bytes.
#include "framework/runtime/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "framework/runtime/safetensors.h"
#include "tests/runtime/temporary_folder.h"

namespace convnet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Checkpoint example() {
  Checkpoint checkpoint;
  checkpoint.head.step = 200;
  checkpoint.head.model_name = "models/tiny.yaml";
  checkpoint.head.model_text = "format: 1\nname: tiny  # \xc3\xa4\n";
  checkpoint.head.sets = {"train.rate.base=0.02", "batch=64"};
  checkpoint.head.options = {{"dtype", "f32"}};
  checkpoint.head.data_fingerprint = "60000x1x28x28-0123456789abcdef";
  checkpoint.tensors = {{"fc.w", {Shape{2, 3}, DType::kF32, {1, -2, 0.5, 1e-30, 0, -0.0}}},
                        {"fc.b", {Shape{2}, DType::kF64, {0.1, 1e300}}},
                        {"fc.w.momentum", {Shape{2, 3}, DType::kF32, {0, 0, 0, 0, 0, 1}}},
                        {"count", {Shape{}, DType::kI32, {-7}}}};
  checkpoint.tensors[0].second.values[3] = static_cast<float>(1e-30);
  return checkpoint;
}

std::string bytes_of(const Checkpoint& checkpoint) {
  TemporaryFolder folder;
  EXPECT_TRUE(write_checkpoint(folder / "c", checkpoint).ok());
  return slurp(folder / "c");
}

Status read_bytes(const std::string& bytes) {
  TemporaryFolder folder;
  spit(folder / "c", bytes);
  const Status inspected = inspect_checkpoint(folder / "c").status();
  const Status status = read_checkpoint(folder / "c").status();
  EXPECT_EQ(inspected.message(), status.message());
  return status;
}

// The bytes with the header's checksum made right again, as a forger would.
std::string sealed(std::string bytes) {
  uint64_t length;
  std::memcpy(&length, bytes.data(), 8);
  const size_t at = bytes.find("\"checksum\":\"") + 12;
  bytes.replace(at, 16, "0000000000000000");
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx",
                static_cast<unsigned long long>(XXH3_64bits(bytes.data(), 8 + length)));
  return bytes.replace(at, 16, digits);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Checkpoint, ReadsBackEveryBit) {
  TemporaryFolder folder;
  const Checkpoint written = example();
  ASSERT_TRUE(write_checkpoint(folder / "c", written).ok());
  const auto read = read_checkpoint(folder / "c");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->head.step, 200);
  EXPECT_EQ(read->head.model_name, "tiny.yaml");
  EXPECT_EQ(read->head.model_text, written.head.model_text);
  EXPECT_EQ(read->head.sets, written.head.sets);
  EXPECT_EQ(read->head.options, written.head.options);
  EXPECT_EQ(read->head.data_fingerprint, written.head.data_fingerprint);
  EXPECT_THAT(read->head.program, HasSubstr("convnet "));
  ASSERT_EQ(read->tensors.size(), written.tensors.size());
  for (const auto& [name, tensor] : written.tensors) {
    const HostTensor* found = read->find(name);
    ASSERT_NE(found, nullptr) << name;
    EXPECT_EQ(found->shape, tensor.shape);
    EXPECT_EQ(found->dtype, tensor.dtype);
    ASSERT_EQ(found->values.size(), tensor.values.size());
    for (size_t i = 0; i < tensor.values.size(); ++i)
      EXPECT_EQ(std::bit_cast<uint64_t>(found->values[i]),
                std::bit_cast<uint64_t>(tensor.values[i]));
  }
  EXPECT_EQ(read->find("missing"), nullptr);
  EXPECT_THAT(folder.names(), ElementsAre("c"));
}

TEST(Checkpoint, ValuesLongerThanAChunkComeBack) {
  TemporaryFolder folder;
  Checkpoint checkpoint;
  HostTensor tensor{Shape{40001}, DType::kF32, {}};
  for (int i = 0; i < 40001; ++i) tensor.values.push_back(i);
  checkpoint.tensors = {{"w", tensor}};
  ASSERT_TRUE(write_checkpoint(folder / "c", checkpoint).ok());
  const auto read = read_checkpoint(folder / "c");
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->find("w")->values, tensor.values);
}

TEST(Checkpoint, TheBytesDependOnTheContentsAlone) {
  Checkpoint other = example();
  std::reverse(other.tensors.begin(), other.tensors.end());
  other.head.model_name = "/elsewhere/tiny.yaml";
  EXPECT_EQ(bytes_of(example()), bytes_of(other));
  other.head.step = 201;
  EXPECT_NE(bytes_of(example()), bytes_of(other));
}

TEST(Checkpoint, InspectingListsTensorsWithTheirChecksums) {
  TemporaryFolder folder;
  ASSERT_TRUE(write_checkpoint(folder / "c", example()).ok());
  const auto info = inspect_checkpoint(folder / "c");
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->format, 1);
  EXPECT_EQ(info->bytes, static_cast<int64_t>(slurp(folder / "c").size()));
  std::vector<std::string> names;
  for (const auto& tensor : info->tensors) names.push_back(tensor.name);
  EXPECT_THAT(names, ElementsAre("fc.b", "count", "fc.w", "fc.w.momentum"));
  const float w[] = {1, -2, 0.5, 1e-30f, 0, -0.0f};
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx",
                static_cast<unsigned long long>(XXH3_64bits(w, sizeof w)));
  EXPECT_EQ(info->tensors[2].checksum, digits);
}

TEST(Checkpoint, NonFiniteValuesAreNotWritten) {
  TemporaryFolder folder;
  Checkpoint checkpoint = example();
  checkpoint.tensors[2].second.values[4] = std::nan("");
  const Status status = write_checkpoint(folder / "c", checkpoint);
  EXPECT_EQ(status.code(), Code::kNotFinite);
  EXPECT_THAT(status.message(), HasSubstr("'fc.w.momentum' holds nan at element 4"));
  EXPECT_THAT(folder.names(), ElementsAre());
}

TEST(Checkpoint, AWriteThatDoesNotFitLeavesTheOldFile) {
  TemporaryFolder folder;
  ASSERT_TRUE(write_checkpoint(folder / "c", example()).ok());
  const std::string before = slurp(folder / "c");
  EXPECT_EQ(in_child(500,
                     [&folder] {
                       return static_cast<int>(write_checkpoint(folder / "c", example()).code());
                     }),
            static_cast<int>(Code::kIo));
  EXPECT_EQ(slurp(folder / "c"), before);
  EXPECT_THAT(folder.names(), ElementsAre("c"));
}

TEST(CheckpointDamage, EveryTruncationIsFound) {
  const std::string good = bytes_of(example());
  for (size_t size = 0; size < good.size(); size += size < 64 || size + 64 > good.size() ? 1 : 13) {
    const Status status = read_bytes(good.substr(0, size));
    ASSERT_EQ(status.code(), Code::kCheckpoint) << size;
  }
  EXPECT_THAT(read_bytes(good.substr(0, good.size() - 1)).message(), HasSubstr("truncated"));
}

// All bits of the first bytes, and one bit of each other byte, another one each time.
TEST(CheckpointDamage, AFlippedBitAnywhereIsFound) {
  const std::string good = bytes_of(example());
  ASSERT_TRUE(read_bytes(good).ok());
  TemporaryFolder folder;
  for (size_t bit = 0; bit < good.size() * 8; bit += bit < 64 * 8 ? 1 : 9) {
    std::string bytes = good;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    spit(folder / "c", bytes);
    ASSERT_EQ(read_checkpoint(folder / "c").status().code(), Code::kCheckpoint) << "bit " << bit;
  }
}

TEST(CheckpointDamage, TrailingBytesAreFound) {
  const std::string good = bytes_of(example());
  const Status status = read_bytes(good + "x");
  EXPECT_EQ(status.code(), Code::kCheckpoint);
  EXPECT_THAT(status.message(), HasSubstr("1 trailing bytes"));
}

TEST(CheckpointDamage, MessagesNameTheTensorOrTheHeader) {
  std::string bytes = bytes_of(example());
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  EXPECT_THAT(read_bytes(bytes).message(),
              HasSubstr("damaged: the checksum of tensor 'fc.w.momentum' is "));
  bytes = replaced(bytes_of(example()), "name: tiny", "name: tony");
  EXPECT_THAT(read_bytes(bytes).message(), HasSubstr("damaged: the header's checksum is "));
}

TEST(CheckpointDamage, NonFiniteValuesWithGoodChecksumsAreRefused) {
  std::string bytes = bytes_of(example());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float values[] = {0, 0, 0, 0, nan, 1};
  std::memcpy(bytes.data() + bytes.size() - sizeof values, values, sizeof values);
  const size_t at = bytes.find("\"xxh3.fc.w.momentum\":\"") + 22;
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx",
                static_cast<unsigned long long>(XXH3_64bits(values, sizeof values)));
  bytes.replace(at, 16, digits);
  const Status status = read_bytes(sealed(bytes));
  EXPECT_EQ(status.code(), Code::kCheckpoint);
  EXPECT_THAT(status.message(), HasSubstr("'fc.w.momentum' holds nan at element 4"));
}

TEST(CheckpointDamage, OtherFormatsAndFilesAreNamed) {
  const std::string good = bytes_of(example());
  const auto message = [&good](const std::string& from, const std::string& to) {
    EXPECT_EQ(from.size(), to.size());
    const Status status = read_bytes(sealed(replaced(good, from, to)));
    EXPECT_EQ(status.code(), Code::kCheckpoint);
    return status.message();
  };
  EXPECT_THAT(message("\"format\":\"1\"", "\"format\":\"2\""),
              HasSubstr("written in format 2; this program reads format 1"));
  EXPECT_THAT(message("\"format\":\"1\"", "\"formal\":\"1\""), HasSubstr("'format' is missing"));
  EXPECT_THAT(message("\"step\":\"200\"", "\"step\":\"-20\""), HasSubstr("step '-20'"));
  EXPECT_THAT(message("\"step\":\"200\"", "\"step\":\"020\""), HasSubstr("step '020'"));
  EXPECT_THAT(message("\"step\":\"200\"", "\"stop\":\"200\""), HasSubstr("unknown entry 'stop'"));
  EXPECT_THAT(message("\"xxh3.fc.b\"", "\"xxh3.fc.c\""),
              HasSubstr("tensor 'fc.b' has no checksum"));
  EXPECT_THAT(message("\"set.000001\"", "\"set.000002\""), HasSubstr("unknown entry"));
  EXPECT_THAT(message("\"shape\":[2,3],", "\"shape\":[2,4],"), HasSubstr("takes 32 bytes"));

  EXPECT_THAT(read_bytes("\x1f\x8b\x08 and so on").message(), HasSubstr("gzip"));
  EXPECT_THAT(read_bytes("").message(), HasSubstr("empty"));
  std::string foreign = R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  foreign = std::string(1, static_cast<char>(foreign.size())) + std::string(7, '\0') + foreign;
  EXPECT_THAT(read_bytes(foreign + "0000").message(), HasSubstr("not a checkpoint of convnet"));
}

// FORMAT.md's example: lines of a hexadecimal dump, "00000010  74 61 ...  |ta|".
TEST(Checkpoint, TheExampleInTheDescriptionOfTheFormatIsTrue) {
  std::ifstream description(CONVNET_SOURCE_DIR "/framework/runtime/FORMAT.md");
  std::string bytes, line;
  while (std::getline(description, line)) {
    if (line.size() < 10 || line.find_first_not_of("0123456789abcdef") != 8) continue;
    EXPECT_EQ(std::stoul(line.substr(0, 8), nullptr, 16), bytes.size());
    std::istringstream digits(line.substr(10, line.find('|') - 10));
    for (std::string byte; digits >> byte;)
      bytes += static_cast<char>(std::stoul(byte, nullptr, 16));
  }
  TemporaryFolder folder;
  spit(folder / "c", bytes);
  const auto read = read_checkpoint(folder / "c");
  ASSERT_TRUE(read.ok()) << read.status().message();
  Checkpoint checkpoint;
  checkpoint.head.step = 3;
  checkpoint.head.model_name = "m.yaml";
  checkpoint.head.model_text = "format: 1\n";
  checkpoint.tensors = {{"w", {Shape{2}, DType::kF32, {1, -2}}},
                        {"w.momentum", {Shape{2}, DType::kF32, {0, 0.5}}}};
  std::string written = bytes_of(checkpoint);
  // Whatever the version of this program.
  const std::string program = "\"program\":\"";
  const auto version_of = [&program](const std::string& text) {
    const size_t begin = text.find(program) + program.size();
    return text.substr(begin, text.find('"', begin) - begin);
  };
  written = sealed(replaced(written, program + version_of(written), program + version_of(bytes)));
  EXPECT_EQ(written, bytes);
}

TEST(Checkpoint, NamesSortByStep) {
  EXPECT_EQ(checkpoint_name(200), "step-00000200.safetensors");
  EXPECT_EQ(checkpoint_name(123456789), "step-123456789.safetensors");
}

}  // namespace
}  // namespace convnet
