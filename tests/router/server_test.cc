// A router before workers that do what they should: what clients of HTTP see.
#include <cstring>

#include "common/prefix_hash.h"
#include "router_fixture.h"

namespace baton::router {
namespace {

TEST_F(RouterTest, AWholeAnswerHasTextUsageAndTimings) {
  FakeWorker worker({.cached_tokens = 4});
  Start({&worker});
  const HttpReply reply = Complete(R"("max_tokens":12)");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json body = Json::parse(reply.body);
  EXPECT_EQ(body["choices"][0]["text"], FakeWorker::TextOf(0, 8, 12));
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["usage"]["prompt_tokens"], 8);
  EXPECT_EQ(body["usage"]["completion_tokens"], 12);
  EXPECT_EQ(body["usage"]["total_tokens"], 20);
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 4);
  EXPECT_EQ(body["timings"]["prefill_ms"], 3.0);
  const Json& metrics = body["metrics"];
  EXPECT_GT(metrics["time_to_first_token_ms"], 0);
  EXPECT_GE(metrics["generation_time_ms"], metrics["time_to_first_token_ms"]);
  EXPECT_NEAR(metrics["mean_itl_ms"].get<double>() * 11,
              metrics["generation_time_ms"].get<double>() - metrics["time_to_first_token_ms"].get<double>(), 0.1);
  EXPECT_NEAR(metrics["tokens_per_second"], 12000 / metrics["generation_time_ms"].get<double>(), 1);
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(reply.headers.at("content-type"), "application/json");
}

TEST_F(RouterTest, AStreamedChatEqualsTheWholeAnswer) {
  FakeWorker worker;
  Start({&worker});
  const Json whole = Json::parse(Chat(R"("max_tokens":9)").body);
  const HttpReply reply = Chat(R"("max_tokens":9,"stream":true,"stream_options":{"include_usage":true})");
  EXPECT_EQ(reply.headers.at("content-type").substr(0, 17), "text/event-stream");
  const std::vector<std::string> events = EventsOf(reply.body);
  ASSERT_GE(events.size(), 5u);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(StreamedText(events), whole["choices"][0]["message"]["content"].get<std::string>());
  const Json role = Json::parse(events[0]);
  EXPECT_EQ(role["choices"][0]["delta"], (Json{{"role", "assistant"}, {"content", ""}}));
  EXPECT_TRUE(role["usage"].is_null());
  const Json finish = Json::parse(events[events.size() - 3]);
  EXPECT_EQ(finish["choices"][0]["delta"], Json::object());
  EXPECT_EQ(finish["choices"][0]["finish_reason"], "length");
  EXPECT_FALSE(finish.contains("timings")) << "they ride on the usage chunk";
  const Json usage = Json::parse(events[events.size() - 2]);
  EXPECT_EQ(usage["choices"], Json::array());
  EXPECT_EQ(usage["usage"], whole["usage"]);
  EXPECT_TRUE(usage.contains("timings"));
}

TEST_F(RouterTest, ATokenizerOfAnotherModelIsTheServersFault) {
  FakeWorker worker({.vocab_size = 4});
  Start({&worker});
  const HttpReply text = Ask(port_, "POST", "/v1/completions", R"({"prompt":"Hello there"})");
  EXPECT_EQ(text.status, 500);
  EXPECT_NE(text.body.find("is not its model's"), std::string::npos) << text.body;
  EXPECT_NE(text.body.find("(0 to 3)"), std::string::npos) << text.body;
  EXPECT_EQ(Ask(port_, "POST", "/v1/completions", R"({"prompt":[4]})").status, 400);
  EXPECT_EQ(Ask(port_, "POST", "/v1/completions", R"({"prompt":[3],"max_tokens":1})").status, 200);
}

TEST_F(RouterTest, AnIdOutOfTheVocabularyIsRefusedWhereverItStands) {
  FakeWorker worker({.vocab_size = 548});
  Start({&worker});
  for (const int length : {1, 64, 130}) {
    for (const int at : {0, length / 2, length - 1}) {
      for (const int id : {547, 548, -1}) {
        std::vector<int> prompt(static_cast<size_t>(length), 0);
        prompt[static_cast<size_t>(at)] = id;
        const HttpReply reply =
            Ask(port_, "POST", "/v1/completions", StrCat(R"({"max_tokens":1,"prompt":)", Json(prompt).dump(), "}"));
        const bool named = reply.body.find(StrCat("token id ", id, " is out")) != std::string::npos;
        EXPECT_EQ(reply.status, id == 547 ? 200 : 400) << id << " at " << at << " of " << length;
        EXPECT_EQ(named, id != 547) << reply.body;
      }
    }
  }
}

TEST_F(RouterTest, UsageOnEveryChunkIsAskedForBesideUsageAndCountsFromNothing) {
  FakeWorker worker;
  Start({&worker});
  const auto events = [&](const std::string& options) {
    return EventsOf(Chat(StrCat(R"("max_tokens":3,"stream":true,"stream_options":)", options)).body);
  };
  const std::vector<std::string> every = events(R"({"include_usage":true,"continuous_usage_stats":true})");
  ASSERT_GE(every.size(), 4u);
  int64_t last = 0;
  for (size_t i = 0; i + 1 < every.size(); ++i) {
    const Json usage = Json::parse(every[i])["usage"];
    EXPECT_GE(usage["completion_tokens"], last) << every[i];
    last = usage["completion_tokens"];
    EXPECT_EQ(usage["total_tokens"], usage["prompt_tokens"].get<int64_t>() + last) << every[i];
    if (i == 0) {
      EXPECT_EQ(last, 0) << "the role is no token";
    }
  }
  EXPECT_EQ(last, 3);
  for (const std::string& event : events(R"({"continuous_usage_stats":true})")) {
    if (event == "[DONE]") continue;
    EXPECT_FALSE(Json::parse(event).contains("usage")) << event;
  }
}

TEST_F(RouterTest, HeaderAndFirstTokenAreOneWrite) {
  FakeWorker worker({.hold_after = 1});
  Start({&worker});
  HttpConnection c(port_);
  c.Send(RequestText("POST", "/v1/completions", Completion(R"("stream":true,"max_tokens":5)")));
  const std::string first = c.ReceiveSome();
  EXPECT_NE(first.find("HTTP/1.1 200"), std::string::npos);
  EXPECT_NE(first.find("\"text\":\"" + FakeWorker::TextOf(0, 8, 1) + "\""), std::string::npos) << first;
  worker.Release();
  EXPECT_NE(c.ReceiveUntil("[DONE]").find("[DONE]"), std::string::npos);
}

TEST_F(RouterTest, AStopStringCutsTheTextAndCancelsTheRest) {
  FakeWorker worker({.hold_after = 30});
  Start({&worker});
  const std::string text = FakeWorker::TextOf(0, 8, 30);
  const std::string stop = text.substr(10, 3);
  const Json body = Json::parse(Complete(StrCat(R"("max_tokens":200,"stop":[")", stop, "\"]")).body);
  EXPECT_EQ(body["choices"][0]["text"], text.substr(0, 10));
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["choices"][0]["stop_reason"], stop);
  EXPECT_EQ(body["usage"]["completion_tokens"], 13) << "through the token that completed it";
  EXPECT_TRUE(worker.Wait([&] { return worker.cancels().size() == 1; }));
  EXPECT_EQ(worker.cancels()[0].index(), 0u);
  const HttpReply streamed =
      Complete(StrCat(R"("max_tokens":200,"stream":true,"include_stop_str_in_output":true,"stop":")", stop, "\""));
  EXPECT_EQ(StreamedText(EventsOf(streamed.body)), text.substr(0, 13));
  EXPECT_TRUE(worker.attaches()[0].sampling().stop_token_ids().empty());
}

TEST_F(RouterTest, ChoicesPromptsAndLogprobsKeepTheirOrder) {
  FakeWorker worker;
  Start({&worker});
  const HttpReply reply = Ask(port_, "POST", "/v1/completions",
                              R"({"prompt":[[5,6,7],[8,9,10,11]],"n":2,"max_tokens":3,"logprobs":2,"echo":true})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json body = Json::parse(reply.body);
  ASSERT_EQ(body["choices"].size(), 4u);
  for (int i = 0; i < 4; ++i) {
    const Json& choice = body["choices"][i];
    const auto prompt = static_cast<uint64_t>(i < 2 ? 3 : 4);
    EXPECT_EQ(choice["index"], i);
    const std::string text = choice["text"];
    EXPECT_EQ(text.substr(prompt), FakeWorker::TextOf(static_cast<uint32_t>(i % 2), prompt, 3)) << text;
    ASSERT_EQ(choice["logprobs"]["tokens"].size(), prompt + 3);
    EXPECT_TRUE(choice["logprobs"]["token_logprobs"][0].is_null()) << "a prompt's first token has none";
    EXPECT_EQ(choice["logprobs"]["token_logprobs"][prompt], -0.5);
    EXPECT_EQ(choice["logprobs"]["text_offset"][prompt], prompt);
  }
  EXPECT_EQ(body["usage"]["prompt_tokens"], 7);
  EXPECT_EQ(body["usage"]["completion_tokens"], 12);
}

TEST_F(RouterTest, ChoicesOfAllPromptsOfARequestCountForItsLimit) {
  FakeWorker worker;
  RouterConfig config;
  config.max_choices = 4;
  Start({&worker}, config);
  const auto ask = [&](const char* prompts, int n) {
    return Ask(port_, "POST", "/v1/completions", StrCat(R"({"max_tokens":1,"n":)", n, R"(,"prompt":)", prompts, "}"));
  };
  EXPECT_EQ(ask("[[1],[2]]", 2).status, 200);
  const HttpReply reply = ask("[[1],[2],[3]]", 2);
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.body.find("3 prompts times n=2 choices is more than 4 (--max-choices)"), std::string::npos)
      << reply.body;
}

TEST_F(RouterTest, UsageOfSeveralPromptsIsTheSumOfAllOfThem) {
  FakeWorker worker({.cached_tokens = 100});
  Start({&worker});
  const std::string body = R"("prompt":[[5,6,7],[8,9,10,11,12],[1,2,3,4,5,6,7,8,9,10,11,12]],"n":2,"max_tokens":3)";
  const Json expected = {{"prompt_tokens", 20},
                         {"completion_tokens", 18},
                         {"total_tokens", 38},
                         {"prompt_tokens_details", {{"cached_tokens", 2 + 4 + 11}}}};
  const HttpReply whole = Ask(port_, "POST", "/v1/completions", StrCat("{", body, "}"));
  ASSERT_EQ(whole.status, 200) << whole.body;
  EXPECT_EQ(Json::parse(whole.body)["usage"], expected);
  const std::vector<std::string> events =
      EventsOf(Ask(port_, "POST", "/v1/completions",
                   StrCat("{", body, R"(,"stream":true,"stream_options":{"include_usage":true}})"))
                   .body);
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(Json::parse(events[events.size() - 2])["usage"], expected) << "the chunk before [DONE]";
  for (size_t i = 0; i + 2 < events.size(); ++i) EXPECT_TRUE(Json::parse(events[i])["usage"].is_null()) << events[i];
}

TEST_F(RouterTest, AnEchoWithoutATokenHasNoCompletion) {
  FakeWorker worker;
  Start({&worker});
  const Json body = Json::parse(Complete(R"("max_tokens":0,"echo":true,"logprobs":1)").body);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 8);
  EXPECT_EQ(body["usage"]["completion_tokens"], 0) << body;
  EXPECT_EQ(body["usage"]["total_tokens"], 8);
  EXPECT_EQ(body["choices"][0]["logprobs"]["tokens"].size(), 8u);
}

TEST_F(RouterTest, ChatLogprobsHaveTokensBytesAndCandidates) {
  FakeWorker worker;
  Start({&worker});
  const Json body = Json::parse(Chat(R"("max_tokens":2,"logprobs":true,"top_logprobs":2)").body);
  const Json& content = body["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2u);
  const std::string token = content[0]["token"];
  EXPECT_EQ(token.size(), 1u);
  EXPECT_EQ(content[0]["bytes"], Json::array({static_cast<int>(token[0])}));
  EXPECT_EQ(content[0]["top_logprobs"].size(), 2u);
  EXPECT_EQ(content[0]["logprob"], -0.5);
}

// Every step of a request looks at its lists of tokens: they are short, sorted and each id is there once.
TEST_F(RouterTest, ListsOfTokensAreBoundedAndReachTheWorkerTidy) {
  FakeWorker worker;
  Start({&worker});
  const auto list = [](int count) {
    std::string ids = "[7";
    for (int i = 1; i < count; ++i) ids += ",7";
    return ids + "]";
  };
  const HttpReply many = Complete("\"stop_token_ids\":" + list(4097));
  EXPECT_EQ(many.status, 400);
  EXPECT_NE(many.body.find("`stop_token_ids` has 4097 token ids, at most 4096."), std::string::npos) << many.body;
  const HttpReply all = Complete("\"allowed_token_ids\":" + list(1 << 20));
  EXPECT_EQ(all.status, 400);
  EXPECT_NE(all.body.find("`allowed_token_ids` has 1048576 token ids, more than the vocabulary"), std::string::npos);
  ASSERT_EQ(Complete(R"("max_tokens":2,"stop_token_ids":[9,3,9,3],"allowed_token_ids":[8,8,2])").status, 200);
  const auto sampling = worker.attaches().at(0).sampling();
  EXPECT_EQ(std::vector<int32_t>(sampling.stop_token_ids().begin(), sampling.stop_token_ids().end()),
            (std::vector<int32_t>{3, 9}));
  EXPECT_EQ(std::vector<int32_t>(sampling.allowed_token_ids().begin(), sampling.allowed_token_ids().end()),
            (std::vector<int32_t>{2, 8}));
}

TEST_F(RouterTest, SamplingReachesTheWorkerAndTheSeedIsDrawnOnce) {
  FakeWorker worker;
  Start({&worker});
  ASSERT_EQ(
      Complete(R"("max_tokens":2,"temperature":0.25,"top_k":7,"logit_bias":{"9":-3},"min_tokens":1,"seed":42)").status,
      200);
  ASSERT_EQ(Complete(R"("max_tokens":2,"return_seed":true)").status, 200);
  const auto attaches = worker.attaches();
  const v1::SamplingParams& s = attaches[0].sampling();
  EXPECT_FLOAT_EQ(s.temperature(), 0.25F);
  EXPECT_EQ(s.top_k(), 7);
  EXPECT_FLOAT_EQ(s.logit_bias().at(9), -3);
  EXPECT_EQ(s.seed(), 42u);
  EXPECT_EQ(attaches[0].eos_token_ids(0), 2);
  EXPECT_EQ(attaches[0].prompt_len(), 8u);
  EXPECT_EQ(attaches[0].position(), 8u);
  EXPECT_FLOAT_EQ(attaches[1].sampling().temperature(), 1) << "the neutral value, resolved here";
  EXPECT_TRUE(attaches[1].sampling().has_seed());
}

TEST_F(RouterTest, AnOverLongPromptIsRefusedWithBothNumbers) {
  FakeWorker worker({.max_model_len = 100});
  Start({&worker});
  const HttpReply reply = Ask(port_, "POST", "/v1/completions", Completion(R"("max_tokens":5)", 200));
  EXPECT_EQ(reply.status, 400);
  const Json error = Json::parse(reply.body)["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_NE(std::string(error["message"]).find("200"), std::string::npos);
  EXPECT_NE(std::string(error["message"]).find("100"), std::string::npos);
  EXPECT_EQ(Ask(port_, "POST", "/v1/completions", Completion(R"("max_tokens":96)", 5)).status, 400);
  EXPECT_EQ(Ask(port_, "POST", "/v1/completions", Completion(R"("max_tokens":95)", 5)).status, 200) << "it just fits";
  EXPECT_TRUE(worker.attaches().size() == 1) << "what is refused never reaches a worker";
}

TEST_F(RouterTest, ATextThatNoContextCanHoldIsRefusedByItsBytesBeforeItIsTokenized) {
  FakeWorker worker({.max_model_len = 100});
  Start({&worker});
  const std::string text(1 << 20, 'a');
  const auto ask = [&](const std::string& more) {
    return Ask(port_, "POST", "/v1/completions", StrCat(R"({"prompt":")", text, "\"", more, R"(,"max_tokens":5})"));
  };
  const Json error = Json::parse(ask("").body)["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_NE(std::string(error["message"]).find("has 1048576 bytes, and at most "), std::string::npos) << error;
  EXPECT_EQ(ask(R"(,"truncate_prompt_tokens":50)").status, 200) << "the client wants the end of it";
  EXPECT_EQ(worker.attaches().size(), 1u);
}

// Large bodies are parsed, rendered and tokenized off the io threads.
TEST_F(RouterTest, ALongChatIsAnsweredAndItsClientMayLeaveEarly) {
  FakeWorker worker({.max_model_len = 1 << 20});
  Start({&worker});
  const std::string content(300000, 'x');
  const std::string body = StrCat(R"({"messages":[{"role":"user","content":")", content, R"("}],"max_tokens":3})");
  const HttpReply reply = Ask(port_, "POST", "/v1/chat/completions", body);
  ASSERT_EQ(reply.status, 200) << reply.body.substr(0, 300);
  EXPECT_GT(Json::parse(reply.body)["usage"]["prompt_tokens"], 1000);
  for (int i = 0; i < 5; ++i) {
    HttpConnection c(port_);
    c.Send(RequestText("POST", "/v1/chat/completions", body));
  }
  EXPECT_TRUE(worker.Wait([&] { return Metric("baton_router_running_requests") == 0; }));
  EXPECT_EQ(Complete(R"("max_tokens":2)").status, 200);
}

TEST_F(RouterTest, TokenizeAndDetokenizeRoundTripAlsoLongTexts) {
  FakeWorker worker;
  Start({&worker});
  std::string text = "naïve café 你好 👩‍👩‍👧 2026";
  for (int i = 0; i < 3; ++i) {
    Json request = {{"prompt", text}, {"return_token_strs", true}};
    const Json tokens = Json::parse(Ask(port_, "POST", "/tokenize", request.dump()).body);
    EXPECT_EQ(tokens["count"], tokens["tokens"].size());
    EXPECT_EQ(tokens["token_strs"].size(), tokens["tokens"].size());
    EXPECT_EQ(tokens["max_model_len"], 2048);
    const Json back = Json::parse(Ask(port_, "POST", "/detokenize", Json{{"tokens", tokens["tokens"]}}.dump()).body);
    EXPECT_EQ(back["prompt"], text);
    for (int k = 0; k < 8; ++k) text += text.size() < 60000 ? text : "";
  }
  const Json chat =
      Json::parse(Ask(port_, "POST", "/tokenize", R"({"messages":[{"role":"user","content":"Hi"}]})").body);
  EXPECT_EQ(chat["tokens"][0], 1) << "<|im_start|>";
  EXPECT_EQ(Ask(port_, "POST", "/detokenize", R"({"tokens":[548]})").status, 400);
}

TEST_F(RouterTest, AStreamIntervalGathersTokens) {
  FakeWorker worker;
  Start({&worker}, {.stream_interval = 4});
  const std::vector<std::string> events = EventsOf(Complete(R"("max_tokens":10,"stream":true)").body);
  std::vector<size_t> sizes;
  for (const std::string& event : events) {
    if (event == "[DONE]") continue;
    const std::string text = Json::parse(event)["choices"][0]["text"];
    if (!text.empty()) sizes.push_back(text.size());
  }
  EXPECT_EQ(sizes, (std::vector<size_t>{4, 4, 2}));
  EXPECT_EQ(StreamedText(events), FakeWorker::TextOf(0, 8, 10));
}

TEST_F(RouterTest, TheWorkerThatHoldsThePrefixIsChosen) {
  FakeWorker a, b;
  Start({&a, &b});
  HashKey key;
  ASSERT_EQ(a.hash_key().size(), key.bytes.size());
  EXPECT_EQ(a.hash_key(), b.hash_key()) << "one key for the fleet";
  std::memcpy(key.bytes.data(), a.hash_key().data(), key.bytes.size());
  std::vector<int32_t> prompt;
  for (int i = 0; i < 80; ++i) prompt.push_back(100 + i);
  const PrefixHasher hasher(key);
  PrefixScope scope;
  scope.model_digest = "digest";
  std::vector<uint64_t> keys;
  for (const PrefixHash& h : hasher.Chain(hasher.Root(scope), prompt)) keys.push_back(h.lo);
  ASSERT_EQ(keys.size(), 5u);
  b.Stored(keys);
  ASSERT_TRUE(b.Wait([&] { return Metric("baton_router_index_units") == 5; }));
  for (int i = 0; i < 4; ++i)
    ASSERT_EQ(Ask(port_, "POST", "/v1/completions", Completion(R"("max_tokens":1)", 80)).status, 200);
  EXPECT_EQ(b.attaches().size(), 4u);
  EXPECT_EQ(a.attaches().size(), 0u);
  EXPECT_EQ(Metric("baton_prefix_hit_tokens_predicted_total"), 4 * 79);
}

TEST_F(RouterTest, APromptFollowsOneUnderWayThatBeginsAsItDoes) {
  FakeWorker a({.hold_after = 0}), b({.hold_after = 0});
  Start({&a, &b});
  std::vector<std::unique_ptr<HttpConnection>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<HttpConnection>(port_));
    clients.back()->Send(RequestText("POST", "/v1/completions", Completion(R"("max_tokens":1)", i == 2 ? 128 : 160)));
    ASSERT_TRUE(a.Wait([&] { return a.attaches().size() + b.attaches().size() == static_cast<size_t>(i) + 1; }));
  }
  EXPECT_EQ(std::max(a.attaches().size(), b.attaches().size()), 3u) << "no event has told of its units yet";
  clients.push_back(std::make_unique<HttpConnection>(port_));
  clients.back()->Send(RequestText("POST", "/v1/completions", R"({"prompt":"something else","max_tokens":1})"));
  ASSERT_TRUE(a.Wait([&] { return a.attaches().size() + b.attaches().size() == 4; }));
  EXPECT_EQ(std::max(a.attaches().size(), b.attaches().size()), 3u) << "another prompt goes where nothing waits";
  a.Release();
  b.Release();
  for (auto& client : clients) EXPECT_EQ(client->Receive().status, 200);
}

TEST_F(RouterTest, RoundRobinTakesEachInTurn) {
  FakeWorker a, b;
  RouterConfig config;
  config.route_policy = "round-robin";
  Start({&a, &b}, config);
  ASSERT_TRUE(a.Wait([&] { return server_->workers()[0].state == "ready" && server_->workers()[1].state == "ready"; }));
  for (int i = 0; i < 6; ++i) ASSERT_EQ(Complete(R"("max_tokens":1)").status, 200);
  EXPECT_EQ(a.attaches().size(), 3u);
  EXPECT_EQ(b.attaches().size(), 3u);
}

TEST_F(RouterTest, ASessionStaysWithItsWorkerByFieldOrHeader) {
  FakeWorker a, b;
  RouterConfig config;
  config.route_policy = "session";
  Start({&a, &b}, config);
  size_t used = 0;                // by both
  for (int i = 0; i < 40; ++i) {  // of eight sessions all are of one worker once in 128 times, by the workers' ports
    const std::string session = StrCat("session ", i);
    const size_t before_a = a.attaches().size(), before_b = b.attaches().size();
    const HttpReply by_field = Complete(StrCat(R"("max_tokens":1,"prompt_cache_key":")", session, "\""));
    ASSERT_EQ(by_field.status, 200);
    EXPECT_FALSE(by_field.headers.contains("x-ignored-fields"));
    const std::string body = R"({"prompt":"one two three","max_tokens":1})";
    ASSERT_EQ(Ask(server_->http_port(), "POST", "/v1/completions", body, {{"X-Session-Id", session}}).status, 200);
    const size_t to_a = a.attaches().size() - before_a, to_b = b.attaches().size() - before_b;
    EXPECT_EQ(to_a + to_b, 2u);
    EXPECT_NE(to_a, to_b) << session << ": both of one worker";
    used |= to_a > to_b ? 1u : 2u;
  }
  EXPECT_EQ(used, 3u) << "the sessions are spread";
}

TEST_F(RouterTest, ASessionThatThePolicyDoesNotHeedIsSaidToBeIgnored) {
  FakeWorker worker;
  Start({&worker});
  const HttpReply answer = Complete(R"("max_tokens":1,"prompt_cache_key":"one")");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("x-ignored-fields"), "prompt_cache_key");
}

TEST_F(RouterTest, ThePathBetweenTwoWorkersDecidesAPair) {
  FakeWorker prefill({.role = v1::WORKER_ROLE_PREFILL, .peers = {{"near", 1e-3}, {"far", 1e-6}}});
  FakeWorker far({.role = v1::WORKER_ROLE_DECODE, .incarnation = "far"});
  FakeWorker near({.role = v1::WORKER_ROLE_DECODE, .incarnation = "near"});
  Start({&prefill, &far, &near}, {.local_prefill_max_tokens = 0});
  const std::string question = R"({"prompt":"one two three"})";
  Json pairs;  // until all are ready and the prefill worker has told its paths
  const auto told = [&] {
    pairs = Json::parse(Ask(server_->admin_port(), "POST", "/debug/route", question).body);
    return pairs.contains("options") && pairs["options"].size() == 2 && pairs["options"][0]["transfer_ms"] > 1;
  };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!told()) ASSERT_LT(std::chrono::steady_clock::now(), deadline) << pairs;
  for (const Json& option : pairs["options"]) EXPECT_EQ(option["prefill_worker"], prefill.address());
  const double tokens = pairs["prompt_tokens"];
  EXPECT_EQ(pairs["options"][0]["worker"], far.address());
  EXPECT_NEAR(pairs["options"][0]["transfer_ms"], tokens, 1e-3) << "a byte a token at 1 kB/s";
  EXPECT_NEAR(pairs["options"][1]["transfer_ms"], tokens / 1000, 1e-3);
  EXPECT_EQ(pairs["options"][1]["chosen"], true);
  EXPECT_EQ(pairs["options"][1]["worker"], near.address());
}

}  // namespace
}  // namespace baton::router
