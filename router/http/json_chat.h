// Bodies of other APIs as bodies of a chat or a text, so that one reader reads them all. Include only from .cc files.
#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include "router/http/json_reader.h"
#include "router/json_writer.h"

namespace baton::router::json {

using Parsed = std::variant<CompletionRequest, ApiError>;

/// A field that the other API does not have: a chat's, or one that nobody knows.
inline void PassOn(std::string_view key, Element value, JsonWriter& w, CompletionRequest& given) {
  if (IsFieldOfAnyApi(key)) {
    w.Key(key).Raw(TextOf(value));
  } else {
    NoteUnknown(given, std::string(key.substr(0, 64)));
  }
}

/// Reads `made`, made of another API's body. `given`: what that body said beside it.
inline Parsed ReadMade(Parsed (*parse)(std::string_view, const JsonLimits&), const std::string& made, JsonLimits limits,
                       Api api, CompletionRequest given) {
  limits.max_bytes = std::max(limits.max_bytes, made.size());
  limits.max_depth += 4;  // what the translation puts around a value
  limits.readable_behind = 0;
  limits.names_differ = true;
  Parsed parsed = parse(made, limits);
  if (auto* error = std::get_if<ApiError>(&parsed)) return InTheirWords(std::move(*error), given.renamed);
  if (auto* request = std::get_if<CompletionRequest>(&parsed)) {
    request->api = api;
    request->unknown_fields.insert(request->unknown_fields.begin(), given.unknown_fields.begin(),
                                   given.unknown_fields.end());
    request->responses = std::move(given.responses);
    request->renamed = std::move(given.renamed);
    request->asks_thoughts = std::move(given.asks_thoughts);
    request->input.thinking_budget_is_a_wish = true;
    const bool renamed = given.input.grammar_field != RequestInput().grammar_field;
    if (renamed && request->input.grammar_field.starts_with("response_format"))
      request->input.grammar_field = given.input.grammar_field;  // as the client called it
    request->input.default_max_tokens.reset();
  }
  return parsed;
}
inline Parsed AsChat(const std::string& made, const JsonLimits& limits, Api api, CompletionRequest given) {
  return ReadMade(ParseChatRequest, made, limits, api, std::move(given));
}
inline Parsed AsText(const std::string& made, const JsonLimits& limits, Api api, CompletionRequest given) {
  return ReadMade(ParseTextRequest, made, limits, api, std::move(given));
}

}  // namespace baton::router::json
