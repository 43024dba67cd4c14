// Gemma 3 (text): five sliding layers to one full one, each kind with its own rope, norms on both sides of each part,
// norm weights stored as w - 1, embeddings scaled by sqrt(hidden).
#include "engine/model/config/families/family.h"

namespace baton::engine {

void ParseGemma3(JsonFields& in, ModelConfig& out) {
  ParseGemmaParts(in, {.vocab_size = 262208, .max_position_embeddings = 131072}, out);
  out.qk_norm = true;
  if (in.BoolOr("use_bidirectional_attention", false)) in.Fail("use_bidirectional_attention is true: not supported");
  RopeFields rope{.head_dim = out.head_dim,
                  .max_position_embeddings = out.max_position_embeddings,
                  .theta = 1e6,
                  .layer_type = "full_attention"};
  out.ropes = {ReadRope(in, rope)};
  rope.theta_key = "rope_local_base_freq";
  rope.theta = 1e4;
  rope.layer_type = "sliding_attention";
  rope.scaled = false;
  out.ropes.push_back(ReadRope(in, rope));
  const int64_t window = in.IntOr("sliding_window", 4096, 1, INT32_MAX);
  const int64_t pattern = in.IntOr("sliding_window_pattern", 6, 1, 1024);
  SetLayers(in, window, 1, [&](int layer) { return (layer + 1) % pattern != 0; }, out);
}

}  // namespace baton::engine
