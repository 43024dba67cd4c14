// A model as one hash: two workers with the same digest hold the same weights.
#pragma once

#include <string>
#include <string_view>

#include "engine/model/config/model_config.h"
#include "engine/model/weight_source.h"

namespace baton::engine {

/// 32 hex digits over the config's text, per tensor name, type, shape and sampled bytes (all of a small tensor), and
/// the scales of KV where there are some.
std::string ModelDigest(std::string_view config_text, const ModelConfig& config, const WeightSource& source,
                        const KvScales& kv_scales);

}  // namespace baton::engine
