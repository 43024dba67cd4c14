#include "engine/model/config/families/family.h"

#include <algorithm>
#include <cmath>

#include "common/foreign_text.h"
#include "common/json.h"
#include "common/str_cat.h"

namespace baton::engine {
namespace {

// Every family there is. A new one is a row here. Mistral's GGUF files call themselves llama.
constexpr Family kFamilies[] = {
    {"llama", "llama", "llama", ParseLlama, /*gguf_pairs=*/true},
    {"mistral", "mistral", "", ParseMistral},
    {"smollm3", "smollm3", "smollm3", ParseSmolLm3, /*gguf_pairs=*/true},
    {"qwen2", "qwen2", "qwen2", ParseQwen2},
    {"qwen3", "qwen3", "qwen3", ParseQwen3},
    {"gemma2", "gemma2", "gemma2", ParseGemma2},
    {"gemma3", "gemma3_text", "gemma3", ParseGemma3},
};

const Family* Find(std::string_view Family::* key, std::string_view value) {
  const Family* const found = std::ranges::find(kFamilies, value, key);
  return value.empty() || found == std::end(kFamilies) ? nullptr : found;
}

std::string Known(std::string_view Family::* key) {
  std::string out;
  for (const Family& family : kFamilies) {
    if (!(family.*key).empty()) out += StrCat(out.empty() ? "" : ", ", family.*key);
  }
  return out;
}

int Size(JsonFields& in, std::string_view key, int fallback, int max) {
  return static_cast<int>(fallback > 0 ? in.IntOr(key, fallback, 1, max) : in.Int(key, 1, max));
}

void CheckHeads(JsonFields& in, const ModelConfig& c) {
  if (c.num_heads % c.num_kv_heads != 0) {
    in.Fail(StrCat("num_attention_heads ", c.num_heads, " is not a multiple of num_key_value_heads ", c.num_kv_heads));
  }
  if (c.head_dim % 16 != 0 || c.head_dim > 256) {
    in.Fail(StrCat("head_dim ", c.head_dim, " is not supported (multiples of 16 up to 256 are)"));
  }
}

}  // namespace

const Family* FindFamily(std::string_view model_type) { return Find(&Family::model_type, model_type); }
const Family* FindGgufFamily(std::string_view architecture) { return Find(&Family::gguf, architecture); }

// A multimodal gemma3 is read as its text tower (config_reader.cc).
std::string KnownModelTypes() { return Known(&Family::model_type) + ", gemma3"; }
std::string KnownGgufArchitectures() { return Known(&Family::gguf); }

void ParseSizes(JsonFields& in, const SizeDefaults& d, ModelConfig& out) {
  out.hidden_size = Size(in, "hidden_size", d.hidden_size, 1 << 17);
  out.intermediate_size = Size(in, "intermediate_size", d.intermediate_size, 1 << 20);
  out.num_layers = Size(in, "num_hidden_layers", d.num_layers, 1024);
  out.num_heads = Size(in, "num_attention_heads", d.num_heads, 1024);
  out.num_kv_heads = Size(in, "num_key_value_heads", d.num_kv_heads > 0 ? d.num_kv_heads : out.num_heads, 1024);
  if (!in.Has("head_dim") && d.head_dim == 0 && out.hidden_size % out.num_heads != 0) {
    in.Fail(StrCat("hidden_size ", out.hidden_size, " is not a multiple of num_attention_heads ", out.num_heads));
  }
  out.head_dim = Size(in, "head_dim", d.head_dim > 0 ? d.head_dim : std::max(1, out.hidden_size / out.num_heads), 4096);
  out.vocab_size = Size(in, "vocab_size", d.vocab_size, 1 << 22);
  out.max_position_embeddings = Size(in, "max_position_embeddings", d.max_position_embeddings, 1 << 27);
  out.rms_eps = static_cast<float>(in.FloatOr("rms_norm_eps", d.rms_eps, 0, 1));
  out.tied_embeddings = in.BoolOr("tie_word_embeddings", d.tied_embeddings);
  out.attention_scale = 1.0f / std::sqrt(static_cast<float>(out.head_dim));
  const std::string activation = in.StringOr("hidden_activation", in.StringOr("hidden_act", "silu"));
  if (activation == "gelu_pytorch_tanh") {
    out.activation = kernels::Activation::kGeluTanh;
  } else if (activation != "silu" && activation != "swish") {
    in.Fail(StrCat("activation ", Quoted(activation), " is not supported (silu, gelu_pytorch_tanh are)"));
  }
  if (in.BoolOr("mlp_bias", false)) in.Fail("mlp_bias is true: biases in the MLP are not supported");
  CheckHeads(in, out);
}

void SetLayers(JsonFields& in, int64_t window, int window_rope, const std::function<bool(int)>& slides,
               ModelConfig& out) {
  const std::vector<std::string> types = in.Strings("layer_types");
  if (!types.empty() && types.size() != static_cast<size_t>(out.num_layers)) {
    in.Fail(StrCat("layer_types has ", types.size(), " entries for ", out.num_layers, " layers"));
    return;
  }
  const int effective = window < out.max_position_embeddings ? static_cast<int>(window) : 0;
  out.layers.assign(out.num_layers, {});
  for (int i = 0; i < out.num_layers; ++i) {
    if (!types.empty() && types[i] != "sliding_attention" && types[i] != "full_attention") {
      in.Fail(StrCat("layer_types[", i, "] ", Quoted(types[i]), " is not supported"));
    }
    const bool sliding = window > 0 && (types.empty() ? slides(i) : types[i] == "sliding_attention");
    if (sliding) out.layers[i] = {.window = effective, .rope = window_rope};
  }
}

void ParseGemmaParts(JsonFields& in, const GemmaDefaults& defaults, ModelConfig& out) {
  ParseSizes(in,
             {.hidden_size = 2304,
              .intermediate_size = 9216,
              .num_layers = 26,
              .num_heads = 8,
              .num_kv_heads = 4,
              .head_dim = 256,
              .vocab_size = defaults.vocab_size,
              .max_position_embeddings = defaults.max_position_embeddings,
              .rms_eps = 1e-6,
              .tied_embeddings = true},
             out);
  if (!in.Has("hidden_activation") && !in.Has("hidden_act")) out.activation = kernels::Activation::kGeluTanh;
  out.qkv_bias = out.o_bias = in.BoolOr("attention_bias", false);
  out.post_norms = true;
  out.norm_offset = in.BoolOr("norms_hold_offset", false) ? 0.0f : 1.0f;  // GGUF files have the 1 added already
  out.embedding_scale = std::sqrt(static_cast<float>(out.hidden_size));
  out.attention_scale = 1.0f / std::sqrt(static_cast<float>(in.FloatOr("query_pre_attn_scalar", 256, 1e-3, 1e9)));
  out.attention_softcap = static_cast<float>(in.FloatOr("attn_logit_softcapping", defaults.attention_softcap, 0, 1e9));
  out.logit_softcap = static_cast<float>(in.FloatOr("final_logit_softcapping", defaults.logit_softcap, 0, 1e9));
}

void SetUpperLayers(JsonFields& in, ModelConfig& out) {
  const bool slides = in.BoolOr("use_sliding_window", false);
  const int64_t window = slides ? in.IntOr("sliding_window", 4096, 1, INT32_MAX) : 0;
  const int64_t first = in.IntOr("max_window_layers", 28, 0, 1024);
  SetLayers(in, window, 0, [&](int layer) { return layer >= first; }, out);
}

}  // namespace baton::engine
