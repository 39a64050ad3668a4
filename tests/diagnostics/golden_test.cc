// If this fails, what a user sees for a mistake in a model file has changed.
//
// Each NAME.yaml or NAME.prototxt of this folder is loaded and compiled; NAME.EXTENSION.err holds
// exactly what is printed, nothing for a good file. A line `# set: PATH=VALUE` at the top is a
// --set option. Adding a case is adding a file; UPDATE_GOLDEN=1 writes the .err files anew.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "framework/base/diagnostics.h"
#include "framework/compiler/compile.h"
#include "framework/model/binder.h"
#include "layers/registry.h"
#include "parsers/model_file.h"

namespace convnet {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = fs::path(CONVNET_SOURCE_DIR) / "tests/diagnostics";

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::vector<std::string> model_files() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kFolder)) {
    const std::string extension = entry.path().extension();
    if (extension == ".yaml" || extension == ".prototxt") names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> sets_of(const std::string& text) {
  const std::string mark = "# set: ";
  std::vector<std::string> sets;
  for (size_t i = 0; text.compare(i, mark.size(), mark) == 0;) {
    const size_t end = std::min(text.find('\n', i), text.size());
    sets.push_back(text.substr(i + mark.size(), end - i - mark.size()));
    i = std::min(end + 1, text.size());
  }
  return sets;
}

class Golden : public testing::TestWithParam<std::string> {};

TEST_P(Golden, RendersAsBefore) {
  const std::string& name = GetParam();
  const std::string text = contents(kFolder / name);
  Diagnostics diagnostics;
  const auto bound = load_model_text(name, text, sets_of(text), diagnostics);
  EXPECT_EQ(bound == nullptr, diagnostics.has_errors());
  if (bound != nullptr) {
    const auto plan = compile(*bound, all_layers(), CompileOptions{}, diagnostics);
    EXPECT_EQ(plan.has_value(), !diagnostics.has_errors());
  }
  const std::string rendered = diagnostics.render();
  const fs::path expected = kFolder / (name + ".err");
  if (std::getenv("UPDATE_GOLDEN") != nullptr) {
    std::ofstream(expected, std::ios::binary) << rendered;
    return;
  }
  ASSERT_TRUE(fs::exists(expected)) << "UPDATE_GOLDEN=1 writes it";
  EXPECT_EQ(rendered, contents(expected));
}

std::string test_name(const testing::TestParamInfo<std::string>& param) {
  std::string name = param.param;
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Files, Golden, testing::ValuesIn(model_files()), test_name);

TEST(GoldenFolder, HasNoResultWithoutItsModel) {
  for (const auto& entry : fs::directory_iterator(kFolder)) {
    if (entry.path().extension() != ".err") continue;
    EXPECT_TRUE(fs::exists(kFolder / entry.path().stem())) << entry.path();
  }
}

TEST(GoldenFolder, ShowsEightMistakesAtOnce) {
  const std::string name = "eight-mistakes.yaml";
  Diagnostics diagnostics;
  load_model_text(name, contents(kFolder / name), {}, diagnostics);
  EXPECT_EQ(diagnostics.errors(), 8);
}

}  // namespace
}  // namespace convnet
