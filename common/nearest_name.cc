#include "common/nearest_name.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/str_cat.h"

namespace baton {
namespace {

/// Characters to insert, delete or replace (Levenshtein).
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string NearestName(std::string_view name, const std::vector<std::string>& names) {
  return NearestName(name, names, std::max<size_t>(2, name.size() / 4));
}

std::string NearestName(std::string_view name, const std::vector<std::string>& names, size_t most) {
  std::string nearest;
  size_t least = most + 1;
  for (const std::string& one : names) {
    if (one.size() + least <= name.size() || name.size() + least <= one.size()) continue;
    const size_t distance = Distance(name, one);
    if (distance >= least) continue;
    least = distance;
    nearest = one;
  }
  return nearest;
}

std::string DidYouMean(std::string_view name, const std::vector<std::string>& names, std::string_view prefix) {
  const std::string nearest = NearestName(name, names);
  return nearest.empty() ? "" : StrCat(" (did you mean ", prefix, nearest, "?)");
}

}  // namespace baton
