#include "prefill_worker/job_order.h"

#include <utility>

#include "common/status.h"

namespace baton::prefill_worker {

absl::StatusOr<JobPlan> PlanJob(const KvSide& ours, const JobOrder& order) {
  const auto tokens = static_cast<int32_t>(order.request.tokens.size());
  if (order.cached_tokens < 0 || order.cached_tokens % kUnitTokens != 0 || order.cached_tokens >= tokens) {
    return absl::InvalidArgumentError(
        StrCat(order.cached_tokens, " of ", tokens, " prompt tokens are on the decode worker"));
  }
  BATON_ASSIGN_OR_RETURN(TransferPlan plan,
                         TransferPlan::Make(ours, order.target, {order.cached_tokens, tokens}, order.piece_tokens));
  JobPlan out;
  BATON_ASSIGN_OR_RETURN(out.addresses, RankAddresses::Parse(order.landing_address));
  if (static_cast<int>(out.addresses.ranks.size()) != order.target.ranks()) {
    return absl::InvalidArgumentError(StrCat("landing addresses of ", out.addresses.ranks.size(),
                                             " ranks, the decode worker has ", order.target.ranks()));
  }
  out.plan = std::make_shared<const TransferPlan>(std::move(plan));
  return out;
}

}  // namespace baton::prefill_worker
