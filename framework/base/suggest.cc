#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "framework/base/diagnostics.h"

namespace convnet {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

// Damerau-Levenshtein distance (insertions, deletions, substitutions, swaps of neighbours).
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

// In a short word two edits make any other word.
size_t allowed(size_t length) { return length <= 4 ? 1 : std::max<size_t>(2, length / 3); }

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  constexpr size_t kLongest = 64;
  if (word.empty() || word.size() > kLongest) return "";
  const std::string wanted = lower(word);
  const std::string* best = nullptr;
  size_t best_distance = kLongest;
  for (const std::string& candidate : candidates) {
    const size_t limit = allowed(std::min(wanted.size(), candidate.size()));
    const size_t longer = std::max(wanted.size(), candidate.size());
    const size_t shorter = std::min(wanted.size(), candidate.size());
    if (shorter < 2 || longer - shorter > limit) continue;
    const size_t d = distance(wanted, lower(candidate));
    if (d <= limit && d < best_distance) {
      best = &candidate;
      best_distance = d;
    }
  }
  if (best != nullptr) return *best;
  // 'kernel_size' for 'kernel', 'padding' for 'pad': one word continues the other.
  size_t longest_start = 0;
  for (const std::string& candidate : candidates) {
    const std::string other = lower(candidate);
    const size_t start = std::min(other.size(), wanted.size());
    if (start >= 3 && start > longest_start && other.compare(0, start, wanted, 0, start) == 0) {
      best = &candidate;
      longest_start = start;
    }
  }
  return best != nullptr ? *best : "";
}

}  // namespace convnet
