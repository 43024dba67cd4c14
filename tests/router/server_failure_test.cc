// A router when clients leave, workers die, refuse, load or differ, and when it is full or stopped.
#include <chrono>
#include <thread>

#include "router_fixture.h"
#include "tests/held_port.h"

namespace baton::router {
namespace {

TEST_F(RouterTest, AClientThatLeavesCancelsOnTheWorker) {
  FakeWorker worker({.hold_after = 3});
  Start({&worker});
  for (const bool stream : {true, false}) {
    SCOPED_TRACE(stream);
    const size_t before = worker.cancels().size();
    HttpConnection c(port_);
    c.Send(RequestText("POST", "/v1/completions",
                       Completion(StrCat(R"("max_tokens":500,"stream":)", stream ? "true" : "false"))));
    if (stream) c.ReceiveUntil("data: ");
    ASSERT_TRUE(worker.Wait([&] { return worker.attaches().size() == before + 1; }));
    const auto left = std::chrono::steady_clock::now();
    c.Close();
    ASSERT_TRUE(worker.Wait([&] { return worker.cancels().size() == before + 1; }));
    std::printf("cancelled on the worker %.1f ms after the client left\n",
                std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - left).count());
    EXPECT_EQ(worker.cancels()[before].request_id(), worker.attaches()[before].key().request_id());
  }
  ASSERT_TRUE(worker.Wait([&] { return Metric("baton_router_running_requests") == 0; }));
}

TEST_F(RouterTest, ABrokenStreamEndsWithAnErrorEventAndDone) {
  FakeWorker worker({.hold_after = 2});
  Start({&worker});
  HttpConnection c(port_);
  c.Send(RequestText("POST", "/v1/completions", Completion(R"("max_tokens":50,"stream":true)")));
  c.ReceiveUntil("data: ");
  worker.Kill();
  const HttpReply reply = c.Receive();
  const std::vector<std::string> events = EventsOf(reply.body);
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(events.back(), "[DONE]");
  const Json error = Json::parse(events[events.size() - 2])["error"];
  EXPECT_EQ(error["code"], "worker_lost");
  EXPECT_EQ(reply.body.find("event:"), std::string::npos);
  const HttpReply after = Complete();
  EXPECT_EQ(after.status, 503) << after.body;
  EXPECT_TRUE(after.headers.count("retry-after"));
  EXPECT_EQ(Ask(port_, "GET", "/health").status, 503);
  EXPECT_EQ(Ask(port_, "GET", "/live").status, 200);
}

TEST_F(RouterTest, AWorkerLostBeforeTheFirstTokenIs502) {
  FakeWorker worker({.hold_after = 0});
  Start({&worker});
  HttpConnection c(port_);
  c.Send(RequestText("POST", "/v1/completions", Completion()));
  ASSERT_TRUE(worker.Wait([&] { return worker.attaches().size() == 1; }));
  worker.Kill();
  const HttpReply reply = c.Receive();
  EXPECT_EQ(reply.status, 502) << reply.body;
  EXPECT_EQ(Json::parse(reply.body)["error"]["code"], "worker_lost");
}

TEST_F(RouterTest, ARestartedWorkerServesAgain) {
  const HeldPort port;
  auto worker = std::make_unique<FakeWorker>(FakeWorkerOptions{.port = port.number()});
  Start({worker.get()});
  ASSERT_EQ(Complete(R"("max_tokens":4)").status, 200);
  worker.reset();
  FakeWorker again({.port = port.number()});
  ASSERT_TRUE(again.Wait([&] { return again.watches() == 1 && server_->readiness().ready; }));
  EXPECT_EQ(Json::parse(Complete(R"("max_tokens":4)").body)["choices"][0]["text"], FakeWorker::TextOf(0, 8, 4));
}

// gRPC ends a process whose metadata it cannot send.
TEST_F(RouterTest, EveryCallNamesTheIncarnationThatWasGreetedWhereMetadataCanSayIt) {
  for (const std::string& incarnation : {std::string("inc"), std::string("2\xc3\xa9"), std::string("in\nc"),
                                         std::string("two words"), std::string(129, 'i')}) {
    SCOPED_TRACE(incarnation);
    FakeWorker worker({.incarnation = incarnation});
    Start({&worker});
    EXPECT_EQ(Complete(R"("max_tokens":4)").status, 200);
    const std::string said = incarnation == "inc" ? " inc" : "";
    EXPECT_EQ(worker.meant_for(), (std::set<std::string>{"Relay" + said, "Watch" + said}));
  }
}

TEST_F(RouterTest, AnotherWorkerContinuesAtTheNextPosition) {
  FakeWorker a({.hold_after = 5}), b({.hold_after = 5});
  Start({&a, &b});
  HttpConnection c(port_);
  c.Send(RequestText("POST", "/v1/completions", Completion(R"("max_tokens":20,"stream":true,"n":2)")));
  ASSERT_TRUE(a.Wait([&] { return a.tokens_sent() + b.tokens_sent() == 10; }));
  FakeWorker& first = a.tokens_sent() ? a : b;
  FakeWorker& second = a.tokens_sent() ? b : a;
  c.ReceiveUntil(StrCat("\"index\":1,\"text\":\"", FakeWorker::TextOf(1, 12, 1)));  // its fifth token
  second.Release();
  first.Kill();
  const HttpReply reply = c.Receive();
  std::map<int, std::string> text;
  for (const std::string& event : EventsOf(reply.body)) {
    if (event == "[DONE]") continue;
    const Json chunk = Json::parse(event);
    ASSERT_FALSE(chunk.contains("error")) << event;
    for (const Json& choice : chunk["choices"]) text[choice["index"]] += choice["text"];
  }
  EXPECT_EQ(text[0], FakeWorker::TextOf(0, 8, 20)) << "nothing twice, nothing missing";
  EXPECT_EQ(text[1], FakeWorker::TextOf(1, 8, 20));
  const auto attaches = second.attaches();
  ASSERT_EQ(attaches.size(), 2u) << "each choice has a text of its own now";
  EXPECT_EQ(attaches[0].position(), 13u);
  EXPECT_EQ(attaches[0].output_len_so_far(), 5u);
  EXPECT_EQ(attaches[0].prompt_len(), 8u);
  EXPECT_EQ(attaches[0].prompt_token_ids().size(), 13 * 4u);
  EXPECT_EQ(Metric("baton_migrations_total"), 1);
}

// Streams three tokens from one of `workers`, kills it, and lets the others go on; returns the killed one.
FakeWorker* LoseAfterThree(HttpConnection& c, const std::vector<FakeWorker*>& workers, const std::string& request) {
  c.Send(request);
  FakeWorker* first = nullptr;
  for (FakeWorker* w : workers) {
    if (w->Wait([&] { return std::ranges::any_of(workers, [](auto* any) { return any->tokens_sent() == 3; }); }) &&
        w->tokens_sent() == 3)
      first = w;
  }
  c.ReceiveUntil(StrCat("\"text\":\"", FakeWorker::TextOf(0, 10, 1)));  // its third token
  for (FakeWorker* w : workers) w != first ? w->Release() : w->Kill();
  return first;
}

TEST_F(RouterTest, AnAnswerGoesOnWithItsBitsWhereItCan) {
  FakeWorker x1({.hold_after = 3, .numerics = "x"}), x2({.hold_after = 3, .numerics = "x"});
  FakeWorker y1({.hold_after = 3, .numerics = "y"}), y2({.hold_after = 3, .numerics = "y"});
  const std::vector<FakeWorker*> all{&x1, &y1, &y2, &x2};
  const std::map<FakeWorker*, FakeWorker*> like{{&x1, &x2}, {&x2, &x1}, {&y1, &y2}, {&y2, &y1}};
  Start({&x1, &y1, &y2, &x2});
  HttpConnection c(port_);
  FakeWorker* first =
      LoseAfterThree(c, all, RequestText("POST", "/v1/completions", Completion(R"("max_tokens":20,"stream":true)")));
  ASSERT_NE(first, nullptr);
  const HttpReply reply = c.Receive();
  EXPECT_NE(reply.body.find("[DONE]"), std::string::npos);
  for (FakeWorker* w : all) EXPECT_EQ(w->attaches().size(), w == first || w == like.at(first) ? 1u : 0u);
}

TEST_F(RouterTest, OtherBitsTakeOverUnlessThatIsForbidden) {
  for (const bool require : {false, true}) {
    SCOPED_TRACE(require);
    FakeWorker x({.hold_after = 3, .numerics = "x"}), y({.hold_after = 3, .numerics = "y"});
    Start({&x, &y}, {.require_identical_failover = require});
    HttpConnection c(port_);
    FakeWorker* first = LoseAfterThree(
        c, {&x, &y}, RequestText("POST", "/v1/completions", Completion(R"("max_tokens":20,"stream":true)")));
    ASSERT_NE(first, nullptr);
    const HttpReply reply = c.Receive();
    EXPECT_EQ((first == &x ? y : x).attaches().size(), require ? 0u : 1u);
    EXPECT_EQ(reply.body.find("\"error\"") != std::string::npos, require) << reply.body;
    EXPECT_EQ(reply.body.find("\"numerics\":\"mixed\"") != std::string::npos, !require) << reply.body;
    server_.reset();
  }
}

TEST_F(RouterTest, ARefusalGoesElsewhereAndARefusalByAllIs429) {
  FakeWorker full({.refuse = absl::ResourceExhaustedError("9 sequences wait, the limit is 9")}), free;
  RouterConfig config;
  config.route_policy = "round-robin";
  Start({&full, &free}, config);
  ASSERT_TRUE(
      free.Wait([&] { return server_->workers()[0].state == "ready" && server_->workers()[1].state == "ready"; }));
  EXPECT_EQ(Complete(R"("max_tokens":2)").status, 200);
  EXPECT_EQ(full.attaches().size() + free.attaches().size(), 2u);
  free.Kill();
  ASSERT_TRUE(full.Wait([&] { return server_->workers()[1].state != "ready"; }));
  const HttpReply reply = Complete(R"("max_tokens":2)");
  EXPECT_EQ(reply.status, 429) << reply.body;
  EXPECT_EQ(reply.headers.at("retry-after"), "3");
  EXPECT_NE(reply.body.find("9 sequences wait"), std::string::npos);
  EXPECT_EQ(Json::parse(reply.body)["error"]["type"], "rate_limit_error");
}

TEST_F(RouterTest, WhenTheRetryBudgetIsSpentAFullWorkersRefusalIsTheAnswerUntilARetriedRequestHasItsFirstToken) {
  FakeWorker full({.refuse = absl::ResourceExhaustedError("9 sequences wait, the limit is 9")}),
      busy({.hold_after = 0});
  RouterConfig config;
  config.route_policy = "round-robin";
  config.retry_budget = 0;  // three at once all the same
  Start({&full, &busy}, config);
  ASSERT_TRUE(
      busy.Wait([&] { return server_->workers()[0].state == "ready" && server_->workers()[1].state == "ready"; }));
  std::vector<std::unique_ptr<HttpConnection>> clients;
  while (full.attaches().size() < 4) {
    ASSERT_LT(clients.size(), 20u);
    clients.push_back(std::make_unique<HttpConnection>(port_));
    clients.back()->Send(RequestText("POST", "/v1/completions", Completion(R"("max_tokens":4,"stream":true)")));
    ASSERT_TRUE(busy.Wait([&] { return busy.attaches().size() == clients.size() || full.attaches().size() == 4; }));
  }
  EXPECT_EQ(clients.back()->Receive().status, 429);
  clients.pop_back();
  busy.Release();
  for (size_t i = 0; i < clients.size(); ++i) EXPECT_EQ(clients[i]->Receive().status, 200) << i;
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Complete(R"("max_tokens":2)").status, 200) << "the retries came back";
  EXPECT_GT(full.attaches().size(), 4u);
}

TEST_F(RouterTest, AWorkersInvalidArgumentIs400) {
  FakeWorker worker({.refuse = absl::InvalidArgumentError("prompt needs 40 KV blocks, the worker has 30")});
  Start({&worker});
  const HttpReply reply = Complete();
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.body.find("40 KV blocks"), std::string::npos);
  EXPECT_EQ(worker.attaches().size(), 1u) << "no second try can help";
}

TEST_F(RouterTest, AFullRouterIs429WithTheNumbersAndTheFlag) {
  FakeWorker worker({.hold_after = 1});
  RouterConfig config;
  config.max_running_requests = 2;
  Start({&worker}, config);
  std::vector<std::unique_ptr<HttpConnection>> running;
  for (int i = 0; i < 2; ++i) {
    running.push_back(std::make_unique<HttpConnection>(port_));
    running.back()->Send(RequestText("POST", "/v1/completions", Completion(R"("max_tokens":5,"stream":true)")));
    running.back()->ReceiveUntil("data: ");
  }
  const HttpReply refused = Complete();
  EXPECT_EQ(refused.status, 429);
  EXPECT_TRUE(refused.headers.count("retry-after"));
  const Json error = Json::parse(refused.body)["error"];
  EXPECT_EQ(error["queue_length"], 2);
  EXPECT_EQ(error["flag"], "--max-running-requests");
  worker.Release();
  for (auto& c : running) EXPECT_EQ(EventsOf(c->Receive().body).back(), "[DONE]");
  EXPECT_EQ(Complete(R"("max_tokens":2)").status, 200);
}

TEST_F(RouterTest, ALoadingWorkerIs503WithPhaseAndProgress) {
  FakeWorker worker({.loading = true});
  Start({&worker}, {}, /*wait=*/false);
  ASSERT_TRUE(worker.Wait([&] { return server_->workers()[0].state == "loading"; }));
  const HttpReply ready = Ask(port_, "GET", "/ready");
  EXPECT_EQ(ready.status, 503);
  const Json body = Json::parse(ready.body);
  EXPECT_EQ(body["status"], "loading");
  EXPECT_EQ(body["phase"], "weights");
  EXPECT_EQ(body["progress"], 0.25);
  const HttpReply refused = Complete();
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.body.find("weights"), std::string::npos);
  worker.DoneLoading();
  EXPECT_TRUE(server_->WaitReady(std::chrono::seconds(10)));
}

TEST_F(RouterTest, AWorkerThatDiffersIsNotUsedAndSaysWhy) {
  FakeWorker one, other({.model_digest = "another"}), idle({.role = v1::WORKER_ROLE_UNSPECIFIED});
  Start({&one, &other, &idle}, {}, false);
  ASSERT_TRUE(one.Wait([&] {
    int mismatch = 0;
    for (const WorkerStatus& w : server_->workers()) mismatch += w.state == "mismatch";
    return mismatch == 2;
  }));
  for (const WorkerStatus& w : server_->workers()) {
    if (w.state != "mismatch") continue;
    EXPECT_TRUE(w.detail.find("digest") != std::string::npos || w.detail.find("role: worker is") != std::string::npos)
        << w.detail;
  }
}

TEST_F(RouterTest, AWorkerWithAnotherTokenizerIsNotUsed) {
  FakeWorker one({.tokenizer_digest = "a"}), same({.tokenizer_digest = "a"}), none, other({.tokenizer_digest = "b"});
  Start({&one, &same, &none}, {}, false);
  ASSERT_TRUE(server_->WaitReady(std::chrono::seconds(10)));
  server_.reset();
  Start({&one, &other}, {}, false);
  const auto refused = [&] {
    for (const WorkerStatus& w : server_->workers()) {
      if (w.state == "mismatch") return w.detail;
    }
    return std::string();
  };
  ASSERT_TRUE(one.Wait([&] { return !refused().empty(); }));
  EXPECT_NE(refused().find("tokenizer_digest"), std::string::npos) << refused();
}

TEST_F(RouterTest, AWorkerWithoutKvDigestsIsNotUsedAlone) {
  FakeWorker worker({.kv_digest = "off"});
  Start({&worker}, {}, false);
  ASSERT_TRUE(worker.Wait([&] { return server_->workers()[0].state == "mismatch"; }));
  EXPECT_EQ(server_->workers()[0].detail, "kv_digest: worker has \"off\", this router's build \"sum64\"");
}

TEST_F(RouterTest, AWorkerOfAnotherProtocolIsNamedAndDisturbsNobodyAndOneThatSharesAVersionServes) {
  FakeWorker far({.protocol_min = 2, .protocol_max = 3}), near({.protocol_max = 2});
  Start({&far, &near}, {}, false);
  ASSERT_TRUE(server_->WaitReady(std::chrono::seconds(10)));
  ASSERT_TRUE(far.Wait([&] { return server_->workers()[0].state == "mismatch"; }));
  EXPECT_NE(server_->workers()[0].detail.find("speaks 2..3, this router 1"), std::string::npos)
      << server_->workers()[0].detail;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Complete(R"("max_tokens":1)").status, 200);
  EXPECT_EQ(near.attaches().size(), 3u);
  EXPECT_EQ(far.attaches().size(), 0u);
}

TEST_F(RouterTest, AGapInTheEventsAsksForASnapshot) {
  FakeWorker worker;
  Start({&worker});
  worker.Stored({11, 22, 33});
  ASSERT_TRUE(worker.Wait([&] { return Metric("baton_router_index_units") == 3; }));
  const int before = worker.watches();
  worker.SkipSequenceNumber();
  ASSERT_TRUE(worker.Wait([&] { return worker.watches() > before; }));
  ASSERT_TRUE(worker.Wait([&] { return Metric("baton_router_index_units") == 3; }));
  EXPECT_EQ(Complete(R"("max_tokens":2)").status, 200) << "requests go on meanwhile";
}

TEST_F(RouterTest, ADrainingWorkerGetsNothingNew) {
  FakeWorker a, b;
  RouterConfig config;
  config.route_policy = "round-robin";
  Start({&a, &b}, config);
  ASSERT_TRUE(a.Wait([&] { return server_->workers()[0].state == "ready" && server_->workers()[1].state == "ready"; }));
  a.SetDraining();
  ASSERT_TRUE(a.Wait([&] { return server_->workers()[0].state == "draining"; }));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Complete(R"("max_tokens":1)").status, 200);
  EXPECT_EQ(b.attaches().size(), 3u);
}

// The client reads nothing: the worker may run ahead by its credit and what fits into buffers, no further.
TEST_F(RouterTest, ASlowClientStopsItsSequenceAndLosesNothing) {
  constexpr int kTokens = 60000;
  FakeWorker worker({.max_model_len = 1 << 20});
  RouterConfig config;
  config.relay_credit_tokens = 64;
  config.write_buffer_bytes = 4096;
  Start({&worker}, config);
  HttpConnection c(port_, 4096);
  c.Send(RequestText("POST", "/v1/completions", Completion(StrCat(R"("stream":true,"max_tokens":)", kTokens))));
  ASSERT_TRUE(worker.Wait([&] { return worker.tokens_sent() > 0; }));
  ASSERT_TRUE(worker.WaitStarved(std::chrono::milliseconds(300)));
  EXPECT_LT(worker.tokens_sent(), kTokens / 2);
  std::printf("%lld tokens ahead of a client that reads nothing\n", static_cast<long long>(worker.tokens_sent()));
  EXPECT_EQ(Complete(R"("max_tokens":5)").status, 200) << "others are not held up";
  c.SetReceiveBuffer(1 << 20);  // with a window of 4 KB TCP may crawl from one persist timer to the next
  EXPECT_EQ(StreamedText(EventsOf(c.Receive().body)), FakeWorker::TextOf(0, 8, kTokens));
}

TEST_F(RouterTest, AClientThatReadsNothingForTooLongIsCancelledOnTheWorker) {
  FakeWorker worker({.max_model_len = 1 << 20});
  Start({&worker}, ImpatientConfig());
  HttpConnection c(port_, 4096);
  c.Send(RequestText("POST", "/v1/completions", Completion(R"("stream":true,"max_tokens":60000)")));
  ASSERT_TRUE(worker.Wait([&] { return worker.cancels().size() == 1; }));
  EXPECT_EQ(worker.cancels()[0].request_id(), worker.attaches()[0].key().request_id());
  EXPECT_LT(worker.tokens_sent(), 30000);
  ASSERT_TRUE(worker.Wait([&] { return Metric("baton_router_running_requests") == 0; }));
  EXPECT_EQ(c.ReceiveAll().find("[DONE]"), std::string::npos);
}

TEST_F(RouterTest, AClientThatStopsSendingHasOpenAisErrorWithTheSeconds) {
  RouterConfig config;
  config.read_timeout_ms = 1500;
  Start({}, config, false);
  const auto c = ConnectionThatAsked(port_);
  c->Send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{");
  const HttpReply reply = c->Receive();
  EXPECT_EQ(reply.status, 408);
  const Json error = Json::parse(reply.body)["error"];
  EXPECT_EQ(error["code"], "request_timeout");
  EXPECT_EQ(error["type"], "timeout_error");
  EXPECT_EQ(error["message"],
            "The request did not arrive whole within 1.5 seconds of its first byte (--read-timeout-ms).");
}

TEST_F(RouterTest, StopEndsWhatStillRunsWithAnError) {
  FakeWorker worker({.hold_after = 1});
  Start({&worker});
  HttpConnection streamed(port_), whole(port_);
  streamed.Send(RequestText("POST", "/v1/completions", Completion(R"("max_tokens":9,"stream":true)")));
  streamed.ReceiveUntil("data: ");
  whole.Send(RequestText("POST", "/v1/completions", Completion(R"("max_tokens":9)")));
  ASSERT_TRUE(worker.Wait([&] { return worker.attaches().size() == 2; }));
  const auto start = std::chrono::steady_clock::now();
  server_->Stop();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  const std::vector<std::string> events = EventsOf(streamed.Receive().body);
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_TRUE(Json::parse(events[events.size() - 2]).contains("error"));
  EXPECT_GE(whole.Receive().status, 500);
  server_->Stop();  // once more changes nothing
}

TEST_F(RouterTest, ManyClientsAtOnceGetTheirOwnAnswers) {
  FakeWorker a({.tokens_per_message = 3}), b;
  Start({&a, &b});
  std::vector<std::thread> clients;
  std::atomic<int> right{0};
  for (int t = 0; t < 8; ++t) {
    clients.emplace_back([&, t] {
      for (int i = 0; i < 25; ++i) {
        const int prompt = 3 + (7 * t + i) % 40, tokens = 1 + (t * i) % 60;
        const bool stream = (t + i) % 2;
        const std::string body =
            Completion(StrCat("\"max_tokens\":", tokens, ",\"stream\":", stream ? "true" : "false"), prompt);
        const HttpReply reply = Ask(port_, "POST", "/v1/completions", body);
        const std::string text =
            stream ? StreamedText(EventsOf(reply.body)) : std::string(Json::parse(reply.body)["choices"][0]["text"]);
        right += text == FakeWorker::TextOf(0, static_cast<uint64_t>(prompt), static_cast<size_t>(tokens));
      }
    });
  }
  for (std::thread& t : clients) t.join();
  EXPECT_EQ(right, 200);
  EXPECT_EQ(Metric("vllm:request_success_total"), 200);
}

TEST(RouterServerStart, AConfigurationThatCannotWorkIsRefusedWithItsFlag) {
  RouterConfig config;
  config.model = "tests/data/tiny-llama";
  config.port = config.grpc_port = config.admin_port = 0;
  auto refused = [](const RouterConfig& c) { return RouterServer::Start(c, "test").status(); };
  RouterConfig open = config;
  open.host = "0.0.0.0";
  EXPECT_EQ(refused(open).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(refused(open).message().find("--insecure"), absl::string_view::npos);
  RouterConfig nowhere = config;
  nowhere.model = "/no/such/model";
  EXPECT_EQ(refused(nowhere).code(), absl::StatusCode::kNotFound);
  RouterConfig wrong = config;
  wrong.worker = {"127.0.0.1"};
  EXPECT_NE(refused(wrong).message().find("HOST:PORT"), absl::string_view::npos);
  auto first = RouterServer::Start(config, "test");
  ASSERT_TRUE(first.ok()) << first.status();
  RouterConfig taken = config;
  taken.grpc_port = (*first)->grpc_port();
  EXPECT_EQ(refused(taken).code(), absl::StatusCode::kAlreadyExists) << refused(taken);
  EXPECT_NE(refused(taken).message().find("--grpc-port"), absl::string_view::npos);
  taken.grpc_port = 0;
  taken.admin_port = (*first)->http_port();
  EXPECT_NE(refused(taken).message().find("--admin-port"), absl::string_view::npos);
}

}  // namespace
}  // namespace baton::router
