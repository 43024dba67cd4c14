// What a request's driver does between its flow and the workers: late and stale answers, the retry budget, the load
// that it holds. Workers are scripted; every order is text: "reserve r0/1 w1".
#include "router/request/request_driver.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>

#include "tests/router/flow_text.h"
#include "tests/router/hand_event_loop.h"
#include "text/stop_matcher.h"

namespace baton::router {
namespace {

constexpr WorkerId kP{0, 1}, kD1{1, 2}, kD2{2, 3}, kOther{3, 4};  // the last has other numerics

/// Chooses what the test says, and notes what is sent.
class ScriptedWorkers final : public Workers {
 public:
  struct Choice {
    WorkerId decode;
    bool pair = false;
  };
  absl::StatusOr<RoutedTo> Choose(const TokenizedRequest&, uint32_t, const std::vector<WorkerId>&, bool pair_allowed,
                                  const std::string& numerics_so_far) override {
    with_prefill = pair_allowed;
    so_far = numerics_so_far;
    if (next.empty()) return absl::UnavailableError("no worker");
    const Choice choice = next.front();
    if (next.size() > 1) next.pop_front();
    RoutedTo placement{.worker = choice.decode, .ticket = LoadShare(load, 0)};
    if (choice.pair)
      placement.prefill = std::make_unique<RoutedTo>(RoutedTo{.worker = kP, .ticket = LoadShare(load, 8)});
    return placement;
  }
  absl::StatusOr<RoutedTo> ChoosePrefill(const TokenizedRequest&, const std::vector<WorkerId>&, WorkerId) override {
    return RoutedTo{.worker = kP, .ticket = LoadShare(load, 8)};
  }
  bool MayComeBack(bool) const override { return true; }
  std::string NumericsOf(WorkerId id) const override { return id == kOther ? "y" : "x"; }
  std::string NameOf(WorkerId id) const override { return StrCat("w", id.index); }
  void NoteHandoff(double) override {}
  void Send(WorkerId id, const TokenizedRequest& generation, const LegOrder& order,
            std::shared_ptr<LegEvents> to) override {
    if (const auto* attach = std::get_if<AttachLeg>(&order)) {
      gen[generation.request_id] = attach->attach_gen;
      deadline_ms = attach->deadline_ms;
      if (attach->grant != nullptr) tickets.push_back(attach->grant->ticket);
    }
    absl::StrAppend(&sent, sent.empty() ? "" : ", ", DescribeOrder(id, order));
    events[generation.request_id] = std::move(to);
  }
  void Forget(WorkerId id, const std::string& leg_id) override {
    absl::StrAppend(&forgotten, leg_id, " w", id.index, "; ");
  }

  FakeClock clock;
  std::shared_ptr<OutstandingLoad> load = std::make_shared<OutstandingLoad>(clock);
  std::deque<Choice> next{{kD1}};
  std::map<std::string, std::shared_ptr<LegEvents>> events;
  std::map<std::string, uint64_t> gen;
  std::vector<std::string> tickets;
  std::string sent, forgotten, so_far;
  bool with_prefill = false;
  uint32_t deadline_ms = 0;
};

class NotedSink final : public AnswerSink {
 public:
  void OnAdmitted(const TokenizedRequest&, int64_t) override {}
  void OnPromptLogprobs(std::vector<PositionLogprobs>) override {}
  void OnDelta(ChoiceDelta&& delta, const RequestUsage&) override {
    ++deltas;
    text += delta.text;
    tokens.insert(tokens.end(), delta.token_ids.begin(), delta.token_ids.end());
  }
  void OnChoiceEnd(const ChoiceFinish& finish) override { stop_token = finish.stop_token_id; }
  void OnDone(const RequestSummary& summary) override {
    end = summary.mixed_numerics ? "mixed" : "done";
    timings = summary.timings;
  }
  void OnFailed(const ApiError& error) override { end = StrCat("failed ", error.http_status); }
  size_t UnsentBytes() const override { return unsent; }
  uint64_t TakenBytes() const override { return taken; }

  int deltas = 0;
  std::vector<int32_t> tokens;
  std::string text, end;
  std::optional<int32_t> stop_token;
  size_t unsent = 0;
  uint64_t taken = 0;
  StageTimings timings;
};

class RequestDriverTest : public ::testing::Test {
 protected:
  struct Running {
    std::shared_ptr<RequestDriver> call;
    std::shared_ptr<NotedSink> sink = std::make_shared<NotedSink>();
  };

  static void SetUpTestSuite() {
    model_ = new ModelText(ModelText::Load("tests/data/tiny-llama", "", false, 0).value());
  }
  static void TearDownTestSuite() { delete model_; }

  Running Ask(const std::string& id, bool include_stop = false, const std::vector<std::string>& stop = {},
              const SamplingOptions& sampling = {}) {
    TokenizedRequest g;
    g.request_id = id;
    g.prompt = {5, 6, 7, 8, 9, 10, 11, 12};
    g.sampling = ResolveSampling(sampling, {});
    g.include_stop_str_in_output = include_stop;
    g.sampling.max_tokens = 3;
    g.sampling.seed = 1;
    g.timeout = timeout_;
    std::vector<ChoiceText> texts;
    for (int32_t choice = 0; choice < g.sampling.n; ++choice)
      texts.emplace_back(*model_->tokenizer, g, StopMatcher::Create(stop, false).value());
    Running running;
    std::vector<AdmissionHold> tickets;
    tickets.push_back(std::get<AdmissionHold>(admission_.Enter({}, {})));
    running.call = std::make_shared<RequestDriver>(services_, loop_, std::move(g), std::move(texts),
                                                   workers_.clock.Now(), std::move(tickets), running.sink);
    running.call->Start();
    return running;
  }
  /// What was sent since the last look.
  std::string Sent() { return std::exchange(workers_.sent, ""); }
  /// Token `number` of the answer, from the leg of now; the third is the last.
  void Token(const std::string& id, int32_t number) {
    RelayNews news;
    news.attach_gen = workers_.gen.at(id), news.position = 8 + static_cast<uint64_t>(number), news.accepted = true;
    news.token_ids = {100 + number};
    if (number == 2) news.finish = FinishReason::kLength;
    workers_.events.at(id)->OnNews(std::move(news));
    loop_.Run();
  }
  std::string Counted(const std::string& metric) {
    const std::string text = metrics_.Render({}, {});
    const size_t line = text.find("\n" + metric + "{") + 1, value = text.find("} ", line) + 2;
    return text.substr(value, text.find('\n', line) - value);
  }
  void Lose(const std::string& id, WorkerId worker) {
    workers_.events.at(id)->OnWorkerLost(worker, absl::UnavailableError("gone"));
    loop_.Run();
  }
  void Reserved(const std::string& id, uint32_t attempt, absl::Status status, const std::string& ticket = "t") {
    ReserveResult result{std::move(status)};
    result.grant.ticket = ticket;
    workers_.events.at(id)->OnAnswer({id, attempt, 0}, std::move(result));
    loop_.Run();
  }
  void Prefilled(const std::string& id, uint32_t attempt, uint32_t epoch, absl::Status status) {
    PrefillResult result{std::move(status)};
    if (result.status.ok()) result.first = {FirstToken{.index = 0, .token_id = 100}};
    workers_.events.at(id)->OnAnswer({id, attempt, epoch}, std::move(result));
    loop_.Run();
  }

  static ModelText* model_;
  RouterConfig config_;
  std::optional<Duration> timeout_;
  Admission admission_{8, 100000, /*several_keys=*/true};  // outlives the requests, which workers_ holds
  ScriptedWorkers workers_;
  HandEventLoop loop_;
  RetryBudget budget_{0, 1, admission_};
  RouterMetrics metrics_{"m"};
  const CallServices services_{config_, *model_, workers_.clock, workers_, admission_, budget_, metrics_};
};

ModelText* RequestDriverTest::model_ = nullptr;

TEST_F(RequestDriverTest, APairAnswersWithTheFirstTokenOfOneAndTheOthersOfTheOther) {
  workers_.next = {{kD1, true}};
  const Running r = Ask("r");
  EXPECT_EQ(Sent(), "reserve w1 r/1");
  Reserved("r", 1, absl::OkStatus());
  EXPECT_EQ(Sent(), "prefill w0 1 e1");
  Prefilled("r", 1, 1, absl::OkStatus());
  EXPECT_EQ(Sent(), "attach w1 g1 @9 ticket e1 +100");
  Token("r", 1), Token("r", 2);
  EXPECT_EQ(r.sink->tokens, (std::vector<int32_t>{100, 101, 102}));
  EXPECT_EQ(r.sink->end, "done");
}

TEST_F(RequestDriverTest, TheTimeOfBothLegsPrefillsIsTheRequestsPrefillTime) {
  workers_.next = {{kD1, true}};
  const Running r = Ask("r");
  Reserved("r", 1, absl::OkStatus());
  PrefillResult first{absl::OkStatus()};
  first.first = {FirstToken{.index = 0, .token_id = 100}};
  first.timings.prefill_ms = 20, first.timings.queue_prefill_ms = 4;
  workers_.events.at("r")->OnAnswer({"r", 1, 1}, std::move(first));
  loop_.Run();
  RelayNews last;
  last.attach_gen = workers_.gen.at("r"), last.position = 9, last.accepted = true;
  last.token_ids = {101}, last.finish = FinishReason::kLength;
  last.timings.emplace().prefill_ms = 3;
  workers_.events.at("r")->OnNews(std::move(last));
  loop_.Run();
  EXPECT_EQ(r.sink->end, "done");
  EXPECT_DOUBLE_EQ(r.sink->timings.prefill_ms, 23);
  EXPECT_DOUBLE_EQ(r.sink->timings.queue_prefill_ms, 4);
}

// A decode worker that is lost ends the call in which it was asked for a ticket, some time later.
TEST_F(RequestDriverTest, ALateAnswerOfALostWorkersReservationSaysNothingOfTheNextLeg) {
  workers_.next = {{kD1, true}, {kD2, true}};
  const Running r = Ask("r");
  Lose("r", kD1);
  EXPECT_EQ(Sent(), "reserve w1 r/1, cancel leg w1 1 e0, reserve w2 r/2");
  Reserved("r", 1, absl::CancelledError("cancelled"));
  EXPECT_EQ(Sent(), "");
  EXPECT_EQ(workers_.forgotten, "") << "the leg of now is still waited for";
  Reserved("r", 2, absl::OkStatus(), "second");
  Reserved("r", 1, absl::OkStatus(), "first, late");
  Prefilled("r", 1, 1, absl::OkStatus());
  EXPECT_EQ(Sent(), "prefill w0 2 e1") << "of attempt 2; the answer of attempt 1 is not its";
  EXPECT_TRUE(r.sink->tokens.empty());
  Prefilled("r", 2, 1, absl::OkStatus());
  Token("r", 1), Token("r", 2);
  EXPECT_EQ(r.sink->end, "done");
  EXPECT_EQ(workers_.tickets, (std::vector<std::string>{"second"}));
}

TEST_F(RequestDriverTest, AtItsEndEachLegIsForgotten) {
  SamplingOptions two;
  two.n = 2;
  const Running r = Ask("r", false, {}, two);
  for (uint32_t index : {0, 1}) {
    RelayNews news;
    news.attach_gen = workers_.gen.at("r"), news.index = index, news.position = 8, news.accepted = true;
    news.token_ids = {100};
    workers_.events.at("r")->OnNews(std::move(news));
    loop_.Run();
  }
  workers_.next = {{kD2}};
  Lose("r", kD1);
  EXPECT_EQ(workers_.forgotten, "");
  r.call->ClientGone();
  EXPECT_EQ(workers_.forgotten, "r w2; r#0 w2; r#1 w2; ") << "of the choices, which went on alone, too";
}

TEST_F(RequestDriverTest, ALateEndOfAnEarlierPrefillLegGivesNoLoadBack) {
  workers_.next = {{kD1, true}};
  const Running r = Ask("r");
  Reserved("r", 1, absl::OkStatus());
  Prefilled("r", 1, 1, absl::UnavailableError("lost"));
  EXPECT_EQ(Sent(), "reserve w1 r/1, prefill w0 1 e1, cancel leg w0 1 e1, prefill w0 1 e2");
  EXPECT_EQ(workers_.load->requests(), 2);
  Prefilled("r", 1, 1, absl::OkStatus());
  EXPECT_EQ(workers_.load->requests(), 2) << "the leg of now still computes";
  EXPECT_TRUE(r.sink->tokens.empty());
  Prefilled("r", 1, 2, absl::OkStatus());
  EXPECT_EQ(workers_.load->requests(), 1);
}

TEST_F(RequestDriverTest, WhenThereIsOneShareOfTheBudgetLostRequestsAreComputedOneAfterTheOther) {
  std::vector<Running> all;
  for (int i = 0; i < 4; ++i) {
    all.push_back(Ask(StrCat("r", i)));
    Token(StrCat("r", i), 0);
  }
  Sent();
  workers_.next = {{kD2}};
  for (int i = 0; i < 4; ++i) Lose(StrCat("r", i), kD1);
  EXPECT_EQ(budget_.taken(), 1);
  for (int i = 0; i < 4; ++i) {
    const std::string id = StrCat("r", i);
    EXPECT_NE(Sent().find("attach w2 g2 @9 c0"), std::string::npos) << id << " has its turn";
    EXPECT_EQ(all[static_cast<size_t>(i)].sink->end, "");
    Token(id, 1);  // from here on it is an answer like any other: the next one may be computed again
  }
  EXPECT_EQ(budget_.taken(), 0);
  for (int i = 0; i < 4; ++i) {
    Token(StrCat("r", i), 2);
    EXPECT_EQ(all[static_cast<size_t>(i)].sink->tokens, (std::vector<int32_t>{100, 101, 102})) << i;
    EXPECT_EQ(all[static_cast<size_t>(i)].sink->end, "done") << i;
  }
}

TEST_F(RequestDriverTest, AWorkerThatDrewNothingTookNoPart) {
  workers_.next = {{kOther}, {kD1}, {kD2}};
  const Running r = Ask("r");
  Lose("r", kOther);
  Token("r", 0);
  Lose("r", kD1);
  EXPECT_EQ(workers_.so_far, "x") << "what the client has, not whom it was asked of first";
  Token("r", 1), Token("r", 2);
  EXPECT_EQ(r.sink->end, "done");
}

TEST_F(RequestDriverTest, AnAnswerOfWorkersOfDifferentNumericsSaysSo) {
  workers_.next = {{kD1}, {kOther}};
  const Running r = Ask("r");
  Token("r", 0);
  EXPECT_TRUE(workers_.with_prefill);
  Lose("r", kD1);
  EXPECT_FALSE(workers_.with_prefill) << "tokens are out: the rest goes on on one worker";
  Token("r", 1), Token("r", 2);
  EXPECT_EQ(r.sink->end, "mixed");
  EXPECT_EQ(Counted("baton_migrations_total"), "1");
  EXPECT_EQ(Counted("baton_retries_total"), "0") << "it had its first token";
}

TEST_F(RequestDriverTest, CreditIsWithheldUntilTheClientTakesItsBytesAndThenGivenForAllTokens) {
  config_.relay_credit_tokens = 4;  // given again from half of it on
  const Running r = Ask("r");
  r.sink->unsent = size_t{1} << 40;
  Sent();
  Token("r", 0), Token("r", 1);
  EXPECT_EQ(Sent(), "");
  r.sink->unsent = 0;
  r.call->OutputDrained();
  EXPECT_NE(Sent().find("credit"), std::string::npos) << "of two tokens";
}

// Of 8 places the asking client has 7, and another key has one and asks for a second.
TEST_F(RequestDriverTest, AnAnswerThatIsNotReadGivesWayToAnotherKeyAndOneThatIsReadSlowlyDoesNot) {
  std::vector<Running> all;
  for (const char* id : {"a", "b", "c", "d", "e", "f", "g"}) {
    all.push_back(Ask(id));
    all.back().sink->unsent = size_t{1} << 40;
    Token(id, 0);
  }
  KeyAccount other("other", {});
  const auto ask = [&] { return admission_.Enter({}, workers_.clock.Now(), &other); };
  const auto first = ask();
  ASSERT_TRUE(std::holds_alternative<AdmissionHold>(first));
  workers_.clock.Advance(std::chrono::seconds(10));
  all[0].sink->taken = 10 * 16384;
  EXPECT_FALSE(std::holds_alternative<AdmissionHold>(ask())) << "nothing is free yet";
  loop_.Run();
  EXPECT_EQ(all[0].sink->end, "") << "16 KiB a second: it is read";
  EXPECT_FALSE(std::holds_alternative<AdmissionHold>(ask()));
  loop_.Run();
  EXPECT_EQ(all[1].sink->end, "failed 429");
  EXPECT_NE(workers_.forgotten.find("b"), std::string::npos) << "its worker stops";
  EXPECT_TRUE(std::holds_alternative<AdmissionHold>(ask()));
}

TEST_F(RequestDriverTest, ARequestMayShortenTheRoutersTimeLimitAndNotLengthenIt) {
  config_.request_timeout_ms = 1000;
  timeout_ = std::chrono::milliseconds(5000);
  Ask("long");
  EXPECT_EQ(workers_.deadline_ms, 1000u);
  timeout_ = std::chrono::milliseconds(400);
  Ask("short");
  EXPECT_EQ(workers_.deadline_ms, 400u);
}

TEST_F(RequestDriverTest, APrefillWorkerOfOtherNumericsTakesPartByItsFirstToken) {
  workers_.next = {{kOther, true}};
  const Running r = Ask("r");
  Reserved("r", 1, absl::OkStatus());
  Prefilled("r", 1, 1, absl::OkStatus());
  Token("r", 1), Token("r", 2);
  EXPECT_EQ(r.sink->end, "mixed");
}

TEST_F(RequestDriverTest, AClientThatLeavesWhileItsRequestWaitsForAShareLeavesTheLine) {
  const Running a = Ask("a"), b = Ask("b"), c = Ask("c");
  workers_.next = {{kD2}};
  for (const char* id : {"a", "b", "c"}) Lose(id, kD1);
  b.call->ClientGone();
  Sent();
  Token("a", 0);
  EXPECT_EQ(Sent(), "attach w2 g2 @8") << "the share is the third's at once";
  EXPECT_EQ(workers_.gen.at("c"), 2u);
  Token("c", 0);
  EXPECT_EQ(budget_.taken(), 0);
}

TEST_F(RequestDriverTest, AStopTokenCountsAndIsTextWhereThatIsAskedFor) {
  for (const bool include : {false, true}) {
    const std::string id = include ? "with" : "without";
    const Running r = Ask(id, include);
    RelayNews news;
    news.attach_gen = workers_.gen.at(id), news.position = 8, news.accepted = true;
    news.token_ids = {67, 68};  // a and b of the tiny model
    news.finish = FinishReason::kStop, news.stop_token_id = 68;
    workers_.events.at(id)->OnNews(std::move(news));
    loop_.Run();
    EXPECT_EQ(r.sink->text, include ? "ab" : "a");
    EXPECT_EQ(r.sink->stop_token, std::nullopt) << "the model's, not one that the request asked for";
    EXPECT_EQ(r.sink->tokens, (std::vector<int32_t>{67, 68}));
    EXPECT_EQ(r.sink->end, "done");
  }
}

TEST_F(RequestDriverTest, TokensBehindAStopStringAreNoPartOfTheAnswer) {
  const Running r = Ask("r", false, {"b"});
  RelayNews news;
  news.attach_gen = workers_.gen.at("r"), news.position = 8, news.accepted = true;
  news.token_ids = {67, 68, 69};  // a, b and c of the tiny model, in one message
  workers_.events.at("r")->OnNews(std::move(news));
  loop_.Run();
  EXPECT_EQ(r.sink->text, "a");
  EXPECT_EQ(r.sink->tokens, (std::vector<int32_t>{67, 68})) << "the token that ends the stop string is the last one";
  EXPECT_EQ(r.sink->end, "done");
}

TEST_F(RequestDriverTest, PartsBehindAStopStringOfAnAnswerThatIsHeldToItsEndAreNoneOfIt) {
  SamplingOptions beams;
  beams.use_beam_search = true;
  const Running r = Ask("r", false, {"b"}, beams);
  for (uint64_t position : {8, 10}) {
    RelayNews news;
    news.attach_gen = workers_.gen.at("r"), news.position = position, news.accepted = true;
    news.token_ids = {67, 68};  // a and b
    if (position == 10) news.finish = FinishReason::kLength;
    workers_.events.at("r")->OnNews(std::move(news));
    loop_.Run();
    EXPECT_EQ(r.sink->deltas, position == 10 ? 1 : 0);
  }
  EXPECT_EQ(r.sink->text, "a");
  EXPECT_EQ(r.sink->tokens, (std::vector<int32_t>{67, 68}));
  EXPECT_EQ(r.sink->end, "done");
}

TEST_F(RequestDriverTest, AFullWorkersRefusalIsTheAnswerWhenNoShareIsLeft) {
  const auto held = budget_.TryTake();
  const Running r = Ask("r");
  RelayNews news;
  news.attach_gen = 1, news.finish = FinishReason::kError, news.error = absl::ResourceExhaustedError("full");
  workers_.events.at("r")->OnNews(std::move(news));
  loop_.Run();
  EXPECT_EQ(r.sink->end, "failed 429");
}

TEST_F(RequestDriverTest, ALegThatLapsedIsAskedForAgainAsOftenAsTheRouterStoodStill) {
  const Running r = Ask("r");
  for (uint64_t gen = 1; gen <= 6; ++gen) {
    RelayNews news;
    news.attach_gen = gen, news.finish = FinishReason::kError, news.error = absl::AbortedError("not renewed");
    workers_.events.at("r")->OnNews(std::move(news));
    loop_.Run();
    EXPECT_EQ(workers_.gen.at("r"), gen + 1);
  }
  Token("r", 0), Token("r", 1), Token("r", 2);
  EXPECT_EQ(r.sink->end, "done");
}

}  // namespace
}  // namespace baton::router
