// The routes of APIs that are not OpenAI's chat and text completions. Each is a translation: the body becomes a chat's
// (json_messages.cc, json_responses.cc, json_ollama.cc), the answer gets a format of its own.
#include <ctime>
#include <utility>

#include "common/str_cat.h"
#include "router/http/messages_format.h"
#include "router/http/ollama_format.h"
#include "router/http/openai_call.h"
#include "router/http/openai_json.h"
#include "router/http/responses_format.h"
#include "router/json_writer.h"

namespace baton::router {

void OpenAiApp::Messages(const std::shared_ptr<Call>& call) { Parse(call, ParseMessagesRequest, "msg_"); }

void OpenAiApp::Responses(const std::shared_ptr<Call>& call) { Parse(call, ParseResponsesRequest, "resp_"); }

void OpenAiApp::OllamaChat(const std::shared_ptr<Call>& call) { Parse(call, ParseOllamaChat, "chat-"); }

void OpenAiApp::OllamaGenerate(const std::shared_ptr<Call>& call) { Parse(call, ParseOllamaGenerate, "generate-"); }

std::unique_ptr<AnswerFormat> OpenAiApp::MakeFormat(const CompletionRequest& request, AnswerHead head,
                                                    const Tokenizer& tokenizer, AnswerKeeper keep) {
  switch (request.api) {
    case Api::kMessages: return std::make_unique<MessagesFormat>(std::move(head));
    case Api::kResponses:
      return std::make_unique<ResponsesFormat>(std::move(head), tokenizer, request.responses->echo, std::move(keep));
    case Api::kOllamaChat:
    case Api::kOllamaGenerate:
      return std::make_unique<OllamaFormat>(std::move(head), tokenizer, request.api == Api::kOllamaChat);
    default: return std::make_unique<OpenAiJson>(std::move(head), tokenizer);
  }
}

void OpenAiApp::CountTokens(const std::shared_ptr<Call>& call) {
  auto parsed = ParseCountTokensRequest(call->request.body, call->Limits(service_.services().config));
  if (auto* error = std::get_if<ApiError>(&parsed)) return call->Fail(*error);
  AnswerTokensOf(call, std::get<CompletionRequest>(std::move(parsed)), "");
}

void OpenAiApp::AnswerTokensOf(const std::shared_ptr<Call>& call, CompletionRequest request, std::string_view object) {
  const CallServices& s = service_.services();
  if (!ServesModel(s.config, s.model, request.input.model))
    return call->Fail(ModelNotFound(request.input.model, PublicModelNames(s.config, s.model)));
  Prompt prompt = std::move(request.prompts.front());
  if (const auto error = CheckNeedsNoText(s.model, prompt)) return call->Fail(*error);
  const size_t bytes = TextBytes(prompt);
  auto work = [&model = s.model, prompt = std::move(prompt), salt = SaltOf(*call, "")] {
    return TokenizePrompt(model, prompt, salt);
  };
  auto then = [call, object](std::variant<TokenizedPrompt, ApiError> result) {
    if (auto* error = std::get_if<ApiError>(&result)) return call->Fail(*error);
    std::string out;
    JsonWriter w(out);
    w.BeginObject();
    if (!object.empty()) w.Field("object", object);
    w.Field("input_tokens", static_cast<int64_t>(std::get<TokenizedPrompt>(result).ids.size())).EndObject();
    call->RespondJson(std::move(out));
  };
  service_.RunText(call->exchange->loop(), bytes, AccountOf(*call), std::move(work), std::move(then));
}

void OpenAiApp::OllamaLoaded(const std::shared_ptr<Call>& call, const CompletionRequest& request) {
  const CallServices& s = service_.services();
  const std::string& name = request.input.model;
  if (!ServesModel(s.config, s.model, name))
    return call->Fail(ModelNotFound(name, PublicModelNames(s.config, s.model)));
  std::string out;
  JsonWriter w(out);
  w.BeginObject().Field("model", name.empty() ? PublicModelName(s.config, s.model) : name);
  w.Field("created_at", Rfc3339(std::time(nullptr)));
  if (request.api == Api::kOllamaChat) {
    w.Key("message").BeginObject().Field("role", "assistant").Field("content", "").EndObject();
  } else {
    w.Field("response", "");
  }
  w.Field("done", true).Field("done_reason", request.loads).EndObject();
  call->RespondJson(std::move(out));
}

namespace {

void OllamaDetails(JsonWriter& w) {
  w.Key("details").BeginObject().Field("parent_model", "").Field("format", "").Field("family", "baton");
  w.Key("families").Raw(R"(["baton"])").Field("parameter_size", "").Field("quantization_level", "").EndObject();
}

}  // namespace

void OpenAiApp::OllamaTags(const std::shared_ptr<Call>& call) {
  const CallServices& s = service_.services();
  std::string out;
  JsonWriter w(out);
  w.BeginObject().Key("models").BeginArray();
  for (const std::string& name : PublicModelNames(s.config, s.model)) {
    w.BeginObject().Field("name", name).Field("model", name).Field("modified_at", Rfc3339(started_));
    w.Field("size", int64_t{0}).Field("digest", "");
    OllamaDetails(w);
    w.EndObject();
  }
  w.EndArray().EndObject();
  call->RespondJson(std::move(out));
}

// What is loaded: all that there is, as soon as a worker is ready, and for good.
void OpenAiApp::OllamaRunning(const std::shared_ptr<Call>& call) {
  const CallServices& s = service_.services();
  const auto facts = service_.fleet().model_facts();
  std::string out;
  JsonWriter w(out);
  w.BeginObject().Key("models").BeginArray();
  const bool loaded = service_.ReadinessNow().ready;
  for (const std::string& name : loaded ? PublicModelNames(s.config, s.model) : std::vector<std::string>()) {
    w.BeginObject().Field("name", name).Field("model", name).Field("size", int64_t{0}).Field("digest", "");
    OllamaDetails(w);
    w.Field("expires_at", "9999-12-31T23:59:59Z").Field("size_vram", int64_t{0});
    if (facts) w.Field("context_length", facts->max_model_len);
    w.EndObject();
  }
  w.EndArray().EndObject();
  call->RespondJson(std::move(out));
}

void OpenAiApp::OllamaShow(const std::shared_ptr<Call>& call) {
  const CallServices& s = service_.services();
  auto parsed = ParseShowRequest(call->request.body, call->Limits(s.config));
  if (auto* error = std::get_if<ApiError>(&parsed)) return call->Fail(*error);
  const std::string& name = std::get<std::string>(parsed);
  if (!ServesModel(s.config, s.model, name))
    return call->Fail(ModelNotFound(name, PublicModelNames(s.config, s.model)));
  std::string out;
  JsonWriter w(out);
  w.BeginObject().Field("modelfile", "").Field("parameters", "");
  w.Field("template", s.model.chat_template ? s.model.chat_template->source() : "");
  OllamaDetails(w);
  w.Key("model_info").BeginObject().Field("general.architecture", "baton");
  if (const auto facts = service_.fleet().model_facts()) w.Field("baton.context_length", facts->max_model_len);
  w.EndObject().Key("capabilities").BeginArray().String("completion");
  if (s.config.tool_call_parser != "auto" || s.model.call_form != nullptr) w.String("tools");
  if (s.config.reasoning_parser != "none" && s.model.chat_template && ShowsThoughts(s.model.chat_template->source()))
    w.String("thinking");
  w.EndArray().Field("modified_at", Rfc3339(started_)).EndObject();
  call->RespondJson(std::move(out));
}

void OpenAiApp::OllamaVersion(const std::shared_ptr<Call>& call) {
  std::string out;
  JsonWriter(out).BeginObject().Field("version", version_).EndObject();
  call->RespondJson(std::move(out));
}

}  // namespace baton::router
