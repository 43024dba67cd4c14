#include "router/grpc/generate_codec.h"

#include <utility>

#include "proto/sampling_codec.h"
#include "router/json_writer.h"

namespace baton::router {
namespace {

std::variant<Prompt, ApiError> DecodePrompt(const v1::GenerateRequest& r) {
  switch (r.prompt_case()) {
    case v1::GenerateRequest::kText: return Prompt(TextPrompt{r.text()});
    case v1::GenerateRequest::kTextBytes: return Prompt(TextPrompt{r.text_bytes()});
    case v1::GenerateRequest::kTokens: return Prompt(TokensPrompt(r.tokens().ids().begin(), r.tokens().ids().end()));
    case v1::GenerateRequest::kChat: break;
    default: return BadRequest("one of text, tokens, chat and text_bytes is required", "prompt");
  }
  if (r.chat().messages().empty())
    return BadRequest("`chat.messages` is empty: at least one message is needed.", "chat");
  ChatPrompt chat;
  JsonWriter w(chat.messages_json);
  w.BeginArray();
  for (const v1::ChatMessage& message : r.chat().messages()) {
    if (message.role().empty()) return BadRequest("`chat.messages`: every message needs a role.", "chat");
    w.BeginObject().Field("role", message.role()).Field("content", message.content()).EndObject();
  }
  w.EndArray();
  return Prompt(std::move(chat));
}

v1::FinishReason FinishOf(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return v1::FINISH_REASON_STOP;
    case FinishReason::kLength: return v1::FINISH_REASON_LENGTH;
    case FinishReason::kAbort: return v1::FINISH_REASON_ABORT;
    case FinishReason::kError: return v1::FINISH_REASON_ERROR;
    default: return v1::FINISH_REASON_UNSPECIFIED;
  }
}

}  // namespace

SamplingOptions DecodeSampling(const v1::SamplingParams& in) {
  SamplingOptions out;
  DecodeSamplingFields(in, out);
  return out;
}

std::variant<RequestInput, ApiError> DecodeGenerate(const v1::GenerateRequest& r) {
  auto prompt = DecodePrompt(r);
  if (auto* error = std::get_if<ApiError>(&prompt)) return std::move(*error);
  RequestInput out;
  out.model = r.model();
  out.prompt = std::get<Prompt>(std::move(prompt));
  out.sampling = DecodeSampling(r.sampling());
  out.stop.assign(r.stop().begin(), r.stop().end());
  out.bad_words.assign(r.bad_words().begin(), r.bad_words().end());
  if (r.has_truncate_prompt_tokens()) out.truncate_prompt_tokens = r.truncate_prompt_tokens();
  out.truncates_end = r.truncates_end();
  out.include_stop_str_in_output = r.include_stop_str_in_output();
  out.skip_special_tokens = r.has_skip_special_tokens() ? r.skip_special_tokens() : true;
  out.priority = r.priority();
  out.shows_prompt = r.echo();
  out.cache_salt = r.cache_salt();
  out.request_id = r.request_id();
  return out;
}

void EncodeLogprobs(const PositionLogprobs& in, v1::PositionLogprobs* out) {
  auto one = [](const TokenLogprob& from, v1::TokenLogprob* to) {
    to->set_token_id(from.token_id);
    to->set_logprob(from.logprob);
    to->set_rank(from.rank);
  };
  one(in.chosen, out->mutable_chosen());
  for (const TokenLogprob& top : in.top) one(top, out->add_top());
}

void EncodeFinish(const ChoiceFinish& finish, v1::GenerateChunk* out) {
  out->set_index(finish.index);
  out->set_finish_reason(FinishOf(finish.reason));
  if (finish.stop_string) {
    out->set_stop_string(*finish.stop_string);
  } else if (finish.stop_token_id) {
    out->set_stop_token_id(*finish.stop_token_id);
  } else if (finish.nothing_allowed) {
    out->set_nothing_allowed(true);
  }
}

void EncodeUsage(const RequestUsage& in, v1::Usage* out) {
  out->set_prompt_tokens(static_cast<int32_t>(in.prompt_tokens));
  out->set_completion_tokens(static_cast<int32_t>(in.completion_tokens));
  out->set_cached_tokens(static_cast<int32_t>(in.cached_tokens));
}

void EncodeTimings(const StageTimings& in, v1::StageTimings* out) {
  out->set_queue_prefill_ms(in.queue_prefill_ms);
  out->set_prefill_ms(in.prefill_ms);
  out->set_transfer_ms(in.transfer_ms);
  out->set_queue_decode_ms(in.queue_decode_ms);
  out->set_first_decode_ms(in.first_decode_ms);
  out->set_decode_ms(in.decode_ms);
  out->set_router_ms(in.router_ms);
  out->set_lost_ms(in.lost_ms);
  out->set_reserve_ms(in.reserve_ms);
  out->set_network_ms(in.network_ms);
}

}  // namespace baton::router
