// Model files for the tests of this folder.
#pragma once

#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "framework/base/diagnostics.h"
#include "framework/model/binder.h"
#include "framework/model/model.pb.h"
#include "parsers/model_file.h"

namespace convnet {

inline std::unique_ptr<BoundModel> load(const std::string& name, const std::string& text,
                                        const std::vector<std::string>& sets,
                                        Diagnostics& diagnostics) {
  return load_model_text(name, text, sets, diagnostics);
}

// A text that must be right.
inline std::unique_ptr<BoundModel> load_good(const std::string& name, const std::string& text,
                                             const std::vector<std::string>& sets = {}) {
  Diagnostics diagnostics;
  auto bound = load(name, text, sets, diagnostics);
  EXPECT_EQ(diagnostics.render(), "");
  return bound;
}

// What is said about a text.
inline std::string errors_of(const std::string& name, const std::string& text,
                             const std::vector<std::string>& sets = {}) {
  Diagnostics diagnostics;
  const auto bound = load(name, text, sets, diagnostics);
  EXPECT_EQ(bound == nullptr, diagnostics.has_errors());
  return diagnostics.render();
}

inline std::string_view text_at(const Span& span) {
  if (!span.source) return "(no place)";
  return std::string_view(span.source->text()).substr(span.begin, span.end - span.begin);
}

// What differs between two models; empty if nothing does.
inline std::string difference(const schema::Model& a, const schema::Model& b) {
  google::protobuf::util::MessageDifferencer differencer;
  std::string report;
  differencer.ReportDifferencesToString(&report);
  return differencer.Compare(a, b) ? "" : report;
}

inline constexpr char kYamlHead[] =
    "format: 1\nname: m\nbatch: 4\ninput: {data: [3, 8, 8], label: {classes: 10}}\n";
inline constexpr char kPrototxtHead[] =
    "format: 1\nname: \"m\"\nbatch: 4\ninput { data: [3, 8, 8] label { classes: 10 } }\n";

}  // namespace convnet
