// libFuzzer target of the JSON reader: any body gives a request or a 400 with a message; what is let through was valid
// UTF-8.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "router/http/json_request.h"

namespace {

using namespace baton::router;

template <class Parsed>
bool Accepted(const Parsed& parsed) {
  const auto* error = std::get_if<ApiError>(&parsed);
  if (error && (error->http_status != 400 || error->message.empty())) std::abort();
  return !error;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const JsonLimits limits{64 << 10, 64};
  const bool chat = Accepted(ParseChatRequest(body, limits));
  const bool text = Accepted(ParseTextRequest(body, limits));
  const bool tokenize = Accepted(ParseTokenizeRequest(body, limits));
  const bool detokenize = Accepted(ParseDetokenizeRequest(body, limits));
  const bool messages = Accepted(ParseMessagesRequest(body, limits));
  const bool responses = Accepted(ParseResponsesRequest(body, limits));
  const bool ollama_chat = Accepted(ParseOllamaChat(body, limits));
  const bool ollama_generate = Accepted(ParseOllamaGenerate(body, limits));
  const bool show = Accepted(ParseShowRequest(body, limits));
  const bool others = messages || responses || ollama_chat || ollama_generate || show;
  const bool any = chat || text || tokenize || detokenize || others;
  if (any && (size > limits.max_bytes || FirstInvalidUtf8(body) != std::string_view::npos)) std::abort();
  return 0;
}
