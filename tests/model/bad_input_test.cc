// If this fails, a hostile or damaged model file can crash, hang or fill the memory.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "framework/base/utf8.h"
#include "framework/model/reference.h"
#include "tests/model/model_text.h"

namespace convnet {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr char kNames[][16] = {"m.yaml", "m.prototxt"};

std::string repeated(const std::string& piece, size_t count) {
  std::string out;
  out.reserve(piece.size() * count);
  for (size_t i = 0; i < count; ++i) out += piece;
  return out;
}

struct Outcome {
  std::string text;
  Code code;
};

// Loads and checks what must hold for any text: an end in good time (of this thread's processor
// time, with room for slow machines), places inside the text, nothing that a terminal obeys.
Outcome outcome(const std::string& name, const std::string& text,
                const std::vector<std::string>& sets = {}) {
  timespec before, after;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
  Diagnostics diagnostics;
  const auto bound = load_model_text(name, text, sets, diagnostics);
  const std::string rendered = diagnostics.render();
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
  EXPECT_LT(after.tv_sec - before.tv_sec, 30);
  EXPECT_EQ(bound == nullptr, diagnostics.has_errors());
  EXPECT_LT(rendered.size(), 1u << 20);
  for (size_t i = 0; i < rendered.size();) {
    const Utf8Char character = decode_utf8(rendered, i);
    EXPECT_TRUE(character.valid);
    EXPECT_TRUE(character.code == '\n' || !is_control(character.code));
    i += static_cast<size_t>(character.bytes);
  }
  for (const Diagnostic& entry : diagnostics.all()) {
    EXPECT_FALSE(entry.message.empty());
    if (!entry.span.source) continue;
    EXPECT_LE(entry.span.begin, entry.span.end) << entry.message;
    EXPECT_LE(entry.span.end, entry.span.source->text().size()) << entry.message;
  }
  return {rendered, diagnostics.code()};
}

TEST(BadInput, NestingIsBounded) {
  for (const char* open : {"[", "{a: ", "- ", "? "}) {
    const Outcome yaml = outcome("m.yaml", "a: \n " + repeated(open, 100000));
    EXPECT_EQ(yaml.code, Code::kModel) << open;
    EXPECT_THAT(yaml.text, testing::AnyOf(HasSubstr("nested"), HasSubstr("a key must be"),
                                          HasSubstr("a key is missing"), HasSubstr("out of place")))
        << open;
  }
  EXPECT_THAT(outcome("m.yaml", "a: " + repeated("[", 100000)).text,
              HasSubstr("m.yaml:1:68: error: nested more than 64 levels deep"));
  EXPECT_THAT(outcome("m.prototxt", repeated("a { ", 10000)).text,
              HasSubstr("nested more than 64"));
  EXPECT_THAT(outcome("m.prototxt", repeated("a: [{ ", 10000)).text,
              HasSubstr("nested more than 64"));
  EXPECT_THAT(outcome("m.prototxt", repeated("a < ", 10000)).text,
              HasSubstr("nested more than 64"));
}

TEST(BadInput, NestingMayBeAsDeepAsItSays) {
  // The root is a level.
  EXPECT_THAT(outcome("m.yaml", "a: " + repeated("[", 63) + repeated("]", 63)).text,
              Not(HasSubstr("nested")));
  EXPECT_THAT(outcome("m.yaml", "a: " + repeated("[", 64) + repeated("]", 64)).text,
              HasSubstr("nested"));
}

TEST(BadInput, AliasesAreBounded) {
  std::string bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n";
  for (char c = 'b'; c < 'k'; ++c) {
    const std::string previous(1, static_cast<char>(c - 1));
    bomb += std::string(1, c) + ": &" + c + " [" + repeated("*" + previous + ", ", 8) + "*" +
            previous + "]\n";
  }
  EXPECT_THAT(outcome("m.yaml", bomb).text, HasSubstr("too many nodes"));

  const std::string large =
      "a: &a \"" + std::string(1000000, 'x') + "\"\nb: [" + repeated("*a, ", 5000) + "1]\n";
  EXPECT_THAT(outcome("m.yaml", large).text, HasSubstr("too much text"));

  std::string chain = "a0: &a0 [x]\n";
  for (int i = 1; i < 5000; ++i) {
    chain += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [*a" + std::to_string(i - 1) +
             "]\n";
  }
  EXPECT_THAT(outcome("m.yaml", chain).text, HasSubstr("nested more than 64"));
}

TEST(BadInput, SizesAreBounded) {
  const Outcome large = outcome("m.yaml", repeated("x: 1\n", 80000000 / 5));
  EXPECT_EQ(large.code, Code::kLimit);
  EXPECT_THAT(large.text,
              HasSubstr("it has 80000000 bytes, a model file must have at most 16777216"));
  EXPECT_THAT(outcome("m.yaml", "a: [" + repeated("1,", 1000000) + "1]\n").text,
              HasSubstr("too many nodes"));
  EXPECT_THAT(outcome("m.prototxt", repeated("a: 1\n", 1000001)).text, HasSubstr("too many nodes"));
  EXPECT_THAT(outcome("m.yaml", "a: " + std::string(2000000, 'x') + "\n").text,
              HasSubstr("unknown attribute"));
  EXPECT_THAT(outcome("m.yaml", std::string(1000000, 'x') + ": 1\n").text, HasSubstr("m.yaml:1:"));
  EXPECT_THAT(outcome("m.yaml", "name: " + std::string(1000000, 'x') + "\n").text,
              HasSubstr("name has 1000000 bytes, must have at most"));
}

TEST(BadInput, LayersAreBounded) {
  const Outcome yaml =
      outcome("m.yaml", kYamlHead + ("layers:\n" + repeated("- {name: a, type: relu}\n", 20000)));
  EXPECT_EQ(yaml.code, Code::kLimit);
  EXPECT_THAT(yaml.text, HasSubstr("layers has 20000 items, must have at most 10000"));
  const Outcome text =
      outcome("m.prototxt", kPrototxtHead + repeated("layers { name: \"a\" relu {} }\n", 200000));
  EXPECT_EQ(text.code, Code::kLimit);
  EXPECT_THAT(text.text, HasSubstr("layers has 200000 items, must have at most 10000"));
  std::string most = std::string(kYamlHead) + "layers:\n";
  for (int i = 0; i < 10000; ++i) most += "- {name: a" + std::to_string(i) + ", type: relu}\n";
  EXPECT_EQ(outcome("m.yaml", most).text, "");
}

TEST(BadInput, MistakesAreBounded) {
  std::string unknown;
  for (int i = 0; i < 50000; ++i) unknown += "key" + std::to_string(i) + ": 1\n";
  EXPECT_THAT(outcome("m.yaml", unknown).text, HasSubstr("more errors are not shown"));
  EXPECT_THAT(outcome("m.prototxt", unknown).text, HasSubstr("more errors are not shown"));
  EXPECT_THAT(outcome("m.yaml", repeated("x: 1\n", 50000)).text, HasSubstr("duplicate key 'x'"));
  EXPECT_THAT(outcome("m.prototxt", repeated("= $ } ]\n", 50000)).text, HasSubstr("error"));
}

TEST(BadInput, OnlyTextIsRead) {
  const struct {
    std::string text;
    const char* words;
  } cases[] = {
      {"a: x\xff\xfe\x80\n", "m.yaml:1:5: error: not text in UTF-8: byte 0xff at offset 4"},
      {std::string("\xff\xfe"
                   "a\0:\0",
                   6),
       "UTF-16"},
      {std::string("\xfe\xff\0a", 4), "UTF-16"},
      {std::string("a: x\0y\n", 7), "not text in UTF-8: control character 0x00 at offset 4"},
      {"a: \x1b[31m\n", "control character 0x1b at offset 3"},
      {"\x0a\x05"
       "conv1\x12\x80\x80\x04\xff",
       "not text"},
      {"a: \xed\xa0\x80\n", "byte 0xed"},
      {"a: \xc0\x80\n", "byte 0xc0"},
  };
  for (const auto& [text, words] : cases) {
    EXPECT_THAT(outcome("m.yaml", text).text, HasSubstr(words));
    EXPECT_THAT(outcome("m.prototxt", text).text, HasSubstr("not text"));
  }
}

TEST(BadInput, YamlThatHangsItsParserEnds) {
  for (const char* text : {", {b}  t\n",
                           ", {b}  t",
                           "\n, {b} t\n\n",
                           "--- , {b} t\n",
                           "? ",
                           ": ",
                           "- - -",
                           "[",
                           "{",
                           "}",
                           "]",
                           "&a",
                           "*a",
                           "!",
                           "!!",
                           "%",
                           "%YAML",
                           "%TAG ! x",
                           "|",
                           ">",
                           "|9",
                           "'",
                           "\"",
                           "\"\\",
                           "@",
                           "`",
                           "--- --- ---",
                           "...",
                           "---\n...\n---",
                           "? ? ?",
                           "a: &a &b c",
                           "a: !!str !!int 3",
                           "{a: b: c}",
                           "[a: b, c: d]",
                           "{? a, ? b}",
                           "a: |\n\ta",
                           "<<: 1",
                           "a: !!map [1]",
                           "a: !!seq {b: c}",
                           "a: !!null x",
                           "? !!str a\n: 1",
                           "!!map {a: 1}",
                           "a: !<tag:x> 1",
                           "a: !<tag:yaml.org,2002:str> 1",
                           "&a : 1",
                           "a: [1, 2]]",
                           "a: {}}"}) {
    EXPECT_NE(outcome("m.yaml", text).text, "") << text;
    outcome("m.yaml", std::string(example_yaml()), {std::string("name=") + text});
    outcome("m.prototxt", text);
  }
}

TEST(BadInput, OnlyRegularFilesAreRead) {
  const fs::path folder =
      fs::path(testing::TempDir()) / ("convnet_model_" + std::to_string(getpid()));
  fs::create_directories(folder / "folder.yaml");
  ASSERT_EQ(mkfifo((folder / "fifo.yaml").c_str(), 0600), 0);
  fs::create_symlink("/dev/zero", folder / "zero.yaml");
  fs::create_symlink("loop.yaml", folder / "loop.yaml");
  std::ofstream(folder / "good.yaml") << example_yaml();
  std::ofstream(folder / "locked.yaml") << example_yaml();
  std::ofstream(folder / "empty.yaml");
  fs::permissions(folder / "locked.yaml", fs::perms::none);
  fs::resize_file(folder / "empty.yaml", 0);
  std::ofstream(folder / "sparse.yaml");
  fs::resize_file(folder / "sparse.yaml", uintmax_t{2} << 30);

  const auto message = [&](const std::string& name, Code code) {
    Diagnostics diagnostics;
    EXPECT_EQ(load_model((folder / name).string(), {}, diagnostics), nullptr);
    EXPECT_EQ(diagnostics.code(), code) << name;
    EXPECT_THAT(diagnostics.render(), HasSubstr(name));
    return diagnostics.render();
  };
  EXPECT_THAT(message("missing.yaml", Code::kModel), HasSubstr("No such file"));
  EXPECT_THAT(message("folder.yaml", Code::kModel), HasSubstr("directory"));
  EXPECT_THAT(message("fifo.yaml", Code::kModel), HasSubstr("regular file"));
  EXPECT_THAT(message("zero.yaml", Code::kModel), HasSubstr("regular file"));
  EXPECT_THAT(message("loop.yaml", Code::kModel), HasSubstr("symbolic link"));
  EXPECT_THAT(message("empty.yaml", Code::kModel), HasSubstr("empty"));
  EXPECT_THAT(message("sparse.yaml", Code::kLimit), HasSubstr("2147483648 bytes"));
  if (geteuid() != 0) {
    EXPECT_THAT(message("locked.yaml", Code::kModel), HasSubstr("Permission denied"));
  }

  Diagnostics diagnostics;
  EXPECT_NE(load_model((folder / "good.yaml").string(), {}, diagnostics), nullptr);
  EXPECT_EQ(diagnostics.render(), "");
  fs::permissions(folder / "locked.yaml", fs::perms::owner_all);
  fs::remove_all(folder);
}

TEST(BadInput, TheNameTellsTheSpelling) {
  for (const char* name : {"m.yaml", "m.yml", "a.b/m.yaml"})
    load_good(name, std::string(example_yaml()));
  for (const char* name : {"m.prototxt", "m.pbtxt", "m.txtpb"})
    load_good(name, std::string(example_prototxt()));
  for (const char* name : {"m", "m.txt", ".yaml", "yaml", "m.yaml.bak", ""}) {
    EXPECT_THAT(outcome(name, std::string(example_yaml())).text,
                HasSubstr("which ends in .yaml, .yml"));
  }
  EXPECT_THAT(outcome("m.yaml", std::string(example_prototxt())).text,
              HasSubstr("looks like protobuf text"));
  EXPECT_THAT(outcome("m.prototxt", std::string(example_yaml())).text,
              HasSubstr("looks like YAML"));
}

// A wrong value says the same in both spellings.
TEST(BadInput, OneCheckerStandsBehindBothSpellings) {
  const struct {
    const char *type, *attribute, *value, *words;
  } cases[] = {
      {"conv", "filters", "0", "filters is 0, must be at least 1"},
      {"conv", "filters", "-1", "filters is -1, must be at least 1"},
      {"conv", "filters", "99999999999", "out of range, must be at most 1048576"},
      {"conv", "filters", "9223372036854775808", "out of range, must be at most 1048576"},
      {"conv", "filters", "abc", "filters is 'abc', must be an integer"},
      {"conv", "filters", "3.7", "filters is 3.7, must be an integer"},
      {"conv", "filters", "0777", "filters is 0777, ambiguous"},
      {"conv", "filters", "\"3\"", "must be an integer"},
      {"conv", "stride", "0", "stride is 0, must be at least 1"},
      {"pool", "stride", "0", "stride is 0, must be at least 1"},
      {"conv", "kernel", "0", "kernel is 0, must be at least 1"},
      {"conv", "kernel", "[1, 2, 3]", "kernel has 3 items, must have at most 2"},
      {"conv", "dilation", "0", "dilation is 0, must be at least 1"},
      {"conv", "groups", "0", "groups is 0, must be at least 1"},
      {"conv", "act", "rleu", "act is 'rleu', must be none, relu, tanh or sigmoid"},
      {"conv", "bias", "yes", "bias is 'yes', must be true or false"},
      {"lrn", "size", "0", "size is 0, must be at least 1"},
      {"lrn", "alpha", "nan", "alpha is nan, must be finite"},
      {"lrn", "alpha", "inf", "alpha is inf, must be finite"},
      {"lrn", "alpha", "1e400", "alpha is 1e400, out of range"},
      {"dropout", "rate", "1.0", "rate is 1.0, must be less than 1"},
      {"dropout", "rate", "1.5", "rate is 1.5, must be less than 1"},
      {"dropout", "rate", "-0.1", "rate is -0.1, must be at least 0"},
      {"conv", "kernal_size", "3", "unknown attribute 'kernal_size' for conv"},
  };
  for (const auto& [type, attribute, value, words] : cases) {
    const std::string pair = std::string(attribute) + ": " + value;
    const std::string yaml =
        std::string(kYamlHead) + "layers: [{name: a, type: " + type + ", " + pair + "}]\n";
    const std::string text =
        std::string(kPrototxtHead) + "layers { name: \"a\" " + type + " { " + pair + " } }\n";
    EXPECT_THAT(outcome("m.yaml", yaml).text, HasSubstr(words));
    EXPECT_THAT(outcome("m.prototxt", text).text, HasSubstr(words));
  }
}

TEST(BadInput, EveryLineMayBeMissing) {
  for (const char* name : kNames) {
    const std::string text(name == kNames[0] ? example_yaml() : example_prototxt());
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = text.find('\n', begin) + 1;
      outcome(name, text.substr(0, begin) + text.substr(end));
      outcome(name, text.substr(0, end) + text.substr(begin));  // or be there twice
      begin = end;
    }
  }
}

TEST(BadInput, AFileMayEndAnywhere) {
  for (const char* name : kNames) {
    const std::string text(name == kNames[0] ? example_yaml() : example_prototxt());
    for (size_t size = 0; size < text.size(); ++size) outcome(name, text.substr(0, size));
  }
}

TEST(BadInput, EveryByteMayBeAnother) {
  // Bytes that mean something in one of the notations.
  const std::string others = "\n\t #:-[]{}<>,\"'&*!|%@?=\\0\x01\xff";
  for (const char* name : kNames) {
    const std::string text(name == kNames[0] ? example_yaml() : example_prototxt());
    uint32_t state = 1;
    for (size_t i = 0; i < text.size(); ++i) {
      std::string changed = text;
      state = state * 1664525u + 1013904223u;
      changed[i] = others[(state >> 16) % others.size()];
      outcome(name, changed);
      changed.erase(i, 1);
      outcome(name, changed);
    }
  }
}

TEST(BadInput, NothingIsRunOrExpanded) {
  const fs::path trap = fs::path(testing::TempDir()) / ("convnet_trap_" + std::to_string(getpid()));
  const std::string command = "$(touch " + trap.string() + ")";
  const auto bound = load_good(
      "m.yaml", std::string(kYamlHead) + "layers: [{name: a, type: relu}]\ndata: {train: {idx: '" +
                    command + "${HOME}'}}\n");
  ASSERT_NE(bound, nullptr);
  EXPECT_EQ(bound->model->data().train().idx(), command + "${HOME}");
  EXPECT_FALSE(fs::exists(trap));
}

}  // namespace
}  // namespace convnet
