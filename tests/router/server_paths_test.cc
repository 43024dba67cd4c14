// Paths and methods: what is not served says why, in the shape of its own API.
#include <gmock/gmock.h>

#include "router/http/not_served.h"
#include "router_fixture.h"

namespace baton::router {
namespace {

using testing::HasSubstr;

TEST_F(RouterTest, AKnownPathThatIsNotServedSaysWhy) {
  FakeWorker worker;
  Start({&worker});
  for (const char* path :
       {"/v1/audio/speech", "/v1/audio/transcriptions", "/v1/images/generations", "/v1/files", "/v1/files/f-1/content",
        "/v1/batches", "/v1/assistants", "/v1/threads/t/runs", "/v1/moderations", "/v1/fine_tuning/jobs",
        "/v1/embeddings", "/v1/vector_stores", "/v1/rerank", "/v1/chat/completions/chatcmpl-1"}) {
    for (const char* method : {"GET", "POST"}) {
      const HttpReply reply = Ask(port_, method, path, method[0] == 'P' ? "{}" : "");
      EXPECT_EQ(reply.status, 501) << path;
      const Json error = Json::parse(reply.body)["error"];
      EXPECT_EQ(error["code"], "unsupported_endpoint");
      EXPECT_EQ(error["type"], "not_implemented_error");
      EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(std::string(path) + " is not served: "));
    }
  }
  for (const char* path : {"/api/pull", "/api/push", "/api/create", "/api/copy", "/api/embed", "/api/embeddings"}) {
    const HttpReply reply = Ask(port_, "POST", path, "{}");
    EXPECT_EQ(reply.status, 501) << path;
    EXPECT_THAT(Json::parse(reply.body)["error"].get<std::string>(), HasSubstr("is not served: "));
  }
  EXPECT_EQ(Ask(port_, "DELETE", "/api/delete").status, 501);
  const HttpReply compact = Ask(port_, "POST", "/v1/responses/compact", "{}");
  EXPECT_EQ(compact.status, 501) << "it looks like a response's id, which takes no POST";
  EXPECT_THAT(compact.body, HasSubstr("shortens no conversations"));
  const HttpReply batches = Ask(port_, "POST", "/v1/messages/batches", "{}");
  EXPECT_EQ(batches.status, 501);
  EXPECT_EQ(Json::parse(batches.body)["type"], "error");
  EXPECT_EQ(Ask(port_, "GET", "/v1/filesystem").status, 404) << "no API has such a path";
}

TEST_F(RouterTest, AWrongMethodIsToldWhichThereAreInTheShapeOfItsApi) {
  FakeWorker worker;
  Start({&worker});
  const std::tuple<const char*, const char*, const char*> wrong[] = {
      {"GET", "/v1/chat/completions", "POST"},        {"DELETE", "/v1/models", "GET, HEAD"},
      {"POST", "/v1/models/tiny-llama", "GET, HEAD"}, {"POST", "/v1/responses/resp_1", "GET, DELETE, HEAD"},
      {"GET", "/v1/responses/resp_1/cancel", "POST"}, {"POST", "/v1/responses/resp_1/input_items", "GET, HEAD"},
      {"GET", "/v1/responses/input_tokens", "POST"}};
  for (const auto& [method, path, allow] : wrong) {
    const HttpReply reply = Ask(port_, method, path);
    EXPECT_EQ(reply.status, 405) << path;
    EXPECT_EQ(reply.headers.at("allow"), allow) << path;
    EXPECT_EQ(Json::parse(reply.body)["error"]["code"], "method_not_allowed");
  }
  const HttpReply ollama = Ask(port_, "GET", "/api/chat"), anthropic = Ask(port_, "GET", "/v1/messages");
  EXPECT_THAT(Json::parse(ollama.body)["error"].get<std::string>(), HasSubstr("takes POST"));
  EXPECT_EQ(ollama.headers.at("allow"), "POST");
  EXPECT_EQ(Json::parse(anthropic.body)["error"]["type"], "invalid_request_error");
  EXPECT_EQ(Json::parse(anthropic.body)["type"], "error");
}

TEST_F(RouterTest, ThoughtsThatAModelCannotHaveAreNamedAsIgnored) {
  FakeWorker worker;
  Start({&worker});
  const std::string messages = R"("messages":[{"role":"user","content":"x"}])";
  const auto ignored = [&](const char* path, const std::string& more) {
    const HttpReply reply = Ask(port_, "POST", path, StrCat("{", messages, more, "}"));
    EXPECT_EQ(reply.status, 200) << reply.body;
    const auto it = reply.headers.find("x-ignored-fields");
    return it == reply.headers.end() ? "" : it->second;
  };
  const std::string anthropic = R"(,"max_tokens":2,"thinking":)", ollama = R"(,"options":{"num_predict":2},"think":)";
  EXPECT_EQ(ignored("/v1/messages", anthropic + R"({"type":"enabled","budget_tokens":1024})"), "thinking");
  EXPECT_EQ(ignored("/v1/messages", anthropic + R"({"type":"disabled"})"), "") << "there are none";
  EXPECT_EQ(ignored("/api/chat", ollama + "true"), "think");
  EXPECT_EQ(ignored("/api/chat", ollama + R"("high")"), "think");
  EXPECT_EQ(ignored("/api/chat", ollama + "false"), "");
}

TEST_F(RouterTest, WithoutAKeyNoPathIsTalkedAbout) {
  FakeWorker worker;
  RouterConfig config;
  config.api_key = {"secret"};
  Start({&worker}, config);
  for (const char* path : {"/v1/files", "/v1/messages/batches", "/api/pull", "/v1/nothing"})
    EXPECT_EQ(Ask(port_, "GET", path).status, 401) << path;
  EXPECT_EQ(Json::parse(Ask(port_, "GET", "/v1/messages/batches").body)["error"]["type"], "authentication_error");
  EXPECT_EQ(Ask(port_, "GET", "/v1/files", "", {{"Authorization", "Bearer secret"}}).status, 501);
}

TEST_F(RouterTest, AnthropicsClientsFindTheRequestsIdWhereTheyLookForIt) {
  FakeWorker worker;
  Start({&worker});
  const Headers given = {{"X-Request-Id", "abc-1"}};
  const std::string body = R"({"messages":[{"role":"user","content":"x"}],"max_tokens":2)";
  const HttpReply good = Ask(port_, "POST", "/v1/messages", body + "}", given);
  EXPECT_EQ(good.headers.at("request-id"), "abc-1") << good.body;
  const HttpReply bad = Ask(port_, "POST", "/v1/messages", body + R"(,"top_p":7})", given);
  EXPECT_EQ(bad.headers.at("request-id"), "abc-1");
  EXPECT_EQ(Json::parse(bad.body)["request_id"], "abc-1") << bad.body;
  EXPECT_FALSE(Ask(port_, "GET", "/v1/nothing", "", given).headers.contains("request-id")) << "of no other API";
}

TEST_F(RouterTest, ModelsHaveAnthropicsShapeForItsClients) {
  FakeWorker worker;
  RouterConfig config;
  config.served_model_name = {"first", "second"};
  Start({&worker}, config);
  const Headers anthropics = {{"anthropic-version", "2023-06-01"}};
  const Json list = Json::parse(Ask(port_, "GET", "/v1/models", "", anthropics).body);
  EXPECT_EQ(list["data"][0]["type"], "model");
  EXPECT_EQ(list["data"][1]["display_name"], "second");
  EXPECT_THAT(list["data"][1]["created_at"].get<std::string>(), testing::MatchesRegex("20..-..-..T..:..:..Z"));
  EXPECT_EQ(list["first_id"], "first");
  EXPECT_EQ(list["last_id"], "second");
  EXPECT_EQ(list["has_more"], false);
  EXPECT_EQ(Json::parse(Ask(port_, "GET", "/v1/models/second", "", anthropics).body)["id"], "second");
  EXPECT_EQ(Json::parse(Ask(port_, "GET", "/v1/models/third", "", anthropics).body)["error"]["type"],
            "not_found_error");
  EXPECT_EQ(Json::parse(Ask(port_, "GET", "/v1/models").body)["object"], "list");
}

TEST_F(RouterTest, AWorkerThatSaysMoreThanAMessageHoldsIsNotListenedTo) {
  FakeWorker good, endless({.incarnation = std::string((64 << 20) + 1, 'x')});
  Start({&endless, &good}, {}, /*wait=*/false);
  ASSERT_TRUE(server_->WaitReady(std::chrono::seconds(10)));
  EXPECT_TRUE(good.Wait([&] {
    const std::string detail = server_->workers()[0].detail;
    return detail.find("bytes came that are no answer") != std::string::npos;  // and how many
  })) << server_->workers()[0].detail;
  EXPECT_NE(server_->workers()[0].state, "ready");
  EXPECT_EQ(Complete().status, 200) << "the other one serves";
}

TEST_F(RouterTest, ASaltHasALength) {
  FakeWorker worker;
  Start({&worker});
  const HttpReply salt = Complete(StrCat(R"("cache_salt":")", std::string(1025, 's'), "\""));
  EXPECT_EQ(salt.status, 400);
  EXPECT_NE(salt.body.find("`cache_salt` has 1025 bytes, at most 1024 are possible."), std::string::npos) << salt.body;
  EXPECT_EQ(Complete(StrCat(R"("cache_salt":")", std::string(1024, 's'), "\"")).status, 200);
}

TEST_F(RouterTest, ReadyNamesTwentyOfThemAndCountsTheOthers) {
  FakeWorker worker;
  RouterConfig config;
  for (int port = 1; port <= 25; ++port) config.worker.push_back("127.0.0.1:" + std::to_string(port));
  Start({&worker}, config, /*wait=*/false);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  Json body;
  do {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << body;
    body = Json::parse(Ask(port_, "GET", "/ready").body);
  } while (body["status"] != "ready");
  EXPECT_EQ(body["awaited"].size(), 20u);
  EXPECT_EQ(body["awaited_more"], 5);
  EXPECT_THAT(body["detail"].get<std::string>(), testing::EndsWith("; and 5 more"));
}

TEST_F(RouterTest, AWorkerWithAnotherVocabularyIsNotUsedAndChangesNothing) {
  FakeWorker one, other({.vocab_size = 0});
  Start({&one, &other}, {}, false);
  ASSERT_TRUE(server_->WaitReady(std::chrono::seconds(10)));
  const auto refused = [&] {
    for (const WorkerStatus& w : server_->workers()) {
      if (w.state == "mismatch") return w.detail;
    }
    return std::string();
  };
  ASSERT_TRUE(one.Wait([&] { return !refused().empty(); }));
  EXPECT_NE(refused().find("vocab_size: worker has "), std::string::npos) << refused();
}

}  // namespace
}  // namespace baton::router
