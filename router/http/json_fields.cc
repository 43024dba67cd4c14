// The fields that chat and text completions share, and those that are refused.
#include <algorithm>
#include <functional>
#include <iterator>
#include <type_traits>
#include <unordered_map>

#include "router/http/json_reader.h"
#include "router/request/sampling_limits.h"

namespace baton::router::json {

MaybeError ReadOtherStreamOption(std::string_view key, Element value, CompletionRequest& r) {
  bool obfuscates = true;
  if (key == "include_obfuscation") {
    if (auto error = Read("stream_options.include_obfuscation", value, obfuscates)) return error;
  }
  if (obfuscates) NoteUnknownMember(r, "stream_options", key);
  return std::nullopt;
}

namespace {

using Reader = std::function<MaybeError(std::string_view, Element, CompletionRequest&)>;
using Readers = std::unordered_map<std::string_view, Reader>;

MaybeError ReadStop(std::string_view field, Element e, CompletionRequest& r) {
  r.input.stop.clear();
  simdjson::dom::array array;
  if (e.get_array().get(array)) return Read(field, e, r.input.stop.emplace_back());
  for (Element one : array) {
    if (auto error = Read(field, one, r.input.stop.emplace_back())) return error;
  }
  return std::nullopt;
}

MaybeError ReadBadWordTexts(std::string_view field, Element e, CompletionRequest& r) {
  r.input.bad_words.clear();
  simdjson::dom::array array;
  if (e.get_array().get(array)) return WrongType(field, "an array of strings", e);
  for (Element one : array) {
    if (auto error = Read(field, one, r.input.bad_words.emplace_back())) return error;
  }
  return std::nullopt;
}

MaybeError ReadEarlyStopping(std::string_view field, Element e, CompletionRequest& r) {
  constexpr int32_t kNever = 2;
  std::string_view text;
  bool flag = false;
  if (!e.get_string().get(text) && text == "never") {
    r.input.sampling.early_stopping = kNever;
  } else if (!e.get_bool().get(flag)) {
    r.input.sampling.early_stopping = flag ? 1 : 0;
  } else {
    return WrongType(field, "true, false or \"never\"", e);
  }
  return std::nullopt;
}

MaybeError ReadTruncationSide(std::string_view field, Element e, CompletionRequest& r) {
  std::string side;
  if (auto error = Read(field, e, side)) return error;
  if (side != "left" && side != "right") {
    return BadRequest(
        StrCat("`", field, R"(` must be "left" (the prompt's beginning goes) or "right", got ")", side, "\"."),
        std::string(field));
  }
  r.input.truncates_end = side == "right";
  return std::nullopt;
}

MaybeError ReadSharedStreamOptions(std::string_view field, Element e, CompletionRequest& r) {
  simdjson::dom::object object;
  if (e.get_object().get(object)) return WrongType(field, "an object", e);
  for (auto [key, value] : object) {
    if (value.is_null()) continue;
    MaybeError error;
    if (key == "include_usage") {
      error = Read("stream_options.include_usage", value, r.include_usage);
    } else if (key == "continuous_usage_stats") {
      error = Read("stream_options.continuous_usage_stats", value, r.continuous_usage);
    } else {
      error = ReadOtherStreamOption(key, value, r);
    }
    if (error) return error;
  }
  return std::nullopt;
}

MaybeError ReadSalt(std::string_view field, Element e, CompletionRequest& r) {
  if (auto error = Read(field, e, r.input.cache_salt)) return error;
  if (r.input.cache_salt.empty()) return BadRequest("`cache_salt` must not be an empty string.", std::string(field));
  return std::nullopt;
}

// Where an empty list would allow nothing, it is not the same as no list.
template <class T>
MaybeError ReadSampling(const SamplingField& field, Element e, T& out) {
  if constexpr (std::is_same_v<T, std::optional<float>>) {
    if (double wide = 0; !e.get_double().get(wide) && !IsFloat(wide)) return NoFloat(field, NumberText(e));
  }
  if (auto error = Read(field.name, e, out)) return error;
  if constexpr (std::is_same_v<T, std::vector<int32_t>>) {
    if (out.empty() && !field.may_be_empty)
      return BadRequest(StrCat("`", field.name, "` is an empty array; leave it out instead."), std::string(field.name));
  }
  return std::nullopt;
}

// One entry per field that is not sampling; the lambda reads it into its place.
#define BATON_FIELD(name, member) \
  {name, [](std::string_view f, Element e, CompletionRequest& r) -> MaybeError { return Read(f, e, r.member); }}
Readers MakeSharedFields() {
  Readers fields{
      BATON_FIELD("model", input.model),
      BATON_FIELD("skip_special_tokens", input.skip_special_tokens),
      BATON_FIELD("include_stop_str_in_output", input.include_stop_str_in_output),
      BATON_FIELD("priority", input.priority),
      BATON_FIELD("truncate_prompt_tokens", input.truncate_prompt_tokens),
      BATON_FIELD("request_id", input.request_id),
      BATON_FIELD("prompt_cache_key", input.session),
      BATON_FIELD("stream", stream),
      BATON_FIELD("echo", echo),
      BATON_FIELD("return_token_ids", return_token_ids),
      BATON_FIELD("return_tokens_as_token_ids", return_tokens_as_token_ids),
      BATON_FIELD("return_seed", return_seed),
      {"stop", ReadStop},
      {"bad_words", ReadBadWordTexts},
      {"early_stopping", ReadEarlyStopping},
      {"truncation_side", ReadTruncationSide},
      {"stream_options", ReadSharedStreamOptions},
      {"cache_salt", ReadSalt},
  };
  VisitSampling([&](auto member, const SamplingField& field) {
    if (!field.shared_json) return;
    fields[field.name] = [member, field](std::string_view, Element e, CompletionRequest& r) {
      return ReadSampling(field, e, r.input.sampling.*member);
    };
  });
  return fields;
}
#undef BATON_FIELD

const Readers& SharedFields() {
  static const auto* fields = new Readers(MakeSharedFields());
  return *fields;
}

constexpr std::string_view kRefused[] = {"suffix",
                                         "documents",
                                         "chat_template",
                                         "functions",
                                         "function_call",
                                         "audio",
                                         "kv_transfer_params",
                                         "logits_processors",
                                         "prompt_embeds",
                                         "thinking_token_budget",
                                         "modalities",
                                         "repetition_detection",
                                         "logprob_token_ids",
                                         "watermarking",
                                         "return_prompt_text",
                                         "web_search_options",
                                         "grammar",
                                         "json_schema",
                                         "regex",
                                         "ebnf",
                                         "structural_tag",
                                         "lora_path",
                                         "typical_p",
                                         "mirostat",
                                         "dry_multiplier",
                                         "xtc_probability"};

bool IsFalse(Element e) {
  bool value = true;
  return !e.get_bool().get(value) && !value;
}
bool IsEmpty(Element e) {
  simdjson::dom::array array;
  simdjson::dom::object object;
  std::string_view text;
  if (!e.get_array().get(array)) return array.begin() == array.end();
  if (!e.get_object().get(object)) return object.begin() == object.end();
  if (!e.get_string().get(text)) return text.empty();
  return false;
}
// {} is a schema, too: that of every JSON text.
bool IsSchema(std::string_view key, Element e) { return key == "json_schema" && e.is_object(); }
bool IsNumber(Element e, double number) {
  double value = 0;
  return !e.get_double().get(value) && value == number;
}

// Fields whose neutral value is this number: samplers that are off.
bool IsNeutralNumber(std::string_view key, Element e) {
  if (key == "typical_p") return IsNumber(e, 1);
  return (key == "mirostat" || key == "dry_multiplier" || key == "xtc_probability") && IsNumber(e, 0);
}

}  // namespace

bool ReadSharedField(std::string_view key, Element e, CompletionRequest& out, MaybeError& error) {
  auto found = SharedFields().find(key);
  if (found == SharedFields().end()) return false;
  error = found->second(key, e, out);
  return true;
}

std::vector<std::string> SharedFieldNames() {
  std::vector<std::string> names = {
      "user", "service_tier", "store", "parallel_tool_calls", "metadata", "spaces_between_special_tokens"};
  for (const auto& [name, reader] : SharedFields()) names.emplace_back(name);
  names.insert(names.end(), std::begin(kRefused), std::end(kRefused));
  names.insert(names.end(), std::begin(kGrammarFields), std::end(kGrammarFields));
  std::sort(names.begin(), names.end());
  return names;
}

bool IsFieldOfAnyApi(std::string_view key) {
  constexpr std::string_view kOfChatsAnswers[] = {"n",
                                                  "best_of",
                                                  "echo",
                                                  "prompt_logprobs",
                                                  "return_seed",
                                                  "return_token_ids",
                                                  "return_tokens_as_token_ids",
                                                  "stream_options"};
  constexpr std::string_view kOfChats[] = {"chat_template_kwargs",   "include_reasoning",  "reasoning_effort",
                                           "thinking_token_budget",  "add_special_tokens", "add_generation_prompt",
                                           "continue_final_message", "tool_choice",        "parallel_tool_calls"};
  const auto is_in = [key](const auto& names) {
    return std::find(std::begin(names), std::end(names), key) != std::end(names);
  };
  return (SharedFields().contains(key) && !is_in(kOfChatsAnswers)) || is_in(kOfChats) || is_in(kGrammarFields);
}

bool ReadRefusedField(std::string_view key, Element e, MaybeError& error) {
  bool known = false;
  for (const std::string_view name : kRefused) known = known || name == key;
  if (!known) return false;
  if (IsFalse(e) || (IsEmpty(e) && !IsSchema(key, e)) || IsNeutralNumber(key, e)) return true;
  if (key == "modalities") {
    simdjson::dom::array array;
    std::string_view only;
    if (!e.get_array().get(array) && array.size() == 1 && !array.at(0).get_string().get(only) && only == "text")
      return true;
  }
  if (key == "function_call") {
    std::string_view none;
    if (!e.get_string().get(none) && none == "none") return true;
  }
  error = NotBuilt(std::string(key), "this field");
  return true;
}

bool ReadIgnoredField(std::string_view key, Element e, MaybeError& error) {
  if (key == "user" || key == "service_tier") {
    std::string text;
    error = Read(key, e, text);
  } else if (key == "store" || key == "parallel_tool_calls" || key == "spaces_between_special_tokens") {
    bool flag = false;
    error = Read(key, e, flag);
  } else if (key == "metadata") {
    simdjson::dom::object object;
    if (e.get_object().get(object)) error = WrongType(key, "an object", e);
  } else {
    return false;
  }
  return true;
}

}  // namespace baton::router::json
