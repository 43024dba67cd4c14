// Answers of /v1/responses that are kept (response_memory.h): one is given again, with what was asked, or forgotten,
// and a later request goes on from it.
#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/numbers.h"
#include "common/foreign_text.h"
#include "common/json.h"
#include "common/str_cat.h"
#include "router/dialect/exact_json.h"
#include "router/http/openai_call.h"
#include "router/json_writer.h"

namespace baton::router {
namespace {

using Json = nlohmann::ordered_json;

std::string NoResponse(std::string_view id, size_t remembered_bytes) {
  return StrCat("this router has no response ", Printable(id, 100),
                ". Responses are kept in the memory of the router that gave them, ", remembered_bytes >> 20,
                " MiB of them for each API key, until it restarts; nobody else's are found, nor those with \"store\": "
                "false.");
}

ApiError NotFound(std::string_view id, size_t remembered_bytes) {
  return {404, "invalid_request_error", "response_not_found", "", NoResponse(id, remembered_bytes)};
}

/// "/v1/responses/ID/cancel" → "ID"
std::string ResponseId(const HttpRequest& request) {
  constexpr std::string_view kBefore = "/v1/responses/";
  const std::string rest = request.path.substr(kBefore.size());
  return rest.substr(0, rest.find('/'));
}

/// Of "a=1&b=2". Ids and numbers need no decoding.
std::string QueryValue(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    if (pair.starts_with(name) && pair.substr(name.size()).starts_with("="))
      return std::string(pair.substr(name.size() + 1));
  }
  return "";
}

/// Which part of a list a query asks for.
struct Page {
  bool newest_first = true;
  int limit = 20;
  std::string after;  ///< "" = from the beginning
};

std::variant<Page, ApiError> PageOf(std::string_view query) {
  Page page;
  const std::string order = QueryValue(query, "order"), limit = QueryValue(query, "limit");
  if (!order.empty() && order != "asc" && order != "desc")
    return BadRequest(StrCat("`order` must be asc or desc, got ", Printable(order, 40), "."), "order");
  page.newest_first = order != "asc";
  if (!limit.empty() && (!absl::SimpleAtoi(limit, &page.limit) || page.limit < 1 || page.limit > 100))
    return BadRequest(StrCat("`limit` must be 1 to 100, got ", Printable(limit, 40), "."), "limit");
  page.after = QueryValue(query, "after");
  return page;
}

/// An item of `input` as it is listed: with an id, and its text as a part.
Json Listed(Json item, std::string_view response, size_t number) {
  const std::string type = item.value("type", "message");
  item["type"] = type;
  if (!item.contains("id") || !item["id"].is_string()) {
    const char* kind = type == "message" ? "msg" : type == "reasoning" ? "rs" : type == "function_call" ? "fc" : "fco";
    item["id"] = StrCat(kind, response.substr(std::min(response.find('_'), response.size())), "_in_", number);
  }
  if (type == "message" && item["content"].is_string()) {
    Json part = {{"type", "input_text"}, {"text", item["content"]}};
    if (item["role"] == "assistant") part.update({{"type", "output_text"}, {"annotations", Json::array()}});
    item["content"] = Json::array({std::move(part)});
  }
  if (!item.contains("status")) item["status"] = "completed";
  return item;
}

/// `input`: a request's, a text or items.
std::vector<Json> ItemsOf(const std::string& input, std::string_view response) {
  constexpr int kAnyDepth = std::numeric_limits<int>::max();  // it was read within the limit of a body
  Json given = ParseExact(input, kAnyDepth).value_or(Json::array());
  if (given.is_string()) given = Json::array({{{"role", "user"}, {"content", given}}});
  std::vector<Json> items;
  for (Json& item : given) items.push_back(Listed(std::move(item), response, items.size()));
  return items;
}

}  // namespace

void OpenAiApp::OneResponse(const std::shared_ptr<Call>& call) {
  const std::string id = ResponseId(call->request);
  const auto kept = responses_->Find(keys_.SaltOf(KeyOf(call->request), ""), id);
  if (!kept) return call->Fail(NotFound(id, kRememberedBytes));
  if (QueryValue(call->request.query, "stream") == "true")
    return call->Fail(BadRequest("`stream`: an answer that is kept is given whole; ask without it.", "stream"));
  call->RespondJson(kept->answer);
}

void OpenAiApp::ForgetResponse(const std::shared_ptr<Call>& call) {
  const std::string id = ResponseId(call->request);
  if (!responses_->Forget(keys_.SaltOf(KeyOf(call->request), ""), id))
    return call->Fail(NotFound(id, kRememberedBytes));
  std::string out;
  JsonWriter(out).BeginObject().Field("id", id).Field("object", "response").Field("deleted", true).EndObject();
  call->RespondJson(std::move(out));
}

void OpenAiApp::InputItems(const std::shared_ptr<Call>& call) {
  const std::string id = ResponseId(call->request);
  const auto kept = responses_->Find(keys_.SaltOf(KeyOf(call->request), ""), id);
  if (!kept) return call->Fail(NotFound(id, kRememberedBytes));
  auto asked = PageOf(call->request.query);
  if (auto* error = std::get_if<ApiError>(&asked)) return call->Fail(*error);
  const Page& page = std::get<Page>(asked);
  std::vector<Json> items = ItemsOf(kept->input, id);
  if (page.newest_first) std::reverse(items.begin(), items.end());
  auto first = items.begin();
  if (!page.after.empty()) {
    first = std::find_if(items.begin(), items.end(), [&](const Json& item) { return item["id"] == page.after; });
    if (first == items.end())
      return call->Fail(
          BadRequest(StrCat("`after`: the response has no item ", Printable(page.after, 100), "."), "after"));
    ++first;
  }
  const bool more = items.end() - first > page.limit;
  const std::vector<Json> data(first, more ? first + page.limit : items.end());
  Json out = {{"object", "list"}, {"data", data}, {"has_more", more}, {"first_id", nullptr}, {"last_id", nullptr}};
  if (!data.empty()) out.update({{"first_id", data.front().at("id")}, {"last_id", data.back().at("id")}});
  call->RespondJson(ExactText(out));
}

// A response is only known when it is whole, and "background" is refused: none is under way that could be cancelled.
void OpenAiApp::CancelResponse(const std::shared_ptr<Call>& call) {
  const std::string id = ResponseId(call->request);
  if (!responses_->Find(keys_.SaltOf(KeyOf(call->request), ""), id)) return call->Fail(NotFound(id, kRememberedBytes));
  call->Fail(
      BadRequest(StrCat("response ", id,
                        " is complete: only answers in the background can be cancelled, and there are none here. "
                        "To end an answer early, close the connection that asked for it."),
                 "", "response_not_cancellable"));
}

void OpenAiApp::InputTokens(const std::shared_ptr<Call>& call) {
  auto parsed = ParseResponsesRequest(call->request.body, call->Limits(service_.services().config));
  if (auto* error = std::get_if<ApiError>(&parsed)) return call->Fail(*error);
  CompletionRequest request = std::get<CompletionRequest>(std::move(parsed));
  AnswerKeeper nobody;
  if (auto error = GoOn(*call, "", request, nobody)) return call->Fail(*error);
  AnswerTokensOf(call, std::move(request), "response.input_tokens");
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
    keep = [memory = responses_, owner, id, turns = std::move(turns), input = part.input](const std::string& message,
                                                                                          const std::string& answer) {
      memory->Keep(owner, id, {StrCat(turns, ",", message), answer, input});
    };
  }
  return std::nullopt;
}

}  // namespace baton::router
