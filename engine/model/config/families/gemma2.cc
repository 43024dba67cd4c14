// Gemma 2: every other layer slides, from the first on, all with one rope; attention and logits are capped; norms on
// both sides of each part, norm weights stored as w - 1, embeddings scaled by sqrt(hidden).
#include "engine/model/config/families/family.h"

namespace baton::engine {

void ParseGemma2(JsonFields& in, ModelConfig& out) {
  ParseGemmaParts(
      in, {.vocab_size = 256000, .max_position_embeddings = 8192, .attention_softcap = 50, .logit_softcap = 30}, out);
  out.ropes = {ReadRope(in, {.head_dim = out.head_dim, .max_position_embeddings = out.max_position_embeddings})};
  const int64_t window = in.IntOr("sliding_window", 4096, 1, INT32_MAX);
  SetLayers(in, window, 0, [](int layer) { return layer % 2 == 0; }, out);
}

}  // namespace baton::engine
