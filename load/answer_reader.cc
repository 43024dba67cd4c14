#include "load/answer_reader.h"

#include <algorithm>

#include "common/json.h"
#include "common/shallow_json.h"
#include "common/str_cat.h"

namespace baton::load {
namespace {

using Json = nlohmann::json;

// A count that a server gives; what is none, is not a whole number or is below 0: 0. More than anybody counts is that.
int64_t Count(const Json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_number_integer()) return 0;
  return std::clamp<int64_t>(it->get<int64_t>(), 0, int64_t{1} << 40);
}

bool IsZero(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && *it == 0;
}

double Ms(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number() ? it->get<double>() : 0;
}

std::string TextOf(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

Stages StagesOfTimings(const Json& timings) {
  return {.queue_prefill = Ms(timings, "queue_prefill_ms"),
          .prefill = Ms(timings, "prefill_ms"),
          .transfer = Ms(timings, "transfer_ms"),
          .queue_decode = Ms(timings, "queue_decode_ms"),
          .first_decode = Ms(timings, "first_decode_ms"),
          .decode = Ms(timings, "decode_ms"),
          .router = Ms(timings, "router_ms"),
          .lost = Ms(timings, "lost_ms"),
          .reserve = Ms(timings, "reserve_ms"),
          .network = Ms(timings, "network_ms")};
}

// Other servers' `timings` have other figures.
bool HasStages(const Json& timings) {
  return timings.contains("queue_prefill_ms") || timings.contains("prefill_ms") || timings.contains("router_ms");
}

// The new text of a choice: of a completion, or of a chat's delta, thoughts and calls of tools included.
std::string ChoiceText(const Json& choice) {
  std::string text = TextOf(choice, "text");
  const auto delta = choice.find("delta");
  if (delta == choice.end() || !delta->is_object()) return text;
  const std::string thought = TextOf(*delta, "reasoning_content");  // servers that send both names send the same twice
  text += (thought.empty() ? TextOf(*delta, "reasoning") : thought) + TextOf(*delta, "content");
  const auto calls = delta->find("tool_calls");
  if (calls != delta->end() && calls->is_array() && !calls->empty()) text += calls->dump();
  return text;
}

std::string ErrorOf(const Json& error) {
  return error.is_object() && error.contains("message") && error["message"].is_string()
             ? error["message"].get<std::string>()
             : error.dump();
}

}  // namespace

std::optional<bool> BeginsAsEvents(std::string_view body) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  if (body.starts_with(kMark)) body.remove_prefix(kMark.size());
  body.remove_prefix(std::min(body.find_first_not_of("\r\n"), body.size()));
  bool may_become_one = body.empty() || kMark.starts_with(body);
  for (const std::string_view field : {":", "data:", "event:", "id:", "retry:"}) {
    if (body.starts_with(field)) return true;
    may_become_one = may_become_one || field.starts_with(body);
  }
  return may_become_one ? std::nullopt : std::optional(false);
}

Event Apply(std::string_view data, Answer& answer) {
  if (answer.done) return Event::kNothing;
  if (data == "[DONE]") {
    answer.done = true;
    return Event::kNothing;
  }
  const Json event = ShallowJson(data);
  if (!event.is_object()) return Event::kMalformed;
  if (const auto error = event.find("error"); error != event.end() && !error->is_null()) {
    answer.error = ErrorOf(*error);
    return Event::kNothing;
  }
  if (!event.contains("choices") && event.contains("message") && event["message"].is_string()) {
    answer.error = event["message"].get<std::string>();  // an event of type error, whose data is the error itself
    return Event::kNothing;
  }
  if (const auto usage = event.find("usage"); usage != event.end() && usage->is_object()) {
    // Counts only grow: some servers say them with every event, and one without them, or of noughts, at the end.
    const auto grow = [](int64_t& count, int64_t said) { count = std::max(count, said); };
    grow(answer.prompt_tokens, Count(*usage, "prompt_tokens"));
    grow(answer.completion_tokens, Count(*usage, "completion_tokens"));
    answer.counted |= answer.completion_tokens > 0 || IsZero(*usage, "completion_tokens");
    const auto details = usage->find("prompt_tokens_details");
    if (details != usage->end() && details->is_object()) grow(answer.cached_tokens, Count(*details, "cached_tokens"));
  }
  if (const auto timings = event.find("timings"); timings != event.end() && timings->is_object() && HasStages(*timings))
    answer.stages = StagesOfTimings(*timings);
  const auto choices = event.find("choices");
  if (choices == event.end() || !choices->is_array() || choices->empty() || !choices->front().is_object())
    return Event::kNothing;
  const Json& choice = choices->front();
  const std::string text = ChoiceText(choice);
  const auto finish = choice.find("finish_reason");
  if (finish != choice.end() && finish->is_string()) {
    answer.finished = true;
    const bool given_up = *finish == "abort" || *finish == "error";  // a server's own fault, and no end of a text
    if (given_up && answer.error.empty()) answer.error = StrCat("finish_reason ", finish->get<std::string>());
  }
  const bool ends_without_text = answer.finished && answer.text.empty();
  answer.text += text;
  return !text.empty() || ends_without_text ? Event::kText : Event::kNothing;
}

}  // namespace baton::load
