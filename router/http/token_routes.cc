// The routes between text and token ids: /tokenize and /detokenize.
#include <utility>

#include "common/str_cat.h"
#include "router/http/openai_call.h"
#include "router/json_writer.h"

namespace baton::router {

void OpenAiApp::Tokenize(const std::shared_ptr<Call>& call) {
  const CallServices& s = service_.services();
  auto parsed = ParseTokenizeRequest(call->request.body, call->Limits(s.config));
  if (auto* error = std::get_if<ApiError>(&parsed)) return call->Fail(*error);
  TokenizeRequest request = std::move(std::get<TokenizeRequest>(parsed));
  if (!ServesModel(s.config, s.model, request.model))
    return call->Fail(ModelNotFound(request.model, PublicModelNames(s.config, s.model)));
  const size_t bytes = TextBytes(request.prompt);
  const bool strings = request.return_token_strs;
  auto work = [&model = s.model, prompt = std::move(request.prompt), salt = SaltOf(*call, "")] {
    return TokenizePrompt(model, prompt, salt);
  };
  auto then = [this, call, strings](std::variant<TokenizedPrompt, ApiError> result) {
    if (auto* error = std::get_if<ApiError>(&result)) return call->Fail(*error);
    const auto& ids = std::get<TokenizedPrompt>(result).ids;
    std::string out;
    JsonWriter w(out);
    w.BeginObject().Field("count", static_cast<int64_t>(ids.size()));
    const auto facts = service_.fleet().model_facts();
    facts ? w.Field("max_model_len", facts->max_model_len) : w.NullField("max_model_len");
    w.Key("tokens").BeginArray();
    for (const int32_t id : ids) w.Int(id);
    w.EndArray().Key("token_strs");
    if (strings) {
      w.BeginArray();
      for (const int32_t id : ids) w.String(service_.services().model.tokenizer->IdToToken(id));
      w.EndArray();
    } else {
      w.Null();
    }
    w.EndObject();
    call->RespondJson(std::move(out));
  };
  service_.RunText(call->exchange->loop(), bytes, AccountOf(*call), std::move(work), std::move(then));
}

void OpenAiApp::Detokenize(const std::shared_ptr<Call>& call) {
  const CallServices& s = service_.services();
  auto parsed = ParseDetokenizeRequest(call->request.body, call->Limits(s.config));
  if (auto* error = std::get_if<ApiError>(&parsed)) return call->Fail(*error);
  DetokenizeRequest& request = std::get<DetokenizeRequest>(parsed);
  if (!ServesModel(s.config, s.model, request.model))
    return call->Fail(ModelNotFound(request.model, PublicModelNames(s.config, s.model)));
  if (!s.model.tokenizer->exists())
    return call->Fail(BadRequest("`tokens`: this server has no tokenizer (--skip-tokenizer-init).", "tokens"));
  const int32_t vocab = s.model.tokenizer->vocab_size();
  for (const int32_t id : request.tokens) {
    if (id < 0 || id >= vocab) {
      return call->Fail(
          BadRequest(StrCat("`tokens`: token id ", id, " is out of the vocabulary (0 to ", vocab - 1, ")."), "tokens"));
    }
  }
  const size_t bytes = request.tokens.size() * sizeof(int32_t);
  auto work = [&model = s.model, tokens = std::move(request.tokens)] {
    return std::variant<std::string, ApiError>(model.tokenizer->Decode(tokens, false));
  };
  auto then = [call](std::variant<std::string, ApiError> text) {
    if (auto* error = std::get_if<ApiError>(&text)) return call->Fail(*error);
    std::string out;
    JsonWriter(out).BeginObject().Field("prompt", std::get<std::string>(text)).EndObject();
    call->RespondJson(std::move(out));
  };
  service_.RunText(call->exchange->loop(), bytes, AccountOf(*call), std::move(work), std::move(then));
}

}  // namespace baton::router
