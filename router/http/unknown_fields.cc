// Request fields that nobody here reads but whose sender clearly meant one that is read: a slip of the pen, or the name
// that another server has for it. All other unknown fields are ignored, and named (openai_app.cc).
#include <algorithm>

#include "common/nearest_name.h"
#include "router/http/json_reader.h"

namespace baton::router::json {
namespace {

/// What other servers (llama.cpp, Ollama, TGI, KoboldCpp, Anthropic's API) call a field.
struct Alias {
  std::string_view name;
  std::string_view meant;  ///< the field of this server; "": `instead` says more
  std::string_view instead = {};
};
constexpr Alias kAliases[] = {
    {"repeat_penalty", "repetition_penalty"},
    {"rep_pen", "repetition_penalty"},
    {"n_predict", "max_tokens"},
    {"num_predict", "max_tokens"},
    {"max_new_tokens", "max_tokens"},
    {"max_output_tokens", "max_tokens"},
    {"max_tokens_to_sample", "max_tokens"},
    {"max_length", "max_tokens"},
    {"min_new_tokens", "min_tokens"},
    {"stop_sequences", "stop"},
    {"stop_strings", "stop"},
    {"random_seed", "seed"},
    {"temp", "temperature"},
    {"n_probs", "logprobs"},
    {"num_ctx", "", "the context is the same for every request here: the server's --max-model-len sets it"},
    {"n_ctx", "", "the context is the same for every request here: the server's --max-model-len sets it"},
    {"options", "", "the fields in it stand beside `model` here"},
    {"extra_body", "", "the fields in it stand beside `model` here"},
};
constexpr Alias kChatAliases[] = {
    {"system", "", "the system prompt is a message of role \"system\" in `messages` here"}};
constexpr Alias kTextAliases[] = {{"max_completion_tokens", "max_tokens"}, {"top_logprobs", "logprobs"}};

/// Samplers of other servers whose names differ in one letter from one here, and names of no sampler at all.
constexpr std::string_view kOthers[] = {"top_a", "top_n", "mode", "models"};

const std::vector<std::string>& KnownFields(bool chat) {
  const auto with = [](std::initializer_list<const char*> more) {
    auto* names = new std::vector<std::string>(SharedFieldNames());
    names->insert(names->end(), more.begin(), more.end());
    return names;
  };
  static const auto* of_chat =
      with({"messages", "max_completion_tokens", "logprobs", "top_logprobs", "add_generation_prompt",
            "continue_final_message", "add_special_tokens", "reasoning_effort", "chat_template_kwargs", "tools",
            "tool_choice", "include_reasoning"});
  static const auto* of_text = with({"prompt", "logprobs", "add_special_tokens"});
  return chat ? *of_chat : *of_text;
}

bool IsGiven(const simdjson::dom::object& body, std::string_view name) {
  Element value;
  return !body[name].get(value) && !value.is_null();
}

ApiError Unknown(std::string_view name, const std::string& rest) {
  return BadRequest(StrCat("unknown field `", name, "`: ", rest), std::string(name), "unknown_parameter");
}

/// Short names are near to everything: `k`, `id` and `mode` are no slips of `n` and `model`.
size_t MostSlips(std::string_view name) { return name.size() < 4 ? 0 : name.size() < 8 ? 1 : name.size() / 4; }

}  // namespace

MaybeError MeantField(std::string_view name, const simdjson::dom::object& body, bool chat) {
  constexpr size_t kLongest = 64;  // of a name that could be one of ours
  if (name.size() > kLongest || std::find(std::begin(kOthers), std::end(kOthers), name) != std::end(kOthers))
    return std::nullopt;
  const auto of = [&](auto& aliases) -> MaybeError {
    for (const Alias& alias : aliases) {
      if (alias.name != name) continue;
      if (alias.meant.empty()) return Unknown(name, StrCat(alias.instead, "."));
      const bool given =
          IsGiven(body, alias.meant) || (alias.meant == "max_tokens" && chat && IsGiven(body, "max_completion_tokens"));
      if (!given) return Unknown(name, StrCat("it is `", alias.meant, "` here."));
    }
    return std::nullopt;
  };
  if (MaybeError error = of(kAliases)) return error;
  if (MaybeError error = chat ? of(kChatAliases) : of(kTextAliases)) return error;
  const std::string nearest = NearestName(name, KnownFields(chat), MostSlips(name));
  if (nearest.empty() || IsGiven(body, nearest)) return std::nullopt;
  return Unknown(name, StrCat("did you mean `", nearest, "`?"));
}

}  // namespace baton::router::json
