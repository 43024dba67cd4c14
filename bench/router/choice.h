// What the rule costs that chooses a pair of workers for a prompt, by the number of workers.
#pragma once

#include "common/json.h"

namespace baton::bench {

/// Prints a line for each number of workers, and returns the figures.
nlohmann::json BenchChoice();

}  // namespace baton::bench
