// Request bodies as the router reads them, or why it does not.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "common/str_cat.h"
#include "router/http/json_request.h"

namespace baton::router {

inline const JsonLimits kLimits;

inline CompletionRequest Chat(const std::string& body) {
  auto parsed = ParseChatRequest(body, kLimits);
  if (auto* error = std::get_if<ApiError>(&parsed)) {
    ADD_FAILURE() << error->message;
    return {};
  }
  return std::get<CompletionRequest>(std::move(parsed));
}
inline CompletionRequest Text(const std::string& body) {
  auto parsed = ParseTextRequest(body, kLimits);
  if (auto* error = std::get_if<ApiError>(&parsed)) {
    ADD_FAILURE() << error->message;
    return {};
  }
  return std::get<CompletionRequest>(std::move(parsed));
}
inline ApiError ChatError(const std::string& body) {
  auto parsed = ParseChatRequest(body, kLimits);
  auto* error = std::get_if<ApiError>(&parsed);
  if (!error) ADD_FAILURE() << "accepted: " << body.substr(0, 200);
  return error ? *error : ApiError{};
}
inline ApiError TextError(const std::string& body) {
  auto parsed = ParseTextRequest(body, kLimits);
  auto* error = std::get_if<ApiError>(&parsed);
  if (!error) ADD_FAILURE() << "accepted: " << body.substr(0, 200);
  return error ? *error : ApiError{};
}
inline std::string With(const std::string& more) {
  return StrCat(R"({"messages":[{"role":"user","content":"Hi"}],)", more, "}");
}
inline std::string TextWith(const std::string& more) { return StrCat(R"({"prompt":"Hi",)", more, "}"); }

}  // namespace baton::router
