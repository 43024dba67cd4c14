// The end of a group: one of its ranks is gone, silent, or has failed. All of them end then, with an exit code of its
// own.
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace baton {

/// Unavailable. Told from other failures by IsRankLoss, which a new Status with the same text is not.
absl::Status RankLoss(std::string_view what);
bool IsRankLoss(const absl::Status& status);

}  // namespace baton
