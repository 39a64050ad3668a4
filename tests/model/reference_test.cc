// If this fails, help texts or model-defs/README.md do not say what the schema says.
#include "framework/model/reference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/model/model_text.h"

namespace convnet {
namespace {

using testing::HasSubstr;

TEST(Reference, IsWhatTheReadmeSays) {
  const std::string path = std::string(CONVNET_SOURCE_DIR) + "/model-defs/README.md";
  std::ifstream file(path, std::ios::binary);
  const std::string readme(std::istreambuf_iterator<char>(file), {});
  EXPECT_TRUE(readme == language_reference())
      << "model-defs/README.md is out of date; write it anew with\n"
         "  convnet layers --reference > model-defs/README.md";
}

TEST(Reference, NamesEveryAttribute) {
  const std::string page = language_reference();
  const auto json = nlohmann::json::parse(layers_json());
  ASSERT_EQ(json["layers"].size(), layer_types().size());
  for (const auto& layer : json["layers"]) {
    EXPECT_THAT(page, HasSubstr("### `" + layer["type"].get<std::string>() + "`"));
    for (const auto& attribute : layer["attributes"]) {
      EXPECT_THAT(page, HasSubstr("| `" + attribute["name"].get<std::string>() + "` |"));
    }
  }
  for (const char* section :
       {"`input`", "`input.label`", "`train`", "`train.test`, `train.checkpoint`", "`train.rate`",
        "`train.rate.warmup`", "`data`", "`init`, `bias_init`"}) {
    EXPECT_THAT(page, HasSubstr(std::string("# ") + section + "\n"));
  }
}

TEST(Reference, DescribesALayer) {
  const std::string text = describe_layer("conv");
  EXPECT_THAT(text, HasSubstr("conv: convolution over rows and columns\n"));
  EXPECT_THAT(text, HasSubstr("  filters   integer, 1 to 1048576; required\n"));
  EXPECT_THAT(text, HasSubstr("true or false; default true\n"));
  EXPECT_THAT(text, HasSubstr("relu: max(x, 0)\n"));
  EXPECT_THAT(text, HasSubstr("Attributes of all layers\n"));
  EXPECT_THAT(text, HasSubstr("  name "));
  EXPECT_EQ(describe_layer("no such layer"), "");
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = text.find('\n', begin);
    EXPECT_LE(end - begin, 88u) << text.substr(begin, end - begin);
    begin = end + 1;
  }
}

TEST(Reference, ListsAllLayers) {
  const std::string text = describe_layers();
  for (const std::string& type : layer_types()) {
    EXPECT_THAT(text, HasSubstr("\n  " + type + " "));
    EXPECT_NE(describe_layer(type), "");
  }
}

TEST(Reference, IsMachineReadable) {
  const auto conv = nlohmann::json::parse(layer_json("conv"));
  EXPECT_EQ(conv["type"], "conv");
  const auto& filters = conv["attributes"][0];
  EXPECT_EQ(filters["name"], "filters");
  EXPECT_EQ(filters["value"], "integer");
  EXPECT_EQ(filters["required"], true);
  EXPECT_EQ(filters["min"], 1);
  EXPECT_FALSE(filters.contains("default"));
  const auto& act = conv["attributes"][7];
  EXPECT_EQ(act["default"], "none");
  EXPECT_EQ(act["values"].size(), 4u);
  const auto lrn = nlohmann::json::parse(layer_json("lrn"));
  EXPECT_EQ(lrn["attributes"][1]["default"], 1e-4);
  EXPECT_EQ(nlohmann::json::parse(layer_json("nothing")).size(), 0u);
  const auto all = nlohmann::json::parse(layers_json());
  EXPECT_EQ(all["attributes"][0]["name"], "name");
}

TEST(Reference, ShowsOverridesThatWork) {
  const std::string page = language_reference();
  std::vector<std::string> sets;
  for (size_t at = page.find("\n--set "); at != std::string::npos;
       at = page.find("\n--set ", at + 1)) {
    const size_t begin = at + 7;
    sets.push_back(page.substr(begin, page.find('\n', begin) - begin));
  }
  EXPECT_GE(sets.size(), 6u);
  EXPECT_NE(load_good("m.yaml", std::string(example_yaml()), sets), nullptr);
  EXPECT_NE(load_good("m.prototxt", std::string(example_prototxt()), sets), nullptr);
}

}  // namespace
}  // namespace convnet
