// OpenAiApp: the routes of the HTTP frontend. Thread-safe; each request is handled on its exchange's loop.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "router/admission/api_keys.h"
#include "router/admission/request_ids.h"
#include "router/http/answer_format.h"
#include "router/http/http_types.h"
#include "router/http/json_request.h"
#include "router/http/response_memory.h"
#include "router/http/seen_bodies.h"
#include "router/http/web_guard.h"
#include "router/request/request_service.h"

namespace baton::router {

/// Before a model's name, which may have slashes.
inline constexpr std::string_view kModelPrefix = "/v1/models/";

class OpenAiApp {
 public:
  /// Everything given outlives the app.
  OpenAiApp(RequestService& service, const ApiKeys& keys, RequestIds& ids, std::string version);

  void Handle(std::shared_ptr<HttpExchange> exchange, HttpRequest request) {
    Handle(std::move(exchange), std::move(request), false);
  }
  /// `admin`: it came to the admin port.
  void Handle(std::shared_ptr<HttpExchange> exchange, HttpRequest request, bool admin);
  /// False: Handle answers the request without its body, for want of a key or of such a path.
  bool TakesBody(const HttpRequest& head) const;
  const WebGuard& guard() const { return guard_; }
  /// Of the caches of the caller's key, with the salt that he gave.
  std::string SaltOf(const HttpRequest& request, const std::string& client_salt) const;

 private:
  struct Call;  // one request on its way
  using Handler = void (OpenAiApp::*)(const std::shared_ptr<Call>&);
  struct Route {
    const char* path;
    const char* method;
    Handler handler;
    bool guarded;  // needs an API key
    bool counted;  // in the HTTP metrics
  };
  static const Route kRoutes[];
  /// That of its path and method; of another method if there is none for this one. Null: no such path.
  static const Route* RouteOf(const HttpRequest& request);

  void Front(const std::shared_ptr<Call>& call);
  void Models(const std::shared_ptr<Call>& call);
  void OneModel(const std::shared_ptr<Call>& call);
  void Chat(const std::shared_ptr<Call>& call);
  void Text(const std::shared_ptr<Call>& call);
  // Of other APIs: other_apis.cc.
  void Messages(const std::shared_ptr<Call>& call);
  void CountTokens(const std::shared_ptr<Call>& call);
  void Responses(const std::shared_ptr<Call>& call);
  // Of answers that are kept: kept_responses.cc.
  void OneResponse(const std::shared_ptr<Call>& call);
  void ForgetResponse(const std::shared_ptr<Call>& call);
  void InputItems(const std::shared_ptr<Call>& call);
  void CancelResponse(const std::shared_ptr<Call>& call);
  void InputTokens(const std::shared_ptr<Call>& call);
  void OllamaChat(const std::shared_ptr<Call>& call);
  void OllamaGenerate(const std::shared_ptr<Call>& call);
  /// What was asked nothing: its model is loaded, as it always is.
  void OllamaLoaded(const std::shared_ptr<Call>& call, const CompletionRequest& request);
  void OllamaTags(const std::shared_ptr<Call>& call);
  void OllamaShow(const std::shared_ptr<Call>& call);
  void OllamaRunning(const std::shared_ptr<Call>& call);
  void OllamaVersion(const std::shared_ptr<Call>& call);
  // Between text and token ids: token_routes.cc.
  void Tokenize(const std::shared_ptr<Call>& call);
  void Detokenize(const std::shared_ptr<Call>& call);
  void Health(const std::shared_ptr<Call>& call);
  void Live(const std::shared_ptr<Call>& call);
  void Ready(const std::shared_ptr<Call>& call);
  void Metrics(const std::shared_ptr<Call>& call);
  void Version(const std::shared_ptr<Call>& call);
  void OpenApi(const std::shared_ptr<Call>& call);
  void Load(const std::shared_ptr<Call>& call);
  void Preflight(const std::shared_ptr<Call>& call);

  void Dispatch(const std::shared_ptr<Call>& call);
  void WrongMethod(const std::shared_ptr<Call>& call);
  void Parse(const std::shared_ptr<Call>& call, BodyParser parse, const char* id_prefix);
  void Complete(const std::shared_ptr<Call>& call, std::variant<CompletionRequest, ApiError> parsed,
                const char* id_prefix);
  /// A chat whose ids are known: the same body is not read again. Takes the body then.
  void KeepIfSeen(Call& call, BodyParser parse, CompletionRequest& request);
  /// Puts the turns before a request of /v1/responses in front of it. `keep`: where its own go then.
  std::optional<ApiError> GoOn(const Call& call, const std::string& id, CompletionRequest& request, AnswerKeeper& keep);
  /// Answers with {…"input_tokens":N}; `object`: of which kind it is, or empty.
  void AnswerTokensOf(const std::shared_ptr<Call>& call, CompletionRequest request, std::string_view object);
  /// `keep` hears of the answer, for ResponsesFormat.
  static std::unique_ptr<AnswerFormat> MakeFormat(const CompletionRequest& request, AnswerHead head,
                                                  const Tokenizer& tokenizer, AnswerKeeper keep);
  /// The request's key as "Bearer KEY"; Anthropic's clients send it as x-api-key.
  static std::string KeyOf(const HttpRequest& request);
  /// Of the caller's key; null: it has none.
  KeyAccount* AccountOf(const Call& call) const;
  std::string SaltOf(const Call& call, const std::string& client_salt) const;
  void TellOfUnknown(Call& call, const std::vector<std::string>& fields);
  std::string ModelCard(const std::string& name) const;
  std::string AnthropicModelCard(const std::string& name) const;

  RequestService& service_;
  const ApiKeys& keys_;
  RequestIds& ids_;
  const std::string version_;
  const WebGuard guard_;
  const int64_t started_;  // unix seconds
  static constexpr size_t kRememberedBytes = 64 << 20, kRememberedOfAll = size_t{1} << 30;
  const std::shared_ptr<ResponseMemory> responses_ =
      std::make_shared<ResponseMemory>(kRememberedBytes, kRememberedOfAll);
  SeenBodies seen_bodies_;
  std::mutex told_mutex_;
  std::set<std::string> told_;  // unknown fields that the log has named
};

/// The OpenAPI 3.1 description, as JSON.
const std::string& OpenApiDocument();

}  // namespace baton::router
