// SmolLM3: Llama with every fourth layer, or the layers that no_rope_layers names, without a rope.
#include "common/str_cat.h"
#include "engine/model/config/families/family.h"

namespace baton::engine {

void ParseSmolLm3(JsonFields& in, ModelConfig& out) {
  ParseSizes(in,
             {.hidden_size = 2048,
              .intermediate_size = 11008,
              .num_layers = 36,
              .num_heads = 16,
              .num_kv_heads = 4,
              .vocab_size = 128256,
              .max_position_embeddings = 32768,
              .tied_embeddings = true},
             out);
  out.qkv_bias = out.o_bias = in.BoolOr("attention_bias", false);
  out.ropes = {ReadRope(
      in, {.head_dim = out.head_dim, .max_position_embeddings = out.max_position_embeddings, .theta = 2000000.0})};
  kernels::RopeParams none{.rotary_dim = out.ropes[0].rotary_dim};
  none.inv_freq.assign(out.ropes[0].inv_freq.size(), 0.0f);  // turns by no angle: the bits stay
  out.ropes.push_back(none);
  const bool slides = in.BoolOr("use_sliding_window", false) && !in.IsNull("sliding_window");
  SetLayers(in, slides ? in.IntOr("sliding_window", 4096, 1, INT32_MAX) : 0, 0, [](int) { return false; }, out);
  const std::vector<int64_t> ropes = in.IntOrInts("no_rope_layers");  // 1: has one, whatever the name says
  const int64_t every = in.IntOr("no_rope_layer_interval", 4, 1, 1024);
  if (!ropes.empty() && ropes.size() != out.layers.size()) {
    return in.Fail(StrCat("no_rope_layers has ", ropes.size(), " entries for ", out.layers.size(), " layers"));
  }
  for (size_t i = 0; i < out.layers.size(); ++i) {
    const bool has = ropes.empty() ? (static_cast<int64_t>(i) + 1) % every != 0 : ropes[i] != 0;
    out.layers[i].rope = has ? 0 : 1;
  }
}

}  // namespace baton::engine
