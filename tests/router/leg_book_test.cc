#include "router/fleet/leg_book.h"

#include <gtest/gtest.h>

#include "common/str_cat.h"
#include "tests/router/hand_event_loop.h"

namespace baton::router {
namespace {

class HeardLegs final : public LegEvents {
 public:
  explicit HeardLegs(HandEventLoop& loop) : loop_(loop) {}
  EventLoop& loop() override { return loop_; }
  void OnNews(RelayNews&&) override { text += "news "; }
  void OnAnswer(const LegKey& key, LegAnswer answer) override {
    const auto* prefilled = std::get_if<PrefillResult>(&answer);
    absl::StrAppend(&text, "answer ", key.leg_id, "/", key.attempt, "/", key.epoch,
                    prefilled != nullptr ? StrCat(" ", absl::StatusCodeToString(prefilled->status.code())) : "", " ");
  }
  void OnWorkerLost(WorkerId worker, const absl::Status&) override {
    absl::StrAppend(&text, "lost w", worker.index, " ");
  }

  std::string text;

 private:
  HandEventLoop& loop_;
};

class LegBookTest : public ::testing::Test {
 protected:
  std::string RenewalsText() const {
    std::string text;
    for (const LegRenewal& leg : book_.Renewals())
      absl::StrAppend(&text, leg.key.leg_id, "/", leg.key.attempt, "/", leg.key.epoch, " g", leg.attach_gen, "; ");
    return text;
  }
  static AttachLeg Attach(const std::string& leg, uint32_t attempt, uint64_t gen) {
    AttachLeg order;
    order.leg_id = leg, order.attempt = attempt, order.attach_gen = gen;
    return order;
  }

  HandEventLoop loop_;
  const std::shared_ptr<HeardLegs> heard_ = std::make_shared<HeardLegs>(loop_);
  LegBook book_;
};

TEST_F(LegBookTest, ALegThatIsWaitedForIsRenewedAndOneThatIsOverIsNot) {
  book_.Note(ReserveLeg{{"b", 2, 0}}, heard_);
  book_.Note(Attach("a", 1, 5), heard_);
  book_.Note(PrefillLeg{{"b", 2, 1}}, heard_);
  EXPECT_EQ(RenewalsText(), "a/1/0 g5; b/2/0 g0; b/2/1 g0; ");
  book_.Note(CancelLeg{{"b", 2, 1}}, heard_);
  book_.Note(CancelAttached{"a", 5, 1u}, heard_);
  EXPECT_EQ(RenewalsText(), "a/1/0 g5; b/2/0 g0; ") << "one choice of a leg ends nothing";
  book_.Note(CancelAttached{"a", 5, std::nullopt}, heard_);
  book_.End("b");
  EXPECT_TRUE(book_.empty());
}

TEST_F(LegBookTest, AnAnswerOfAnEarlierAttemptIsNobodys) {
  book_.Note(ReserveLeg{{"r", 1, 0}}, heard_);
  book_.Note(ReserveLeg{{"r", 2, 0}}, heard_);
  EXPECT_EQ(book_.Answered({"r", 1, 0}, ReserveResult{absl::CancelledError("")}), nullptr);
  EXPECT_EQ(RenewalsText(), "r/2/0 g0; ") << "the later one is still waited for";
  EXPECT_EQ(book_.Answered({"r", 2, 0}, ReserveResult{}), heard_);
  EXPECT_EQ(book_.Answered({"r", 2, 0}, ReserveResult{}), nullptr) << "once";
  EXPECT_EQ(RenewalsText(), "r/2/0 g0; ") << "a ticket that was given is renewed";
}

TEST_F(LegBookTest, ALateAnswerToAReservationSaysNothingOfTheLegThatIsAttachedNow) {
  book_.Note(ReserveLeg{{"r", 1, 0}}, heard_);
  book_.Note(CancelLeg{{"r", 1, 0}}, heard_);
  book_.Note(Attach("r", 1, 3), heard_);
  EXPECT_EQ(book_.Answered({"r", 1, 0}, ReserveResult{absl::UnavailableError("")}), nullptr);
  ASSERT_NE(book_.Of("r"), nullptr);
  EXPECT_EQ(*book_.Of("r"), heard_);
}

TEST_F(LegBookTest, ARefusedReservationIsOver) {
  book_.Note(ReserveLeg{{"r", 1, 0}}, heard_);
  EXPECT_EQ(book_.Answered({"r", 1, 0}, ReserveResult{absl::ResourceExhaustedError("")}), heard_);
  EXPECT_TRUE(book_.empty());
}

TEST_F(LegBookTest, PiecesComeUntilTheResultOfThatEpoch) {
  book_.Note(PrefillLeg{{"r", 1, 2}}, heard_);
  EXPECT_EQ(book_.Answered({"r", 1, 1}, PrefillPiece{"x"}), nullptr);
  EXPECT_EQ(book_.Answered({"r", 1, 2}, PrefillPiece{"x"}), heard_);
  EXPECT_EQ(book_.Answered({"r", 1, 2}, PrefillResult{}), heard_);
  EXPECT_EQ(book_.Answered({"r", 1, 2}, PrefillPiece{"x"}), nullptr);
}

TEST_F(LegBookTest, EverybodyWhoWaitsHearsOfTheLossOnItsExecutorAndOnce) {
  book_.Note(Attach("a", 1, 5), heard_);
  book_.Note(ReserveLeg{{"b", 2, 0}}, heard_);
  book_.Note(PrefillLeg{{"c", 1, 4}}, heard_);
  book_.TellLost({3, 9}, absl::UnavailableError("gone"));
  EXPECT_TRUE(book_.empty());
  EXPECT_EQ(heard_->text, "") << "not inside the call";
  loop_.Run();
  EXPECT_EQ(heard_->text, "answer c/1/4 UNAVAILABLE lost w3 lost w3 ");
}

}  // namespace
}  // namespace baton::router
