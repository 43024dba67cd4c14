// Gemma 2: every other layer slides, from the first on, all with one rope; attention and logits are capped; norms on
// both sides of each part, norm weights stored as w - 1, embeddings scaled by sqrt(hidden).
#include <cmath>

#include "engine/model/config/families/family.h"

namespace baton::engine {

void ParseGemma2(JsonFields& in, ModelConfig& out) {
  ParseSizes(in,
             {.hidden_size = 2304,
              .intermediate_size = 9216,
              .num_layers = 26,
              .num_heads = 8,
              .num_kv_heads = 4,
              .head_dim = 256,
              .vocab_size = 256000,
              .max_position_embeddings = 8192,
              .rms_eps = 1e-6,
              .tied_embeddings = true},
             out);
  if (!in.Has("hidden_activation") && !in.Has("hidden_act")) out.activation = kernels::Activation::kGeluTanh;
  out.qkv_bias = out.o_bias = in.BoolOr("attention_bias", false);
  out.post_norms = true;
  out.norm_offset = in.BoolOr("norms_hold_offset", false) ? 0.0f : 1.0f;  // GGUF files have the 1 added already
  out.embedding_scale = std::sqrt(static_cast<float>(out.hidden_size));
  out.attention_scale = 1.0f / std::sqrt(static_cast<float>(in.FloatOr("query_pre_attn_scalar", 256, 1e-3, 1e9)));
  out.attention_softcap = static_cast<float>(in.FloatOr("attn_logit_softcapping", 50, 0, 1e9));
  out.logit_softcap = static_cast<float>(in.FloatOr("final_logit_softcapping", 30, 0, 1e9));
  out.ropes = {ReadRope(in, {.head_dim = out.head_dim, .max_position_embeddings = out.max_position_embeddings})};
  const int64_t window = in.IntOr("sliding_window", 4096, 1, INT32_MAX);
  SetLayers(in, window, 0, [](int layer) { return layer % 2 == 0; }, out);
}

}  // namespace baton::engine
