// If this fails, a damaged or crafted weights file is read as something that it is not.
#include "framework/runtime/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runtime/temporary_folder.h"

namespace convnet {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string with_length(const std::string& json) {
  const uint64_t length = json.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + json;
}

SafeTensorsHeader two_tensors() {
  SafeTensorsHeader header;
  header.metadata = {{"format", "1"}, {"model", "name: \"x\"\n"}};
  header.tensors = {{"b", DType::kF64, {2}, 0, 16}, {"a", DType::kF32, {1, 3}, 16, 28}};
  header.data_bytes = 28;
  return header;
}

TEST(SafeTensors, WritesTheBytesOfTheSpecification) {
  const auto text = print_safetensors_header(two_tensors());
  ASSERT_TRUE(text.ok());
  const std::string json = R"({"__metadata__":{"format":"1","model":"name: \"x\"\n"},)"
                           R"("b":{"dtype":"F64","shape":[2],"data_offsets":[0,16]},)"
                           R"("a":{"dtype":"F32","shape":[1,3],"data_offsets":[16,28]}})";
  EXPECT_EQ(text->size() % 8, 0u);
  EXPECT_EQ(text->substr(8, json.size()), json);
  EXPECT_EQ(text->find_first_not_of(' ', 8 + json.size()), std::string::npos);
  EXPECT_EQ(*text, with_length(text->substr(8)));
}

TEST(SafeTensors, ReadsWhatItWrote) {
  TemporaryFolder folder;
  spit(folder / "f", *print_safetensors_header(two_tensors()) + std::string(28, 'x'));
  auto file = InputFile::open(folder / "f", Code::kCheckpoint);
  ASSERT_TRUE(file.ok());
  const auto header = read_safetensors_header(*file);
  ASSERT_TRUE(header.ok()) << header.status().message();
  EXPECT_EQ(header->metadata, two_tensors().metadata);
  EXPECT_EQ(header->data_bytes, 28);
  ASSERT_EQ(header->tensors.size(), 2u);
  EXPECT_EQ(header->tensors[1].name, "a");
  EXPECT_EQ(header->tensors[1].dtype, DType::kF32);
  EXPECT_EQ(header->tensors[1].shape, (Shape{1, 3}));
  EXPECT_EQ(header->tensors[1].begin, 16);
  EXPECT_EQ(file->position() + 28, file->size());
}

TEST(SafeTensors, WidestTypesComeFirstThenNames) {
  const SafeTensor a{"a", DType::kF32, {1}, 0, 0}, b{"b", DType::kF32, {1}, 0, 0},
      c{"c", DType::kF64, {1}, 0, 0};
  EXPECT_TRUE(safetensors_before(a, b));
  EXPECT_TRUE(safetensors_before(c, a));
  EXPECT_FALSE(safetensors_before(a, c));
}

TEST(SafeTensors, MetadataMustBeUtf8) {
  SafeTensorsHeader header;
  header.metadata = {{"model", "\xff"}};
  EXPECT_EQ(print_safetensors_header(header).status().code(), Code::kUsage);
}

TEST(SafeTensors, AScalarHasOneElementAndAnEmptyHeaderNoTensors) {
  EXPECT_TRUE(
      parse_safetensors_header(R"({"s":{"dtype":"I32","shape":[],"data_offsets":[0,4]}})", 4).ok());
  EXPECT_TRUE(parse_safetensors_header("{}", 0).ok());
}

struct BadHeader {
  const char* json;
  int64_t data_bytes;
  const char* message;
};

class SafeTensorsBadHeader : public ::testing::TestWithParam<BadHeader> {};

TEST_P(SafeTensorsBadHeader, IsRefused) {
  const auto header = parse_safetensors_header(GetParam().json, GetParam().data_bytes);
  ASSERT_FALSE(header.ok());
  EXPECT_EQ(header.status().code(), Code::kCheckpoint);
  EXPECT_THAT(header.status().message(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Table, SafeTensorsBadHeader,
    ::testing::Values(
        BadHeader{"", 0, "does not begin with '{'"}, BadHeader{"[]", 0, "does not begin with '{'"},
        BadHeader{" {}", 0, "does not begin with '{'"}, BadHeader{"{} x", 0, "not JSON"},
        BadHeader{"{}{}", 0, "not JSON"}, BadHeader{"{", 0, "not JSON"},
        BadHeader{"{\"a\xff\":1}", 0, "not JSON"},
        BadHeader{R"({"a":1})", 0, "unexpected 1 in the header, at 'a'"},
        BadHeader{R"({"a":null})", 0, "unexpected null"},
        BadHeader{R"({"a":[]})", 0, "unexpected a list"},
        BadHeader{R"({"__metadata__":{"k":1}})", 0, "unexpected 1"},
        BadHeader{R"({"__metadata__":{"k":{}}})", 0, "unexpected a map"},
        BadHeader{R"({"__metadata__":{"k":"a","k":"a"}})", 0, "'k' is there twice"},
        BadHeader{R"({"__metadata__":{},"__metadata__":{}})", 0, "'__metadata__' is there twice"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1]}})", 4, "'a' has no data_offsets"},
        BadHeader{R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4, "'a' has no dtype"},
        BadHeader{R"({"a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}})", 4, "type 'F16'"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", 4,
                  "unknown attribute 'x'"},
        BadHeader{R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4,
                  "'dtype' is there twice in tensor 'a'"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, "1 data_offsets"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", 4,
                  "more than two data_offsets"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "unexpected -1"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4,
                  "the number 1.0"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1],"data_offsets":[0,4]}})", 4,
                  "more than 6 dimensions"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})", 4,
                  "too large"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,4]}})", 4,
                  "the number 18446744073709551616"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})",
                  0, "too large"},
        BadHeader{R"({"a":{"dtype":"F64","shape":[1152921504606846976],"data_offsets":[0,0]}})", 0,
                  "too large"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4,
                  "takes 8 bytes, but its data_offsets span 4"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4,
                  "ends at 0, before its begin at 4"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8,
                  "hole before 'a'"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                  R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                  8, "'a' and 'b' share bytes at offset 4"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                  R"("b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
                  12, "bytes 4 to 8"},
        BadHeader{
            R"({"a":{"dtype":"F32","shape":[250000000000],"data_offsets":[0,1000000000000]}})", 16,
            "need 1000000000000 bytes of data, and 16 are there"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 5,
                  "1 trailing bytes"}));

TEST(SafeTensors, AZeroByteDoesNotEndTheHeader) {
  const auto header = parse_safetensors_header(std::string("{}\0", 3), 0);
  ASSERT_FALSE(header.ok());
  EXPECT_THAT(header.status().message(), HasSubstr("zero byte at byte 10"));
}

TEST(SafeTensors, ADeepHeaderIsRefusedAtOnce) {
  const auto header = parse_safetensors_header("{\"a\":" + std::string(1'000'000, '['), 0);
  ASSERT_FALSE(header.ok());
  EXPECT_THAT(header.status().message(), HasSubstr("unexpected a list"));
}

TEST(SafeTensors, HeaderLengthsAreCheckedAgainstTheCapAndTheFile) {
  TemporaryFolder folder;
  const std::string good = *print_safetensors_header(two_tensors()) + std::string(28, 'x');
  const auto read = [&folder](const std::string& bytes) {
    spit(folder / "f", bytes);
    auto file = InputFile::open(folder / "f", Code::kCheckpoint);
    EXPECT_TRUE(file.ok());
    return read_safetensors_header(*file).status();
  };
  for (uint64_t length : {uint64_t{0}, uint64_t{1} << 63, ~uint64_t{0}, uint64_t{100'000'001}}) {
    std::string bytes = good;
    bytes.replace(0, 8, reinterpret_cast<const char*>(&length), 8);
    const Status status = read(bytes);
    EXPECT_EQ(status.code(), Code::kCheckpoint);
    EXPECT_THAT(status.message(), HasSubstr("header length " + std::to_string(length) + " is not"));
  }
  std::string bytes = good;
  const uint64_t length = good.size();
  bytes.replace(0, 8, reinterpret_cast<const char*>(&length), 8);
  EXPECT_THAT(read(bytes).message(),
              HasSubstr("the header ends at byte " + std::to_string(length + 8) + ", the file at " +
                        std::to_string(length)));
  // One byte more or less moves the border between header and data.
  for (int delta : {-1, 1}) {
    bytes = good;
    bytes[0] = static_cast<char>(bytes[0] + delta);
    EXPECT_EQ(read(bytes).code(), Code::kCheckpoint);
  }
  EXPECT_THAT(read("").message(), HasSubstr("an empty file"));
  EXPECT_THAT(read(std::string(5, '\1')).message(), HasSubstr("truncated"));
  EXPECT_THAT(read("format: 1\nname: lenet\n").message(), HasSubstr("it looks like a text file"));
  EXPECT_THAT(read("PK\x03\x04 some more bytes").message(), HasSubstr("may hold code"));
}

}  // namespace
}  // namespace convnet
