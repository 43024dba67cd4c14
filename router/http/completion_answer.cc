#include "router/http/completion_answer.h"

#include <algorithm>
#include <utility>

#include "common/str_cat.h"
#include "router/dialect/call_grammar.h"
#include "router/dialect/call_marks.h"
#include "router/http/finish_reason.h"
#include "router/request/best_of.h"

namespace baton::router {
namespace {

// Where it is, the text would be without it.
bool MarkIsSpecial(const CallForm& form, const Tokenizer& tokenizer) {
  return MarkOf(tokenizer, form.open).token.has_value();
}

}  // namespace

// Holds the answer while a prompt runs; RequestDriver drops it at the end, which breaks the circle.
class CompletionAnswer::PromptSink final : public AnswerSink {
 public:
  PromptSink(std::shared_ptr<CompletionAnswer> answer, size_t prompt) : answer_(std::move(answer)), prompt_(prompt) {}
  void OnAdmitted(const TokenizedRequest& g, int64_t cached) override { answer_->Admitted(prompt_, g, cached); }
  void OnPromptLogprobs(std::vector<PositionLogprobs> p) override { answer_->PromptLogprobs(prompt_, std::move(p)); }
  void OnDelta(ChoiceDelta&& d, const RequestUsage& u) override { answer_->Delta(prompt_, std::move(d), u); }
  void OnChoiceEnd(const ChoiceFinish& f) override { answer_->ChoiceEnded(prompt_, f); }
  void OnDone(const RequestSummary& s) override { answer_->Done(prompt_, s); }
  void OnFailed(const ApiError& e) override { answer_->Failed(e); }
  size_t UnsentBytes() const override { return answer_->exchange_->UnsentBytes(); }
  uint64_t TakenBytes() const override { return answer_->exchange_->TakenBytes(); }

 private:
  const std::shared_ptr<CompletionAnswer> answer_;
  const size_t prompt_;
};

CompletionAnswer::CompletionAnswer(RequestService& service, std::shared_ptr<HttpExchange> exchange,
                                   CompletionRequest request, std::unique_ptr<AnswerFormat> format, HttpHeaders headers,
                                   Options options)
    : service_(service),
      exchange_(std::move(exchange)),
      request_(std::move(request)),
      format_(std::move(format)),
      headers_(std::move(headers)),
      options_(std::move(options)),
      n_(static_cast<uint32_t>(std::max(1, request_.input.sampling.n))),
      ping_(exchange_->loop().MakeTimer()) {}

const CallForm* CompletionAnswer::Form() const {
  const CallServices& s = service_.services();
  return s.config.tool_call_parser == "auto" ? s.model.call_form : FindCallForm(s.config.tool_call_parser);
}

std::unique_ptr<ToolCallReader> CompletionAnswer::MakeReader() const {
  if (request_.callable.empty()) return nullptr;
  std::vector<std::string> names;
  for (const Callable& one : request_.callable) names.push_back(one.name);
  return request_.must_call ? ReadForcedCall(std::move(names)) : ReadFreeCalls(*Form(), std::move(names), calls_fit_);
}

std::optional<ApiError> CompletionAnswer::HoldStrictCalls() {
  if (request_.input.sampling.grammar) return std::nullopt;
  const Tokenizer& tokenizer = *service_.services().model.tokenizer;
  for (const Callable& one : request_.callable) {
    if (one.strict) request_.input.grammar_parts.push_back(SchemaOf(one));
  }
  auto lark = FreeCallGrammar(*Form(), request_.callable, tokenizer);
  for (size_t i = 0; !lark.ok() && i < request_.callable.size(); ++i) {
    const auto alone = FreeCallGrammar(*Form(), {request_.callable[i]}, tokenizer);
    const std::string field = SchemaOf(request_.callable[i]).field;
    if (!alone.ok()) return BadRequest(StrCat("`", field, "`: ", alone.status().message(), "."), field);
  }
  if (!lark.ok()) return BadRequest(StrCat("`tools`: ", lark.status().message(), "."), "tools");
  if (lark->empty()) return std::nullopt;
  request_.input.sampling.grammar = std::make_shared<const Grammar>(Grammar{GrammarKind::kLark, *std::move(lark)});
  request_.input.grammar_field = "tools";
  calls_fit_ = true;
  return std::nullopt;
}

void CompletionAnswer::Start() {
  const auto max_choices = static_cast<size_t>(service_.services().config.max_choices);
  const auto drawn = static_cast<size_t>(ChoicesDrawn(request_.input.sampling));
  if (request_.input.sampling.n >= 1 && request_.prompts.size() * drawn > max_choices) {
    const size_t prompts = request_.prompts.size();
    const char* const field = drawn > n_ ? "best_of" : "n";
    return Failed(BadRequest(
        prompts == 1 ? StrCat("`", field, "` must be in [1, ", max_choices, "], got ", drawn, " (--max-choices).")
                     : StrCat(prompts, " prompts times ", field, "=", drawn, " choices is more than ", max_choices,
                              " (--max-choices)."),
        field));
  }
  if (const KeyAccount* account = request_.input.account) {
    if (auto error = account->CheckEver(request_.prompts.size())) return Failed(*std::move(error));
  }
  const bool calls_freely = !request_.callable.empty() && !request_.must_call;
  if (calls_freely && Form() == nullptr) {
    return Failed(NotBuilt("tools",
                           "calling functions by the model's own choice in this model's way (only with tool_choice "
                           "\"required\", a named function or \"none\"; --tool-call-parser names a way)"));
  }
  if (calls_freely) {
    if (auto error = HoldStrictCalls()) return Failed(*std::move(error));
  }
  if (calls_freely && MarkIsSpecial(*Form(), *service_.services().model.tokenizer))
    request_.input.skip_special_tokens = false;
  choices_.resize(request_.prompts.size() * n_);
  for (uint32_t i = 0; i < choices_.size(); ++i) {
    choices_[i].part.index = i;
    choices_[i].part.wants_logprobs = request_.input.sampling.logprobs.has_value();
    choices_[i].reader = MakeReader();
  }
  prompts_.resize(request_.prompts.size());
  exchange_->Watch(
      [weak = weak_from_this()] {
        if (auto self = weak.lock()) {
          self->Cancel();
          self->End(499);
        }
      },
      static_cast<size_t>(service_.services().config.write_buffer_bytes),
      [weak = weak_from_this()] {
        auto self = weak.lock();
        for (size_t i = 0; self && i < self->prompts_.size(); ++i) {
          if (self->prompts_[i].handle) self->prompts_[i].handle->OutputDrained();
        }
      });
  for (size_t i = 0; i < prompts_.size() && !over_; ++i) {
    RequestInput input = request_.input;
    input.prompt = request_.echo ? request_.prompts[i] : std::move(request_.prompts[i]);
    if (prompts_.size() > 1) absl::StrAppend(&input.request_id, "-", i);
    auto handle =
        service_.Submit(exchange_->loop(), std::move(input), std::make_shared<PromptSink>(shared_from_this(), i));
    if (!over_) {
      prompts_[i].handle = std::move(handle);
    } else {
      handle->ClientGone();
    }
  }
}

void CompletionAnswer::Admitted(size_t prompt, const TokenizedRequest& generation, int64_t cached_tokens) {
  if (over_) return;
  PromptState& state = prompts_[prompt];
  if (request_.return_token_ids || request_.input.sampling.prompt_logprobs) state.ids = generation.prompt;
  state.usage = RequestUsage{static_cast<int64_t>(generation.prompt.size()), 0, cached_tokens};
  seed_ = generation.sampling.seed;
  if (request_.stream && options_.sse_ping_ms > 0 && last_write_ == TimePoint{}) {
    last_write_ = service_.services().clock.Now();
    Ping();
  }
  if (!request_.echo || !state.echo.empty()) return;
  const auto* text = std::get_if<TextPrompt>(&request_.prompts[prompt]);
  state.echo = request_.chat ? request_.echo_text
               : text
                   ? text->text
                   : service_.services().model.tokenizer->Decode(generation.prompt, request_.input.skip_special_tokens);
  for (uint32_t i = 0; i < n_; ++i) {
    Choice& choice = choices_[prompt * n_ + i];
    choice.part.text = state.echo;
  }
}

void CompletionAnswer::PromptLogprobs(size_t prompt, std::vector<PositionLogprobs> positions) {
  if (over_) return;
  if (!request_.chat && request_.echo && request_.input.sampling.logprobs) {
    // The echoed prompt's logprobs stand before the completion's; its first token has none.
    PositionLogprobs first;
    if (!prompts_[prompt].ids.empty()) first.chosen.token_id = prompts_[prompt].ids[0];
    for (uint32_t i = 0; i < n_; ++i) {
      auto& logprobs = choices_[prompt * n_ + i].part.logprobs;
      logprobs.insert(logprobs.begin(), positions.begin(), positions.end());
      logprobs.insert(logprobs.begin(), first);
    }
  }
  prompts_[prompt].logprobs = std::move(positions);
}

AnswerTail CompletionAnswer::ChunkTail() const {
  AnswerTail tail;
  tail.usage = TotalUsage();
  if (request_.include_usage) tail.usage_kind = request_.continuous_usage ? UsageKind::kGiven : UsageKind::kNull;
  return tail;
}

AnswerTail CompletionAnswer::TailOf(Choice& choice) {
  AnswerTail tail = ChunkTail();
  if (request_.chat || !request_.return_token_ids || std::exchange(choice.prompt_shown, true)) return tail;
  tail.prompt = &prompts_[choice.part.index / n_].ids;
  return tail;
}

RequestUsage CompletionAnswer::TotalUsage() const {
  RequestUsage total;
  for (const PromptState& p : prompts_) {
    total.prompt_tokens += p.usage.prompt_tokens;
    total.completion_tokens += request_.prompt_only ? 0 : p.usage.completion_tokens;
    total.cached_tokens += p.usage.cached_tokens;
    if (p.usage.thought_tokens) total.thought_tokens = total.thought_tokens.value_or(0) + *p.usage.thought_tokens;
  }
  return total;
}

// The head goes out with the first token, so that everything that fails before is a proper HTTP status.
void CompletionAnswer::BeginStream() {
  if (std::exchange(streaming_, true)) return;
  headers_.emplace_back("Cache-Control", "no-cache");
  headers_.emplace_back("X-Accel-Buffering", "no");
  exchange_->StartStream(200, headers_, format_->StreamType());
  AnswerTail tail = ChunkTail();
  tail.usage.completion_tokens = 0;  // a role is no token
  if (request_.chat && request_.return_token_ids) tail.prompt = &prompts_[0].ids;
  Write(format_->Begin(choices_.size(), tail));
}

void CompletionAnswer::Write(std::string_view bytes) {
  if (!bytes.empty()) exchange_->Write(bytes);
}

void CompletionAnswer::Ping() {
  const TimePoint now = service_.services().clock.Now();
  const Duration interval = std::chrono::milliseconds(options_.sse_ping_ms);
  if (now - last_write_ >= interval) {
    BeginStream();
    Write(format_->Ping());
    last_write_ = now;
  }
  ping_->ArmAt(last_write_ + interval, [weak = weak_from_this()] {
    auto self = weak.lock();
    if (self && !self->over_) self->Ping();
  });
}

void CompletionAnswer::Delta(size_t prompt, ChoiceDelta&& delta, const RequestUsage& so_far) {
  if (over_) return;
  prompts_[prompt].usage = so_far;
  if (request_.prompt_only) return;
  Choice& choice = choices_[prompt * n_ + delta.index];
  ChoicePart& part = choice.part;
  const bool of_text_alone = request_.api == Api::kResponses && part.wants_logprobs;
  if (request_.include_reasoning) {
    part.thoughts += delta.thoughts;
  } else if (!of_text_alone) {
    choice.hidden.Take(delta);
  }
  part.token_ids.insert(part.token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
  if (of_text_alone) {
    TakeEachToken(choice, std::move(delta), static_cast<size_t>(so_far.thought_tokens.value_or(0)));
  } else {
    std::move(delta.logprobs.begin(), delta.logprobs.end(), std::back_inserter(part.logprobs));
    ToolCallReader::Piece piece{std::move(delta.text), {}};
    if (choice.reader) piece = choice.reader->Append(piece.text);
    TakeCalls(part, std::move(piece));
  }
  Flush(choice, false);
}

// A token is of the text or of the call that it adds to. What is behind a call is another message, with its own.
void CompletionAnswer::TakeEachToken(Choice& choice, ChoiceDelta&& delta, size_t thoughts) {
  delta.text_ends.push_back(delta.text.size());  // behind the last token
  size_t taken = 0;
  for (size_t i = 0; i < delta.text_ends.size(); ++i) {
    ToolCallReader::Piece piece{delta.text.substr(taken, delta.text_ends[i] - taken), {}};
    taken = delta.text_ends[i];
    if (choice.reader) piece = choice.reader->Append(piece.text);
    const TextPositions::Found found{!piece.text.empty(), !piece.calls.empty()};
    std::vector<PositionLogprobs> one;
    if (i < delta.logprobs.size()) one.push_back(std::move(delta.logprobs[i]));
    choice.text_positions.Take(std::move(one), thoughts, found, choice.part.logprobs);
    TakeCalls(choice.part, std::move(piece));
    if (found.calls) Flush(choice, true);
  }
}

void CompletionAnswer::TakeCalls(ChoicePart& part, ToolCallReader::Piece piece) {
  for (ToolCallReader::Call& call : piece.calls) {
    if (!request_.parallel_calls && call.index > 0) continue;
    part.called = true;
    const size_t at = part.text.size() + call.at;
    if (!call.name.empty()) {
      part.calls.push_back({call.index, NewCallId(Form()), std::move(call.name), std::move(call.arguments), at});
    } else if (!part.calls.empty() && part.calls.back().index == call.index) {
      part.calls.back().arguments += call.arguments;
    } else {
      part.calls.push_back({call.index, "", "", std::move(call.arguments), at});
    }
  }
  part.text += piece.text;
}

void CompletionAnswer::Flush(Choice& choice, bool at_end) {
  if (!request_.stream && !format_->TakesPieces()) return;
  ChoicePart& part = choice.part;
  const bool shows_tokens = part.wants_logprobs || request_.return_token_ids;
  if (part.text.empty() && part.thoughts.empty() && part.calls.empty() && !(shows_tokens && !part.token_ids.empty()))
    return;
  if (!at_end && part.token_ids.size() < static_cast<size_t>(options_.stream_interval)) return;
  if (request_.stream) BeginStream();
  const std::string& piece = format_->Piece(part, TailOf(choice));
  if (request_.stream) {
    Write(piece);
    last_write_ = service_.services().clock.Now();
  }
  if (!request_.chat && !part.logprobs.empty()) part.text_offset += format_->CharactersOfTokens(part);
  part.text.clear();
  part.thoughts.clear();
  part.calls.clear();
  part.token_ids.clear();
  part.logprobs.clear();
}

void CompletionAnswer::ChoiceEnded(size_t prompt, const ChoiceFinish& finish) {
  if (over_) return;
  Choice& choice = choices_[prompt * n_ + finish.index];
  choice.ended = true;
  choice.part.finish = finish;
  ToolCallReader::Piece piece;
  if (choice.reader) piece = choice.reader->Finish(EndedByModel(finish) || IsCloseOfCalls(finish.stop_string));
  if (request_.api == Api::kResponses)
    choice.text_positions.End({!piece.text.empty(), !piece.calls.empty()}, choice.part.logprobs);
  choice.hidden.Show(choice.part.token_ids, choice.part.logprobs);
  TakeCalls(choice.part, std::move(piece));
  choice.part.ended_in_calls = choice.reader && choice.reader->HasWholeCall() && EndedInCalls(finish);
  if (!request_.stream) return;  // Whole has the rest
  Flush(choice, true);
  WriteHeldFinish(false);
  held_finish_.emplace(choice.part.index, finish);
}

// Some clients stop at the mark that ends a call: the call is whole.
bool CompletionAnswer::IsCloseOfCalls(const std::optional<std::string>& stop) const {
  const CallForm* const form = request_.must_call ? nullptr : Form();
  return stop && form != nullptr && !form->close.empty() && *stop == form->close;
}

// Timings ride on the usage chunk if there is one, else on the answer's last finish chunk.
void CompletionAnswer::WriteHeldFinish(bool last) {
  if (!held_finish_) return;
  BeginStream();
  AnswerTail tail = TailOf(choices_[held_finish_->first]);
  if (last && !request_.include_usage) {
    tail.timings = timings_;
    tail.times = times_;
    tail.mixed_numerics = mixed_numerics_;
  }
  Write(format_->Finish(choices_[held_finish_->first].part, held_finish_->second, tail));
  held_finish_.reset();
}

void CompletionAnswer::Done(size_t prompt, const RequestSummary& summary) {
  if (over_) return;
  prompts_[prompt].usage = summary.usage;
  prompts_[prompt].done = true;
  timings_ = summary.timings;
  times_ = summary.times;
  mixed_numerics_ |= summary.mixed_numerics;
  if (!std::all_of(prompts_.begin(), prompts_.end(), [](const PromptState& p) { return p.done; })) return;
  if (!request_.stream) return FinishWhole();
  WriteHeldFinish(true);
  const UsageKind kind = request_.include_usage ? UsageKind::kGiven : UsageKind::kAbsent;
  BeginStream();
  Write(format_->End({kind, TotalUsage(), timings_, mixed_numerics_, times_}));
  exchange_->End();
  End(200);
}

void CompletionAnswer::FinishWhole() {
  WholeParts whole;
  for (Choice& choice : choices_) whole.choices.push_back(std::move(choice.part));
  for (PromptState& p : prompts_) {
    whole.prompts.push_back(std::move(p.ids));
    whole.prompt_logprobs.push_back(std::move(p.logprobs));
  }
  whole.choices_per_prompt = n_;
  whole.fingerprint = options_.fingerprint;
  if (request_.return_seed) whole.seed = seed_;
  HttpResponse response;
  response.headers = headers_;
  response.body = format_->Whole(whole, {UsageKind::kGiven, TotalUsage(), timings_, mixed_numerics_, times_});
  exchange_->Respond(std::move(response));
  End(200);
}

void CompletionAnswer::Failed(ApiError error) {
  if (over_) return;
  // What a worker says of a grammar in the middle of an answer is of the field that it came from.
  if (error.param.empty() && error.http_status == 400 && error.message.starts_with("the grammar")) {
    error.param = request_.input.grammar_field;
    error.message = StrCat("`", error.param, "`: ", error.message);
  } else if (error.param.empty() && error.http_status == 400 && error.message.starts_with("a beam search")) {
    error.param = request_.input.sampling.best_of.value_or(1) > 1 ? "best_of" : "n";
    error.message = StrCat("`", error.param, "`: ", error.message);
  }
  error = InTheirWords(std::move(error), request_.renamed);
  if (streaming_) {
    Write(format_->Broken(error));
    exchange_->End();
  } else {
    exchange_->Respond(ErrorResponse(error, headers_, request_.api));
  }
  End(error.http_status);
  Cancel();
}

void CompletionAnswer::Cancel() {
  over_ = true;
  for (PromptState& p : prompts_) {
    if (auto handle = std::exchange(p.handle, nullptr)) handle->ClientGone();
  }
}

void CompletionAnswer::End(int status) {
  over_ = true;
  ping_->Cancel();
  if (options_.done) options_.done(status);
}

}  // namespace baton::router
