#include "router/policy/policies.h"

#include <string>

#include "common/str_cat.h"

namespace baton::router {

absl::StatusOr<std::unique_ptr<Scorer>> MakeScorer(std::string_view policy, double lambda) {
  std::string known;
  for (const Policy& one : kPolicies) {
    if (one.name == policy) return one.make(lambda);
    known += StrCat(known.empty() ? "" : ", ", one.name);
  }
  return absl::InvalidArgumentError(StrCat("--route-policy: \"", policy, "\" is unknown; there are ", known));
}

}  // namespace baton::router
