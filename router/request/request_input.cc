#include "router/request/request_input.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "common/random_word.h"
#include "common/str_cat.h"
#include "proto/order_limits.h"
#include "router/dialect/message_roles.h"
#include "router/dialect/thoughts.h"
#include "router/request/bad_words.h"
#include "router/request/best_of.h"
#include "router/request/grammar_check.h"
#include "router/request/sampling_limits.h"
#include "router/request/seen_chats.h"
#include "router/request/text_pool.h"

namespace baton::router {
namespace {

using MaybeError = std::optional<ApiError>;

MaybeError CheckIds(const char* name, std::span<const int32_t> ids, int32_t vocab_size) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size) {
      return BadRequest(StrCat("`", name, "`: token id ", id, " is out of the vocabulary (0 to ", vocab_size - 1, ")."),
                        name);
    }
  }
  return std::nullopt;
}

MaybeError CheckPromptIds(const PromptIds& ids, int32_t vocab_size) {
  if (ids.empty() || ids.greatest() < static_cast<uint32_t>(vocab_size)) return std::nullopt;
  return CheckIds("prompt", ids, vocab_size);
}

constexpr size_t kMaxStopIds = 4096;

MaybeError CheckCounts(const RequestInput& input, const WorkerFacts& facts, const RouterConfig& config) {
  const SamplingOptions& s = input.sampling;
  const char* max_tokens = input.max_tokens_field;
  if (s.n < 1 || s.n > config.max_choices) {
    return BadRequest(StrCat("`n` must be in [1, ", config.max_choices, "], got ", s.n, " (--max-choices)."), "n");
  }
  if (s.max_tokens && *s.max_tokens < 1)
    return BadRequest(StrCat("`", max_tokens, "` must be at least 1, got ", *s.max_tokens, "."), max_tokens);
  if (s.min_tokens && s.max_tokens && *s.min_tokens > *s.max_tokens) {
    return BadRequest(
        StrCat("`min_tokens` (", *s.min_tokens, ") is greater than `", max_tokens, "` (", *s.max_tokens, ")."),
        "min_tokens");
  }
  const std::pair<const char*, std::optional<int32_t>> logprobs[] = {{input.logprobs_field, s.logprobs},
                                                                     {"prompt_logprobs", s.prompt_logprobs}};
  for (const auto& [name, count] : logprobs) {
    if (count && (*count < 0 || *count > config.max_logprobs)) {
      return BadRequest(
          StrCat("`", name, "` must be in [0, ", config.max_logprobs, "], got ", *count, " (--max-logprobs)."), name);
    }
  }
  if (s.stop_token_ids.size() > kMaxStopIds) {  // each step of the request looks at all of them
    return BadRequest(
        StrCat("`stop_token_ids` has ", s.stop_token_ids.size(), " token ids, at most ", kMaxStopIds, "."),
        "stop_token_ids");
  }
  const std::pair<const char*, size_t> lists[] = {{"logit_bias", s.logit_bias.size()},
                                                  {"allowed_token_ids", s.allowed_token_ids.size()}};
  for (const auto& [name, count] : lists) {
    if (count > static_cast<size_t>(facts.vocab_size)) {
      return BadRequest(
          StrCat("`", name, "` has ", count, " token ids, more than the vocabulary of ", facts.vocab_size, "."), name);
    }
  }
  if (input.cache_salt.size() > kMostSaltBytes) {
    return BadRequest(
        StrCat("`cache_salt` has ", input.cache_salt.size(), " bytes, at most ", kMostSaltBytes, " are possible."),
        "cache_salt");
  }
  std::vector<int32_t> biased;
  for (const auto& [id, bias] : s.logit_bias) biased.push_back(id);
  if (auto e = CheckIds("logit_bias", biased, facts.vocab_size)) return e;
  if (auto e = CheckIds("allowed_token_ids", s.allowed_token_ids, facts.vocab_size)) return e;
  return CheckIds("stop_token_ids", s.stop_token_ids, facts.vocab_size);
}

// Sorted, each once: they are searched and walked at every step.
void Tidy(std::vector<int32_t>& ids) {
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

// Every choice has a matcher for every stop string.
MaybeError CheckStops(const std::vector<std::string>& stops) {
  constexpr size_t kMaxStops = 64, kMaxBytes = 16 << 10;
  size_t bytes = 0;
  for (const std::string& stop : stops) bytes += stop.size();
  if (stops.size() <= kMaxStops && bytes <= kMaxBytes) return std::nullopt;
  return BadRequest(StrCat("`stop` has ", stops.size(), " strings of ", bytes, " bytes together, at most ", kMaxStops,
                           " of ", kMaxBytes, " bytes are possible."),
                    "stop");
}

// Nothing is ever truncated that the client did not ask for.
MaybeError Truncate(const WorkerFacts& facts, const RequestInput& input, PromptIds& ids) {
  if (!input.truncate_prompt_tokens) return std::nullopt;
  const int32_t asked = *input.truncate_prompt_tokens;
  if (asked == 0 || asked < -1) {
    return BadRequest(StrCat("`truncate_prompt_tokens` must be -1 or at least 1, got ", asked, "."),
                      "truncate_prompt_tokens");
  }
  const int32_t room = facts.max_model_len - input.sampling.max_tokens.value_or(1);
  const auto kept = static_cast<size_t>(std::max(1, asked == -1 ? room : asked));
  if (ids.size() <= kept) return std::nullopt;
  const auto first = input.truncates_end ? ids.begin() : ids.end() - static_cast<ptrdiff_t>(kept);
  ids = std::vector<int32_t>(first, first + static_cast<ptrdiff_t>(kept));
  return std::nullopt;
}

// Sets max_tokens, or says by how much the context is exceeded.
MaybeError FitContext(const WorkerFacts& facts, const SamplingOptions& defaults, const RequestInput& input,
                      int64_t prompt, SamplingOptions& s) {
  const int64_t context = facts.max_model_len;
  if (prompt == 0) return BadRequest("The prompt is empty: it has 0 tokens.", "prompt");
  const bool asked = s.max_tokens.has_value();
  const int64_t wanted = asked ? *s.max_tokens : 1;
  if (prompt + wanted > context) {
    return BadRequest(
        StrCat("This model's maximum context length is ", context, " tokens. However, you requested ", wanted,
               " output tokens and your prompt contains ", prompt, " input tokens, for a total of ", prompt + wanted,
               " tokens. Please reduce the length of the input prompt or the number of "
               "requested output tokens."),
        asked ? input.max_tokens_field : "prompt", "context_length_exceeded");
  }
  if (asked) return std::nullopt;
  int64_t most = context - prompt;
  if (defaults.max_tokens) {
    most = std::min<int64_t>(most, *defaults.max_tokens);
  } else if (input.default_max_tokens) {
    most = std::min<int64_t>(most, *input.default_max_tokens);
  }
  s.max_tokens = static_cast<int32_t>(std::max<int64_t>(most, s.min_tokens.value_or(1)));
  if (*s.max_tokens > context - prompt)
    return BadRequest(StrCat("`min_tokens` (", *s.min_tokens, ") does not fit the context of ", context,
                             " tokens after a prompt of ", prompt, "."),
                      "min_tokens");
  return std::nullopt;
}

std::variant<TokenizedPrompt, ApiError> Tokenize(const ModelText& model, const std::string& text,
                                                 bool add_special_tokens, std::string_view salt, size_t most_bytes) {
  if (text.size() > most_bytes) {
    return BadRequest(StrCat("This prompt has ", text.size(), " bytes, and at most ", most_bytes,
                             " can be within this model's maximum context length. Please reduce its length."),
                      "prompt", "context_length_exceeded");
  }
  auto ids = model.prompt_ids->Encode(text, add_special_tokens, salt);
  if (!ids.ok()) return FromStatus(ids.status());
  return TokenizedPrompt{*std::move(ids)};
}

// Texts of more bytes need not be tokenized to know that they are too long: normalizers make a text shorter, too, but
// not by so much.
size_t MostTextBytes(const ModelText& model, const WorkerFacts& facts, const RequestInput& input) {
  constexpr size_t kNormalizedTo = 4;
  if (model.longest_token == 0 || input.truncate_prompt_tokens) return kAnyTextBytes;
  return kNormalizedTo * model.longest_token * static_cast<size_t>(facts.max_model_len);
}

ApiError NoTokenizer(const std::string& field, std::string_view instead) {
  return BadRequest(
      StrCat("`", field, "`: this server has no tokenizer (--skip-tokenizer-init), so that ", instead, "."), field);
}

ThoughtForm FormOf(const ModelText& model, const RouterConfig& config) {
  if (config.reasoning_parser == "deepseek_r1") return ThoughtForm::kUntagged;
  if (config.reasoning_parser == "qwen3") return ThoughtForm::kTagged;
  const bool shows =
      config.reasoning_parser == "auto" && model.chat_template && ShowsThoughts(model.chat_template->source());
  return shows ? ThoughtForm::kTagged : ThoughtForm::kNone;
}

}  // namespace

bool MayThink(const ModelText& model, const RouterConfig& config) {
  return FormOf(model, config) != ThoughtForm::kNone ||
         (model.chat_template && ShowsThoughts(model.chat_template->source()));
}

namespace {

// The request's grammar is of what follows its thoughts; a budget is a grammar of the thoughts.
MaybeError TakeThoughts(const ModelText& model, const WorkerFacts& facts, const RequestInput& input, ThoughtStart start,
                        SamplingOptions& s) {
  constexpr char kBudget[] = "thinking_token_budget";
  const auto& budget = input.thinking_budget;
  if (budget && *budget < 0)
    return BadRequest(StrCat("`", kBudget, "` must be at least 0, got ", *budget, "."), kBudget);
  if (start == ThoughtStart::kNone) {
    if (budget && !input.thinking_budget_is_a_wish)
      return NotBuilt(kBudget, "a budget for thoughts of a model that writes none (--reasoning-parser)");
    return std::nullopt;
  }
  if (!budget && !s.grammar) return std::nullopt;
  if (s.grammar && start == ThoughtStart::kClosed) return std::nullopt;  // it is of the whole answer
  const std::string field = s.grammar ? input.grammar_field : kBudget;
  auto whole = AfterThoughts(s.grammar.get(), start, budget, *model.tokenizer);
  const auto check = [&] { return model.grammars->Check(*s.grammar, field, facts.tokenizer_digest, input.grammar_by); };
  if (const auto* why = std::get_if<std::string>(&whole)) {
    if (s.grammar) {
      if (auto error = check()) return error;
    }
    return NotBuilt(field, StrCat("this field ", *why));
  }
  s.grammar = std::make_shared<const Grammar>(std::get<Grammar>(std::move(whole)));
  return check();
}

// Of a grammar with several schemas in it: the one that is at fault, if that can be told in time.
ApiError OfItsPart(const ModelText& model, const WorkerFacts& facts, const RequestInput& input, ApiError whole) {
  const SteadyClock clock;
  for (const SchemaPart& part : input.grammar_parts) {
    if (whole.http_status != 400 || clock.Now() >= input.grammar_by) break;
    auto error = model.grammars->Check({GrammarKind::kJsonSchema, part.schema}, part.field, facts.tokenizer_digest,
                                       input.grammar_by);
    if (error && error->http_status == 400) return *std::move(error);
  }
  return whole;
}

// A worker finds the best of its beams; of choices that are drawn, this router does.
void DrawEnough(SamplingOptions& s, PreparedRequest& out) {
  const int32_t drawn = ChoicesDrawn(s);
  out.answers = s.n;
  out.shows_logprobs = s.logprobs.has_value();
  s.best_of = drawn;
  if (IsBeamSearch(s)) return;
  s.best_of.reset();
  if (drawn == s.n) return;
  s.n = drawn;
  s.logprobs = s.logprobs.value_or(0);
}

}  // namespace

size_t TextBytes(const Prompt& prompt) {
  if (const auto* text = std::get_if<TextPrompt>(&prompt)) return text->text.size();
  if (const auto* chat = std::get_if<ChatPrompt>(&prompt)) {
    return chat->messages_json.size() + chat->tools_json.size() + chat->kwargs_json.size();
  }
  return 0;
}

size_t TextBytes(const RequestInput& input) {
  size_t words = 0;
  for (const std::string& word : input.bad_words) words += word.size() + 16;
  return words + TextBytes(input.prompt) +
         (input.sampling.grammar ? kShortTextBytes + input.sampling.grammar->text.size() : 0);
}

MaybeError CheckNeedsNoText(const ModelText& model, const Prompt& prompt) {
  if (model.tokenizer->exists() || std::holds_alternative<TokensPrompt>(prompt)) return std::nullopt;
  const std::string field = std::holds_alternative<ChatPrompt>(prompt) ? "messages" : "prompt";
  return NoTokenizer(field, "a prompt is an array of token ids, of /v1/completions");
}

MaybeError CheckNeedsNoText(const ModelText& model, const RequestInput& input) {
  if (model.tokenizer->exists()) return std::nullopt;
  if (auto e = CheckNeedsNoText(model, input.prompt)) return e;
  if (!input.stop.empty()) return NoTokenizer("stop", "stop_token_ids end an answer");
  if (!input.bad_words.empty()) return NoTokenizer("bad_words", "logit_bias and allowed_token_ids keep tokens out");
  if (input.sampling.grammar) return NoTokenizer(input.grammar_field, "nothing holds an answer to a form");
  if (input.shows_prompt) return NoTokenizer("echo", "an answer has prompt_token_ids");
  return std::nullopt;
}

namespace {

// The server's variables of the template, then the request's: of two equal names the last counts.
std::string VariablesOf(const ModelText& model, const ChatPrompt& chat) {
  if (model.template_defaults.empty()) return chat.kwargs_json;
  if (chat.kwargs_json.size() <= 2) return model.template_defaults;
  return StrCat(model.template_defaults.substr(0, model.template_defaults.size() - 1), ",", chat.kwargs_json.substr(1));
}

/// The text that the model's template makes of a chat.
std::variant<std::string, ApiError> RenderChat(const ModelText& model, const ChatPrompt& chat) {
  const ChatTemplate& chat_template = *model.chat_template;
  const std::string variables = VariablesOf(model, chat);
  RenderRequest render{chat.messages_json,          chat.tools_json, variables, chat.add_generation_prompt,
                       chat.continue_final_message, std::nullopt};
  const bool other_role = HasOtherRole(chat.messages_json);
  if (other_role) {
    if (auto left_out = LeftOutMessage(chat_template, render)) return BadRequest(*std::move(left_out), "messages");
  }
  const std::string known = other_role ? WithKnownRoles(chat.messages_json, chat_template.source()) : "";
  if (other_role) render.messages_json = known;
  absl::StatusOr<std::string> rendered = chat_template.Render(render);
  if (rendered.ok()) return *std::move(rendered);
  // An error that the template itself raised is passed on as it is; all others name the template already.
  constexpr std::string_view kPlace = "chat template";
  const std::string_view message = View(rendered.status().message());
  return BadRequest(StrCat(message.starts_with(kPlace) ? "" : StrCat(kPlace, ": "), message,
                           other_role ? RolesKnown(chat.messages_json, chat_template.source()) : ""),
                    "messages");
}

}  // namespace

bool TakeSeen(const ModelText& model, Prompt& prompt, std::string_view salt) {
  const auto* chat = std::get_if<ChatPrompt>(&prompt);
  if (chat == nullptr || !model.chat_template || model.chat_template->reads_clock()) return false;
  auto ids = model.seen_chats->Find(*chat, salt);
  if (!ids) return false;
  prompt = SeenPrompt{*std::move(ids)};
  return true;
}

std::variant<TokenizedPrompt, ApiError> TokenizePrompt(const ModelText& model, const Prompt& prompt,
                                                       std::string_view salt, size_t most_bytes) {
  if (auto e = CheckNeedsNoText(model, prompt)) return *std::move(e);
  if (const auto* ids = std::get_if<TokensPrompt>(&prompt)) return TokenizedPrompt{*ids};
  if (const auto* seen = std::get_if<SeenPrompt>(&prompt)) return TokenizedPrompt{seen->ids};
  if (const auto* text = std::get_if<TextPrompt>(&prompt))
    return Tokenize(model, text->text, text->add_special_tokens, salt, most_bytes);
  const ChatPrompt& chat = std::get<ChatPrompt>(prompt);
  if (!model.chat_template) {
    return BadRequest("This model has no chat template; use /v1/completions, or start the server with --chat-template.",
                      "messages");
  }
  const bool lasting = !model.chat_template->reads_clock();
  if (lasting) {
    if (auto seen = model.seen_chats->Find(chat, salt)) return TokenizedPrompt{*std::move(seen)};
  }
  const auto rendered = RenderChat(model, chat);
  if (const auto* error = std::get_if<ApiError>(&rendered)) return *error;
  auto out = Tokenize(model, std::get<std::string>(rendered), chat.add_special_tokens, salt, most_bytes);
  if (const auto* made = std::get_if<TokenizedPrompt>(&out); made && lasting)
    model.seen_chats->Keep(chat, made->ids, salt);
  return out;
}

std::variant<PreparedRequest, ApiError> Prepare(const ModelText& model, const WorkerFacts& facts,
                                                const RouterConfig& config, RequestInput input) {
  if (auto e = CheckNeedsNoText(model, input)) return *std::move(e);
  if (auto e = CheckSamplingNumbers(input.sampling)) return *std::move(e);
  if (auto e = CheckCounts(input, facts, config)) return *std::move(e);
  if (auto e = CheckBestOf(input, config)) return *std::move(e);
  Tidy(input.sampling.stop_token_ids);
  Tidy(input.sampling.allowed_token_ids);
  if (auto e = CheckStops(input.stop)) return *std::move(e);
  if (auto e = ReadBadWords(input.bad_words, *model.tokenizer, facts.vocab_size, input.sampling.bad_words))
    return *std::move(e);
  if (const auto& grammar = input.sampling.grammar) {
    if (auto e = WriteTokenRules(input.token_rules, *model.tokenizer, input.sampling.grammar)) return *std::move(e);
    if (auto e = model.grammars->Check(*grammar, input.grammar_field, facts.tokenizer_digest, input.grammar_by))
      return OfItsPart(model, facts, input, *std::move(e));
  }
  auto tokenized = TokenizePrompt(model, input.prompt, input.cache_salt, MostTextBytes(model, facts, input));
  if (auto* error = std::get_if<ApiError>(&tokenized)) return std::move(*error);
  auto& ids = std::get<TokenizedPrompt>(tokenized).ids;
  const auto bad_id = CheckPromptIds(ids, facts.vocab_size);
  if (bad_id && !std::holds_alternative<TokensPrompt>(input.prompt)) {  // the client named no ids: it is not at fault
    return FromStatus(
        absl::FailedPreconditionError(StrCat("The tokenizer of this server, with ", model.tokenizer->vocab_size(),
                                             " tokens, is not its model's: ", bad_id->message)));
  }
  if (bad_id) return *bad_id;
  if (auto e = Truncate(facts, input, ids)) return *std::move(e);

  PreparedRequest out;
  TokenizedRequest& g = out.generation;
  g.sampling = ResolveSampling(input.sampling, model.defaults);
  if (auto e = FitContext(facts, model.defaults, input, static_cast<int64_t>(ids.size()), g.sampling))
    return *std::move(e);
  DrawEnough(g.sampling, out);
  // Drawn at admission, so that every attempt of the request draws the same numbers.
  if (!g.sampling.seed) g.sampling.seed = RandomWord() & 0x7fffffffffffffffull;
  if (IsBeamSearch(input.sampling)) input.thinking_budget.reset();  // a wish
  const ThoughtStart thoughts =
      input.splits_thoughts ? ThoughtStartOf(FormOf(model, config), *model.tokenizer, ids) : ThoughtStart::kNone;
  if (auto e = TakeThoughts(model, facts, input, thoughts, g.sampling)) return *std::move(e);
  g.request_id = std::move(input.request_id);
  g.prompt = std::move(ids);
  g.eos_token_ids = model.eos_token_ids.empty() ? facts.eos_token_ids : model.eos_token_ids;
  g.stop = std::move(input.stop);
  g.include_stop_str_in_output = input.include_stop_str_in_output;
  const bool needs_tags = thoughts != ThoughtStart::kNone && ThoughtTagsAreSpecial(*model.tokenizer);
  g.skip_special_tokens = input.skip_special_tokens && !needs_tags;
  g.priority = input.priority;
  g.cache_salt = std::move(input.cache_salt);
  g.session = std::move(input.session);
  g.traceparent = std::move(input.traceparent);
  g.timeout = input.timeout;
  for (int32_t i = 0; i < g.sampling.n; ++i) {
    auto matcher = StopMatcher::Create(g.stop, g.include_stop_str_in_output);
    if (!matcher.ok()) return BadRequest(StrCat("`stop`: ", matcher.status().message()), "stop");
    out.texts.emplace_back(*model.tokenizer, g, *std::move(matcher), thoughts);
  }
  return out;
}

const std::string& PublicModelName(const RouterConfig& config, const ModelText& model) {
  return config.served_model_name.empty() ? model.name : config.served_model_name.front();
}

std::vector<std::string> PublicModelNames(const RouterConfig& config, const ModelText& model) {
  return config.served_model_name.empty() ? std::vector<std::string>{model.name} : config.served_model_name;
}

bool ServesModel(const RouterConfig& config, const ModelText& model, const std::string& name) {
  if (name.empty()) return true;
  if (config.served_model_name.empty()) return name == model.name || name == config.model;
  const auto& names = config.served_model_name;
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace baton::router
