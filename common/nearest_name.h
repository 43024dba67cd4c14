// The name that was probably meant.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace baton {

/// The one of `names` that differs from `name` in the fewest characters, if those are few; else "". `most`: how many
/// are few.
std::string NearestName(std::string_view name, const std::vector<std::string>& names, size_t most);
std::string NearestName(std::string_view name, const std::vector<std::string>& names);

/// " (did you mean PREFIX<nearest>?)", or "" when nothing is near.
std::string DidYouMean(std::string_view name, const std::vector<std::string>& names, std::string_view prefix);

}  // namespace baton
