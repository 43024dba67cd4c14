// The answers of Anthropic's /v1/messages.
#include "router/http/messages_format.h"

#include <gtest/gtest.h>

#include "nlohmann/json.hpp"

namespace baton::router {
namespace {

using Json = nlohmann::json;

// Clients add up what they are billed for.
TEST(MessagesFormat, InputTokensAreThoseThatWereNotCached) {
  MessagesFormat format({"msg_1", 1700000000, "m", true});
  WholeParts whole;
  whole.choices.resize(1);
  const Json answer = Json::parse(format.Whole(whole, {.usage = {10, 3, 4}}));
  const Json usage = {
      {"input_tokens", 6}, {"cache_creation_input_tokens", 0}, {"cache_read_input_tokens", 4}, {"output_tokens", 3}};
  EXPECT_EQ(answer["usage"], usage);
}

}  // namespace
}  // namespace baton::router
