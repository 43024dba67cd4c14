// The router's prefix index at 1 M blocks, and the hash its keys come from.
#pragma once

#include "common/json.h"

namespace baton::bench {

/// Prints a line, and returns its figures.
nlohmann::json BenchIndex();

}  // namespace baton::bench
