// What a request's driver does between its flow and the workers: late and stale answers, the retry budget, the load
// that it holds. Workers are scripted; every order is text: "reserve r0/1 w1".
#include "router/request/request_driver.h"

#include <gtest/gtest.h>

#include "tests/router/driver_world.h"

namespace baton::router {
namespace {

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
