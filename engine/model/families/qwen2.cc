// Qwen2 and Qwen2.5: Llama with biases on q, k and v; upper layers may slide.
#include "engine/model/families/family.h"

namespace baton::engine {

void ParseQwen2(JsonFields& in, ModelConfig& out) {
  ParseSizes(in, {.max_position_embeddings = 32768}, out);
  out.qkv_bias = true;
  out.ropes = {ReadRope(in, {.head_dim = out.head_dim, .max_position_embeddings = out.max_position_embeddings})};
  const bool slides = in.BoolOr("use_sliding_window", false);
  const int64_t window = slides ? in.IntOr("sliding_window", 4096, 1, INT32_MAX) : 0;
  const int64_t first = in.IntOr("max_window_layers", 28, 0, 1024);
  SetLayers(in, window, 0, [&](int layer) { return layer >= first; }, out);
}

}  // namespace baton::engine
