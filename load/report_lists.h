// Lists with one entry per offered request, in their order, as results have them; a failed one has its error.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "common/json.h"
#include "load/outcome.h"
#include "load/summary.h"

namespace baton::load {

/// "input_lens", "output_lens", "ttfts" …: all that there are, which `baton bench --merge` reads again.
std::span<const std::string_view> RequestListKeys();
/// `keys`: of these; dies with another.
void AddRequestLists(nlohmann::ordered_json& out, const std::vector<Outcome>& outcomes,
                     std::span<const std::string_view> keys);
/// Where a request's time went.
nlohmann::ordered_json StagesJson(const FirstToken& first);

}  // namespace baton::load
