// Qwen2 and Qwen2.5: Llama with biases on q, k and v; upper layers may slide.
#include "engine/model/config/families/family.h"

namespace baton::engine {

void ParseQwen2(JsonFields& in, ModelConfig& out) {
  ParseSizes(in, {.max_position_embeddings = 32768}, out);
  out.qkv_bias = true;
  out.ropes = {ReadRope(in, {.head_dim = out.head_dim, .max_position_embeddings = out.max_position_embeddings})};
  SetUpperLayers(in, out);
}

}  // namespace baton::engine
