// What a simulated cluster did, as text for people and as JSON beside a bench's.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "sim/planned_cluster.h"

namespace baton::sim {

std::string UseText(const ClusterUse& use);
/// Adds "roles", "handoffs", "link_gigabytes", "link_gigabytes_per_s" and "link_busy_most".
void AddUse(const ClusterUse& use, nlohmann::ordered_json& out);

}  // namespace baton::sim
