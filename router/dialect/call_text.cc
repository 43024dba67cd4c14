#include "router/dialect/call_text.h"

#include <utility>

#include "common/json.h"
#include "router/dialect/exact_json.h"
#include "router/dialect/loose_value.h"

namespace baton::router {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::optional<OrderedJson> ParseJson(std::string_view text) { return ParseExact(text, kDeepestValue); }

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kWhite = " \t\r\n";
  text.remove_prefix(std::min(text.find_first_not_of(kWhite), text.size()));
  return text.substr(0, text.find_last_not_of(kWhite) + 1);
}

std::optional<WrittenCall> CallOf(const OrderedJson& json) {
  if (!json.is_object() || !json.contains("name") || !json["name"].is_string()) return std::nullopt;
  WrittenCall call{json["name"].get<std::string>(), "{}"};
  for (const char* key : {"arguments", "parameters"}) {
    if (!json.contains(key)) continue;
    const OrderedJson& given = json[key];
    const bool is_empty = given.is_string() && given.get_ref<const std::string&>().empty();
    if (given.is_null() || is_empty) continue;  // as models write a call without any
    const std::optional<OrderedJson> inner =
        given.is_string() ? ParseJson(given.get_ref<const std::string&>()) : std::nullopt;
    const OrderedJson& arguments = inner ? *inner : given;
    if (!arguments.is_object()) return std::nullopt;
    call.arguments = ExactText(arguments);
    break;
  }
  return call;
}

/// Where the JSON object at the start of `text` ends; npos if it does not.
size_t EndOfObject(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if ((c == '}' || c == ']') && --depth <= 0) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

bool TakePrefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

WrittenCalls ReadJsonCall(std::string_view text) {
  const std::optional<OrderedJson> json = ParseJson(text);
  std::optional<WrittenCall> call = json ? CallOf(*json) : std::nullopt;
  if (!call) return std::nullopt;
  return std::vector{*std::move(call)};
}

WrittenCalls ReadJsonCalls(std::string_view text) {
  std::vector<WrittenCall> calls;
  for (text = Trimmed(text); !text.empty();) {
    const size_t end = text.starts_with('{') ? EndOfObject(text) : std::string_view::npos;
    if (end == std::string_view::npos) return std::nullopt;
    WrittenCalls one = ReadJsonCall(text.substr(0, end));
    if (!one) return std::nullopt;
    calls.push_back(std::move(one->front()));
    text = Trimmed(text.substr(end));
    if (text.starts_with(';') || text.starts_with(',')) text = Trimmed(text.substr(1));
  }
  if (calls.empty()) return std::nullopt;
  return calls;
}

WrittenCalls ReadMistralCalls(std::string_view text) {
  text = Trimmed(text);
  std::vector<WrittenCall> calls;
  if (text.starts_with('[')) {
    const std::optional<OrderedJson> json = ParseJson(text);
    if (!json || !json->is_array() || json->empty()) return std::nullopt;
    for (const OrderedJson& one : *json) {
      std::optional<WrittenCall> call = CallOf(one);
      if (!call) return std::nullopt;
      calls.push_back(*std::move(call));
    }
    return calls;
  }
  WrittenCall& call = calls.emplace_back();
  call.name = Trimmed(text.substr(0, text.find_first_of("[{")));
  text.remove_prefix(std::min(text.find_first_of("[{"), text.size()));
  if (TakePrefix(text, "[CALL_ID]")) text.remove_prefix(std::min(text.find_first_of("[{"), text.size()));
  TakePrefix(text, "[ARGS]");
  const std::optional<OrderedJson> arguments = ParseJson(text);
  if (call.name.empty() || !arguments || !arguments->is_object()) return std::nullopt;
  call.arguments = ExactText(*arguments);
  return calls;
}

WrittenCalls ReadPythonCalls(std::string_view text) {
  text = Trimmed(text);
  if (text.ends_with("<|python_end|>")) text = Trimmed(text.substr(0, text.rfind("<|python_end|>")));
  LooseReader in(text);
  std::vector<WrittenCall> calls;
  if (!in.Take('[')) return std::nullopt;
  do {
    WrittenCall& call = calls.emplace_back();
    call.name = in.Word();
    if (call.name.empty() || !in.Take('(')) return std::nullopt;
    OrderedJson arguments = OrderedJson::object();
    while (!in.Take(')')) {
      const std::string key = in.Word();
      std::optional<OrderedJson> value = !key.empty() && in.Take('=') ? in.Value() : std::nullopt;
      if (!value || arguments.contains(key)) return std::nullopt;
      arguments[key] = *std::move(value);
      if (!in.Take(',') && !in.Sees(')')) return std::nullopt;
    }
    call.arguments = ExactText(arguments);
  } while (in.Take(',') && !in.Sees(']'));
  if (!in.Take(']') || !in.AtEnd()) return std::nullopt;
  return calls;
}

WrittenCalls ReadGemmaCalls(std::string_view text) {
  text = Trimmed(text);
  if (!TakePrefix(text, "call:")) return std::nullopt;
  LooseReader in(text);
  WrittenCall call{in.Word(), ""};
  const std::optional<OrderedJson> arguments = in.Sees('{') ? in.Value() : std::nullopt;
  if (call.name.empty() || !arguments || !in.AtEnd()) return std::nullopt;
  call.arguments = ExactText(*arguments);
  return std::vector{std::move(call)};
}

}  // namespace baton::router
