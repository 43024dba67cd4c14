// What a request's driver gives back, stops and counts when a leg or the request ends.
#include <gtest/gtest.h>

#include "tests/router/driver_world.h"

namespace baton::router {
namespace {

class DriverEnds : public RequestDriverTest {
 protected:
  /// Seven answers of one key, of 8 places, that nobody reads; another key has the last place and asks for more.
  void FillUnread() {
    for (const char* id : {"a", "b", "c", "d", "e", "f", "g"}) {
      all_.push_back(Ask(id));
      all_.back().sink->unsent = size_t{1} << 40;
      Token(id, 0);
    }
    first_ = admission_.Enter({}, workers_.clock.Now(), &other_);
    workers_.clock.Advance(std::chrono::seconds(10));
    Sent();
  }
  bool OtherIsAdmitted() {
    return std::holds_alternative<AdmissionHold>(admission_.Enter({}, workers_.clock.Now(), &other_));
  }

  std::vector<Running> all_;
  KeyAccount other_{"other", {}};
  std::variant<AdmissionHold, ApiError> first_;
};

TEST_F(DriverEnds, AnAnswerThatGivesWayIsStoppedAtItsWorker) {
  FillUnread();
  EXPECT_FALSE(OtherIsAdmitted());
  loop_.Run();
  EXPECT_EQ(all_[0].sink->end, "failed 429");
  EXPECT_EQ(Sent(), "cancel w1 a g1");
}

TEST_F(DriverEnds, AnAnswerThatIsReadBeforeItsTurnToGiveWayGoesOn) {
  FillUnread();
  EXPECT_FALSE(OtherIsAdmitted()) << "the first is told";
  all_[0].sink->unsent = 0;
  all_[0].call->OutputDrained();
  loop_.Run();
  EXPECT_EQ(all_[0].sink->end, "");
  EXPECT_FALSE(OtherIsAdmitted()) << "now the second is";
  loop_.Run();
  EXPECT_EQ(all_[1].sink->end, "failed 429");
}

TEST_F(DriverEnds, AnAnswerThatGrowsUnreadHasStoodStillSinceItsFirstTokenThatWaited) {
  FillUnread();
  for (const char* id : {"a", "b", "c", "d", "e", "f", "g"}) Token(id, 1);
  EXPECT_FALSE(OtherIsAdmitted());
  loop_.Run();
  EXPECT_EQ(all_[0].sink->end, "failed 429");
}

TEST_F(DriverEnds, OfAnAnswerThatIsReadSlowlyOnlyWhatWasReadSinceCounts) {
  FillUnread();
  all_[0].sink->taken = 30 * 16384;  // enough for now
  EXPECT_FALSE(OtherIsAdmitted());
  loop_.Run();
  EXPECT_EQ(all_[0].sink->end, "");
  for (size_t i = 1; i < all_.size(); ++i) {
    all_[i].sink->unsent = 0;
    all_[i].call->OutputDrained();
  }
  workers_.clock.Advance(std::chrono::seconds(10));
  EXPECT_FALSE(OtherIsAdmitted());
  loop_.Run();
  EXPECT_EQ(all_[0].sink->end, "failed 429") << "it has taken nothing more";
}

TEST_F(DriverEnds, WhileARequestWaitsForAWorkerItIsNobodysLoad) {
  workers_.next = {{kD1, true}};
  const Running r = Ask("r");
  Reserved("r", 1, absl::OkStatus());
  EXPECT_EQ(workers_.load->requests(), 2);
  workers_.next.clear();
  Lose("r", kD1);
  EXPECT_EQ(workers_.load->requests(), 0);
}

TEST_F(DriverEnds, AtItsEndARequestIsNobodysLoad) {
  workers_.next = {{kD1, true}};
  const Running r = Ask("r");
  Reserved("r", 1, absl::OkStatus());
  r.call->ClientGone();
  EXPECT_EQ(workers_.load->requests(), 0);
  EXPECT_EQ(Sent(), "reserve w1 r/1, prefill w0 1 e1, cancel leg w0 1 e1, cancel leg w1 1 e0");
  r.call->ClientGone();
  Prefilled("r", 1, 1, absl::OkStatus());
  Lose("r", kD1);
  EXPECT_EQ(Sent(), "") << "it is over";
}

TEST_F(DriverEnds, ARequestHasAsManyAttemptsAsTheRouterSays) {
  config_.max_attempts = 1;
  const Running r = Ask("r");
  Lose("r", kD1);
  EXPECT_EQ(r.sink->end, "failed 502");
}

TEST_F(DriverEnds, WhatWasComputedAgainBeforeItsFirstTokenIsARetry) {
  const Running r = Ask("r");
  Lose("r", kD1);
  for (int32_t number : {0, 1, 2}) Token("r", number);
  EXPECT_EQ(r.sink->end, "done");
  EXPECT_EQ(r.sink->admitted, 1);
  EXPECT_EQ(Counted("baton_retries_total"), "1");
  EXPECT_EQ(Counted("baton_migrations_total"), "0");
}

TEST_F(DriverEnds, APromptThatGoesToAnotherPrefillWorkerIsARetry) {
  workers_.next = {{kD1, true}};
  const Running r = Ask("r");
  Reserved("r", 1, absl::OkStatus());
  workers_.other_prefill = kP2;
  Prefilled("r", 1, 1, absl::UnavailableError("lost"));
  EXPECT_EQ(Sent(), "reserve w1 r/1, prefill w0 1 e1, cancel leg w0 1 e1, prefill w4 1 e2");
  Prefilled("r", 1, 2, absl::OkStatus());
  for (int32_t number : {1, 2}) Token("r", number);
  EXPECT_EQ(r.sink->end, "done");
  EXPECT_EQ(Counted("baton_retries_total"), "1");
  EXPECT_EQ(Counted("baton_migrations_total"), "0");
}

TEST_F(DriverEnds, APromptThatItsDecodeWorkerComputesAfterAllIsNoRetry) {
  workers_.next = {{kD1, true}};
  const Running r = Ask("r");
  Reserved("r", 1, absl::OkStatus());
  workers_.other_prefill = std::nullopt;
  Prefilled("r", 1, 1, absl::UnavailableError("lost"));
  for (int32_t number : {0, 1, 2}) Token("r", number);
  EXPECT_EQ(r.sink->end, "done");
  EXPECT_EQ(Counted("baton_retries_total"), "0") << "no other worker was asked";
}

TEST_F(DriverEnds, ARequestThatWaitsForRoomIsNoRetry) {
  workers_.next = {{kD1, true}, {kD2, true}};
  const Running r = Ask("r");
  Reserved("r", 1, absl::OkStatus());
  NoRoomFor("r", 1);
  Reserved("r", 2, absl::OkStatus());
  Prefilled("r", 2, 1, absl::OkStatus());
  for (int32_t number : {1, 2}) Token("r", number);
  EXPECT_EQ(r.sink->end, "done");
  EXPECT_EQ(Counted("baton_retries_total"), "0") << "nobody failed";
}

TEST_F(DriverEnds, ARequestThatHadToWaitForAShareOfTheBudgetMayWaitForOneAgain) {
  const Running a = Ask("a"), b = Ask("b");
  for (int32_t round : {0, 1}) {
    workers_.next = {{round == 0 ? kD2 : kD1}};
    for (const char* id : {"a", "b"}) Lose(id, round == 0 ? kD1 : kD2);
    Sent();
    Token("a", round);
    EXPECT_NE(Sent().find("attach"), std::string::npos) << "its turn, round " << round;
    Token("b", round);
  }
  Token("b", 2);
  EXPECT_EQ(b.sink->end, "done");
}

TEST_F(DriverEnds, APrefillWorkerThatFailedIsNotAskedForTheSamePromptAgain) {
  workers_.next = {{kD1, true}};
  const Running r = Ask("r");
  Reserved("r", 1, absl::OkStatus());
  Prefilled("r", 1, 1, absl::UnavailableError("lost"));
  EXPECT_EQ(workers_.not_to_prefill, std::vector<WorkerId>{kP});
}

TEST_F(DriverEnds, APromptOfFewTokensIsComputedWhereItIsDecoded) {
  workers_.next = {{kD1, true, 8}};
  const Running r = Ask("r");
  Reserved("r", 1, absl::OkStatus());
  EXPECT_EQ(Sent(), "reserve w1 r/1, attach w1 g1 @8 ticket e0");
}

TEST_F(DriverEnds, BetweenTwoTokensTheLimitOfSilenceHoldsAndNotThatOfTheFirstToken) {
  config_.first_token_timeout_ms = 60000, config_.idle_token_timeout_ms = 1000;
  calls_loop_ = &timed_.emplace(workers_.clock);
  workers_.next = {{kD1}, {kD2}};
  const Running r = Ask("r");
  timed_->Advance(std::chrono::seconds(2));
  Token("r", 0);
  EXPECT_EQ(Sent(), "attach w1 g1 @8") << "its first token may take longer";
  timed_->Advance(std::chrono::milliseconds(1100));
  EXPECT_NE(Sent().find("attach w2 g2"), std::string::npos);
}

TEST_F(DriverEnds, TheTimeOfAnOutputTokenIsOfThoseBehindTheFirst) {
  const Running r = Ask("r");
  workers_.clock.Advance(std::chrono::seconds(5));
  for (int32_t number : {0, 1, 2}) {
    Token("r", number);
    workers_.clock.Advance(std::chrono::seconds(1));
  }
  EXPECT_EQ(Counted("vllm:request_time_per_output_token_seconds_sum"), "1") << "two tokens in two seconds";
  EXPECT_EQ(r.sink->times.first_ms, 5000);
  EXPECT_EQ(r.sink->times.last_ms, 7000);
  EXPECT_EQ(r.sink->times.gaps_ms, 2000);
  EXPECT_EQ(r.sink->times.gaps, 2) << "before the first there is none";
}

TEST_F(DriverEnds, TheTimesThatItsWorkerToldAreThoseOfTheRequest) {
  const Running r = Ask("r");
  workers_.clock.Advance(std::chrono::seconds(5));
  for (int32_t number : {0, 1}) Token("r", number);
  workers_.clock.Advance(std::chrono::seconds(2));
  RelayNews last;
  last.attach_gen = workers_.gen.at("r"), last.position = 10, last.token_ids = {102};
  last.finish = FinishReason::kLength;
  last.timings = {.queue_prefill_ms = 125, .prefill_ms = 1000, .queue_decode_ms = 250, .decode_ms = 2000};
  testing::internal::CaptureStdout();
  workers_.events.at("r")->OnNews(std::move(last));
  loop_.Run();
  const std::string line = testing::internal::GetCapturedStdout();
  EXPECT_NE(line.find("output 3, 7.000 s, first token 5.000 s"), std::string::npos) << line;
  EXPECT_EQ(Counted("vllm:request_queue_time_seconds_sum"), "0.375") << "of both workers";
  EXPECT_EQ(Counted("vllm:request_prefill_time_seconds_sum"), "1");
  EXPECT_EQ(Counted("vllm:request_decode_time_seconds_sum"), "2");
}

TEST_F(DriverEnds, ARequestIsCutOffWhereOneOfItsChoicesIs) {
  SamplingOptions two;
  two.n = 2;
  const auto logged = [&](FinishReason first, FinishReason second) {
    const Running r = Ask("r", false, {}, two);
    testing::internal::CaptureStdout();
    for (const uint32_t index : {0, 1}) {
      RelayNews news;
      news.attach_gen = workers_.gen.at("r"), news.index = index, news.position = 8, news.accepted = true;
      news.token_ids = {100}, news.finish = index == 0 ? first : second;
      workers_.events.at("r")->OnNews(std::move(news));
      loop_.Run();
    }
    const std::string line = testing::internal::GetCapturedStdout();
    return line.substr(line.find("request r "), 17);
  };
  EXPECT_EQ(logged(FinishReason::kStop, FinishReason::kStop), "request r stop: p");
  EXPECT_EQ(logged(FinishReason::kLength, FinishReason::kStop), "request r length:");
  EXPECT_EQ(logged(FinishReason::kStop, FinishReason::kLength), "request r length:");
}

TEST_F(DriverEnds, AFinishedRequestSaysHowLongOthersWait) {
  const Running r = Ask("r"), waits = Ask("waits");
  workers_.clock.Advance(std::chrono::milliseconds(800));
  for (int32_t number : {0, 1, 2}) Token("r", number);
  EXPECT_EQ(admission_.running(), 1) << "its place is free, whoever still holds the call";
  EXPECT_EQ(admission_.PredictedWaitMs(), 800);
}

}  // namespace
}  // namespace baton::router
