// RequestInput: a generation as a client asked for it, and what turns it into a TokenizedRequest: template, tokenizer,
// defaults, checks. Pure functions of their arguments; long texts belong on the text pool.
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "router/api_error.h"
#include "router/fleet/worker_facts.h"
#include "router/request/choice_text.h"
#include "router/request/grammar_tokens.h"
#include "router/request/model_text.h"
#include "router/request_types.h"
#include "router/router_config.h"

namespace baton::router {

class KeyAccount;

struct TextPrompt {
  std::string text;
  bool add_special_tokens = true;
};
struct ChatPrompt {
  std::string messages_json;  ///< array of {role, content: string, …}
  std::string tools_json;     ///< "" = none
  std::string kwargs_json;    ///< "" = none
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  bool add_special_tokens = false;
  bool operator==(const ChatPrompt&) const = default;
};
using TokensPrompt = std::vector<int32_t>;
/// A chat whose ids are known already.
struct SeenPrompt {
  PromptIds ids;
};
using Prompt = std::variant<TextPrompt, TokensPrompt, ChatPrompt, SeenPrompt>;

/// A schema that a grammar has in it, and what the client calls it.
struct SchemaPart {
  std::string field, schema;
};

struct RequestInput {
  std::string model;
  Prompt prompt;
  SamplingOptions sampling;
  const char* max_tokens_field = "max_tokens";  ///< what the client calls these, for messages
  const char* logprobs_field = "logprobs";
  std::string grammar_field = "sampling.grammar";
  std::vector<SchemaPart> grammar_parts;      ///< of the grammar; empty: `grammar_field` is the whole of it
  std::vector<TokenRule> token_rules;         ///< as well
  std::optional<int32_t> default_max_tokens;  ///< of the endpoint, where neither request nor model say
  std::vector<std::string> stop;
  std::vector<std::string> bad_words;
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  int32_t priority = 0;
  bool shows_prompt = false;  ///< its text, with the answer
  std::string cache_salt;
  std::string session;      ///< prompt_cache_key, or the header X-Session-Id
  std::string traceparent;  ///< the header, where traces are sent
  std::string request_id;
  std::optional<Duration> timeout;
  std::optional<int32_t> truncate_prompt_tokens;  ///< the prompt's last ones; -1: as many as leave room for the answer
  bool truncates_end = false;                     ///< then it is the first ones that are kept
  TimePoint grammar_by = TimePoint::max();        ///< in real time: a grammar that has not compiled by then is refused
  bool splits_thoughts = false;                   ///< a chat whose answer is shown apart from its thoughts
  std::optional<int32_t> thinking_budget;
  bool thinking_budget_is_a_wish = false;  ///< where there is no way to keep it, it is nothing
  TimePoint connected = TimePoint::max();  ///< since when there is the connection that brings it (Admission::Enter)
  KeyAccount* account = nullptr;           ///< of the API key; null: nobody's. Outlives the request
};

/// Without a tokenizer everything of a request is token ids: the error of the first field that is text.
std::optional<ApiError> CheckNeedsNoText(const ModelText& model, const Prompt& prompt);
std::optional<ApiError> CheckNeedsNoText(const ModelText& model, const RequestInput& input);

/// Whether the model writes thoughts, or its chat template can be told to have some.
bool MayThink(const ModelText& model, const RouterConfig& config);

/// Bytes of text that preparing this has to read; decides between in place and the text pool.
size_t TextBytes(const Prompt& prompt);
/// The same of a whole request: a grammar is as much work as a long text.
size_t TextBytes(const RequestInput& input);

inline constexpr size_t kAnyTextBytes = std::numeric_limits<size_t>::max();

/// The tokens of a prompt (a chat through the template). A text of more than `most_bytes` is refused, not tokenized.
/// `salt`: whose text it is (RequestInput::cache_salt); what another one's has cost is not told.
struct TokenizedPrompt {
  PromptIds ids;
};
std::variant<TokenizedPrompt, ApiError> TokenizePrompt(const ModelText& model, const Prompt& prompt,
                                                       std::string_view salt, size_t most_bytes = kAnyTextBytes);

/// Makes a SeenPrompt of a chat that has come before; costs a look at its text. True: it did.
bool TakeSeen(const ModelText& model, Prompt& prompt, std::string_view salt);

/// A request whose fields were checked against the model.
struct PreparedRequest {
  TokenizedRequest generation;
  std::vector<ChoiceText> texts;  ///< of every choice that is drawn
  int32_t answers = 1;            ///< of them, the likeliest: best_of.h
  bool shows_logprobs = false;    ///< the client asked for them
};
/// Moves out of `input`. Every failure is the client's: 400 with the field and the numbers.
std::variant<PreparedRequest, ApiError> Prepare(const ModelText& model, const WorkerFacts& facts,
                                                const RouterConfig& config, RequestInput input);

/// Every name that clients can use; never empty.
std::vector<std::string> PublicModelNames(const RouterConfig& config, const ModelText& model);
/// Whether the model name is one that this server answers to; "" is.
bool ServesModel(const RouterConfig& config, const ModelText& model, const std::string& name);
/// The name in answers: the first of --served-model-name, else the model's base name.
const std::string& PublicModelName(const RouterConfig& config, const ModelText& model);

}  // namespace baton::router
