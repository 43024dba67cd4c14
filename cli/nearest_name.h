// The name that was probably meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace baton::cli {

/// The one of `names` that differs from `name` in the fewest characters, if those are few; else "".
std::string NearestName(std::string_view name, const std::vector<std::string>& names);

/// " (did you mean PREFIX<nearest>?)", or "" when nothing is near.
std::string DidYouMean(std::string_view name, const std::vector<std::string>& names, std::string_view prefix);

}  // namespace baton::cli
