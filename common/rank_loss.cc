#include "common/rank_loss.h"

#include <string>

#include "absl/strings/cord.h"

namespace baton {
namespace {

constexpr const char* kMark = "baton/rank-loss";

}  // namespace

absl::Status RankLoss(std::string_view what) {
  absl::Status out = absl::UnavailableError(std::string(what));
  out.SetPayload(kMark, absl::Cord());
  return out;
}

bool IsRankLoss(const absl::Status& status) { return status.GetPayload(kMark).has_value(); }

}  // namespace baton
