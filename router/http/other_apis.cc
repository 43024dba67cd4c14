// The routes of APIs that are not OpenAI's chat and text completions. Each is a translation: the body becomes a chat's
// (json_messages.cc, json_responses.cc, json_ollama.cc), the answer gets a format of its own.
#include <utility>

#include "common/foreign_text.h"
#include "common/str_cat.h"
#include "router/http/messages_format.h"
#include "router/http/ollama_format.h"
#include "router/http/openai_call.h"
#include "router/http/openai_json.h"
#include "router/http/responses_format.h"
#include "router/json_writer.h"

namespace baton::router {
namespace {

std::string NoResponse(std::string_view id, size_t remembered_bytes) {
  return StrCat("this router has no response ", Printable(id, 100),
                ". Responses are kept in the memory of the router that gave them, ", remembered_bytes >> 20,
                " MiB of them for each API key, until it restarts; nobody else's are found, nor those with \"store\": "
                "false.");
}

}  // namespace

void OpenAiApp::Messages(const std::shared_ptr<Call>& call) {
  call->api = Api::kMessages;
  Parse(call, ParseMessagesRequest, "msg_");
}

void OpenAiApp::Responses(const std::shared_ptr<Call>& call) {
  call->api = Api::kResponses;
  Parse(call, ParseResponsesRequest, "resp_");
}

void OpenAiApp::OneResponse(const std::shared_ptr<Call>& call) {
  const std::string id = call->LastOfPath();
  const auto kept = responses_->Find(keys_.SaltOf(KeyOf(call->request), ""), id);
  if (!kept)
    return call->Fail({404, "invalid_request_error", "response_not_found", "", NoResponse(id, kRememberedBytes)});
  call->RespondJson(kept->answer);
}

void OpenAiApp::ForgetResponse(const std::shared_ptr<Call>& call) {
  const std::string id = call->LastOfPath();
  if (!responses_->Forget(keys_.SaltOf(KeyOf(call->request), ""), id))
    return call->Fail({404, "invalid_request_error", "response_not_found", "", NoResponse(id, kRememberedBytes)});
  std::string out;
  JsonWriter(out).BeginObject().Field("id", id).Field("object", "response").Field("deleted", true).EndObject();
  call->RespondJson(std::move(out));
}

void OpenAiApp::OllamaChat(const std::shared_ptr<Call>& call) {
  call->api = Api::kOllamaChat;
  Parse(call, ParseOllamaChat, "chat-");
}

void OpenAiApp::OllamaGenerate(const std::shared_ptr<Call>& call) {
  call->api = Api::kOllamaGenerate;
  Parse(call, ParseOllamaGenerate, "generate-");
}

void OpenAiApp::Embeddings(const std::shared_ptr<Call>& call) {
  ApiError error = BadRequest("This server's model writes text; it makes no embeddings.", "", "unsupported_endpoint");
  error.http_status = 501;
  error.type = "not_implemented_error";
  call->Fail(error);
}

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

std::optional<ApiError> OpenAiApp::GoOn(const Call& call, const std::string& id, CompletionRequest& request,
                                        AnswerKeeper& keep) {
  const ResponsesPart& part = *request.responses;
  const std::string owner = keys_.SaltOf(KeyOf(call.request), "");
  std::string& messages = std::get<ChatPrompt>(request.prompts.front()).messages_json;
  std::string turns = messages.substr(1, messages.size() - 2);
  if (!part.previous_id.empty()) {
    const auto before = responses_->Find(owner, part.previous_id);
    if (!before) {
      return ApiError{404, "invalid_request_error", "previous_response_not_found", "previous_response_id",
                      StrCat("`previous_response_id`: ", NoResponse(part.previous_id, kRememberedBytes))};
    }
    turns = StrCat(before->messages, ",", turns);
  }
  messages = StrCat("[", part.instructions_message, part.instructions_message.empty() ? "" : ",", turns, "]");
  if (part.store) {
    keep = [memory = responses_, owner, id, turns = std::move(turns)](const std::string& message,
                                                                      const std::string& answer) {
      memory->Keep(owner, id, {StrCat(turns, ",", message), answer});
    };
  }
  return std::nullopt;
}

void OpenAiApp::CountTokens(const std::shared_ptr<Call>& call) {
  const CallServices& s = service_.services();
  call->api = Api::kMessages;
  auto parsed = ParseMessagesRequest(call->request.body, call->Limits(s.config));
  if (auto* error = std::get_if<ApiError>(&parsed)) return call->Fail(*error);
  CompletionRequest request = std::get<CompletionRequest>(std::move(parsed));
  if (!ServesModel(s.config, s.model, request.input.model))
    return call->Fail(ModelNotFound(request.input.model, PublicModelNames(s.config, s.model)));
  Prompt prompt = std::move(request.prompts.front());
  const size_t bytes = TextBytes(prompt);
  auto work = [&model = s.model, prompt = std::move(prompt)] { return TokenizePrompt(model, prompt); };
  auto then = [call](std::variant<TokenizedPrompt, ApiError> result) {
    if (auto* error = std::get_if<ApiError>(&result)) return call->Fail(*error);
    call->RespondJson(StrCat("{\"input_tokens\":", std::get<TokenizedPrompt>(result).ids.size(), "}"));
  };
  service_.RunText(call->exchange->loop(), bytes, AccountOf(*call), std::move(work), std::move(then));
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

void OpenAiApp::OllamaShow(const std::shared_ptr<Call>& call) {
  const CallServices& s = service_.services();
  call->api = Api::kOllamaChat;
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
