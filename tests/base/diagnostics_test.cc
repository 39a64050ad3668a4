// If this fails, messages about mistakes point at the wrong place, or a terminal obeys a file's
// bytes.
#include "framework/base/diagnostics.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "framework/base/source.h"
#include "framework/base/utf8.h"

namespace convnet {
namespace {

std::shared_ptr<const SourceText> source(std::string text, std::string name = "m.yaml") {
  return std::make_shared<const SourceText>(std::move(name), std::move(text));
}

// The place of the first occurrence of `piece`.
Span at(const std::shared_ptr<const SourceText>& text, const std::string& piece) {
  const size_t begin = text->text().find(piece);
  EXPECT_NE(begin, std::string::npos) << piece;
  return {text, begin, begin + piece.size()};
}

TEST(SourceText, FindsLinesAndColumns) {
  const auto text = source("ab\r\n\nc\n");
  EXPECT_EQ(text->lines(), 3);
  EXPECT_EQ(text->line(1), "ab");
  EXPECT_EQ(text->line(2), "");
  EXPECT_EQ(text->line(3), "c");
  EXPECT_EQ(text->line(0), "");
  EXPECT_EQ(text->line(4), "");
  int line = 0, column = 0;
  const int expected[][3] = {{0, 1, 1}, {1, 1, 2}, {2, 1, 3}, {3, 1, 3}, {4, 2, 1},
                             {5, 3, 1}, {6, 3, 2}, {7, 3, 2}, {99, 3, 2}};
  for (const auto& [offset, want_line, want_column] : expected) {
    text->position(static_cast<size_t>(offset), &line, &column);
    EXPECT_EQ(line, want_line) << offset;
    EXPECT_EQ(column, want_column) << offset;
  }
  EXPECT_EQ(source("")->lines(), 1);
  EXPECT_EQ((Span{text, 5, 6}).line(), 3);
  EXPECT_EQ(Span{}.line(), 0);
  EXPECT_EQ(Span{}.column(), 0);
}

TEST(Diagnostics, UnderlinesTheExactToken) {
  const auto text = source("name: x\n    stirde: 2\n");
  Diagnostics diagnostics;
  diagnostics.error(at(text, "stirde"), "unknown attribute 'stirde' for conv").help =
      "did you mean 'stride'?";
  EXPECT_EQ(diagnostics.render(),
            "m.yaml:2:5: error: unknown attribute 'stirde' for conv\n"
            "    2 |     stirde: 2\n"
            "      |     ^~~~~~\n"
            "help: did you mean 'stride'?\n");
}

TEST(Diagnostics, SortsByPlaceAndCounts) {
  const auto file = source("a: 1\nb: 2\n");
  const auto set = source("c=3", "--set");
  Diagnostics diagnostics;
  diagnostics.error(at(file, "b"), "second");
  diagnostics.error(at(set, "3"), "of the option").code = Code::kUsage;
  Diagnostic& first = diagnostics.error(at(file, "a"), "first");
  first.notes.push_back({at(file, "2"), "see here"});
  diagnostics.error({}, "without place");
  diagnostics.warning(at(file, "1"), "only a warning");
  EXPECT_EQ(diagnostics.render(),
            "error: without place\n"
            "\n"
            "m.yaml:1:1: error: first\n"
            "    1 | a: 1\n"
            "      | ^\n"
            "m.yaml:2:4: note: see here\n"
            "    2 | b: 2\n"
            "      |    ^\n"
            "\n"
            "m.yaml:1:4: warning: only a warning\n"
            "    1 | a: 1\n"
            "      |    ^\n"
            "\n"
            "m.yaml:2:1: error: second\n"
            "    2 | b: 2\n"
            "      | ^\n"
            "\n"
            "--set:1:3: error: of the option\n"
            "    1 | c=3\n"
            "      |   ^\n"
            "\n"
            "4 errors\n");
  EXPECT_EQ(diagnostics.errors(), 4);
  EXPECT_EQ(diagnostics.code(), Code::kModel);
}

TEST(Diagnostics, TakesItsCodeFromTheFirstError) {
  Diagnostics diagnostics;
  EXPECT_EQ(diagnostics.code(), Code::kOk);
  diagnostics.warning({}, "nothing yet");
  EXPECT_EQ(diagnostics.code(), Code::kOk);
  EXPECT_FALSE(diagnostics.has_errors());
  EXPECT_EQ(diagnostics.render(), "warning: nothing yet\n");
  diagnostics.error({}, "too large").code = Code::kLimit;
  diagnostics.error({}, "wrong");
  EXPECT_EQ(diagnostics.code(), Code::kLimit);
}

TEST(Diagnostics, CountsWhatItDoesNotShow) {
  Diagnostics diagnostics;
  for (int i = 0; i < 5; ++i) diagnostics.error({}, "mistake " + std::to_string(i));
  EXPECT_EQ(diagnostics.render(false, 2),
            "error: mistake 0\n\nerror: mistake 1\n\n3 more errors are not shown\n5 errors\n");
}

TEST(Diagnostics, ExpandsTabs) {
  const auto text = source("\ta\tbad\tc\n");
  Diagnostics diagnostics;
  diagnostics.error(at(text, "bad"), "x");
  EXPECT_EQ(diagnostics.render(),
            "m.yaml:1:4: error: x\n"
            "    1 |         a       bad     c\n"
            "      |                 ^~~\n");
}

TEST(Diagnostics, CutsLongLinesAroundThePlace) {
  const std::string before(500, 'a'), after(5000, 'b');
  const auto text = source(before + "HERE" + after);
  Diagnostics diagnostics;
  diagnostics.error(at(text, "HERE"), "x");
  const std::string rendered = diagnostics.render();
  size_t begin = 0;
  std::string lines[3];
  for (std::string& line : lines) {
    const size_t end = rendered.find('\n', begin);
    line = rendered.substr(begin, end - begin);
    begin = end + 1;
  }
  EXPECT_EQ(lines[0], "m.yaml:1:501: error: x");
  EXPECT_LE(lines[1].size(), 120u);
  EXPECT_GE(lines[1].size(), 100u);
  EXPECT_EQ(lines[1].substr(8, 4), "...a");
  EXPECT_EQ(lines[1].substr(lines[1].size() - 4), "b...");
  EXPECT_EQ(lines[2].find("^~~~"), lines[1].find("HERE"));
}

TEST(Diagnostics, CutsLongLinesAtTheirEnds) {
  const auto text = source("FIRST" + std::string(300, '-') + "LAST");
  Diagnostics diagnostics;
  diagnostics.error(at(text, "FIRST"), "x");
  diagnostics.error(at(text, "LAST"), "y");
  const std::string rendered = diagnostics.render();
  EXPECT_NE(rendered.find("    1 | FIRST---"), std::string::npos) << rendered;
  EXPECT_NE(rendered.find("---LAST\n"), std::string::npos) << rendered;
  EXPECT_NE(rendered.find("      | ^~~~~\n"), std::string::npos) << rendered;
}

TEST(Diagnostics, UnderlinesOnlyTheFirstLineOfAPlace) {
  const auto text = source("a: [1,\n  2]\n");
  Diagnostics diagnostics;
  diagnostics.error({text, 3, 12}, "x");
  EXPECT_EQ(diagnostics.render(), "m.yaml:1:4: error: x\n    1 | a: [1,\n      |    ^~~\n");
}

TEST(Diagnostics, PointsAfterTheTextAtItsEnd) {
  const auto text = source("a: [1\n");
  Diagnostics diagnostics;
  diagnostics.error({text, 6, 6}, "x");
  diagnostics.error({source(""), 0, 0}, "y");
  EXPECT_EQ(diagnostics.render(),
            "m.yaml:1:6: error: x\n    1 | a: [1\n      |      ^\n\n"
            "m.yaml:1:1: error: y\n    1 |\n      | ^\n\n2 errors\n");
}

TEST(Diagnostics, KeepsTheCaretUnderWideText) {
  const auto text = source("畳み: é\u0301 bad");
  Diagnostics diagnostics;
  diagnostics.error(at(text, "bad"), "x");
  // Each of the first two characters is two columns wide, the combining accent has none.
  EXPECT_EQ(diagnostics.render(),
            "m.yaml:1:14: error: x\n"
            "    1 | 畳み: é\u0301 bad\n"
            "      |         ^~~\n");
}

TEST(Diagnostics, NeverPrintsControlCharacters) {
  const auto text = source("a: \x1b[31m \xff\u202e bad", "\x1b.yaml");
  Diagnostics diagnostics;
  Diagnostic& error = diagnostics.error(at(text, "bad"), "what\x07");
  error.help = "do\nthis";
  error.notes.push_back({{}, "note\x1b"});
  const std::string rendered = diagnostics.render();
  for (char c : rendered) EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20);
  EXPECT_NE(rendered.find("\\x1b.yaml:1:15: error: what\\x07\n"), std::string::npos) << rendered;
  EXPECT_NE(rendered.find("    1 | a: \\x1b[31m \\xff\\u202e bad\n"), std::string::npos)
      << rendered;
  EXPECT_NE(rendered.find("note: note\\x1b\n"), std::string::npos) << rendered;
  EXPECT_NE(rendered.find("help: do\\x0athis\n"), std::string::npos) << rendered;
}

TEST(Diagnostics, ColoursOnlyWhenAsked) {
  const auto text = source("a: 1\n");
  Diagnostics diagnostics;
  diagnostics.error(at(text, "1"), "x");
  EXPECT_EQ(diagnostics.render(false).find('\x1b'), std::string::npos);
  const std::string coloured = diagnostics.render(true);
  EXPECT_NE(coloured.find("\x1b[1;31merror: \x1b[0m"), std::string::npos);
  std::string plain;
  for (size_t i = 0; i < coloured.size(); ++i) {
    if (coloured[i] == '\x1b') {
      i = coloured.find('m', i);
    } else {
      plain += coloured[i];
    }
  }
  EXPECT_EQ(plain, diagnostics.render(false));
}

TEST(Diagnostics, RendersJson) {
  const auto text = source("a: [1,\n 2]\nb: \xff\n");
  Diagnostics diagnostics;
  Diagnostic& error = diagnostics.error({text, 3, 10}, "wrong \xff");
  error.help = "do this";
  error.notes.push_back({at(text, "b"), "see here"});
  diagnostics.warning({}, "loose");
  const auto json = nlohmann::json::parse(diagnostics.render_json());
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[0]["severity"], "warning");
  EXPECT_TRUE(json[0]["file"].is_null());
  EXPECT_EQ(json[0]["line"], 0);
  EXPECT_EQ(json[1]["severity"], "error");
  EXPECT_EQ(json[1]["file"], "m.yaml");
  EXPECT_EQ(json[1]["line"], 1);
  EXPECT_EQ(json[1]["column"], 4);
  EXPECT_EQ(json[1]["end_column"], 7);  // the first line's end
  EXPECT_EQ(json[1]["help"], "do this");
  ASSERT_EQ(json[1]["notes"].size(), 1u);
  EXPECT_EQ(json[1]["notes"][0]["line"], 3);
  EXPECT_EQ(json[1]["notes"][0]["end_column"], 2);
  EXPECT_EQ(json[1]["notes"][0]["message"], "see here");
  EXPECT_EQ(nlohmann::json::parse(Diagnostics().render_json()).size(), 0u);
}

TEST(Nearest, FindsWhatWasMeant) {
  const std::vector<std::string> names = {"filters", "kernel", "stride",
                                          "pad",     "act",    "rate_factor"};
  EXPECT_EQ(nearest("stirde", names), "stride");
  EXPECT_EQ(nearest("strides", names), "stride");
  EXPECT_EQ(nearest("Kernel", names), "kernel");
  EXPECT_EQ(nearest("kernel_size", names), "kernel");
  EXPECT_EQ(nearest("padding", names), "pad");
  EXPECT_EQ(nearest("atc", names), "act");
  EXPECT_EQ(nearest("ratefactor", names), "rate_factor");
  EXPECT_EQ(nearest("reta_fcator", names), "rate_factor");
  EXPECT_EQ(nearest("conv", {"fc", "concat", "conv"}), "conv");
}

TEST(Nearest, IsSilentWhenUnsure) {
  const std::vector<std::string> names = {"fc", "conv", "pool", "relu"};
  EXPECT_EQ(nearest("lstm", names), "");
  EXPECT_EQ(nearest("foo", names), "");
  EXPECT_EQ(nearest("", names), "");
  EXPECT_EQ(nearest("x", {"k"}), "");
  EXPECT_EQ(nearest("abcd", {"dcba"}), "");
  EXPECT_EQ(nearest(std::string(100000, 'a'), {std::string(100000, 'b')}), "");
  EXPECT_EQ(nearest("conv", {}), "");
}

TEST(Printable, EscapesAndCuts) {
  EXPECT_EQ(printable("abc é 畳"), "abc é 畳");
  EXPECT_EQ(printable("\x1b[1m\n\t\x7f"), "\\x1b[1m\\x0a\\x09\\x7f");
  EXPECT_EQ(printable("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(printable("0123456789", 10), "0123456789");
  EXPECT_EQ(printable("0123456789a", 10), "0123456...");
  // A character is never cut in two.
  EXPECT_EQ(printable("éééé", 7), "éé...");
  EXPECT_LE(printable(std::string(1000, '\x01'), 50).size(), 50u);
}

TEST(Utf8, RefusesWhatIsNotACharacter) {
  for (const char* bad :
       {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80", "\xe2\x82", "\xf0\x9f\x92", "\xff"}) {
    const Utf8Char character = decode_utf8(bad, 0);
    EXPECT_FALSE(character.valid) << printable(bad);
    EXPECT_EQ(character.bytes, 1);
  }
  const struct {
    const char* text;
    char32_t code;
    int bytes;
  } good[] = {{"a", 'a', 1},
              {"\xc2\x80", 0x80, 2},
              {"\xe2\x82\xac", 0x20ac, 3},
              {"\xef\xbf\xbf", 0xffff, 3},
              {"\xf4\x8f\xbf\xbf", 0x10ffff, 4}};
  for (const auto& [text, code, bytes] : good) {
    const Utf8Char character = decode_utf8(text, 0);
    EXPECT_TRUE(character.valid);
    EXPECT_EQ(character.code, code);
    EXPECT_EQ(character.bytes, bytes);
  }
}

}  // namespace
}  // namespace convnet
