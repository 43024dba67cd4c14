// GGUF metadata as the fields of an HF config.json, so that one parser per family serves both.
#include <cmath>
#include <cstring>

#include "absl/container/flat_hash_set.h"
#include "common/foreign_text.h"
#include "common/half.h"
#include "common/json.h"
#include "common/status.h"
#include "engine/model/config/config_reader.h"
#include "engine/model/config/families/family.h"

namespace baton::engine {
namespace {

using nlohmann::json;

// Texts that end a turn in the chat formats of the supported families; files often name only one of them as eos.
constexpr std::string_view kTurnEnds[] = {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>"};
constexpr int64_t kControlToken = 3;  // tokenizer.ggml.token_type

class Metadata {
 public:
  Metadata(const GgufFile& file, std::string_view architecture) : file_(file), prefix_(StrCat(architecture, ".")) {}

  bool Has(std::string_view key) const { return file_.Find(prefix_ + std::string(key)) != nullptr; }
  // Copies a number into out[name]; an absent optional one is left out.
  absl::Status Uint(std::string_view key, const char* name, bool required, json& out) const {
    if (!required && !Has(key)) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(out[name], file_.GetUint(prefix_ + std::string(key)));
    return absl::OkStatus();
  }
  absl::Status Float(std::string_view key, const char* name, bool required, json& out) const {
    if (!required && !Has(key)) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(const double value, file_.GetFloat(prefix_ + std::string(key)));
    if (!std::isfinite(value)) return Bad(StrCat(prefix_, key, " is not finite"));
    out[name] = value;
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> String(std::string_view key) const {
    if (!Has(key)) return std::string();
    BATON_ASSIGN_OR_RETURN(const std::string_view value, file_.GetString(prefix_ + std::string(key)));
    return std::string(value);
  }
  absl::Status Bad(std::string_view what) const { return absl::InvalidArgumentError(StrCat(file_.name(), ": ", what)); }

 private:
  const GgufFile& file_;
  std::string prefix_;
};

absl::Status Sizes(const GgufFile& file, const Metadata& in, json& out) {
  BATON_RETURN_IF_ERROR(in.Uint("block_count", "num_hidden_layers", true, out));
  BATON_RETURN_IF_ERROR(in.Uint("embedding_length", "hidden_size", true, out));
  BATON_RETURN_IF_ERROR(in.Uint("feed_forward_length", "intermediate_size", true, out));
  BATON_RETURN_IF_ERROR(in.Uint("attention.head_count", "num_attention_heads", true, out));
  out["num_key_value_heads"] = out["num_attention_heads"];
  BATON_RETURN_IF_ERROR(in.Uint("attention.head_count_kv", "num_key_value_heads", false, out));
  BATON_RETURN_IF_ERROR(in.Uint("context_length", "max_position_embeddings", true, out));
  BATON_RETURN_IF_ERROR(in.Float("attention.layer_norm_rms_epsilon", "rms_norm_eps", true, out));
  const uint64_t heads = out["num_attention_heads"].get<uint64_t>(), hidden = out["hidden_size"].get<uint64_t>();
  if (heads == 0 || hidden % heads != 0) {
    if (!in.Has("attention.key_length")) return in.Bad(StrCat("embedding_length ", hidden, " over ", heads, " heads"));
  }
  out["head_dim"] = heads == 0 ? 0 : hidden / heads;
  BATON_RETURN_IF_ERROR(in.Uint("attention.key_length", "head_dim", false, out));
  json value = json::object();
  BATON_RETURN_IF_ERROR(in.Uint("attention.value_length", "length", false, value));
  if (value.contains("length") && value["length"] != out["head_dim"]) {
    return in.Bad(
        StrCat("attention.value_length ", value["length"].dump(), " is not key_length ", out["head_dim"].dump()));
  }
  const GgufTensor* embedding = file.FindTensor("token_embd.weight");
  if (embedding == nullptr || embedding->dims.size() != 2)
    return in.Bad("tensor token_embd.weight [vocab, hidden] is missing");
  const auto tokens = file.GetStrings("tokenizer.ggml.tokens");
  if (tokens.ok() && tokens->size() > embedding->dims[1]) {
    return in.Bad(
        StrCat("token_embd.weight has ", embedding->dims[1], " rows, tokenizer.ggml.tokens ", tokens->size()));
  }
  out["vocab_size"] = embedding->dims[1];
  return absl::OkStatus();
}

absl::Status RopeFactors(const GgufFile& file, const Metadata& in, json& scaling) {
  const GgufTensor* tensor = file.FindTensor("rope_freqs.weight");
  if (tensor == nullptr) return absl::OkStatus();
  if (tensor->type != GgmlType::kF32 || tensor->dims.size() != 1 || tensor->elements() > 1024) {
    return in.Bad("rope_freqs.weight is not a short F32 vector");
  }
  json factors = json::array();
  for (uint64_t i = 0; i < tensor->elements(); ++i) {
    float x;
    std::memcpy(&x, file.Bytes(*tensor).data() + 4 * i, 4);
    if (!std::isfinite(x)) return in.Bad(StrCat("rope_freqs.weight[", i, "] is not finite"));
    factors.push_back(x);
  }
  scaling["freq_factors"] = factors;
  return absl::OkStatus();
}

// The reach of yarn and its factor for attention: files seldom name them, and the defaults are yarn's own.
absl::Status YarnFields(const Metadata& in, json& scaling) {
  BATON_RETURN_IF_ERROR(in.Float("rope.scaling.yarn_beta_fast", "beta_fast", false, scaling));
  BATON_RETURN_IF_ERROR(in.Float("rope.scaling.yarn_beta_slow", "beta_slow", false, scaling));
  double scale = 1;
  for (const char* key :
       {"rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor"}) {
    json one = {{"factor", 1.0}};
    BATON_RETURN_IF_ERROR(in.Float(key, "factor", false, one));
    const double factor = one["factor"].get<double>();
    const bool known = std::string_view(key).ends_with("attn_factor") ? factor > 0 : factor == 1 || factor < 0;
    if (!known) return in.Bad(StrCat(key, " is ", factor, ": not supported"));
    if (factor > 0) scale *= factor;
  }
  const double by = scaling.value("factor", 1.0);
  if (scale != 1) scaling["attention_factor"] = scale * (by > 1 ? 0.1 * std::log(by) + 1 : 1);
  return absl::OkStatus();
}

absl::Status Rope(const GgufFile& file, const Metadata& in, json& out) {
  BATON_RETURN_IF_ERROR(in.Float("rope.freq_base", "rope_theta", false, out));
  json dims = json::object();
  BATON_RETURN_IF_ERROR(in.Uint("rope.dimension_count", "n", false, dims));
  if (dims.contains("n") && out["head_dim"] != 0) {
    out["partial_rotary_factor"] = dims["n"].get<double>() / out["head_dim"].get<double>();
  }
  json scaling = json::object();
  BATON_ASSIGN_OR_RETURN(const std::string type, in.String("rope.scaling.type"));
  if (!type.empty() && type != "none") scaling["rope_type"] = type;
  BATON_RETURN_IF_ERROR(in.Float("rope.scaling.factor", "factor", false, scaling));
  BATON_RETURN_IF_ERROR(
      in.Uint("rope.scaling.original_context_length", "original_max_position_embeddings", false, scaling));
  if (type.empty() && scaling.contains("factor")) scaling["rope_type"] = "linear";
  if (type == "yarn") BATON_RETURN_IF_ERROR(YarnFields(in, scaling));
  BATON_RETURN_IF_ERROR(RopeFactors(file, in, scaling));
  if (!scaling.empty()) out["rope_scaling"] = scaling;
  return absl::OkStatus();
}

// One number (every n-th layer sees everything), or one bool a layer: whether it slides. Gemma 2's files say neither.
absl::Status SlidingLayers(const GgufFile& file, json& out) {
  constexpr std::string_view kKey = "gemma3.attention.sliding_window_pattern";
  const GgufValue* value = file.Find(kKey);
  if (value == nullptr) return absl::OkStatus();
  if (value->type != GgufValueType::kArray) {
    BATON_ASSIGN_OR_RETURN(out["sliding_window_pattern"], file.GetUint(kKey));
    return absl::OkStatus();
  }
  BATON_ASSIGN_OR_RETURN(const std::vector<int64_t> slides, file.GetInts(kKey));
  for (int64_t one : slides) out["layer_types"].push_back(one != 0 ? "sliding_attention" : "full_attention");
  return absl::OkStatus();
}

// `deepest`: layers of the largest model, which alone scales by hidden / heads and not by head_dim.
absl::Status GemmaFields(const GgufFile& file, const Metadata& in, uint64_t deepest, json& out) {
  out["norms_hold_offset"] = true;
  BATON_RETURN_IF_ERROR(in.Uint("attention.sliding_window", "sliding_window", true, out));
  BATON_RETURN_IF_ERROR(SlidingLayers(file, out));
  BATON_RETURN_IF_ERROR(in.Float("rope.freq_base_swa", "rope_local_base_freq", false, out));
  BATON_RETURN_IF_ERROR(in.Float("final_logit_softcapping", "final_logit_softcapping", false, out));
  BATON_RETURN_IF_ERROR(in.Float("attn_logit_softcapping", "attn_logit_softcapping", false, out));
  // The format has no field for it.
  const bool is_27b = out["num_hidden_layers"] == deepest && out["num_attention_heads"] == 32;
  out["query_pre_attn_scalar"] = is_27b ? out["hidden_size"].get<uint64_t>() / 32 : out["head_dim"].get<uint64_t>();
  return absl::OkStatus();
}

absl::Status SpecialTokens(const GgufFile& file, json& out) {
  absl::flat_hash_set<uint64_t> ends;
  for (const char* key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    if (file.Find(key) == nullptr) continue;
    BATON_ASSIGN_OR_RETURN(const uint64_t id, file.GetUint(key));
    if (ends.insert(id).second) out["eos_token_id"].push_back(id);
  }
  if (file.Find("tokenizer.ggml.bos_token_id") != nullptr) {
    BATON_ASSIGN_OR_RETURN(out["bos_token_id"], file.GetUint("tokenizer.ggml.bos_token_id"));
  }
  const auto tokens = file.GetStrings("tokenizer.ggml.tokens");
  const auto types = file.GetInts("tokenizer.ggml.token_type");
  if (!tokens.ok() || !types.ok() || tokens->size() != types->size()) return absl::OkStatus();  // text/ reports that
  for (size_t id = 0; id < tokens->size(); ++id) {
    if ((*types)[id] != kControlToken) continue;
    for (std::string_view end : kTurnEnds) {
      if ((*tokens)[id] == end && ends.insert(id).second) out["eos_token_id"].push_back(id);
    }
  }
  return absl::OkStatus();
}

}  // namespace

bool GgufHoldsPairs(std::string_view architecture) {
  const Family* const family = FindGgufFamily(architecture);
  return family != nullptr && family->gguf_pairs;
}

absl::StatusOr<json> GgufToHfConfig(const GgufFile& file) {
  BATON_ASSIGN_OR_RETURN(const std::string_view view, file.GetString("general.architecture"));
  const std::string architecture(view);
  const Metadata in(file, architecture);
  const Family* const family = FindGgufFamily(architecture);
  if (family == nullptr) {
    return in.Bad(
        StrCat("architecture ", Quoted(architecture), " is not supported (", KnownGgufArchitectures(), " are)"));
  }
  if (file.Find("split.count") != nullptr) {
    BATON_ASSIGN_OR_RETURN(const uint64_t parts, file.GetUint("split.count"));
    if (parts > 1) return in.Bad(StrCat("one of ", parts, " parts of a split model: merge them into one file"));
  }
  json out = {{"model_type", std::string(family->model_type)}};
  json experts = {{"n", 0}};
  BATON_RETURN_IF_ERROR(in.Uint("expert_count", "n", false, experts));
  if (experts["n"] != 0) return in.Bad(StrCat("a mixture of ", experts["n"].dump(), " experts is not supported"));
  BATON_RETURN_IF_ERROR(Sizes(file, in, out));
  BATON_RETURN_IF_ERROR(Rope(file, in, out));
  if (architecture == "gemma2") BATON_RETURN_IF_ERROR(GemmaFields(file, in, 46, out));
  if (architecture == "gemma3") BATON_RETURN_IF_ERROR(GemmaFields(file, in, 62, out));
  out["attention_bias"] = file.FindTensor("blk.0.attn_q.bias") != nullptr;
  out["attention_out_bias"] = file.FindTensor("blk.0.attn_output.bias") != nullptr;
  out["tie_word_embeddings"] = file.FindTensor("output.weight") == nullptr;
  BATON_RETURN_IF_ERROR(SpecialTokens(file, out));
  return out;
}

}  // namespace baton::engine
