// If this fails, a damaged or mistaken data set is trained on without a word, or MNIST cannot be
// read.
#include "data/idx.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <filesystem>

#include "tests/data/idx_files.h"

namespace convnet {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

Result<std::shared_ptr<const Dataset>> read(const std::string& images, const std::string& labels,
                                            int64_t classes = 3, const std::string& end = "") {
  TemporaryFolder folder;
  spit(folder / "images" + end, images);
  spit(folder / "labels" + end, labels);
  return read_idx("small", folder / "images" + end, folder / "labels" + end, classes);
}

void expect_error(const std::string& images, const std::string& labels,
                  const ::testing::Matcher<const std::string&>& message,
                  const std::string& end = "") {
  const Status status = read(images, labels, 3, end).status();
  EXPECT_EQ(status.code(), Code::kData);
  EXPECT_THAT(status.message(), message);
  EXPECT_THAT(status.message(), HasSubstr("/convnet-")) << "the path must be named";
}

std::string put(std::string bytes, size_t at, const std::string& with) {
  return bytes.replace(at, with.size(), with);
}

TEST(Idx, ReadsPixelsAndLabels) {
  const auto dataset = read(small_images(), small_labels());
  ASSERT_TRUE(dataset.ok()) << dataset.status().message();
  EXPECT_EQ((*dataset)->examples(), 5);
  EXPECT_EQ((*dataset)->example_shape(), (Shape{1, 2, 3}));
  EXPECT_EQ((*dataset)->classes(), 3);
  EXPECT_EQ((*dataset)->name(), "small");
  std::array<uint8_t, 6> pixels;
  int32_t label = -5;
  for (int n = 0; n < 5; ++n) {
    ASSERT_TRUE((*dataset)->read(n, pixels.data(), &label).ok());
    EXPECT_EQ(label, n % 3);
    for (int i = 0; i < 6; ++i) EXPECT_EQ(pixels[static_cast<size_t>(i)], 10 * n + i);
  }
}

TEST(Idx, GzipIsTheSameDataSet) {
  const auto plain = read(small_images(), small_labels());
  const auto packed = read(gzip(small_images()), gzip(small_labels()), 3, ".gz");
  ASSERT_TRUE(packed.ok()) << packed.status().message();
  EXPECT_EQ((*plain)->fingerprint(), (*packed)->fingerprint());
  // Two members, one after the other, are one stream.
  const auto joined = read(gzip(small_images().substr(0, 7)) + gzip(small_images().substr(7)),
                           gzip(small_labels()), 3, ".gz");
  ASSERT_TRUE(joined.ok()) << joined.status().message();
  EXPECT_EQ((*plain)->fingerprint(), (*joined)->fingerprint());
}

TEST(Idx, TheFingerprintChangesWithAnyByte) {
  const auto plain = read(small_images(), small_labels());
  EXPECT_THAT((*plain)->fingerprint(), HasSubstr("5x1x2x3-"));
  const auto pixel = read(put(small_images(), 20, "\x7f"), small_labels());
  EXPECT_NE((*plain)->fingerprint(), (*pixel)->fingerprint());
  const auto label = read(small_images(), put(small_labels(), 10, "\1"));
  EXPECT_NE((*plain)->fingerprint(), (*label)->fingerprint());
}

TEST(IdxDamage, I01WrongMagic) {
  expect_error(put(small_images(), 0, "ABCD"), small_labels(),
               AllOf(HasSubstr("0x41424344"), HasSubstr("0x00000803")));
  expect_error("format: 1\nname: lenet\n", small_labels(), HasSubstr("looks like a text file"));
}

TEST(IdxDamage, I02SwappedFiles) {
  expect_error(small_labels(), small_images(), HasSubstr("swapped"));
}

TEST(IdxDamage, I03ShortHeaders) {
  for (size_t size : {0, 3, 7, 15})
    expect_error(small_images().substr(0, size), small_labels(),
                 AllOf(HasSubstr(std::to_string(size) + " bytes"),
                       HasSubstr("header of an IDX file of images has 16")));
  expect_error(small_images(), small_labels().substr(0, 7),
               HasSubstr("header of an IDX file of labels has 8"));
}

TEST(IdxDamage, I04CountZero) {
  expect_error(idx_header({0, 2, 3}), idx_header({0}), HasSubstr("holds 0 images"));
}

TEST(IdxDamage, I05AndI06CountLargerThanTheFile) {
  expect_error(put(small_images(), 7, "\x6"), put(small_labels(), 7, "\x6") + '\0',
               AllOf(HasSubstr("6 images of 2 x 3 bytes"), HasSubstr("30 bytes can follow")));
  expect_error(small_images().substr(0, 45), small_labels(),
               AllOf(HasSubstr("5 images of 2 x 3 bytes"), HasSubstr("29 bytes can follow")));
  expect_error(small_images(), small_labels().substr(0, 12),
               AllOf(HasSubstr("5 labels"), HasSubstr("4 bytes can follow")));
}

TEST(IdxDamage, I07OneByteLong) {
  expect_error(small_images() + "x", small_labels(), HasSubstr("trailing"));
  expect_error(small_images(), small_labels() + '\0', HasSubstr("trailing"));
}

TEST(IdxDamage, I08And09ExtentsThatOverflow) {
  expect_error(idx_header({5, 0, 3}), small_labels(), HasSubstr("images of 0 x 3 pixels"));
  expect_error(idx_header({5, 65536, 65536}) + std::string(64, 'x'), small_labels(),
               AllOf(HasSubstr("5 images of 65536 x 65536"), HasSubstr("64 bytes can follow")));
  expect_error(idx_header({5, 65537, 1}) + std::string(64, 'x'), small_labels(),
               HasSubstr("65537 x 1"));
  expect_error(put(small_images(), 4, "\xff\xff\xff\xff"),
               put(small_labels(), 4, "\xff\xff\xff\xff"), HasSubstr("4294967295"));
  expect_error(idx_header({0xffffffff, 65536, 65536}), idx_header({0xffffffff}),
               HasSubstr("4294967295"));
}

TEST(IdxDamage, I10CountsThatDiffer) {
  expect_error(small_images(), idx_header({4}) + std::string(4, '\0'),
               AllOf(HasSubstr("holds 5 images"), HasSubstr("holds 4 labels")));
}

TEST(IdxDamage, I11GzipUnderAPlainName) {
  expect_error(gzip(small_images()), small_labels(), HasSubstr("gzip"));
}

TEST(IdxDamage, I12OtherElementTypes) {
  expect_error(put(small_images(), 2, "\x0d"), small_labels(),
               AllOf(HasSubstr("type 0x0d (floats)"), HasSubstr("0x08")));
  expect_error(put(small_images(), 2, std::string(1, '\0')), small_labels(),
               HasSubstr("type 0x00"));
}

TEST(IdxDamage, I13OtherNumbersOfDimensions) {
  for (int rank : {0, 1, 255})
    expect_error(
        put(small_images(), 3, std::string(1, static_cast<char>(rank))), small_labels(),
        AllOf(HasSubstr(": " + std::to_string(rank) + " dimension"), HasSubstr("images have 3")));
}

TEST(IdxDamage, I14LabelsAboveTheClasses) {
  expect_error(small_images(), put(small_labels(), 11, "\3"),
               AllOf(HasSubstr("example 3 has label 3"), HasSubstr("3 classes (0 to 2)")));
  expect_error(small_images(), put(small_labels(), 8, "\xff"),
               HasSubstr("example 0 has label 255"));
}

TEST(IdxDamage, EveryTruncationAndFlipOfGzipIsFound) {
  const std::string good = gzip(small_images());
  TemporaryFolder folder;
  spit(folder / "labels.gz", gzip(small_labels()));
  const auto read_images = [&folder](const std::string& bytes) {
    spit(folder / "images.gz", bytes);
    return read_idx("small", folder / "images.gz", folder / "labels.gz", 3);
  };
  for (size_t size = 0; size < good.size(); ++size)
    ASSERT_EQ(read_images(good.substr(0, size)).status().code(), Code::kData) << size;
  const std::string fingerprint = (*read_images(good))->fingerprint();
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bytes = good;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    const auto damaged = read_images(bytes);
    // The gzip header's time and system may change without harm.
    if (damaged.ok()) {
      ASSERT_EQ((*damaged)->fingerprint(), fingerprint) << "bit " << bit;
    }
  }
  expect_error(gzip(small_images()).substr(0, 30), gzip(small_labels()), HasSubstr("truncated"),
               ".gz");
  expect_error(gzip(small_images()) + "garbage", gzip(small_labels()), HasSubstr("damaged gzip"),
               ".gz");
  expect_error(gzip(small_images() + "x"), gzip(small_labels()), HasSubstr("trailing"), ".gz");
  expect_error(small_images(), gzip(small_labels()), HasSubstr("damaged gzip"), ".gz");
}

TEST(IdxDamage, ASmallGzipFileCannotAskForAllMemory) {
  expect_error(gzip(idx_header({5, 65536, 65536})), gzip(small_labels()),
               HasSubstr("bytes can follow"), ".gz");
}

TEST(IdxDamage, PathsThatAreNoFiles) {
  TemporaryFolder folder;
  spit(folder / "labels", small_labels());
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(read_idx("x", folder / "pipe", folder / "labels", 3).status().message(),
              HasSubstr("regular file"));
  EXPECT_THAT(read_idx("x", folder.path(), folder / "labels", 3).status().message(),
              HasSubstr("a directory"));
  EXPECT_THAT(read_idx("x", folder / "missing", folder / "labels", 3).status().message(),
              HasSubstr("No such file"));
}

TEST(FashionMnist, IsReadWhole) {
  const std::string folder = "/usr/share/datasets/fashion-mnist/";
  if (!std::filesystem::exists(folder + "train-images-idx3-ubyte.gz"))
    GTEST_SKIP() << "the package dataset-fashion-mnist is not installed";
  for (const auto& [part, count] :
       {std::pair<std::string, int64_t>{"train", 60000}, {"t10k", 10000}}) {
    const auto dataset = read_idx(part, folder + part + "-images-idx3-ubyte.gz",
                                  folder + part + "-labels-idx1-ubyte.gz", 10);
    ASSERT_TRUE(dataset.ok()) << dataset.status().message();
    EXPECT_EQ((*dataset)->examples(), count);
    EXPECT_EQ((*dataset)->example_shape(), (Shape{1, 28, 28}));
    std::array<int64_t, 10> per_class{};
    std::vector<uint8_t> pixels(28 * 28);
    int32_t label;
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_TRUE((*dataset)->read(i, pixels.data(), &label).ok());
      ++per_class.at(static_cast<size_t>(label));
    }
    EXPECT_THAT(per_class, Each(count / 10));
  }
}

}  // namespace
}  // namespace convnet
