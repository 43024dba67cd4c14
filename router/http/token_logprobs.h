// Tokens with their logprobs as every API that shows them writes them.
#pragma once

#include <string>
#include <vector>

#include "router/json_writer.h"
#include "router/request_types.h"
#include "text/tokenizer.h"

namespace baton::router {

/// An array of {"token", "logprob", "bytes", "top_logprobs"}. `text_of`: of a token, as "token" has it.
template <class TextOf>
void WriteLogprobs(JsonWriter& w, const std::vector<PositionLogprobs>& positions, const Tokenizer& tokenizer,
                   const TextOf& text_of) {
  const auto candidate = [&](const TokenLogprob& c) {
    w.Field("token", text_of(c.token_id)).Key("logprob").Float(c.logprob).Key("bytes").BeginArray();
    for (const char byte : tokenizer.TokenBytes(c.token_id)) w.Int(static_cast<unsigned char>(byte));
    w.EndArray();
  };
  w.BeginArray();
  for (const PositionLogprobs& p : positions) {
    w.BeginObject();
    candidate(p.chosen);
    w.Key("top_logprobs").BeginArray();
    for (const TokenLogprob& top : p.top) {
      w.BeginObject();
      candidate(top);
      w.EndObject();
    }
    w.EndArray().EndObject();
  }
  w.EndArray();
}

/// The same with every token's own text.
inline void WriteLogprobs(JsonWriter& w, const std::vector<PositionLogprobs>& positions, const Tokenizer& tokenizer) {
  WriteLogprobs(w, positions, tokenizer, [&](int32_t id) { return tokenizer.Decode({&id, 1}, false); });
}

}  // namespace baton::router
