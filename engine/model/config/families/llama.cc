// Llama 2 and 3, and the many models that say they are one (SmolLM2, TinyLlama, Yi …).
#include "engine/model/config/families/family.h"

namespace baton::engine {

void ParseLlama(JsonFields& in, ModelConfig& out) {
  ParseSizes(in, {.max_position_embeddings = 2048}, out);
  out.qkv_bias = in.BoolOr("attention_bias", false);
  out.o_bias = in.BoolOr("attention_out_bias", out.qkv_bias);  // apart only in GGUF files
  out.ropes = {ReadRope(in, {.head_dim = out.head_dim, .max_position_embeddings = out.max_position_embeddings})};
  SetLayers(in, 0, 0, [](int) { return false; }, out);
}

}  // namespace baton::engine
