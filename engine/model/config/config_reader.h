// From files to ModelConfig: an HF directory's config.json, or a GGUF file's metadata turned into the same fields.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/gguf.h"
#include "engine/model/config/model_config.h"
#include "engine/model/config/quantization.h"

namespace baton::engine {

/// A config and the canonical text it came from (for the digest).
struct ReadConfig {
  ModelConfig config;  ///< digest not yet set
  std::string text;
  std::optional<Quantization> quantization;  ///< none: its weights are floats, or a GGUF file's
};

/// JSON objects whose fields stand over those of a config (--hf-overrides), the later ones over the earlier; null takes
/// a field away.
using ConfigOverrides = std::vector<std::string>;

/// Reads DIR/config.json, and DIR/generation_config.json for more end-of-sequence tokens. InvalidArgument names the
/// field, its value and what was expected; NotFound: no config.json.
absl::StatusOr<ReadConfig> ReadHfConfig(const std::string& directory, const ConfigOverrides& overrides = {});

/// The same for a GGUF file (of an architecture that a family has). With a `directory`, that is its config, and the
/// file says only how its tensors are kept; InvalidArgument when that is another family's.
absl::StatusOr<ReadConfig> ReadGgufConfig(const GgufFile& file, const ConfigOverrides& overrides = {},
                                          const std::string& directory = {});

/// config.json's fields of an already parsed object. `where` starts messages.
absl::StatusOr<ReadConfig> ParseHfConfig(const nlohmann::json& json, const std::string& where,
                                         const ConfigOverrides& overrides = {});

/// Whether its files hold the rows of q and k in interleaved rope order.
bool GgufHoldsPairs(std::string_view architecture);

/// The fields of config.json that a GGUF file's metadata and tensor table amount to.
absl::StatusOr<nlohmann::json> GgufToHfConfig(const GgufFile& file);

}  // namespace baton::engine
