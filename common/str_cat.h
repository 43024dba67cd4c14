// StrCat over the standard string_view. Debian's abseil keeps its own string_view type, which absl::StrCat wants.
#pragma once

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace baton {

/// abseil's view of a standard one, for abseil functions that take views.
inline absl::string_view AbslView(std::string_view text) { return {text.data(), text.size()}; }

namespace str_cat_internal {
template <class T>
decltype(auto) Arg(const T& value) {
  if constexpr (std::is_convertible_v<const T&, std::string_view> && !std::is_convertible_v<const T&, const char*>) {
    return AbslView(value);
  } else {
    return (value);
  }
}
}  // namespace str_cat_internal

/// Concatenates strings, string views, numbers and absl's formatters (absl::Hex …).
template <class... Args>
std::string StrCat(const Args&... args) {
  return absl::StrCat(str_cat_internal::Arg(args)...);
}

/// A standard view of abseil's (Status::message()).
inline std::string_view View(absl::string_view text) { return {text.data(), text.size()}; }

}  // namespace baton
