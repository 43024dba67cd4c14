#include <algorithm>
#include <chrono>

#include "absl/strings/str_join.h"
#include "cli/chat_client.h"
#include "cli/foreign_json.h"
#include "cli/http_client.h"
#include "common/clock.h"
#include "common/foreign_text.h"
#include "common/json.h"
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

int CountOf(const OrderedJson& from, const char* name) {
  return static_cast<int>(std::clamp<double>(NumberOf(from, name), 0, 1e9));
}

class HttpChatClient final : public ChatClient {
 public:
  explicit HttpChatClient(HttpUrl url) : url_(std::move(url)) {}

  absl::StatusOr<std::string> Greet(const ChatOptions& options, Cancellation& stop) override {
    HttpUrl url = url_;
    url.patience = options.patience;
    BATON_ASSIGN_OR_RETURN(HttpResponse response, HttpGet(url, "/v1/models", options.api_key, &stop));
    if (response.status != 200) return ErrorOf(response);
    std::vector<std::string> served;
    const OrderedJson list = ShallowJson<OrderedJson>(response.body);
    for (const OrderedJson& model : ListOf(list, "data")) {
      if (std::string name = TextOf(model, "id"); !name.empty()) served.push_back(std::move(name));
    }
    if (served.empty()) return absl::UnavailableError(StrCat("no model is served at ", AuthorityOf(url_)));
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
    return TextOf(body, "phase") == "draining";
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
      const OrderedJson& error = FieldOf(event, "error");
      if (!event.is_object()) {
        failure = absl::UnavailableError(StrCat("an event of the answer is no JSON object: ", Printable(data)));
      } else if (!error.is_null()) {
        failure = absl::UnavailableError(Printable(
            error.is_string() ? error.get<std::string>() : TextOf(error, "message", "the stream failed"), 500));
      } else {
        OnChunk(event, on_text, start, stats);
      }
    };
    HttpUrl url = url_;
    url.patience = Duration::zero();  // a long prompt in a long queue
    BATON_ASSIGN_OR_RETURN(HttpResponse response,
                           HttpPost(url, "/v1/chat/completions", options.api_key, request.dump(), on_event, &stop));
    stats.total_ms = Milliseconds(clock_.Now() - start);
    if (response.status != 200) return ErrorOf(response);
    BATON_RETURN_IF_ERROR(failure);
    if (!done) return absl::UnavailableError("the answer ended without [DONE]");
    return stats;
  }

 private:
  void OnChunk(const OrderedJson& event, const std::function<void(std::string_view)>& on_text, TimePoint start,
               ChatStats& stats) {
    for (const OrderedJson& choice : ListOf(event, "choices")) {
      stats.cut = stats.cut || TextOf(choice, "finish_reason") == "length";
      const std::string text = TextOf(FieldOf(choice, "delta"), "content");
      if (text.empty()) continue;
      if (stats.first_token_ms == 0) stats.first_token_ms = Milliseconds(clock_.Now() - start);
      on_text(text);
    }
    if (FieldOf(event, "timings").is_object()) stats.stages = StagesOfJson(event["timings"]);
    const OrderedJson& usage = FieldOf(event, "usage");
    if (!usage.is_object()) return;
    stats.prompt_tokens = CountOf(usage, "prompt_tokens");
    stats.completion_tokens = CountOf(usage, "completion_tokens");
    stats.cached_tokens = CountOf(FieldOf(usage, "prompt_tokens_details"), "cached_tokens");
  }

  static absl::Status ErrorOf(const HttpResponse& response) {
    const OrderedJson body = ShallowJson<OrderedJson>(response.body);
    const std::string message = TextOf(FieldOf(body, "error"), "message", response.body);
    const std::string text = StrCat("HTTP ", response.status, ": ", Printable(message, 1000));
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
