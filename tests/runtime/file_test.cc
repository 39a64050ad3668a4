// If this fails, hostile paths can hang or flood the program, or a crash can leave half a file.
#include "framework/runtime/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/runtime/temporary_folder.h"

namespace convnet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ReadFile, ReturnsTheBytes) {
  TemporaryFolder folder;
  const std::string bytes("a\0b\n\xff", 5);
  spit(folder / "f", bytes);
  const auto read = read_file(folder / "f", 5, Code::kModel);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*read, bytes);
}

TEST(ReadFile, RefusesMoreThanTheLimitBeforeReading) {
  TemporaryFolder folder;
  spit(folder / "f", "123456");
  const auto read = read_file(folder / "f", 5, Code::kModel);
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.status().code(), Code::kLimit);
  EXPECT_THAT(read.status().message(), HasSubstr("has 6 bytes; the limit is 5"));
}

TEST(ReadFile, RefusesWhatIsNoRegularFileWithoutHanging) {
  TemporaryFolder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const std::string& path : {folder / "pipe", std::string("/dev/zero"), folder.path()}) {
    const auto read = read_file(path, 1 << 20, Code::kData);
    ASSERT_FALSE(read.ok()) << path;
    EXPECT_EQ(read.status().code(), Code::kData);
    EXPECT_THAT(read.status().message(), HasSubstr("regular file"));
  }
  const auto missing = read_file(folder / "missing", 1, Code::kModel);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), Code::kModel);
  EXPECT_THAT(missing.status().message(), HasSubstr("No such file"));
}

TEST(InputFile, FollowsLinksOnlyIfAsked) {
  TemporaryFolder folder;
  spit(folder / "target", "x");
  ASSERT_EQ(symlink((folder / "target").c_str(), (folder / "link").c_str()), 0);
  EXPECT_TRUE(InputFile::open(folder / "link", Code::kData).ok());
  const auto refused = InputFile::open(folder / "link", Code::kData, InputFile::Links::kRefuse);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("symbolic link"));
}

TEST(InputFile, ReadingPastTheEndIsAnErrorThatSaysWhere) {
  TemporaryFolder folder;
  spit(folder / "f", "1234");
  auto file = InputFile::open(folder / "f", Code::kCheckpoint);
  ASSERT_TRUE(file.ok());
  char bytes[8];
  ASSERT_TRUE(file->read(bytes, 3).ok());
  const Status status = file->read(bytes, 3);
  EXPECT_EQ(status.code(), Code::kCheckpoint);
  EXPECT_THAT(status.message(), HasSubstr("ends at byte 4 where 2 more were expected"));
}

TEST(WriteFileAtomically, WritesThePartsAndLeavesNothingElse) {
  TemporaryFolder folder;
  spit(folder / "f", "old and longer than the new one");
  ASSERT_TRUE(write_file_atomically(folder / "f", {"ab", "", "cd"}).ok());
  EXPECT_EQ(slurp(folder / "f"), "abcd");
  ASSERT_TRUE(write_file_atomically(folder / "empty", {}).ok());
  EXPECT_EQ(slurp(folder / "empty"), "");
  EXPECT_THAT(folder.names(), ElementsAre("empty", "f"));
}

TEST(WriteFileAtomically, KeepsTheOldFileWhenTheNewOneDoesNotFit) {
  TemporaryFolder folder;
  spit(folder / "f", "old");
  const int result = in_child(1000, [&folder] {
    const Status status = write_file_atomically(folder / "f", {std::string(5000, 'x')});
    return status.code() == Code::kIo &&
                   status.message().find("File too large") != std::string::npos
               ? 0
               : 1;
  });
  EXPECT_EQ(result, 0);
  EXPECT_EQ(slurp(folder / "f"), "old");
  EXPECT_THAT(folder.names(), ElementsAre("f"));
}

TEST(OutputFile, ComparesItsSizeWithTheFreeSpace) {
  TemporaryFolder folder;
  const auto file = OutputFile::create(folder / "f", int64_t{1} << 60);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), Code::kIo);
  EXPECT_THAT(file.status().message(), HasSubstr("needs 1152921504606846976 bytes, and "));
  EXPECT_THAT(folder.names(), ElementsAre());
}

TEST(OutputFile, IsNotThereBeforeItIsCommitted) {
  TemporaryFolder folder;
  {
    auto file = OutputFile::create(folder / "f", 3);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE((*file)->write("ab").ok());
    const auto names = folder.names();
    ASSERT_EQ(names.size(), 1u);
    EXPECT_TRUE(is_temporary_name(names[0]));
    EXPECT_FALSE(is_temporary_name("f"));
  }
  EXPECT_THAT(folder.names(), ElementsAre());
}

TEST(OutputFile, DoesNotReplaceADeviceOrFolder) {
  TemporaryFolder folder;
  for (const std::string& path : {std::string("/dev/full"), folder.path()}) {
    const auto file = OutputFile::create(path, 1);
    ASSERT_FALSE(file.ok());
    EXPECT_THAT(file.status().message(), HasSubstr("not a regular file"));
  }
  EXPECT_EQ(write_file_atomically(folder / "missing/f", {"x"}).code(), Code::kIo);
}

TEST(OutputFile, ReportsAFolderThatCannotBeWritten) {
  TemporaryFolder folder;
  ASSERT_EQ(chmod(folder.path().c_str(), 0555), 0);
  EXPECT_EQ(in_unprivileged_child([&folder] {
              const Status status = write_file_atomically(folder / "f", {"x"});
              const bool denied = status.message().find("Permission denied") != std::string::npos;
              return denied ? static_cast<int>(status.code()) : 100;
            }),
            static_cast<int>(Code::kIo));
  ASSERT_EQ(chmod(folder.path().c_str(), 0755), 0);
}

TEST(DescribeContent, NamesWhatPeopleConfuse) {
  EXPECT_THAT(describe_content("\x1f\x8b\x08"), HasSubstr("gzip"));
  EXPECT_THAT(describe_content("PK\x03\x04"), HasSubstr("zip archive"));
  EXPECT_THAT(describe_content("\x80\x02}q"), HasSubstr("pickle"));
  EXPECT_THAT(describe_content("\x89HDF\r\n\x1a\n"), HasSubstr("HDF5"));
  EXPECT_THAT(describe_content("\x7f"
                               "ELF"),
              HasSubstr("ELF"));
  EXPECT_THAT(describe_content("\xff\xd8\xff\xe0"), HasSubstr("JPEG"));
  EXPECT_EQ(describe_content("format: 1\nname: x\n"), "a text file");
  EXPECT_EQ(describe_content(""), "an empty file");
  EXPECT_EQ(describe_content(std::string(8, '\x01')), "");
}

}  // namespace
}  // namespace convnet
