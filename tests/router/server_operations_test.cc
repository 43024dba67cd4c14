// A router before workers that do what they should: what operators and browsers see beside the answers.
#include <fstream>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "router_fixture.h"

namespace baton::router {
namespace {

TEST_F(RouterTest, OperationsEndpoints) {
  FakeWorker worker;
  Start({&worker});
  for (const char* path : {"/health", "/ping", "/live", "/livez", "/ready", "/readyz", "/metrics", "/version",
                           "/openapi.json", "/v1/models", "/v1/models/tiny-llama", "/load"}) {
    EXPECT_EQ(Ask(port_, "GET", path).status, 200) << path;
  }
  EXPECT_EQ(Json::parse(Ask(port_, "GET", "/v1/models").body)["data"][0]["max_model_len"], 2048);
  EXPECT_EQ(Ask(port_, "GET", "/v1/models/other").status, 404);
  EXPECT_EQ(Ask(port_, "GET", "/nope").status, 404);
  EXPECT_EQ(Ask(port_, "GET", "/v1/chat/completions").status, 405);
  EXPECT_EQ(Json::parse(Ask(port_, "GET", "/version").body)["version"], "test");
  const HttpReply preflight = Ask(port_, "OPTIONS", "/v1/models", "", {{"Origin", "http://localhost:3000"}});
  EXPECT_EQ(preflight.status, 204);
  EXPECT_EQ(preflight.headers.at("access-control-allow-origin"), "http://localhost:3000");
}

TEST_F(RouterTest, TheFrontPageSaysWhatThisIsAndWhereTheApiIs) {
  FakeWorker worker;
  Start({&worker}, {.served_model_name = {"small", "alias"}});
  const HttpReply front = Ask(port_, "GET", "/");
  ASSERT_EQ(front.status, 200);
  const Json page = Json::parse(front.body);
  EXPECT_EQ(page["server"], "baton");
  EXPECT_EQ(page["models"], Json::array({"small", "alias"}));
  for (const char* key : {"reference", "ready", "metrics"}) {
    EXPECT_EQ(Ask(port_, "GET", page[key].get<std::string>()).status, 200) << key;
  }
  EXPECT_EQ(Ask(port_, "GET", page["chat"].get<std::string>()).status, 405);
  EXPECT_NE(Ask(port_, "GET", "/nope").body.find("/v1"), std::string::npos);
}

TEST_F(RouterTest, AWrongModelIsAnsweredWithThoseThatThereAre) {
  FakeWorker worker;
  Start({&worker}, {.served_model_name = {"small", "alias"}});
  for (const HttpReply& reply :
       {Ask(port_, "POST", "/v1/completions", R"({"model":"nope","prompt":"a"})"), Ask(port_, "GET", "/v1/models/nope"),
        Ask(port_, "POST", "/tokenize", R"({"model":"nope","prompt":"a"})")}) {
    EXPECT_EQ(reply.status, 404);
    EXPECT_EQ(Json::parse(reply.body)["error"]["message"],
              "The model `nope` does not exist. This server has `small`, `alias`.");
  }
}

TEST_F(RouterTest, CurlsDefaultContentTypeIsTakenForJsonUnlessAWebPageSendsIt) {
  FakeWorker worker;
  Start({&worker});
  const auto complete = [&](const Headers& headers) {
    return Ask(port_, "POST", "/v1/completions", Completion(R"("max_tokens":1)"), headers);
  };
  EXPECT_EQ(complete({{"Content-Type", "application/x-www-form-urlencoded"}}).status, 200);
  EXPECT_EQ(complete({{"Content-Type", "application/json; charset=utf-8"}}).status, 200);
  for (const HttpReply& refused :
       {complete({{"Content-Type", "application/x-www-form-urlencoded"}, {"Origin", "http://localhost"}}),
        complete({{"Content-Type", "text/plain"}})}) {
    EXPECT_EQ(refused.status, 400);
    EXPECT_NE(refused.body.find("Content-Type: application/json"), std::string::npos) << refused.body;
  }
}

TEST_F(RouterTest, UnknownFieldsAreNamedInAHeaderOfTheAnswer) {
  FakeWorker worker;
  Start({&worker});
  const HttpReply whole = Complete(R"("max_tokens":2,"foo":1,"bar_baz":{},"a\r\nSet-Cookie: b":1)");
  EXPECT_EQ(whole.status, 200);
  EXPECT_EQ(whole.headers.at("x-ignored-fields"), "foo, bar_baz");
  EXPECT_FALSE(whole.headers.contains("set-cookie"));
  EXPECT_EQ(Complete(R"("max_tokens":2,"foo":1,"stream":true)").headers.at("x-ignored-fields"), "foo");
  EXPECT_FALSE(Complete(R"("max_tokens":2)").headers.contains("x-ignored-fields"));
  EXPECT_EQ(Complete(R"("max_token":2)").status, 400);
}

TEST_F(RouterTest, OnlyPagesOfAllowedOriginsMayAsk) {
  FakeWorker worker;
  Start({&worker}, {.allowed_origins = "http://a,http://b:8080"});
  for (const int port : {port_, static_cast<int>(server_->admin_port())}) {
    const char* path = port == port_ ? "/v1/models" : "/workers";
    for (const auto& [origin, allowed] : {std::pair{"http://a", true}, {"http://b:8080", true}, {"http://c", false}}) {
      const HttpReply reply = Ask(port, "GET", path, "", {{"Origin", origin}});
      EXPECT_EQ(reply.status, allowed ? 200 : 403) << origin;
      EXPECT_EQ(reply.body.find("--allowed-origins") == std::string::npos, allowed) << reply.body;
      EXPECT_EQ(reply.headers.contains("access-control-allow-origin"), allowed && port == port_);
      EXPECT_TRUE(!allowed || port != port_ || reply.headers.at("access-control-allow-origin") == origin);
    }
  }
  EXPECT_EQ(Ask(port_, "OPTIONS", "/v1/models", "", {{"Origin", "http://c"}}).status, 403);
}

// A page of somebody else whose name has been turned into 127.0.0.1, and what it would ask.
TEST_F(RouterTest, OnLoopbackAnotherNameThanOnesOwnIsRefusedBeforeTheBody) {
  FakeWorker worker;
  Start({&worker});
  for (const int port : {port_, static_cast<int>(server_->admin_port())}) {
    HttpConnection c(port);
    c.Send("GET /metrics HTTP/1.1\r\nHost: evil.example:8000\r\n\r\n");
    const HttpReply reply = c.Receive();
    EXPECT_EQ(reply.status, 403);
    EXPECT_NE(reply.body.find("--allowed-hosts"), std::string::npos) << reply.body;
  }
  HttpConnection c(port_);
  c.Send("POST /v1/completions HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 8000000\r\n\r\n");
  EXPECT_EQ(c.Receive().status, 403);
  HttpConnection admin(server_->admin_port());
  admin.Send("GET /workers HTTP/1.1\r\nHost: evil.example\r\n\r\n");
  EXPECT_EQ(admin.Receive().status, 403);
}

TEST_F(RouterTest, OffLoopbackThePublicPortHasMetricsWhereTheyAreAskedFor) {
  FakeWorker worker;
  for (const bool asked : {false, true}) {
    Start({&worker}, {.host = "0.0.0.0", .insecure = true, .public_metrics = asked}, false);
    const HttpReply reply = Ask(port_, "GET", "/metrics");
    EXPECT_EQ(reply.status, asked ? 200 : 403);
    EXPECT_EQ(reply.body.find("--public-metrics") == std::string::npos, asked);
    EXPECT_EQ(Ask(server_->admin_port(), "GET", "/metrics").status, 200);
    EXPECT_EQ(Ask(port_, "GET", "/workers").status, 404) << "operators' paths are never there";
    server_.reset();
  }
}

TEST_F(RouterTest, EveryOperationOfTheOpenApiDocumentIsServed) {
  FakeWorker worker;
  Start({&worker});
  const Json api = Json::parse(Ask(port_, "GET", "/openapi.json").body);
  EXPECT_EQ(api["paths"].size(), 27u);
  for (const auto& [path, operations] : api["paths"].items()) {
    if (operations.contains("get") && path.find('{') == std::string::npos) {
      EXPECT_EQ(Ask(port_, "GET", path).status, 200) << path;
    }
    if (path.ends_with("/cancel")) {
      EXPECT_EQ(Ask(port_, "POST", "/v1/responses/resp_none/cancel").status, 404);
    } else if (operations.contains("post")) {
      EXPECT_EQ(Ask(port_, "POST", path, "[]").status, 400) << path << ": there, and the body is no object";
    }
    if (operations.contains("delete")) {
      const HttpReply reply = Ask(port_, "DELETE", "/v1/responses/resp_none");
      EXPECT_EQ(reply.status, 404) << path;
      EXPECT_NE(reply.body.find("this router has no response resp_none"), std::string::npos) << reply.body;
    }
  }
}

TEST_F(RouterTest, MetricsHaveVllmsNames) {
  FakeWorker worker;
  Start({&worker});
  ASSERT_EQ(Complete(R"("max_tokens":7)").status, 200);
  for (const char* name :
       {"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
        "vllm:time_to_first_token_seconds_count", "vllm:inter_token_latency_seconds_count",
        "vllm:e2e_request_latency_seconds_count", "vllm:request_prompt_tokens_sum",
        "vllm:request_generation_tokens_sum", "vllm:request_success_total", "vllm:cache_config_info"}) {
    Metric(name);
  }
  EXPECT_EQ(Metric("vllm:request_generation_tokens_sum"), 7);
  EXPECT_EQ(Metric("vllm:request_prompt_tokens_sum"), 8);
  EXPECT_EQ(Metric("vllm:request_success_total"), 1);
}

TEST_F(RouterTest, CachedTokensOfWorkersAndRefusalsAreCounted) {
  FakeWorker worker({.hold_after = 1, .cached_tokens = 5});
  Start({&worker}, {.max_running_requests = 1});
  HttpConnection first(port_);
  first.Send(RequestText("POST", "/v1/completions", Completion(R"("max_tokens":3)")));
  ASSERT_TRUE(worker.Wait([&] { return worker.attaches().size() == 1; }));
  EXPECT_EQ(Complete(R"("max_tokens":1)").status, 429);
  EXPECT_EQ(Metric("baton_refused_requests_total"), 1);
  worker.Release();
  EXPECT_EQ(first.Receive().status, 200);
  ASSERT_TRUE(worker.Wait([&] { return Metric("baton_router_running_requests") == 0; }));
  EXPECT_EQ(Metric("baton_prefix_hit_tokens_reported_total"), 5);
  EXPECT_EQ(Metric("baton_retries_total"), 0);
  EXPECT_EQ(Metric("baton_router_texts_queued"), 0);
  EXPECT_EQ(Metric("baton_worker_queued_tokens"), 0);
  EXPECT_EQ(Metric("vllm:request_prefill_time_seconds_sum"), 0.003) << "3 ms, as the worker said";
  EXPECT_EQ(Metric("vllm:request_decode_time_seconds_sum"), 0.005);
  EXPECT_EQ(Metric("vllm:request_inference_time_seconds_sum"), 0.008);
  EXPECT_EQ(Metric("vllm:request_queue_time_seconds_count"), 1);
}

TEST_F(RouterTest, RequestIdsAreEchoedOrMade) {
  FakeWorker worker;
  Start({&worker});
  const HttpReply given =
      Ask(port_, "POST", "/v1/completions", Completion(R"("max_tokens":1)"), {{"X-Request-Id", "abc-1"}});
  EXPECT_EQ(given.headers.at("x-request-id"), "abc-1");
  EXPECT_EQ(Json::parse(given.body)["id"], "cmpl-abc-1");
  const std::string made = Complete(R"("max_tokens":1)").headers.at("x-request-id");
  EXPECT_EQ(made.size(), 32u);
  EXPECT_NE(made, Complete(R"("max_tokens":1)").headers.at("x-request-id"));
  const auto attaches = worker.attaches();
  EXPECT_NE(attaches[0].key().request_id(), "abc-1") << "a client may use an id twice at once";
}

TEST_F(RouterTest, KeysGuardTheApiButNotItsHealth) {
  const std::string file = testing::TempDir() + "/router_keys";
  std::ofstream(file) << "# ours\nfrom-file\n";
  FakeWorker worker;
  RouterConfig config;
  config.api_key = {"secret", "second"};
  config.api_key_file = file;
  Start({&worker}, config);
  const std::string body = Completion(R"("max_tokens":1)");
  EXPECT_EQ(Ask(port_, "POST", "/v1/completions", body).status, 401);
  EXPECT_EQ(Ask(port_, "POST", "/v1/completions", body, {{"Authorization", "Bearer wrong"}}).status, 401);
  EXPECT_EQ(Ask(port_, "POST", "/v1/completions", body, {{"Authorization", "Bearer secret"}}).status, 200);
  EXPECT_EQ(Ask(port_, "POST", "/v1/completions", body, {{"Authorization", "bearer from-file"}}).status, 200);
  EXPECT_EQ(Ask(port_, "POST", "/v1/completions", body, {{"Authorization", "Bearer second"}}).status, 200);
  EXPECT_EQ(Ask(port_, "POST", "/v1/completions", body, {{"Authorization", "Bearer # ours"}}).status, 401);
  HttpConnection stranger(port_);  // is not read: 20,000 of them would fill the memory
  stranger.Send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\n\r\n");
  EXPECT_EQ(stranger.Receive().status, 401);
  EXPECT_EQ(Ask(port_, "GET", "/v1/models").status, 401);
  EXPECT_EQ(Ask(port_, "GET", "/v1/nothing").status, 401) << "what exists is nobody's business";
  EXPECT_EQ(Ask(port_, "GET", "/health").status, 200);
  EXPECT_EQ(Ask(server_->admin_port(), "GET", "/workers").status, 401);
}

TEST_F(RouterTest, FirstComeFirstServedSendsNoPriorities) {
  FakeWorker worker;
  Start({&worker}, {.scheduling_policy = "fcfs"});
  ASSERT_EQ(Complete(R"("max_tokens":1,"priority":-50)").status, 200);
  EXPECT_EQ(worker.attaches()[0].priority(), 0);
}

TEST_F(RouterTest, AKeyHasLimitsThatItsHolderIsToldOf) {
  const std::string file = testing::TempDir() + "/router_limited_keys";
  std::ofstream(file) << "first name=alice requests-per-minute=2 priority=3\nsecond name=bob tokens-per-minute=12\n";
  FakeWorker worker;
  RouterConfig config;
  config.api_key_file = file;
  Start({&worker}, config);
  const auto ask = [&](const char* key) {
    return Ask(port_, "POST", "/v1/completions", Completion(R"("max_tokens":1,"priority":-50)"),
               {{"Authorization", StrCat("Bearer ", key)}});
  };
  EXPECT_EQ(ask("first").status, 200);
  EXPECT_EQ(ask("first").status, 200);
  const HttpReply third = ask("first");
  EXPECT_EQ(third.status, 429);
  EXPECT_LE(std::stoi(third.headers.at("retry-after")), 30);
  EXPECT_GE(std::stoi(third.headers.at("retry-after")), 20);
  const Json error = Json::parse(third.body)["error"];
  EXPECT_EQ(error["code"], "rate_limit_exceeded");
  EXPECT_EQ(error["message"].get<std::string>().find("The API key \"alice\" may use 2 requests per minute."), 0u)
      << error;

  EXPECT_EQ(ask("second").status, 200) << "another key's limits are its own";
  EXPECT_EQ(ask("second").status, 429) << "8 tokens of prompt and 1 of answer leave 3 of 12";
  EXPECT_EQ(worker.attaches().size(), 3u);
  EXPECT_EQ(worker.attaches()[0].priority(), 3) << "no more urgent than the key allows";
  EXPECT_EQ(worker.attaches()[2].priority(), -50);

  const std::string metrics = Ask(port_, "GET", "/metrics").body;
  for (const auto& [name, label, key, value] :
       {std::tuple{"requests", "", "alice", 2}, std::tuple{"refused", "limit=\"requests-per-minute\"", "alice", 1},
        std::tuple{"tokens", "kind=\"prompt\"", "bob", 8}, std::tuple{"tokens", "kind=\"completion\"", "bob", 1},
        std::tuple{"refused", "limit=\"tokens-per-minute\"", "bob", 1}}) {
    bool found = false;
    for (const auto line : absl::StrSplit(metrics, '\n')) {
      found =
          found || (absl::StartsWith(line, StrCat("baton_key_", name, "_total{")) && absl::StrContains(line, label) &&
                    absl::StrContains(line, StrCat("key=\"", key, "\"")) && absl::EndsWith(line, StrCat(" ", value)));
    }
    EXPECT_TRUE(found) << name << " " << label << " " << key;
  }
}

TEST_F(RouterTest, AScrapeTellsHowMuchOfThePromptsWasTokenized) {
  FakeWorker worker;
  Start({&worker});
  const std::string body = R"({"prompt":"one two three","max_tokens":1})";
  ASSERT_EQ(Ask(port_, "POST", "/v1/completions", body).status, 200);
  EXPECT_EQ(Metric("baton_router_token_cache_tokenized_bytes_total"), 13);
  EXPECT_GT(Metric("baton_router_token_cache_bytes"), 13);
  ASSERT_EQ(Ask(port_, "POST", "/v1/completions", body).status, 200);
  EXPECT_EQ(Metric("baton_router_token_cache_found_bytes_total"), 13);
  EXPECT_EQ(Metric("baton_router_token_cache_tokenized_bytes_total"), 13);
}

TEST_F(RouterTest, ARequestWhoseFirstTokenWouldComeTooLateIsTurnedAwayWithTheNumber) {
  FakeWorker worker({.hold_after = 1});
  Start({&worker}, {.max_predicted_ttft_ms = 20});
  EXPECT_EQ(Ask(port_, "POST", "/v1/completions", Completion(R"("max_tokens":1)", 20)).status, 200)
      << "as long as no rate is known a token takes 1 ms";
  const HttpReply refused = Ask(port_, "POST", "/v1/completions", Completion(R"("max_tokens":1)", 21));
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.body, testing::AllOf(testing::HasSubstr("predicted in 21 ms"), testing::HasSubstr("20 ms"),
                                           testing::HasSubstr("--max-predicted-ttft-ms")));
  EXPECT_TRUE(refused.headers.contains("retry-after"));
  EXPECT_EQ(worker.attaches().size(), 1u);

  // First tokens are held back, so that prompts stay ahead of others. With time the oldest counts for less, down to
  // nothing, and the next for all of it.
  HttpConnection oldest(port_), next(port_);
  worker.Hold(0);
  oldest.Send(RequestText("POST", "/v1/completions", Completion(R"("max_tokens":1)", 8)));
  ASSERT_TRUE(worker.Wait([&] { return worker.attaches().size() == 2; }));
  next.Send(RequestText("POST", "/v1/completions", Completion(R"("max_tokens":1)", 10)));
  ASSERT_TRUE(worker.Wait([&] { return worker.attaches().size() == 3; }));
  const HttpReply behind = Ask(port_, "POST", "/v1/completions", Completion(R"("max_tokens":1)", 12));
  EXPECT_EQ(behind.status, 429) << "at least 10 tokens ahead, and 12: " << behind.body;
  worker.Release();
  EXPECT_EQ(oldest.Receive().status, 200);
  EXPECT_EQ(next.Receive().status, 200);
  EXPECT_EQ(Ask(port_, "POST", "/v1/completions", Completion(R"("max_tokens":1)", 12)).status, 200);
}

TEST_F(RouterTest, ADrainedWorkerTakesNoNewRequestsAndEndsWhatItHas) {
  FakeWorker a({.hold_after = 2}), b;
  Start({&a, &b});
  const int admin = server_->admin_port();
  const auto order = [&](const char* what, const std::string& worker, const char* more = "") {
    return Ask(admin, "POST", StrCat("/workers/", what), StrCat(R"({"worker":")", worker, "\"", more, "}"));
  };
  ASSERT_EQ(order("drain", b.address()).status, 200);
  HttpConnection running(port_);
  running.Send(RequestText("POST", "/v1/completions", Completion(R"("max_tokens":4)")));
  ASSERT_TRUE(a.Wait([&] { return a.attaches().size() == 1; }));

  const HttpReply drained = order("drain", a.address());
  EXPECT_EQ(drained.status, 409) << "the last that decodes";
  EXPECT_THAT(drained.body, testing::HasSubstr("--force"));
  const Json now = Json::parse(order("drain", a.address(), R"(,"force":true)").body);
  EXPECT_EQ(now["state"], "draining");
  EXPECT_EQ(now["takes_requests"], false);
  EXPECT_EQ(now["requests"], 1) << "what runs there";
  EXPECT_EQ(order("drain", a.address(), R"(,"force":true)").status, 200) << "again";
  const HttpReply ready = Ask(port_, "GET", "/ready");
  EXPECT_EQ(ready.status, 503);
  EXPECT_THAT(ready.body, testing::HasSubstr("an operator drains it"));
  EXPECT_EQ(Complete(R"("max_tokens":1)").status, 503);
  EXPECT_EQ(a.attaches().size(), 1u);

  EXPECT_EQ(Json::parse(order("resume", b.address()).body)["state"], "ready");
  EXPECT_EQ(Complete(R"("max_tokens":1)").status, 200);
  EXPECT_EQ(b.attaches().size(), 1u);
  a.Release();
  EXPECT_EQ(running.Receive().status, 200) << "it ran to its end";
  EXPECT_EQ(a.attaches().size(), 1u);
}

TEST_F(RouterTest, AWorkerThatIsNeverThereKeepsNoPairOfOthersFromServingForLong) {
  FakeWorker prefill({.role = v1::WORKER_ROLE_PREFILL, .incarnation = "p"});
  FakeWorker decode({.role = v1::WORKER_ROLE_DECODE, .incarnation = "d"});
  RouterConfig config;
  config.worker = {"127.0.0.1:1"};
  Start({&prefill, &decode}, config, /*wait=*/false);
  ASSERT_TRUE(server_->WaitReady(std::chrono::seconds(10))) << "after --failover-wait-ms";
  EXPECT_THAT(Ask(port_, "GET", "/ready").body, testing::HasSubstr("127.0.0.1:1")) << "who is awaited is still said";
}

TEST_F(RouterTest, ReadySaysWhoIsAwaitedSinceWhenAndUntilWhen) {
  FakeWorker a, b({.incarnation = "b"});
  Start({&a, &b});
  EXPECT_FALSE(Json::parse(Ask(port_, "GET", "/ready").body).contains("awaited"));
  b.Kill();
  Json body;
  const auto lost = [&] {
    const HttpReply ready = Ask(port_, "GET", "/ready");
    EXPECT_EQ(ready.status, 200) << "the other one serves";
    body = Json::parse(ready.body);
    return body.contains("awaited");
  };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!lost()) ASSERT_LT(std::chrono::steady_clock::now(), deadline);
  ASSERT_EQ(body["awaited"].size(), 1u);
  const Json& one = body["awaited"][0];
  EXPECT_EQ(one["worker"], b.address());
  const std::string state = one["state"];
  EXPECT_THAT(state, testing::AnyOf("lost", "connecting")) << "the latter from the next try on";
  EXPECT_GE(one["for_s"], 0);
  EXPECT_LT(one["for_s"], 10);
  EXPECT_GE(one["next_try_s"], 0);
  EXPECT_LE(one["next_try_s"], 2) << "--worker-backoff-max-ms";
  EXPECT_NE(body["detail"].get<std::string>().find(state + " for"), std::string::npos) << body;
}

TEST_F(RouterTest, AnOrderAboutAWorkerThatIsNotThereNamesThoseThatAre) {
  FakeWorker worker;
  Start({&worker});
  const int admin = server_->admin_port();
  const auto order = [&](const char* body) { return Ask(admin, "POST", "/workers/drain", body); };
  const HttpReply unknown = order(R"({"worker":"decode-7"})");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_THAT(unknown.body, testing::AllOf(testing::HasSubstr("decode-7"), testing::HasSubstr(worker.address())));
  EXPECT_EQ(order("{}").status, 400);
  EXPECT_EQ(order(R"({"worker":7})").status, 400);
  EXPECT_EQ(order(R"({"worker":"a","forced":true})").status, 400);
  EXPECT_EQ(order("no json").status, 400);
  EXPECT_EQ(Ask(admin, "GET", "/workers/drain").status, 405);
  EXPECT_EQ(Ask(port_, "POST", "/workers/drain", R"({"worker":"a"})").status, 404) << "not on the public port";
}

TEST_F(RouterTest, TheAdminPortShowsWorkersAndExplainsARoute) {
  FakeWorker worker;
  Start({&worker});
  const int admin = server_->admin_port();
  const Json workers = Json::parse(Ask(admin, "GET", "/workers").body);
  EXPECT_EQ(workers["workers"][0]["address"], worker.address());
  EXPECT_EQ(workers["workers"][0]["state"], "ready");
  const Json route = Json::parse(Ask(admin, "POST", "/debug/route", R"({"prompt":"one two three"})").body);
  EXPECT_EQ(route["options"][0]["worker"], worker.address());
  EXPECT_EQ(route["options"][0]["prefill_worker"], nullptr);
  EXPECT_EQ(route["options"][0]["chosen"], true);
  EXPECT_GT(route["options"][0]["prefill_ms"], 0);
  EXPECT_EQ(worker.attaches().size(), 0u) << "the decision is not taken";
  EXPECT_EQ(Ask(admin, "GET", "/metrics").status, 200);
  EXPECT_EQ(Ask(admin, "POST", "/v1/completions", "{}").status, 404);
  EXPECT_EQ(Ask(port_, "GET", "/workers").status, 404) << "not on the public port";
}

// As in an upgrade: the old worker says that it ends before the router has greeted the new one.
TEST_F(RouterTest, ARequestWaitsForTheWorkerThatTakesTheDrainingOnesPlace) {
  FakeWorker old, next({.loading = true});
  Start({&old, &next}, {}, false);
  ASSERT_TRUE(server_->WaitReady(std::chrono::seconds(10)));
  ASSERT_TRUE(next.Wait([&] { return server_->workers()[1].state == "loading"; }));
  old.SetDraining();
  ASSERT_TRUE(old.Wait([&] { return server_->workers()[0].state == "draining"; }));
  HttpReply reply;
  std::thread client([&] { reply = Complete(R"("max_tokens":1)"); });
  EXPECT_TRUE(next.Wait([&] { return Metric("baton_router_running_requests") == 1; })) << "it was refused";
  next.DoneLoading();
  client.join();
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(next.attaches().size(), 1u);
}

}  // namespace
}  // namespace baton::router
