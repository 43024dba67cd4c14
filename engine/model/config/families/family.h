// A model family: how its config.json becomes a ModelConfig. Family files describe, the one decoder computes.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "engine/model/config/json_fields.h"
#include "engine/model/config/model_config.h"
#include "engine/model/config/rope.h"

namespace baton::engine {

/// `parse` fills everything but digest, eos and bos; errors stay in the reader.
struct Family {
  std::string_view name;        ///< ModelConfig::family
  std::string_view model_type;  ///< of config.json
  std::string_view gguf;        ///< general.architecture of its GGUF files; empty: has none of its own
  void (*parse)(JsonFields& in, ModelConfig& out);
  bool gguf_pairs = false;  ///< its GGUF files hold the rows of q and k in interleaved rope order
};

/// Null when the type is unknown.
const Family* FindFamily(std::string_view model_type);
/// The same by a GGUF file's architecture.
const Family* FindGgufFamily(std::string_view architecture);
/// "llama, mistral, …" for messages.
std::string KnownModelTypes();
/// "llama, qwen2, …".
std::string KnownGgufArchitectures();

/// A family's default for a size that the config lacks; 0: the config must have it.
struct SizeDefaults {
  int hidden_size = 0, intermediate_size = 0, num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int vocab_size = 0, max_position_embeddings = 0;
  double rms_eps = 1e-6;
  bool tied_embeddings = false;
};

/// The fields that every family has: sizes, eps, activation, attention scale. Refuses what no part computes.
void ParseSizes(JsonFields& in, const SizeDefaults& defaults, ModelConfig& out);
/// out.layers: rope 0 and no window, then window (and `window_rope`) where layer_types or `slides(layer)` says so.
/// A window that no context reaches is none.
void SetLayers(JsonFields& in, int64_t window, int window_rope, const std::function<bool(int)>& slides,
               ModelConfig& out);

/// What all Gemmas have: a size that the config lacks is the 2B model's of Gemma 2 but for `vocab_size` and
/// `max_position_embeddings`, caps that it lacks are these.
struct GemmaDefaults {
  int vocab_size = 0, max_position_embeddings = 0;
  double attention_softcap = 0, logit_softcap = 0;
};
/// Sizes, norms on both sides of each part, stored as w - 1, embeddings scaled by sqrt(hidden), caps.
void ParseGemmaParts(JsonFields& in, const GemmaDefaults& defaults, ModelConfig& out);

/// SetLayers as Qwen's configs mean it: with use_sliding_window, the layers from max_window_layers on slide.
void SetUpperLayers(JsonFields& in, ModelConfig& out);

void ParseLlama(JsonFields& in, ModelConfig& out);
void ParseMistral(JsonFields& in, ModelConfig& out);
void ParseQwen2(JsonFields& in, ModelConfig& out);
void ParseQwen3(JsonFields& in, ModelConfig& out);
void ParseSmolLm3(JsonFields& in, ModelConfig& out);
void ParseGemma2(JsonFields& in, ModelConfig& out);
void ParseGemma3(JsonFields& in, ModelConfig& out);

}  // namespace baton::engine
