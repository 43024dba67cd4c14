#include "router/http/not_served.h"

#include "common/foreign_text.h"
#include "common/str_cat.h"

namespace baton::router {
namespace {

constexpr char kText[] = "this server's model reads and writes text only";
constexpr char kNoVectors[] = "this server's model writes text; it makes no embeddings";
constexpr char kNoFiles[] = "this server keeps no files";
constexpr char kNoJobs[] = "this server answers each request at once and keeps no jobs; send the requests themselves";
constexpr char kNoState[] =
    "this server keeps no conversations but those behind previous_response_id of /v1/responses; send the messages";
constexpr char kNoScores[] = "this server's model writes text; it scores and classifies none";
constexpr char kNoTraining[] = "this server trains no models";
constexpr char kOneModel[] =
    "a cluster serves the model that it was started with; models are not changed while it runs";

struct Known {
  std::string_view path;
  const char* why;
};

// OpenAI's, vLLM's, Anthropic's and Ollama's.
constexpr Known kKnown[] = {
    {"/v1/audio", kText},
    {"/v1/images", kText},
    {"/v1/videos", kText},
    {"/v1/realtime", kText},
    {"/v1/moderations", kNoScores},
    {"/v1/rerank", kNoScores},
    {"/v2/rerank", kNoScores},
    {"/v1/score", kNoScores},
    {"/rerank", kNoScores},
    {"/score", kNoScores},
    {"/classify", kNoScores},
    {"/pooling", kNoVectors},
    {"/v1/embeddings", kNoVectors},
    {"/v1/files", kNoFiles},
    {"/v1/uploads", kNoFiles},
    {"/v1/vector_stores", kNoFiles},
    {"/v1/containers", kNoFiles},
    {"/v1/batches", kNoJobs},
    {"/v1/evals", kNoJobs},
    {"/v1/messages/batches", kNoJobs},
    {"/v1/assistants", kNoState},
    {"/v1/threads", kNoState},
    {"/v1/conversations", kNoState},
    {"/v1/chat/completions/", "this server keeps no chats; ask /v1/responses for answers that are kept"},
    {"/v1/responses/compact", "this server shortens no conversations"},
    {"/v1/fine_tuning", kNoTraining},
    {"/v1/fine-tunes", kNoTraining},
    {"/v1/load_lora_adapter", kOneModel},
    {"/v1/unload_lora_adapter", kOneModel},
    {"/v1/complete", "this is Anthropic's older API; /v1/messages is served"},
    {"/v1/edits", "this is OpenAI's older API; /v1/chat/completions is served"},
    {"/v1/engines", "this is OpenAI's older API; /v1/models and /v1/completions are served"},
    {"/api/embed", kNoVectors},
    {"/api/embeddings", kNoVectors},
    {"/api/pull", kOneModel},
    {"/api/push", kOneModel},
    {"/api/create", kOneModel},
    {"/api/copy", kOneModel},
    {"/api/delete", kOneModel},
    {"/api/blobs", kOneModel},
};

bool IsAtOrBelow(std::string_view path, std::string_view known) {
  if (!path.starts_with(known)) return false;
  return known.back() == '/' ? path.size() > known.size() : path.size() == known.size() || path[known.size()] == '/';
}

}  // namespace

Api ApiOf(const HttpRequest& request) {
  const std::string_view path = request.path;
  if (path.starts_with("/api/")) return Api::kOllamaChat;
  const bool models = IsAtOrBelow(path, "/v1/models") && !request.Header("anthropic-version").empty();
  if (models || IsAtOrBelow(path, "/v1/messages") || path == "/v1/complete") return Api::kMessages;
  return IsAtOrBelow(path, "/v1/responses") ? Api::kResponses : Api::kChat;
}

const char* WhyNotServed(std::string_view path) {
  for (const Known& known : kKnown) {
    if (IsAtOrBelow(path, known.path)) return known.why;
  }
  return nullptr;
}

ApiError NotServed(const HttpRequest& request, const char* why) {
  ApiError error =
      BadRequest(StrCat(Printable(request.path, 100), " is not served: ", why, "."), "", "unsupported_endpoint");
  error.http_status = 501;
  error.type = "not_implemented_error";
  return error;
}

}  // namespace baton::router
