// Qwen3 (dense): no biases, RMSNorm on each head of q and k, head_dim apart from hidden / heads.
#include "engine/model/config/families/family.h"

namespace baton::engine {

void ParseQwen3(JsonFields& in, ModelConfig& out) {
  ParseSizes(in, {.head_dim = 128, .max_position_embeddings = 32768}, out);
  out.qk_norm = true;
  out.qkv_bias = out.o_bias = in.BoolOr("attention_bias", false);
  out.ropes = {ReadRope(in, {.head_dim = out.head_dim, .max_position_embeddings = out.max_position_embeddings})};
  SetUpperLayers(in, out);
}

}  // namespace baton::engine
