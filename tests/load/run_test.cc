#include "load/run.h"

#include <gmock/gmock.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <mutex>
#include <optional>
#include <set>

#include "common/json.h"
#include "common/str_cat.h"
#include "load/client.h"
#include "load/load_points.h"
#include "load/summary.h"
#include "tests/held_port.h"
#include "tests/load/stub_server.h"

namespace baton::load {
namespace {

using testing::HasSubstr;

std::vector<std::string> GoodEvents(const std::string& text) {
  return {R"({"choices":[{"text":")" + text + R"("}]})", R"({"choices":[{"text":"b"}]})",
          R"({"choices":[{"text":"","finish_reason":"length"}]})",
          R"({"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":2},"timings":{"prefill_ms":0.5}})", "[DONE]"};
}

struct Tried {
  RunResult run;
  Verified verified;
};

Tried Try(int port, const BenchOptions& o, bool verify = false, int timeout_ms = 20'000) {
  const Server server{
      .host = "127.0.0.1", .port = StrCat(port), .path = PathOf(o), .timeout = std::chrono::milliseconds(timeout_ms)};
  const auto body = RequestBody::Make(o, "m");
  const auto prompts = *MakePrompts(o);
  const load::Run run{HttpAsker(server, *body), prompts, std::vector<Duration>(prompts.size()),
                      PointsOf(o)->front().max_concurrency, "t-"};
  const SteadyClock clock;
  Tried out{Execute(run, clock), {}};
  if (verify) out.verified = VerifyIdentical(run, out.run.outcomes, clock);
  return out;
}

BenchOptions Few(int requests, int at_a_time) {
  BenchOptions o{.num_prompts = requests, .random_input_len = 4, .random_output_len = 2};
  o.max_concurrency = StrCat(at_a_time);
  o.temperature = "0.5";
  o.extra_body = R"({"priority":3})";
  return o;
}

TEST(Execute, AClosedLoopReusesItsConnectionsAndAsksWhatItWasTold) {
  std::mutex mutex;
  std::set<int> seeds;
  StubServer server([&](const std::string& body, int) {
    const auto json = nlohmann::json::parse(body);
    const std::lock_guard lock(mutex);
    seeds.insert(json["seed"].get<int>());
    EXPECT_EQ(json["max_tokens"], 2);
    EXPECT_EQ(json["temperature"], 0.5);
    EXPECT_EQ(json["priority"], 3);
    EXPECT_TRUE(json["stream"]);
    EXPECT_TRUE(json["prompt"].is_string());
    return Reply{Stream(GoodEvents("a"))};
  });
  const RunResult run = Try(server.port(), Few(50, 3)).run;
  EXPECT_EQ(server.requests(), 50);
  EXPECT_EQ(server.connections(), 3);
  EXPECT_EQ(run.connections, 3);
  EXPECT_EQ(run.most_at_a_time, 3);
  EXPECT_EQ(seeds.size(), 50u);
  for (const Outcome& o : run.outcomes) {
    ASSERT_TRUE(o.ok()) << o.error;
    EXPECT_EQ(o.answer.text, "ab");
    EXPECT_EQ(o.OutputTokens(), 2);
    EXPECT_EQ(o.arrivals.size(), 2u);
    EXPECT_TRUE(o.answer.stages);
    EXPECT_TRUE(o.sent <= o.arrivals.front() && o.arrivals.back() <= o.end);
  }
}

TEST(Execute, AScheduleIsNeverAheadOfItself) {
  StubServer server([](const std::string&, int) { return Reply{Stream(GoodEvents("a"))}; });
  BenchOptions o = Few(20, 0);
  const Server to{
      .host = "127.0.0.1", .port = StrCat(server.port()), .path = PathOf(o), .timeout = std::chrono::seconds(20)};
  const auto body = RequestBody::Make(o, "m");
  const auto prompts = *MakePrompts(o);
  load::Run run{HttpAsker(to, *body), prompts, {}, 0, "t-"};
  for (int i = 0; i < 20; ++i) run.due.push_back(std::chrono::milliseconds(2 * i));
  const RunResult result = Execute(run, SteadyClock());
  for (const Outcome& one : result.outcomes) {
    EXPECT_TRUE(one.ok()) << one.error;
    EXPECT_GE(one.sent, one.due);
  }
  EXPECT_GE(result.duration, std::chrono::milliseconds(38));
}

TEST(Execute, WhatAServerSaysBeforeItsAnswerIsNoAnswer) {
  const std::string before = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n";
  StubServer server([&](const std::string&, int) { return Reply{before + Stream(GoodEvents("a"))}; });
  for (const Outcome& o : Try(server.port(), Few(4, 1)).run.outcomes) EXPECT_TRUE(o.ok()) << o.error;
  EXPECT_EQ(server.connections(), 1);
}

TEST(Execute, EveryWayToFailHasItsKind) {
  struct {
    Reply reply;
    Failure failure;
    const char* error;
  } const rows[] = {
      {{Whole(429, "application/json", R"({"error":{"message":"the queue is full"}})")},
       Failure::kRefused,
       "queue is full"},
      {{Whole(500, "text/plain", "oops")}, Failure::kRefused, "oops"},
      {{"", true}, Failure::kBroken, "no answer"},
      {{"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\nContent-Length: "
        "2\r\n\r\n\x1f\x8b"},
       Failure::kMalformed,
       "encoded, which nobody asked for: gzip"},
      {{Stream(GoodEvents("a")).substr(0, 200), true}, Failure::kBroken, "in the middle"},
      {{Stream({GoodEvents("a")[0]})}, Failure::kBroken, "without an end"},
      {{Stream({GoodEvents("a")[0], R"({"error":{"message":"worker died"}})", "[DONE]"})},
       Failure::kError,
       "worker died"},
      {{Stream({"{broken", "[DONE]"})}, Failure::kMalformed, "{broken"},
      {{Stream({"[DONE]"})}, Failure::kMalformed, "without a token"},
      {{Whole(200, "application/json", "{}")}, Failure::kMalformed, "not an event stream"},
      {{Whole(200, "application/json", R"({"error":{"message":"no such model"}})")}, Failure::kError, "no such model"},
      {{"220 smtp ready\r\n", true}, Failure::kBroken, "no answer"},
      {{"HTTP/1.1 307 Moved\r\nLocation: http://elsewhere.example/v1/\r\nContent-Length: 0\r\n\r\n"},
       Failure::kRefused,
       "HTTP 307: it is at http://elsewhere.example/v1/"},
      {{"HTTP/1.1 503 Busy\r\nContent-Type: text/plain\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b"},
       Failure::kRefused,
       "HTTP 503"},
      {{Stream({GoodEvents("a")[0], R"({"choices":[{"text":"","finish_reason":"abort"}]})", "[DONE]"})},
       Failure::kError,
       "finish_reason abort"},
  };
  for (const auto& row : rows) {
    StubServer server([&](const std::string&, int) { return row.reply; });
    const RunResult run = Try(server.port(), Few(3, 1)).run;
    for (const Outcome& o : run.outcomes) {
      EXPECT_EQ(o.failure, row.failure) << row.error << " " << o.error;
      EXPECT_THAT(o.error, HasSubstr(row.error));
    }
    EXPECT_EQ(Summarize(run, {}).failed, 3);
  }
}

TEST(Execute, AnAnswerIsOverAtItsDoneWhateverBecomesOfItsBody) {
  std::string cut = Stream(GoodEvents("a"));
  cut.resize(cut.size() - 5);  // the last chunk
  for (const bool closes : {true, false}) {
    StubServer server([&](const std::string&, int) { return Reply{cut, closes}; });
    const RunResult run = Try(server.port(), Few(2, 2)).run;
    for (const Outcome& o : run.outcomes) {
      EXPECT_TRUE(o.ok()) << o.error;
      EXPECT_EQ(o.answer.text, "ab");
      EXPECT_LT(o.E2elMs(), 1000) << "the wait for the rest is not the answer's";
    }
    EXPECT_EQ(server.connections(), 2);
  }
}

TEST(Execute, OddButRightStreamsAreRead) {
  const std::string head = "HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream; charset=utf-8\r\n";
  const std::string events =
      ": a comment\r\nevent: x\r\ndata:{\"choices\":[{\"text\":\"\xc3\xa4\"}]}\r\n\r\n: ping\r\n\r\n"
      "data: {\"choices\":[\r\ndata: {\"text\":\"b\",\r\ndata:\"finish_reason\":\"stop\"}]}\r\n\r\ndata: "
      "[DONE]\r\n\r\n";
  std::string bytes = head + "Trailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const char c : events) bytes += StrCat("1;ext=1\r\n", std::string(1, c), "\r\n");  // also within the umlaut
  bytes += "0\r\nX-Sum: 1\r\n\r\n";
  const std::string to_the_end = head + "Connection: close\r\n\r\n" + events;
  const std::string old = "HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + events;
  const std::string after = old + "data: {\"choices\":[{\"text\":\"late\"}]}\n\ndata: {broken\n\n";
  for (const Reply& reply : {Reply{bytes}, Reply{to_the_end, true}, Reply{old, true}, Reply{after, true}}) {
    StubServer server([&](const std::string&, int) { return reply; });
    const RunResult run = Try(server.port(), Few(3, 1)).run;
    for (const Outcome& o : run.outcomes) {
      ASSERT_TRUE(o.ok()) << o.error;
      EXPECT_EQ(o.answer.text,
                "\xc3\xa4"
                "b");
      EXPECT_EQ(o.OutputTokens(), 2) << "no usage: the chunks";
    }
    EXPECT_EQ(Summarize(run, {}).uncounted, 3);
    EXPECT_EQ(server.connections(), reply.close ? 3 : 1);
  }
}

TEST(Execute, AStreamIsOneWhateverItsServerCallsIt) {
  const std::string events =
      "data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"choices\":[{\"text\":\"b\",\"finish_reason\":\"stop\"}]}\n\n"
      "data: [DONE]\n\n";
  for (const char* type : {"", "Content-Type: text/plain\r\n", "Content-Type: application/json\r\n"}) {
    for (const char* begin : {"", "\r\n", ": ping\n\n", "event: message\nid: 7\n"}) {
      const std::string head = StrCat("HTTP/1.1 200 OK\r\n", type, "Transfer-Encoding: chunked\r\n\r\n");
      std::string bytes = head;
      for (const char c : begin + events) bytes += StrCat("1\r\n", std::string(1, c), "\r\n");
      StubServer server([&](const std::string&, int) { return Reply{bytes + "0\r\n\r\n"}; });
      const RunResult run = Try(server.port(), Few(2, 1)).run;
      for (const Outcome& o : run.outcomes) {
        EXPECT_TRUE(o.ok()) << o.error << " " << type << begin;
        EXPECT_EQ(o.answer.text, "ab");
        EXPECT_EQ(o.arrivals.size(), 2u);
      }
    }
  }
}

TEST(Execute, TheLastEventNeedsNoLineBehindIt) {
  const std::string head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
  const std::string text = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n";
  const std::string last = "data: {\"choices\":[{\"text\":\"b\",\"finish_reason\":\"stop\"}]}";
  for (const std::string& end : {last, last + "\n", text + "data: [DONE]", text + "data: [DONE]\r"}) {
    StubServer server([&](const std::string&, int) { return Reply{head + text + end, true}; });
    const RunResult run = Try(server.port(), Few(2, 1)).run;
    for (const Outcome& o : run.outcomes) {
      EXPECT_TRUE(o.ok()) << o.error << " " << end;
      EXPECT_EQ(o.arrivals.size(), 2u);
    }
  }
  StubServer server([&](const std::string&, int) { return Reply{head + text + last.substr(0, 30), true}; });
  const RunResult half = Try(server.port(), Few(1, 1)).run;
  EXPECT_EQ(half.outcomes[0].failure, Failure::kBroken) << half.outcomes[0].error;
}

TEST(Execute, APromptOfAServerThatCountsNothingHasTheTokensItWasMadeOf) {
  for (const bool counts : {true, false}) {
    StubServer server([&](const std::string&, int) {
      std::vector<std::string> events = GoodEvents("a");
      if (!counts) events.erase(events.begin() + 3);
      return Reply{Stream(events)};
    });
    BenchOptions o = Few(3, 1);
    o.random_input_len = 7;
    const Summary s = Summarize(Try(server.port(), o).run, {});
    EXPECT_EQ(s.input_tokens, counts ? 3 * 4 : 3 * 7);
    EXPECT_EQ(s.uncounted, counts ? 0 : 3);
  }
}

TEST(Execute, AnAnswerWithoutEndIsGivenUp) {
  std::string events = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
  const std::string one = StrCat("data: {\"choices\":[{\"text\":\"", std::string(8 << 20, 'x'), "\"}]}\n\n");
  for (int i = 0; i < 10; ++i) events += one;
  StubServer server([&](const std::string&, int) { return Reply{events}; });
  const RunResult run = Try(server.port(), Few(1, 1)).run;
  EXPECT_EQ(run.outcomes[0].failure, Failure::kMalformed);
  EXPECT_THAT(run.outcomes[0].error, HasSubstr("an answer of more than 67108864 bytes"));
}

TEST(RequestBody, WhatExtraBodySaysStandsInThePlaceOfOurs) {
  BenchOptions o = Few(1, 1);
  o.extra_body = R"({"seed":7,"max_tokens":3})";
  const std::string body = RequestBody::Make(o, "m")->Of(MakePrompts(o)->front(), 0);
  EXPECT_EQ(nlohmann::json::parse(body)["seed"], 7);
  EXPECT_EQ(body.find("max_tokens"), body.rfind("max_tokens")) << body;
  for (const char* bad : {R"({"stream":false})", R"({"prompt":"x"})", R"({"messages":[]})", "[]"}) {
    o.extra_body = bad;
    EXPECT_THAT(std::string(RequestBody::Make(o, "m").status().message()), HasSubstr("--extra-body")) << bad;
  }
}

TEST(RequestBody, AnswersToMadePromptsAndOfTracesAreAsLongAsTheyAskUnlessToldOtherwise) {
  const auto says = [](const std::string& dataset, std::optional<bool> told) {
    BenchOptions o{.dataset_name = dataset, .ignore_eos = told};
    return nlohmann::json::parse(RequestBody::Make(o, "m")->Of({.text = "x"}, 0)).contains("ignore_eos");
  };
  for (const char* dataset : {"random", "mooncake", "timed_trace", "azure"}) {
    EXPECT_TRUE(says(dataset, std::nullopt)) << dataset;
    EXPECT_FALSE(says(dataset, false)) << dataset;
  }
  for (const char* dataset : {"custom", "sharegpt", "sonnet", "prefix_repetition"}) {
    EXPECT_FALSE(says(dataset, std::nullopt)) << dataset;
    EXPECT_TRUE(says(dataset, true)) << dataset;
  }
}

TEST(Execute, AServerThatIsDeadIsAFailureOfEveryRequest) {
  const HeldPort nobodys;
  for (const Outcome& o : Try(nobodys.number(), Few(5, 2)).run.outcomes)
    EXPECT_EQ(o.failure, Failure::kConnect) << o.error;
}

TEST(Execute, AnAnswerThatNeverComesIsATimeout) {
  StubServer server([](const std::string&, int) { return Reply{}; });
  for (const Outcome& o : Try(server.port(), Few(2, 2), false, 50).run.outcomes)
    EXPECT_EQ(o.failure, Failure::kTimeout) << o.error;
}

TEST(Execute, AKeptConnectionThatTheServerClosedIsNotAFailure) {
  StubServer server([](const std::string&, int) { return Reply{Stream(GoodEvents("a")), true}; });
  const RunResult run = Try(server.port(), Few(10, 1)).run;
  for (const Outcome& o : run.outcomes) EXPECT_TRUE(o.ok()) << o.error;
  EXPECT_EQ(server.requests(), 10) << "nothing was asked twice";
}

// The fifth request wants the run to end, while it and the fourth have half an answer.
TEST(Execute, ARunThatIsInterruptedKeepsWhatHadEnded) {
  const int stop = eventfd(0, EFD_CLOEXEC);
  StubServer server([&](const std::string&, int number) {
    const std::string whole = Stream(GoodEvents("a"));
    if (number < 3) return Reply{whole};
    if (number == 4) eventfd_write(stop, 1);
    return Reply{whole.substr(0, whole.size() / 2)};
  });
  BenchOptions o = Few(100, 2);
  const Server to{
      .host = "127.0.0.1", .port = StrCat(server.port()), .path = PathOf(o), .timeout = std::chrono::hours(1)};
  const auto prompts = *MakePrompts(o);
  load::Run run{HttpAsker(to, *RequestBody::Make(o, "m")), prompts, std::vector<Duration>(100), 2, "t-"};
  run.stop_fd = stop;
  const RunResult result = Execute(run, SteadyClock());
  EXPECT_TRUE(result.interrupted);
  ASSERT_EQ(result.outcomes.size(), 3u);
  for (const Outcome& one : result.outcomes) EXPECT_TRUE(one.ok()) << one.error;
  EXPECT_EQ(result.unfinished, 2);
  EXPECT_EQ(result.unsent, 95);
  EXPECT_EQ(result.planned(), 100u);
  const Verified verified = VerifyIdentical(run, result.outcomes, SteadyClock());  // the descriptor can still be read
  EXPECT_EQ(verified.unasked, 3);
  EXPECT_EQ(verified.compared + verified.different + verified.failed, 0);
  close(stop);
}

TEST(Execute, ARunThatCouldBeInterruptedEndsByItself) {
  const int stop = eventfd(0, EFD_CLOEXEC);
  StubServer server([](const std::string&, int) { return Reply{Stream(GoodEvents("a"))}; });
  BenchOptions o = Few(6, 2);
  const Server to{
      .host = "127.0.0.1", .port = StrCat(server.port()), .path = PathOf(o), .timeout = std::chrono::seconds(20)};
  const auto prompts = *MakePrompts(o);
  load::Run run{HttpAsker(to, *RequestBody::Make(o, "m")), prompts, std::vector<Duration>(6), 2, "t-"};
  run.stop_fd = stop;
  for (int again = 0; again < 2; ++again) {
    const RunResult result = Execute(run, SteadyClock());
    EXPECT_FALSE(result.interrupted);
    EXPECT_EQ(result.outcomes.size(), 6u);
  }
  EXPECT_EQ(eventfd_write(stop, 1), 0) << "it is still open";
  close(stop);
}

/// Whatever it is asked has its end at once, as what its API cannot say.
struct AskerOfNothing final : Asker {
  void Begin(TimePoint, TimePoint) override {}
  boost::asio::awaitable<void> Ask(const Prompt&, size_t, std::string, Outcome& outcome) override {
    Fail(outcome, Failure::kMalformed, "it has no words for it");
    co_return;
  }
  void Abandon() override {}
  int64_t connections() const override { return 0; }
};

TEST(Execute, ARunThatCouldBeInterruptedEndsThoughNothingInItHadToWait) {
  const int stop = eventfd(0, EFD_CLOEXEC);
  for (const size_t requests : {0, 5}) {
    const std::vector<Prompt> prompts(requests);
    const MakeAsker none = [](const Clock&) { return std::make_unique<AskerOfNothing>(); };
    load::Run run{none, prompts, std::vector<Duration>(requests), 2, "t-"};
    run.stop_fd = stop;
    const RunResult result = Execute(run, SteadyClock());
    EXPECT_FALSE(result.interrupted);
    EXPECT_EQ(result.outcomes.size(), requests);
  }
  close(stop);
}

TEST(VerifyIdentical, CountsAnswersWithOtherBytes) {
  StubServer server([](const std::string&, int number) {  // the second time, three prompts get other text
    if (number == 12) return Reply{Whole(503, "text/plain", "busy")};
    return Reply{Stream(GoodEvents(number >= 15 && number < 18 ? "other" : "a"))};
  });
  const Tried tried = Try(server.port(), Few(10, 2), true);
  EXPECT_EQ(tried.verified.compared, 9);
  EXPECT_EQ(tried.verified.different, 3);
  EXPECT_EQ(tried.verified.failed, 1);
  EXPECT_THAT(tried.verified.which, testing::ElementsAre(5, 6, 7));
}

}  // namespace
}  // namespace baton::load
