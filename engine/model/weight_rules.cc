#include "engine/model/weight_rules.h"

#include "common/check.h"
#include "common/str_cat.h"

namespace baton::engine {
namespace {

struct Names {
  Weight weight;
  const char* hf;
  const char* gguf;
};

constexpr Names kWeightNames[] = {
    {Weight::kEmbedding, "embed_tokens.weight", "token_embd.weight"},
    {Weight::kLmHead, "lm_head.weight", "output.weight"},
    {Weight::kFinalNorm, "norm.weight", "output_norm.weight"},
    {Weight::kInputNorm, "input_layernorm.weight", "attn_norm.weight"},
    {Weight::kPostAttentionNorm, "post_attention_layernorm.weight", "post_attention_norm.weight"},
    {Weight::kMlpNorm, "pre_feedforward_layernorm.weight", "ffn_norm.weight"},
    {Weight::kPostMlpNorm, "post_feedforward_layernorm.weight", "post_ffw_norm.weight"},
    {Weight::kQueryNorm, "self_attn.q_norm.weight", "attn_q_norm.weight"},
    {Weight::kKeyNorm, "self_attn.k_norm.weight", "attn_k_norm.weight"},
    {Weight::kQuery, "self_attn.q_proj.weight", "attn_q.weight"},
    {Weight::kKey, "self_attn.k_proj.weight", "attn_k.weight"},
    {Weight::kValue, "self_attn.v_proj.weight", "attn_v.weight"},
    {Weight::kOutput, "self_attn.o_proj.weight", "attn_output.weight"},
    {Weight::kQueryBias, "self_attn.q_proj.bias", "attn_q.bias"},
    {Weight::kKeyBias, "self_attn.k_proj.bias", "attn_k.bias"},
    {Weight::kValueBias, "self_attn.v_proj.bias", "attn_v.bias"},
    {Weight::kOutputBias, "self_attn.o_proj.bias", "attn_output.bias"},
    {Weight::kGate, "mlp.gate_proj.weight", "ffn_gate.weight"},
    {Weight::kUp, "mlp.up_proj.weight", "ffn_up.weight"},
    {Weight::kDown, "mlp.down_proj.weight", "ffn_down.weight"},
};

const Names& NamesOf(Weight weight) {
  const Names& names = kWeightNames[static_cast<int>(weight)];
  BATON_CHECK(names.weight == weight, "the table is not in the enum's order");
  return names;
}

std::vector<int64_t> WeightShape(const ModelConfig& c, Weight weight) {
  const int64_t hidden = c.hidden_size, inner = c.intermediate_size;
  const int64_t q = int64_t{c.num_heads} * c.head_dim, kv = int64_t{c.num_kv_heads} * c.head_dim;
  switch (weight) {
    case Weight::kEmbedding:
    case Weight::kLmHead: return {c.vocab_size, hidden};
    case Weight::kFinalNorm:
    case Weight::kInputNorm:
    case Weight::kPostAttentionNorm:
    case Weight::kMlpNorm:
    case Weight::kPostMlpNorm:
    case Weight::kOutputBias: return {hidden};
    case Weight::kQueryNorm:
    case Weight::kKeyNorm: return {c.head_dim};
    case Weight::kQuery: return {q, hidden};
    case Weight::kKey:
    case Weight::kValue: return {kv, hidden};
    case Weight::kOutput: return {hidden, q};
    case Weight::kQueryBias: return {q};
    case Weight::kKeyBias:
    case Weight::kValueBias: return {kv};
    case Weight::kGate:
    case Weight::kUp: return {inner, hidden};
    case Weight::kDown: return {hidden, inner};
  }
  BATON_CHECK(false, "weight ", static_cast<int>(weight));
}

std::vector<Weight> LayerWeightsOf(const ModelConfig& c) {
  std::vector<Weight> out = {Weight::kInputNorm, Weight::kQuery, Weight::kKey, Weight::kValue};
  auto add = [&](bool present, std::initializer_list<Weight> weights) {
    if (present) out.insert(out.end(), weights);
  };
  add(c.qkv_bias, {Weight::kQueryBias, Weight::kKeyBias, Weight::kValueBias});
  add(c.qk_norm, {Weight::kQueryNorm, Weight::kKeyNorm});
  add(true, {Weight::kOutput});
  add(c.o_bias, {Weight::kOutputBias});
  add(c.post_norms, {Weight::kPostAttentionNorm});
  add(true, {Weight::kMlpNorm, Weight::kGate, Weight::kUp, Weight::kDown});
  add(c.post_norms, {Weight::kPostMlpNorm});
  return out;
}

}  // namespace

WeightRule RuleOf(const ModelConfig& config, Weight weight, int layer) {
  return {weight, layer, WeightShape(config, weight)};
}

std::vector<WeightRule> WeightRules(const ModelConfig& config) {
  std::vector<WeightRule> out = {RuleOf(config, Weight::kEmbedding)};
  const std::vector<Weight> per_layer = LayerWeightsOf(config);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (Weight weight : per_layer) out.push_back(RuleOf(config, weight, layer));
  }
  out.push_back(RuleOf(config, Weight::kFinalNorm));
  if (!config.tied_embeddings) out.push_back(RuleOf(config, Weight::kLmHead));
  return out;
}

std::string HfName(const ModelConfig& config, const WeightRule& rule) {
  const char* name = NamesOf(rule.weight).hf;
  // Without norms on both sides, the norm before the MLP is named after the attention that it follows.
  if (rule.weight == Weight::kMlpNorm && !config.post_norms) name = NamesOf(Weight::kPostAttentionNorm).hf;
  return rule.layer < 0 ? std::string(name) : StrCat("layers.", rule.layer, ".", name);
}

std::string GgufName(const WeightRule& rule) {
  const char* name = NamesOf(rule.weight).gguf;
  return rule.layer < 0 ? std::string(name) : StrCat("blk.", rule.layer, ".", name);
}

}  // namespace baton::engine
