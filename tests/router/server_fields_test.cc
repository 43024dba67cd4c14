// What an answer shows because it was asked for, and otherwise does not.
#include <gtest/gtest.h>

#include "common/str_cat.h"
#include "router_fixture.h"

namespace baton::router {
namespace {

TEST_F(RouterTest, IdsOfThePromptAreInAStreamWhereTheyAreAskedForAlone) {
  FakeWorker worker;
  Start({&worker});
  const auto first = [&](const std::string& ids) {
    return Json::parse(EventsOf(Chat(StrCat(R"("max_tokens":3,"stream":true,"return_token_ids":)", ids)).body).at(0));
  };
  EXPECT_FALSE(first("false").contains("prompt_token_ids"));
  EXPECT_FALSE(first("true")["prompt_token_ids"].empty());
}

TEST_F(RouterTest, APromptThatFindsNoRoomAmongThePromptsIsRefusedWithTheFlag) {
  FakeWorker worker({.hold_after = 1});
  RouterConfig config;
  config.max_running_tokens = 15;
  Start({&worker}, config);
  HttpConnection running(port_);
  running.Send(RequestText("POST", "/v1/completions", Completion(R"("stream":true,"max_tokens":2)")));
  running.ReceiveUntil("\"text\"");
  const HttpReply more = Complete(R"("max_tokens":1)");
  EXPECT_EQ(more.status, 429);
  EXPECT_NE(more.body.find("--max-running-tokens"), std::string::npos) << more.body;
  worker.Release();
  EXPECT_NE(running.ReceiveUntil("[DONE]").find("[DONE]"), std::string::npos);
}

}  // namespace
}  // namespace baton::router
