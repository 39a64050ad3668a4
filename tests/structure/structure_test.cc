// If this fails, an include points up or sideways, a library leaks out of its folder, or a file has
// grown too long: the message says file, line and rule.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/structure/rules.h"

namespace convnet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<SourceFile> source_tree() {
  namespace fs = std::filesystem;
  static const std::vector<std::string> kEndings = {".h",   ".cc",  ".cpp",  ".cu",
                                                    ".cuh", ".def", ".proto"};
  const fs::path root = CONVNET_SOURCE_DIR;
  std::vector<SourceFile> files;
  for (const char* folder : {"framework", "layers", "parsers", "data", "tools", "tests"}) {
    if (!fs::is_directory(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string ending = entry.path().extension().string();
      if (!entry.is_regular_file() ||
          std::find(kEndings.begin(), kEndings.end(), ending) == kEndings.end())
        continue;
      std::ifstream file(entry.path(), std::ios::binary);
      files.push_back({fs::relative(entry.path(), root).generic_string(),
                       {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()}});
    }
  }
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return files;
}

TEST(Structure, SourceTreeKeepsItsRules) {
  const std::vector<SourceFile> files = source_tree();
  ASSERT_GT(files.size(), 50u) << "the source tree was not found";
  for (const Violation& v : check_source_tree(files)) ADD_FAILURE() << v.str();
}

// A small tree that keeps the rules; the tests below add one file to it.
std::vector<SourceFile> small_tree() {
  return {
      {"framework/base/status.h", "#pragma once\n"},
      {"framework/model/binder.h", "#pragma once\n#include \"framework/base/status.h\"\n"},
      {"framework/plan/plan.h", "#pragma once\n#include <vector>\n"},
      {"framework/graph/graph.h", "#pragma once\n#include \"framework/model/binder.h\"\n"},
      {"framework/backends/backend.h", "#pragma once\n#include \"framework/plan/plan.h\"\n"},
      {"framework/backends/cpu/conv.cc", "#include \"framework/backends/reference/reference.h\"\n"},
      {"framework/backends/reference/reference.h", "#pragma once\n"},
      {"framework/compiler/compile.h", "#pragma once\n#include \"framework/graph/graph.h\"\n"},
      {"framework/comm/communicator.h", "#pragma once\n"},
      {"framework/runtime/session.h", "#pragma once\n#include \"framework/comm/communicator.h\"\n"},
      {"layers/conv.proto", "syntax = \"proto2\";\nimport \"layers/options.proto\";\n"},
      {"layers/fc.proto", "import \"layers/options.proto\";\n"},
      {"layers/options.proto", "import \"google/protobuf/descriptor.proto\";\n"},
      {"layers/conv.cc", "#include \"layers/conv.pb.h\"\n#include \"layers/window.h\"\n"},
      {"layers/fc.h", "#pragma once\n"},
      {"layers/window.h", "#pragma once\n"},
      {"parsers/yaml.cc",
       "#include <yaml-cpp/eventhandler.h>\n#include \"framework/model/binder.h\"\n"},
      {"data/loader.h", "#pragma once\n#include \"framework/runtime/session.h\"\n"},
      {"tools/convnet/main.cc", "#include <CLI/CLI.hpp>\n#include \"data/loader.h\"\n"},
      {"tests/base/status_test.cc", "#include \"framework/base/status.h\"\n"},
  };
}

// What is reported, without the message, when this file is there as well.
std::vector<std::string> with(const std::string& path, const std::string& text) {
  std::vector<SourceFile> files = small_tree();
  files.push_back({path, text});
  std::vector<std::string> found;
  for (const Violation& v : check_source_tree(files))
    found.push_back(v.path + ":" + std::to_string(v.line) + " " + v.rule);
  return found;
}

TEST(Structure, AcceptsATreeThatKeepsTheRules) {
  EXPECT_THAT(with("framework/runtime/x.cc", "// a comment\n#include <string>\n"), IsEmpty());
}

TEST(Structure, IncludesPointDown) {
  EXPECT_THAT(with("framework/base/x.cc", "\n#include \"framework/plan/plan.h\"\n"),
              ElementsAre("framework/base/x.cc:2 floor"));
  EXPECT_THAT(with("framework/plan/x.cc", "#include \"framework/model/binder.h\"\n"),
              ElementsAre("framework/plan/x.cc:1 floor"));
  EXPECT_THAT(with("framework/model/x.cc", "#include \"layers/conv.pb.h\"\n"), IsEmpty());
  EXPECT_THAT(with("framework/model/x.cc", "#include \"layers/window.h\"\n"),
              ElementsAre("framework/model/x.cc:1 floor"));
  EXPECT_THAT(with("framework/runtime/x.cc", "  #  include \"data/loader.h\" // why\n"),
              ElementsAre("framework/runtime/x.cc:1 floor"));
  EXPECT_THAT(with("framework/comm/x.cc", "#include \"framework/compiler/compile.h\"\n"),
              ElementsAre("framework/comm/x.cc:1 floor"));
  EXPECT_THAT(with("layers/x.proto", "import \"framework/model/m.proto\";\n"),
              ElementsAre("layers/x.proto:1 path"));
}

TEST(Structure, SomeNeverIncludeOthers) {
  EXPECT_THAT(with("framework/compiler/x.cc", "#include \"framework/backends/backend.h\"\n"),
              ElementsAre("framework/compiler/x.cc:1 never"));
  EXPECT_THAT(with("framework/compiler/x.cc", "#include \"layers/window.h\"\n"),
              ElementsAre("framework/compiler/x.cc:1 floor"));
  EXPECT_THAT(with("framework/runtime/x.cc",
                   "#include \"framework/graph/graph.h\"\n"
                   "#include \"framework/model/binder.h\"\n"
                   "#include \"layers/window.h\"\n"
                   "#include \"framework/compiler/compile.h\"\n"),
              ElementsAre("framework/runtime/x.cc:1 never", "framework/runtime/x.cc:2 never",
                          "framework/runtime/x.cc:3 never", "framework/runtime/x.cc:4 never"));
  EXPECT_THAT(
      with("framework/backends/reference/x.cc", "#include \"framework/backends/cpu/x.h\"\n"),
      ElementsAre("framework/backends/reference/x.cc:1 path"));
  EXPECT_THAT(with("framework/backends/cuda/x.cc",
                   "#include \"framework/backends/reference/reference.h\"\n"),
              ElementsAre("framework/backends/cuda/x.cc:1 backend"));
  EXPECT_THAT(
      with("framework/backends/x.cc", "#include \"framework/backends/reference/reference.h\"\n"),
      ElementsAre("framework/backends/x.cc:1 backend"));
  EXPECT_THAT(with("layers/pool.cc", "#include \"layers/fc.h\"\n"),
              ElementsAre("layers/pool.cc:1 layer"));
}

TEST(Structure, LibrariesStayInTheirFolders) {
  EXPECT_THAT(with("tools/convnet/x.cc", "#include <yaml-cpp/yaml.h>\n"),
              ElementsAre("tools/convnet/x.cc:1 library"));
  EXPECT_THAT(with("parsers/x.h", "#pragma once\n#include <yaml-cpp/yaml.h>\n"),
              ElementsAre("parsers/x.h:2 heavy"));
  EXPECT_THAT(with("tools/convnet/x.h",
                   "#pragma once\n#include <CLI/CLI.hpp>\n#include <nlohmann/json.hpp>\n"),
              ElementsAre("tools/convnet/x.h:2 heavy", "tools/convnet/x.h:3 heavy"));
  EXPECT_THAT(with("framework/runtime/x.cc", "#include <cuda_runtime.h>\n"),
              ElementsAre("framework/runtime/x.cc:1 library"));
  EXPECT_THAT(with("framework/comm/x.cc", "#include <mpi.h>\n#include <nccl.h>\n"),
              ElementsAre("framework/comm/x.cc:1 library", "framework/comm/x.cc:2 library"));
  EXPECT_THAT(with("framework/comm/mpi/x.cc", "#include <mpi.h>\n"), IsEmpty());
  EXPECT_THAT(with("tools/x.cc", "#include <opencv2/core.hpp>\n"),
              ElementsAre("tools/x.cc:1 library"));
}

TEST(Structure, FilesAreShortAndGuarded) {
  EXPECT_THAT(with("framework/base/x.h", "int f();\n"), ElementsAre("framework/base/x.h:1 guard"));
  std::string text;
  for (int i = 0; i < 700; ++i) text += "\n";
  EXPECT_THAT(with("framework/base/x.cc", text), IsEmpty());
  EXPECT_THAT(with("framework/base/x.cc", text + "\n"),
              ElementsAre("framework/base/x.cc:701 length"));
}

TEST(Structure, IncludesBeginAtTheRoot) {
  EXPECT_THAT(with("framework/base/x.cc", "#include \"status.h\"\n"),
              ElementsAre("framework/base/x.cc:1 path"));
  EXPECT_THAT(with("framework/new/x.cc", "#include \"framework/base/status.h\"\n"),
              ElementsAre("framework/new/x.cc:1 folder"));
}

TEST(Structure, MessagesNameFileLineAndRule) {
  std::vector<SourceFile> files = small_tree();
  files.push_back({"framework/base/x.cc", "#include \"framework/plan/plan.h\"\n"});
  ASSERT_EQ(check_source_tree(files).size(), 1u);
  EXPECT_EQ(check_source_tree(files)[0].str(),
            "framework/base/x.cc:1: floor: 'framework/plan/plan.h' is on floor 1, framework/base/ "
            "on 0; an "
            "include points down");
}

}  // namespace
}  // namespace convnet
