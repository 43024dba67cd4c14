// /events, the console and orders about a worker, of a router before scripted workers.
#include "router_fixture.h"

namespace baton::router {
namespace {

constexpr std::string_view kAsk = "GET /events HTTP/1.1\r\nHost: localhost\r\n";

std::vector<Json> Events(std::string_view stream) {
  std::vector<Json> out;
  for (size_t at = stream.find("data: "); at != std::string_view::npos; at = stream.find("data: ", at + 1)) {
    const size_t end = stream.find("\n\n", at);
    if (end != std::string_view::npos) out.push_back(Json::parse(stream.substr(at + 6, end - at - 6)));
  }
  return out;
}

TEST_F(RouterTest, AReaderOfEventsHearsTheClusterAndEveryStageOfARequestInOrder) {
  FakeWorker worker;
  Start({&worker});
  HttpConnection reader(server_->admin_port());
  reader.Send(StrCat(kAsk, "\r\n"));
  reader.ReceiveUntil(R"("event":"state")");
  const HttpReply answer = Complete(R"("max_tokens":5)");
  ASSERT_EQ(answer.status, 200);
  const std::string id = answer.headers.at("x-request-id");
  const std::string& text = reader.ReceiveUntil(R"("stage":"finished")");
  EXPECT_NE(text.find("text/event-stream"), std::string::npos);
  const std::vector<Json> events = Events(reader.ReceiveUntil("]]}\n\n"));
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events[0]["event"], "hello");
  EXPECT_EQ(events[0]["model"], "tiny-llama");
  EXPECT_EQ(events[1]["event"], "state");
  EXPECT_EQ(events[1]["workers"][0]["role"], "both");
  std::string stages;
  double last_ms = 0;
  for (const Json& e : events) {
    if (e["event"] != "request") continue;
    EXPECT_TRUE(e["id"].get<std::string>().starts_with(id)) << e["id"];
    EXPECT_GE(e["at_ms"], last_ms);
    last_ms = e["at_ms"];
    if (e["stage"] != "tokens") stages += e["stage"].get<std::string>() + " ";
    if (e["stage"] == "placed") {
      EXPECT_EQ(e["why"]["options"][0]["chosen"], true);
    }
  }
  EXPECT_EQ(stages, "received tokenized placed attached first_token finished ");
  const Json end = events.back(), said = Json::parse(answer.body);
  EXPECT_EQ(end["timings"], said["timings"]) << "what the client is told";
  EXPECT_EQ(end["completion_tokens"], 5);
  EXPECT_EQ(end["reason"], "length");
}

TEST_F(RouterTest, WhoComesLaterHearsOfRequestsThatAreOverAndOfThoseThatWereRefused) {
  FakeWorker worker;
  Start({&worker});
  ASSERT_EQ(Complete(R"("max_tokens":2)").status, 200);
  ASSERT_EQ(Complete(R"("max_tokens":100000)").status, 400);
  HttpConnection reader(server_->admin_port());
  reader.Send(StrCat(kAsk, "\r\n"));
  const std::vector<Json> events = Events(reader.ReceiveUntil("\"event\":\"state\""));
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events[1]["reason"], "length");
  EXPECT_EQ(events[2]["reason"], "refused");
  EXPECT_NE(events[2]["error"].get<std::string>().find("100000"), std::string::npos) << events[2];
}

TEST_F(RouterTest, NothingOfPromptsOrAnswersIsInTheEvents) {
  FakeWorker worker;
  Start({&worker});
  HttpConnection reader(server_->admin_port());
  reader.Send(StrCat(kAsk, "\r\n"));
  reader.ReceiveUntil(R"("event":"state")");
  const std::string body =
      R"({"model":"tiny-llama","messages":[{"role":"user","content":"xylophone"}],"max_tokens":8})";
  const HttpReply answer = Ask(port_, "POST", "/v1/chat/completions", body);
  ASSERT_EQ(answer.status, 200);
  const std::string& text = reader.ReceiveUntil(R"("stage":"finished")");
  EXPECT_EQ(text.find("xylophone"), std::string::npos);
  EXPECT_EQ(text.find(Json::parse(answer.body)["choices"][0]["message"]["content"].get<std::string>()),
            std::string::npos);
}

// What it leaves in the sockets is the kernel's; beyond that Baton keeps 1 MiB.
TEST_F(RouterTest, AReaderOfEventsThatTakesNothingIsDroppedAndRequestsGoOn) {
  FakeWorker worker;
  Start({&worker});
  HttpConnection lazy(server_->admin_port(), 4096);
  lazy.Send(StrCat(kAsk, "\r\n"));
  bool dropped = false;
  for (int i = 0; i < 400 && !dropped; ++i) {
    for (int k = 0; k < 10; ++k) EXPECT_EQ(Complete(R"("max_tokens":1)").status, 200);
    dropped =
        Ask(server_->admin_port(), "GET", "/metrics").body.find(R"(reason="slow-event-reader")") != std::string::npos;
  }
  EXPECT_TRUE(dropped);
}

TEST_F(RouterTest, EventsAndTheConsoleAreOnTheAdminPortOnlyAndEventsWantTheKey) {
  FakeWorker worker;
  RouterConfig config;
  config.api_key = {"secret"};
  Start({&worker}, config);
  const int admin = server_->admin_port();
  for (const char* path : {"/events", "/console"}) EXPECT_EQ(Ask(port_, "GET", path).status, 404) << path;
  EXPECT_EQ(Ask(admin, "GET", "/events").status, 401);
  HttpConnection reader(admin);
  reader.Send(StrCat(kAsk, "Authorization: Bearer secret\r\n\r\n"));
  EXPECT_NE(reader.ReceiveUntil("hello").find("200 OK"), std::string::npos);
  for (const char* path : {"/", "/console"}) {
    const HttpReply page = Ask(admin, "GET", path);
    EXPECT_EQ(page.status, 200) << "it asks for the key itself";
    EXPECT_LE(page.body.size(), 200u << 10);
    EXPECT_NE(page.headers.at("content-security-policy").find("default-src 'none'"), std::string::npos);
  }
  EXPECT_EQ(Ask(admin, "GET", "/console", "", {{"Origin", "http://evil.example"}}).status, 403);
  EXPECT_EQ(Ask(admin, "POST", "/events", "{}").status, 405);
  const std::string chat = R"({"messages":[{"role":"user","content":"a"}],"max_tokens":2})";
  EXPECT_EQ(Ask(admin, "POST", "/v1/chat/completions", chat).status, 401);
  EXPECT_EQ(Ask(admin, "POST", "/v1/chat/completions", chat, {{"Authorization", "Bearer secret"}}).status, 200)
      << "the console's playground";
  EXPECT_EQ(Ask(admin, "POST", "/v1/completions", Completion(), {{"Authorization", "Bearer secret"}}).status, 404);
}

TEST_F(RouterTest, NoPortWaitsForABodyWithoutAKeyOrForOneThatNobodyReads) {
  FakeWorker worker;
  RouterConfig config;
  config.api_key = {"secret"};
  Start({&worker}, config);
  const int admin = server_->admin_port();
  const auto head_alone = [](int port, const char* line) {
    HttpConnection c(port);
    c.Send(StrCat(line, " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\n\r\n"));
    const HttpReply reply = c.Receive();
    EXPECT_EQ(reply.headers.at("connection"), "close") << line;
    return reply.status;
  };
  for (const char* line : {"POST /workers/drain", "POST /workers/resume", "POST /workers/flip", "POST /debug/route",
                           "GET /workers", "GET /events", "POST /v1/chat/completions", "GET /v1/models"})
    EXPECT_EQ(head_alone(admin, line), 401) << line;
  for (const char* line : {"POST /v1/completions", "POST /v1/responses", "POST /tokenize", "GET /v1/models"})
    EXPECT_EQ(head_alone(port_, line), 401) << line;
  for (const int port : {port_, admin}) {
    EXPECT_EQ(head_alone(port, "GET /live"), 200);
    EXPECT_EQ(head_alone(port, "POST /nothing"), 404);
  }
}

TEST_F(RouterTest, OneReaderOfEventsTooManyIs429) {
  FakeWorker worker;
  Start({&worker});
  std::vector<std::unique_ptr<HttpConnection>> readers;
  for (int i = 0; i < 16; ++i) {
    readers.push_back(std::make_unique<HttpConnection>(server_->admin_port()));
    readers.back()->Send(StrCat(kAsk, "\r\n"));
    readers.back()->ReceiveUntil("hello");
  }
  const HttpReply refused = Ask(server_->admin_port(), "GET", "/events");
  EXPECT_EQ(refused.status, 429);
  EXPECT_NE(refused.body.find("16 readers"), std::string::npos) << refused.body;
  readers.pop_back();
  ASSERT_TRUE(worker.Wait([&] {
    HttpConnection next(server_->admin_port());
    next.Send(StrCat(kAsk, "\r\n"));
    return next.ReceiveUntil("HTTP/1.1 ").size() > 12 && next.ReceiveUntil("\r\n").find("200 OK") != std::string::npos;
  }));
}

TEST_F(RouterTest, AWorkerThatIsAwayIsToldNoOtherRoleAndWhyItIsAwayIsSaid) {
  FakeWorker stays, leaves;
  Start({&stays, &leaves});
  leaves.Kill();
  ASSERT_TRUE(stays.Wait([&] {
    const WorkerStatus now = server_->workers()[1];
    return now.state != "ready" && !now.detail.empty();
  }));
  const HttpReply refused = Ask(server_->admin_port(), "POST", "/workers/flip",
                                StrCat(R"({"worker":")", leaves.address(), R"(","role":"decode"})"));
  EXPECT_EQ(refused.status, 409);
  EXPECT_NE(refused.body.find("is not connected: "), std::string::npos) << refused.body;
}

}  // namespace
}  // namespace baton::router
