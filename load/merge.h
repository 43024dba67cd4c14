// Several generators' runs as one: each generator is a process that wrote --save-detailed; their clocks are believed.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "load/measured.h"
#include "load/summary.h"

namespace baton::load {

/// One run that begins with the earliest of the files' runs. NotFound: no such file; InvalidArgument names file and
/// what is wrong there: not a detailed result, lists of unequal length, another model than the first file's. `note`, if
/// any, becomes a line to tell where one began after all others had ended.
absl::StatusOr<Measured> Merge(const std::vector<std::string>& files, const Goal& goal, std::string* note = nullptr);

/// The same of the files' contents, for tests: name and text of each.
absl::StatusOr<Measured> MergeTexts(const std::vector<std::pair<std::string, std::string>>& files, const Goal& goal,
                                    std::string* note = nullptr);

}  // namespace baton::load
