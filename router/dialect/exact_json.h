// JSON that a model wrote, in whose integers no digit is lost: those beyond 64 bits are binary values, which no JSON
// text has. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/json.h"

namespace baton::router {

/// Nothing: it is no JSON, or lists and objects in it are deeper than that.
std::optional<nlohmann::ordered_json> ParseExact(std::string_view text, int deepest);
/// `digits`: of an integer as JSON has it.
nlohmann::ordered_json BigInteger(std::string_view digits);
/// Without white space; malformed UTF-8 becomes U+FFFD.
std::string ExactText(const nlohmann::ordered_json& json);

}  // namespace baton::router
