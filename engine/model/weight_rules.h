// Which tensors a model has: name in HF checkpoints, name in GGUF files, shape. The loader checks them all before it
// reads any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/config/model_config.h"

namespace baton::engine {

enum class Weight {
  kEmbedding,
  kLmHead,
  kFinalNorm,
  kInputNorm,
  kPostAttentionNorm,
  kMlpNorm,
  kPostMlpNorm,
  kQueryNorm,
  kKeyNorm,
  kQuery,
  kKey,
  kValue,
  kOutput,
  kQueryBias,
  kKeyBias,
  kValueBias,
  kOutputBias,
  kGate,
  kUp,
  kDown,
};

struct WeightRule {
  Weight weight;
  int layer;                   ///< -1: not of a layer
  std::vector<int64_t> shape;  ///< [rows = outputs, columns = inputs], or [n]
  int64_t rows() const { return shape[0]; }
  int64_t columns() const { return shape.size() == 2 ? shape[1] : 1; }
  int64_t elements() const { return rows() * columns(); }
};

/// The rule of one tensor; it need not be in the model.
WeightRule RuleOf(const ModelConfig& config, Weight weight, int layer = -1);
/// Every tensor of the model, in the order of the forward pass.
std::vector<WeightRule> WeightRules(const ModelConfig& config);

/// "layers.3.self_attn.q_proj.weight": below the checkpoint's prefix ("model."). The head is "lm_head.weight".
std::string HfName(const ModelConfig& config, const WeightRule& rule);
/// "blk.3.attn_q.weight".
std::string GgufName(const WeightRule& rule);

}  // namespace baton::engine
