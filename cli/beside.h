// Baton's two programs lie beside each other: `baton` (what a cluster runs, and what its users and operators need) and
// `baton-tools` (load, plans and simulations). Each finds the other where it lies itself.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace baton::cli {

inline constexpr char kServing[] = "baton", kTools[] = "baton-tools";

/// The path of `program` in the folder of this process's own. NotFound, with the path: it is not there.
absl::StatusOr<std::string> Beside(const char* program);

/// This process becomes `program`, with the same arguments. Returns only when that cannot be.
absl::Status Become(const char* program, char** argv);

/// What `program` with one argument prints. NotFound: it is not there. Unavailable: it failed.
absl::StatusOr<std::string> OutputOf(const char* program, const char* argument);

}  // namespace baton::cli
