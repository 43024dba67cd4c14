// The small JSON files beside a Hugging Face model.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace baton {

/// The whole file; nullopt if it does not exist. InvalidArgument (naming the path) if it cannot be read or is larger
/// than 256 MB.
absl::StatusOr<std::optional<std::string>> ReadModelFile(const std::string& path);

/// The object in the file; an empty object if there is no file. InvalidArgument if it is not a JSON object.
absl::StatusOr<nlohmann::json> ReadJsonObject(const std::string& path);

/// What tokenizer_config.json and special_tokens_map.json call `name` ("bos_token"): a string or {"content": string};
/// "" if absent or null. InvalidArgument for anything else.
absl::StatusOr<std::string> SpecialToken(const nlohmann::json& config, const nlohmann::json& map,
                                         const std::string& name, const std::string& directory);

/// `key` of `object` as ids: an integer, a list of integers, or absent.
absl::StatusOr<std::vector<int64_t>> IdList(const nlohmann::json& object, const std::string& key,
                                            const std::string& path);

}  // namespace baton
