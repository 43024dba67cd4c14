// Percent escapes, of paths and of gRPC's trailers.
#pragma once

#include <string>
#include <string_view>

namespace baton::router {

/// "org/model" of "org%2Fmodel"; what is no escape stays as it is.
std::string FromPercent(std::string_view text);

}  // namespace baton::router
