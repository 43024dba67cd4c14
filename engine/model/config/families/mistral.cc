// Mistral: Llama with one sliding window on every layer (null: none; absent: 4096, as its first config had it).
#include "engine/model/config/families/family.h"

namespace baton::engine {

void ParseMistral(JsonFields& in, ModelConfig& out) {
  ParseSizes(in, {.num_kv_heads = 8, .max_position_embeddings = 4096 * 32}, out);
  out.ropes = {ReadRope(in, {.head_dim = out.head_dim, .max_position_embeddings = out.max_position_embeddings})};
  const int64_t window = in.IsNull("sliding_window") ? 0 : in.IntOr("sliding_window", 4096, 1, INT32_MAX);
  SetLayers(in, window, 0, [](int) { return true; }, out);
}

}  // namespace baton::engine
