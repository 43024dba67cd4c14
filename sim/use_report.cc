#include "sim/use_report.h"

#include "absl/strings/str_format.h"
#include "common/json.h"

namespace baton::sim {
namespace {

double HitShare(const RoleUse& role) {
  return role.prompt_tokens > 0 ? static_cast<double>(role.cached_tokens) / static_cast<double>(role.prompt_tokens) : 0;
}

}  // namespace

std::string UseText(const ClusterUse& use) {
  std::string out;
  for (const RoleUse& role : use.roles) {
    absl::StrAppendFormat(&out,
                          "%d %s: busy %.0f %%, KV in use %.0f %% (the fullest %.0f %%), %.1f %% of %d prompt tokens "
                          "cached, %d steps, %d preemptions\n",
                          role.workers, role.role, 100 * role.busy, 100 * role.kv_mean, 100 * role.kv_most,
                          100 * HitShare(role), role.prompt_tokens, role.steps, role.preemptions);
  }
  if (use.handoffs > 0) {
    absl::StrAppendFormat(&out,
                          "%d handoffs: %.2f GB, %.2f GB/s of all links; the busiest one is used %.0f %% of the time\n",
                          use.handoffs, use.link_gigabytes, use.link_gigabytes_per_s, 100 * use.link_busy_most);
  }
  return out;
}

void AddUse(const ClusterUse& use, nlohmann::ordered_json& out) {
  nlohmann::ordered_json roles = nlohmann::ordered_json::array();
  for (const RoleUse& role : use.roles) {
    roles.push_back({{"role", role.role},
                     {"workers", role.workers},
                     {"busy", role.busy},
                     {"kv_used_mean", role.kv_mean},
                     {"kv_used_most", role.kv_most},
                     {"prompt_tokens", role.prompt_tokens},
                     {"cached_tokens", role.cached_tokens},
                     {"hit_share", HitShare(role)},
                     {"generated_tokens", role.generated_tokens},
                     {"steps", role.steps},
                     {"preemptions", role.preemptions}});
  }
  out["roles"] = std::move(roles);
  out["handoffs"] = use.handoffs;
  out["link_gigabytes"] = use.link_gigabytes;
  out["link_gigabytes_per_s"] = use.link_gigabytes_per_s;
  out["link_busy_most"] = use.link_busy_most;
}

}  // namespace baton::sim
