// Whether a router means this life of the worker by what it asks it to begin. It knows the tickets, the role and the
// cache of the one that it greeted: in another one's world, what it asks for would be another thing.
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace baton::worker {

/// `greeted`: the incarnation that the router greeted, by the metadata "baton-incarnation" of its call; empty: an older
/// router, which does not say it. `own`: of the worker that is asked. Unavailable: they differ.
absl::Status WhyNotOurs(std::string_view greeted, std::string_view own);

}  // namespace baton::worker
