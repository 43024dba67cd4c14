// Prompts that the client wants cut.
#include <gtest/gtest.h>

#include "router_fixture.h"

namespace baton::router {
namespace {

TEST_F(RouterTest, OfATruncatedPromptTheSideThatWasAskedForIsKept) {
  FakeWorker worker({.max_model_len = 100});
  Start({&worker});
  const auto kept = [&](const std::string& more) {
    const std::string body = StrCat(R"({"prompt":[3,4,5,6,7],"max_tokens":1,"return_token_ids":true)", more, "}");
    const HttpReply reply = Ask(port_, "POST", "/v1/completions", body);
    return reply.status == 200 ? Json::parse(reply.body)["choices"][0]["prompt_token_ids"].dump() : reply.body;
  };
  EXPECT_EQ(kept(R"(,"truncate_prompt_tokens":2)"), "[6,7]");
  EXPECT_EQ(kept(R"(,"truncate_prompt_tokens":2,"truncation_side":"left")"), "[6,7]");
  EXPECT_EQ(kept(R"(,"truncate_prompt_tokens":2,"truncation_side":"right")"), "[3,4]");
  EXPECT_EQ(kept(R"(,"truncate_prompt_tokens":9,"truncation_side":"right")"), "[3,4,5,6,7]");
  EXPECT_EQ(kept(R"(,"truncation_side":"right")"), "[3,4,5,6,7]");
  EXPECT_NE(kept(R"(,"truncation_side":"up")").find("`truncation_side` must be"), std::string::npos);
}

}  // namespace
}  // namespace baton::router
