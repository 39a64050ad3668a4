#include "tests/structure/rules.h"

#include <algorithm>
#include <array>
#include <set>
#include <sstream>
#include <string_view>

namespace convnet {
namespace {

constexpr int kMaxLines = 700;

// An include may only point to a lower floor, or stay in its folder.
struct Area {
  std::string_view folder;
  int floor;
};
constexpr std::array kAreas = {
    Area{"framework/base/", 0},
    Area{"framework/model/", 1},
    Area{"framework/plan/", 1},
    Area{"parsers/", 2},
    Area{"framework/graph/", 2},
    Area{"framework/backends/", 2},
    Area{"layers/", 3},
    Area{"framework/compiler/", 3},
    Area{"framework/comm/", 3},
    Area{"framework/runtime/", 4},
    Area{"data/", 5},
    Area{"tools/", 6},
    Area{"tests/", 7},
};
// Schemas of layers lie beneath everything; their code does not.
constexpr Area kSchemas = {"layers/*.proto", 0};

// Downward, and forbidden all the same: left of the plan nothing runs, right of it there is no
// model.
struct Ban {
  std::string_view from, to;
};
constexpr std::array kBans = {
    Ban{"framework/compiler/", "framework/backends/"},
    Ban{"framework/compiler/", "parsers/"},
    Ban{"layers/", "framework/backends/"},
    Ban{"layers/", "parsers/"},
    Ban{"framework/runtime/", "framework/graph/"},
    Ban{"framework/runtime/", "framework/compiler/"},
    Ban{"framework/runtime/", "layers/"},
    Ban{"framework/runtime/", "framework/model/"},
    Ban{"framework/runtime/", "parsers/"},
    Ban{"framework/comm/", "framework/graph/"},
    Ban{"framework/comm/", "framework/model/"},
    Ban{"framework/comm/", "parsers/"},
    Ban{"framework/backends/", "framework/model/"},
};

// Where a library's headers may be included.
struct Library {
  std::string_view header;  // how the include begins
  std::vector<std::string_view> folders;
};
const std::vector<Library>& libraries() {
  static const std::vector<Library> kLibraries = {
      {"yaml-cpp/", {"parsers/"}},
      {"cuda", {"framework/backends/cuda/", "framework/comm/nccl/"}},
      {"cublas", {"framework/backends/cuda/"}},
      {"cudnn", {"framework/backends/cuda/"}},
      {"nccl", {"framework/comm/nccl/"}},
      {"mpi.h", {"framework/comm/mpi/"}},
      {"opencv2/", {"data/"}},
      {"lmdb.h", {"data/"}},
  };
  return kLibraries;
}

// Slow to compile: in .cc files only.
constexpr std::array<std::string_view, 5> kHeavy = {"CLI/", "nlohmann/", "google/protobuf/",
                                                    "yaml-cpp/", "opencv2/"};

// The commit that a program was built from, by tools/convnet/git_hash.cmake.
constexpr std::string_view kMadeByCMake = "git_hash.h";

bool is_header(std::string_view path) { return path.ends_with(".h") || path.ends_with(".cuh"); }

const Area* area_of(std::string_view path) {
  if (path.starts_with("layers/") && (path.ends_with(".proto") || path.ends_with(".pb.h")))
    return &kSchemas;
  for (const Area& a : kAreas)
    if (path.starts_with(a.folder)) return &a;
  return nullptr;
}

// "cpu" of "framework/backends/cpu/conv.cc"; empty for the folder's own files.
std::string_view backend_of(std::string_view path) {
  constexpr std::string_view kBackends = "framework/backends/";
  if (!path.starts_with(kBackends)) return "";
  path.remove_prefix(kBackends.size());
  const size_t slash = path.find('/');
  return slash == path.npos ? "" : path.substr(0, slash);
}

// "conv" of "layers/conv.cc".
std::string stem(std::string_view path) {
  path.remove_prefix(path.rfind('/') + 1);
  return std::string(path.substr(0, path.find('.')));
}

class Checker {
 public:
  explicit Checker(const std::vector<SourceFile>& files) : files_(files) {
    for (const SourceFile& f : files) paths_.insert(f.path);
  }

  std::vector<Violation> run() {
    for (const SourceFile& f : files_) file(f);
    return std::move(found_);
  }

 private:
  void report(int line, const char* rule, std::string message) {
    found_.push_back({file_->path, line, rule, std::move(message)});
  }

  void file(const SourceFile& f) {
    file_ = &f;
    std::istringstream text(f.text);
    std::string line;
    int number = 0;
    bool once = false;
    while (std::getline(text, line)) {
      ++number;
      once |= line.starts_with("#pragma once");
      this->line(line, number);
    }
    if (number > kMaxLines)
      report(
          number, "length",
          std::to_string(number) + " lines, at most " + std::to_string(kMaxLines) + " are allowed");
    if (is_header(f.path) && !once) report(1, "guard", "a header without '#pragma once'");
  }

  void line(std::string_view text, int number) {
    const auto skip = [&] {
      while (!text.empty() && (text[0] == ' ' || text[0] == '\t')) text.remove_prefix(1);
    };
    const auto take = [&](std::string_view word) {
      skip();
      if (!text.starts_with(word)) return false;
      text.remove_prefix(word.size());
      return true;
    };
    if (file_->path.ends_with(".proto") ? !take("import") : !take("#") || !take("include")) return;
    skip();
    if (text.empty() || (text[0] != '"' && text[0] != '<')) return;
    const size_t end = text.find(text[0] == '"' ? '"' : '>', 1);
    if (end == text.npos) return;
    const std::string_view target = text.substr(1, end - 1);
    library(target, number);
    if (text[0] == '"' && !target.starts_with("google/protobuf/")) project(target, number);
  }

  void library(std::string_view target, int number) {
    for (const Library& l : libraries()) {
      if (!target.starts_with(l.header)) continue;
      const bool allowed = std::any_of(l.folders.begin(), l.folders.end(), [&](std::string_view f) {
        return file_->path.starts_with(f);
      });
      std::string folders;
      for (std::string_view f : l.folders)
        folders += (folders.empty() ? "" : " and ") + std::string(f);
      if (!allowed)
        report(number, "library",
               "<" + std::string(target) + "> belongs into " + folders + " only");
    }
    if (!is_header(file_->path) || file_->path.starts_with("tests/")) return;
    for (std::string_view heavy : kHeavy)
      if (target.starts_with(heavy))
        report(number, "heavy",
               "<" + std::string(target) + "> in a header; it belongs into .cc files");
  }

  void project(std::string_view target, int number) {
    const std::string name(target);
    if (name == kMadeByCMake) return;
    if (!exists(name)) {
      report(number, "path",
             "'" + name + "' is no file of the project; includes begin at its root");
      return;
    }
    const std::string& from = file_->path;
    const Area *here = area_of(from), *there = area_of(name);
    if (here == nullptr || there == nullptr) {
      report(number, "folder", "'" + (here == nullptr ? from : name) + "' lies on no floor");
      return;
    }
    for (const Ban& ban : kBans)
      if (here->folder == ban.from && there->folder == ban.to)
        report(number, "never",
               std::string(ban.from) + " never includes " + std::string(ban.to) + ", here '" +
                   name + "'");
    if (here->folder != there->folder && there->floor >= here->floor)
      report(number, "floor",
             "'" + name + "' is on floor " + std::to_string(there->floor) + ", " +
                 std::string(here->folder) + " on " + std::to_string(here->floor) +
                 "; an include points down");
    const std::string_view mine = backend_of(from), other = backend_of(name);
    if (!mine.empty() && !other.empty() && mine != other &&
        !(mine == "cpu" && other == "reference"))
      report(number, "backend", "one backend includes another: '" + name + "'");
    if (mine.empty() && !other.empty() && here->folder == "framework/backends/")
      report(number, "backend", "what all backends share includes one of them: '" + name + "'");
    if (from.starts_with("layers/") && name.starts_with("layers/") && here->floor > 0 &&
        there->floor > 0 && stem(from) != stem(name) &&
        paths_.contains("layers/" + stem(name) + ".proto"))
      report(number, "layer", "one layer includes another: '" + name + "'");
  }

  // A file, or one that protoc makes of one.
  bool exists(const std::string& name) const {
    if (paths_.contains(name)) return true;
    constexpr std::string_view kGenerated = ".pb.h";
    return name.ends_with(kGenerated) &&
           paths_.contains(name.substr(0, name.size() - kGenerated.size()) + ".proto");
  }

  const std::vector<SourceFile>& files_;
  std::set<std::string, std::less<>> paths_;
  const SourceFile* file_ = nullptr;
  std::vector<Violation> found_;
};

}  // namespace

std::string Violation::str() const {
  return path + ":" + std::to_string(line) + ": " + rule + ": " + message;
}

std::vector<Violation> check_source_tree(const std::vector<SourceFile>& files) {
  return Checker(files).run();
}

}  // namespace convnet
