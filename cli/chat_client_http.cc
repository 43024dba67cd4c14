#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "absl/strings/str_join.h"
#include "cli/chat_client.h"
#include "cli/http_client.h"
#include "common/clock.h"
#include "common/shallow_json.h"
#include "common/status.h"
#include "common/str_cat.h"

namespace baton::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;  // stages stay in the server's order

std::vector<std::pair<std::string, double>> StagesOfJson(const OrderedJson& timings) {
  std::vector<std::pair<std::string, double>> out;
  for (const auto& [name, value] : timings.items()) {
    if (value.is_number() && name.ends_with("_ms")) out.emplace_back(name.substr(0, name.size() - 3), value);
  }
  return out;
}

class HttpChatClient final : public ChatClient {
 public:
  explicit HttpChatClient(HttpUrl url) : url_(std::move(url)) {}

  absl::StatusOr<std::string> Greet(const ChatOptions& options, Cancellation& stop) override {
    BATON_ASSIGN_OR_RETURN(HttpResponse response, HttpGet(url_, "/v1/models", options.api_key, &stop));
    if (response.status != 200) return ErrorOf(response);
    std::vector<std::string> served;
    const OrderedJson list = ShallowJson<OrderedJson>(response.body);
    if (list.is_object() && list.contains("data") && list["data"].is_array()) {
      for (const OrderedJson& model : list["data"]) served.push_back(model.value("id", ""));
    }
    if (served.empty()) return absl::UnavailableError(StrCat("no model is served at ", url_.host, ":", url_.port));
    if (!options.model.empty() && std::ranges::count(served, options.model) == 0) {
      return absl::NotFoundError(
          StrCat("--model ", options.model, " is not served there: ", absl::StrJoin(served, ", "), " is"));
    }
    model_ = options.model.empty() ? served.front() : options.model;
    return model_;
  }

  bool Draining(Cancellation& stop) override {
    const auto ready = HttpGet(url_, "/ready", "", &stop);
    if (!ready.ok()) return false;
    const OrderedJson body = ShallowJson<OrderedJson>(ready->body);
    return body.is_object() && body.contains("phase") && body["phase"] == "draining";
  }

  absl::StatusOr<ChatStats> Ask(const std::vector<ChatTurn>& turns, const ChatOptions& options,
                                const std::function<void(std::string_view)>& on_text, Cancellation& stop) override {
    if (model_.empty()) BATON_RETURN_IF_ERROR(Greet(options, stop).status());
    OrderedJson request = {{"model", model_}, {"stream", true}, {"stream_options", {{"include_usage", true}}}};
    for (const ChatTurn& turn : turns) request["messages"].push_back({{"role", turn.role}, {"content", turn.content}});
    request.update({{"temperature", options.temperature},
                    {"top_k", options.top_k},
                    {"top_p", options.top_p},
                    {"min_p", options.min_p}});
    if (options.max_tokens > 0) request["max_completion_tokens"] = options.max_tokens;
    if (options.seed >= 0) request["seed"] = options.seed;

    ChatStats stats;
    absl::Status failure;
    bool done = false;
    const TimePoint start = clock_.Now();
    auto on_event = [&](std::string_view data) {
      if (data == "[DONE]") {
        done = true;
        return;
      }
      const OrderedJson event = ShallowJson<OrderedJson>(data);
      if (event.is_discarded()) {
        failure = absl::InternalError(StrCat("not JSON: ", data));
      } else if (event.contains("error")) {
        failure = absl::UnavailableError(event["error"].value("message", "the stream failed"));
      } else {
        OnChunk(event, on_text, start, stats);
      }
    };
    BATON_ASSIGN_OR_RETURN(HttpResponse response,
                           HttpPost(url_, "/v1/chat/completions", options.api_key, request.dump(), on_event, &stop));
    stats.total_ms = Milliseconds(clock_.Now() - start);
    if (response.status != 200) return ErrorOf(response);
    BATON_RETURN_IF_ERROR(failure);
    if (!done) return absl::UnavailableError("the answer ended without [DONE]");
    return stats;
  }

 private:
  void OnChunk(const OrderedJson& event, const std::function<void(std::string_view)>& on_text, TimePoint start,
               ChatStats& stats) {
    for (const OrderedJson& choice : event.value("choices", OrderedJson::array())) {
      stats.cut = stats.cut || choice.value("finish_reason", OrderedJson()) == "length";
      const OrderedJson delta = choice.value("delta", OrderedJson::object());
      if (!delta.contains("content") || !delta["content"].is_string()) continue;
      const std::string text = delta["content"];
      if (text.empty()) continue;
      if (stats.first_token_ms == 0) stats.first_token_ms = Milliseconds(clock_.Now() - start);
      on_text(text);
    }
    if (event.contains("timings") && event["timings"].is_object()) stats.stages = StagesOfJson(event["timings"]);
    if (!event.contains("usage") || !event["usage"].is_object()) return;
    const OrderedJson& usage = event["usage"];
    stats.prompt_tokens = usage.value("prompt_tokens", 0);
    stats.completion_tokens = usage.value("completion_tokens", 0);
    if (usage.contains("prompt_tokens_details") && usage["prompt_tokens_details"].is_object()) {
      stats.cached_tokens = usage["prompt_tokens_details"].value("cached_tokens", 0);
    }
  }

  static absl::Status ErrorOf(const HttpResponse& response) {
    const OrderedJson body = ShallowJson<OrderedJson>(response.body);
    std::string message = response.body;
    if (body.is_object() && body.contains("error") && body["error"].is_object())
      message = body["error"].value("message", message);
    const std::string text = StrCat("HTTP ", response.status, ": ", message);
    if (response.status == 404) return absl::NotFoundError(text);
    const bool refused =
        response.status >= 400 && response.status < 500 && response.status != 408 && response.status != 429;
    return refused ? absl::FailedPreconditionError(text) : absl::UnavailableError(text);
  }

  HttpUrl url_;
  std::string model_;
  SteadyClock clock_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ChatClient>> MakeHttpChatClient(const std::string& url, const tls::TlsFiles& files,
                                                               const std::string& server_name) {
  BATON_ASSIGN_OR_RETURN(HttpUrl parsed, ParseHttpUrl(url));
  if ((files.given() || !server_name.empty()) && !parsed.tls) {
    return absl::InvalidArgumentError(StrCat(
        "--url ", url, " is plain text, and --tls-cert, --tls-key, --tls-ca and --tls-server-name are for https://"));
  }
  parsed.files = files;
  parsed.server_name = server_name;
  return std::make_unique<HttpChatClient>(std::move(parsed));
}

}  // namespace baton::cli
