// The result of reading config.json (or GGUF metadata) by a family file: everything that the one decoder needs, and
// nothing specific to a family.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/ops.h"

namespace baton::engine {

/// Per layer: which attention it has.
struct LayerConfig {
  int window = 0;  ///< sliding window in tokens; 0: full attention
  int rope = 0;    ///< index into ModelConfig::ropes
};

struct ModelConfig {
  std::string family;  ///< "llama", "qwen3" …: Family::name
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_layers = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int vocab_size = 0;
  int max_position_embeddings = 0;  ///< the model's context length
  float rms_eps = 1e-5f;
  float norm_offset = 0.0f;      ///< 1 for Gemma: weights are stored as w - 1
  float embedding_scale = 1.0f;  ///< sqrt(hidden) for Gemma
  float attention_scale = 0.0f;  ///< multiplies q·k
  float attention_softcap = 0.0f;
  float logit_softcap = 0.0f;
  kernels::Activation activation = kernels::Activation::kSilu;
  bool qkv_bias = false;
  bool o_bias = false;
  bool qk_norm = false;
  bool post_norms = false;  ///< Gemma: norms after attention and MLP too
  bool tied_embeddings = false;
  std::vector<kernels::RopeParams> ropes;
  std::vector<LayerConfig> layers;  ///< [num_layers]
  std::vector<int32_t> eos_token_ids;
  std::optional<int32_t> bos_token_id;
  std::string digest;  ///< hex content digest of config and weights' names, shapes and sampled bytes
};

}  // namespace baton::engine
