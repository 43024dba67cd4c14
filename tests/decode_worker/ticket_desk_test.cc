#include "decode_worker/ticket_desk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "desk_world.h"
#include "tests/caught_log.h"
#include "tests/engine/step/requests.h"

namespace baton::decode_worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(TicketDesk, OtherNumericsAreTakenAndToldOncePerLife) {
  DeskWorld w;
  CaughtLog log;
  LaneHello hello = w.MakeHello("elsewhere");
  hello.numerics_id = "n2";
  for (WriterId connection : {20, 21, 22}) w.desk.OnHello(connection, hello);
  EXPECT_EQ(log.Count("Promise B"), 1) << log.text();
  EXPECT_THAT(log.text(), AllOf(HasSubstr("elsewhere"), HasSubstr("n1"), HasSubstr("n2")));
  hello.incarnation = "its next life";
  w.desk.OnHello(23, hello);
  EXPECT_EQ(log.Count("Promise B"), 2);
  w.Hello(24);
  EXPECT_EQ(log.Count("Promise B"), 2) << "equal numerics are not worth a line";
  w.Reserve();
  w.Open(20);
  EXPECT_THAT(w.landing.log, HasSubstr("Bound"));
}

/// Ticket 1 of a prompt whose KV writer 7, of `numerics`, hands over; attached.
void HandOver(DeskWorld& w, const std::string& numerics) {
  LaneHello hello = w.MakeHello("p7");
  hello.numerics_id = numerics;
  w.desk.OnHello(7, hello);
  w.Reserve();
  w.Open();
  w.Fill(0), w.Fill(1), w.Done();
  w.Attach(w.MakeAttach());
}

TEST(TicketDesk, KvOfOtherNumericsServesItsOwnAnswerAndIsNotCached) {
  for (const std::string numerics : {"n1", "n2"}) {
    DeskWorld w;
    HandOver(w, numerics);
    for (int step = 0; step < 20 && w.Step(); ++step) {
    }
    EXPECT_EQ(w.Reserve("next").cached_tokens, numerics == "n1" ? 32 : 0) << numerics;
  }
}

TEST(TicketDesk, ChoicesWhoseFirstTokensOtherNumericsDrewAreNotDrawnAnewHere) {
  for (const bool one_has_ended : {false, true}) {
    DeskWorld w;
    LaneHello hello = w.MakeHello("p7");
    hello.numerics_id = "n2";
    w.desk.OnHello(7, hello);
    w.Reserve();
    w.Open();
    v1::Attach attach = w.MakeAttach();
    attach.mutable_sampling()->set_n(2);
    v1::FirstToken& second = *attach.add_first();
    second.set_index(1), second.set_token_id(6);
    if (one_has_ended) second.set_finish_reason(v1::FINISH_REASON_STOP);
    w.Closed();  // before its KV was whole
    w.Attach(attach);
    for (uint32_t choice : {0u, 1u}) {
      const std::vector<v1::RelayEntry> told = w.sink->Of("r", choice);
      ASSERT_EQ(told.size(), 1u) << "the router asks for each choice from its own first token on";
      EXPECT_EQ(told[0].error().code(), static_cast<int>(absl::StatusCode::kAborted));
    }
  }
}

TEST(TicketDesk, AMisfitMovesNothingAndIsToldBothValues) {
  const auto why_gone = [](auto field, const auto& value) {
    DeskWorld w;
    LaneHello hello = w.MakeHello();
    hello.*field = value;
    w.desk.OnHello(9, hello);
    w.Reserve();
    w.Open(9);
    return w.landing.why_gone;
  };
  EXPECT_EQ(why_gone(&LaneHello::model_digest, "another"), "model digest another, here model");
  EXPECT_EQ(why_gone(&LaneHello::kv_digest, "off"), "KV digests off, here sum64");
  EXPECT_EQ(why_gone(&LaneHello::protocol, ProtocolVersions{5, 7}), "KV protocol 5..7, here 4");
  EXPECT_EQ(why_gone(&LaneHello::protocol, ProtocolVersions{3, 5}), "") << "they share 4";
}

TEST(TicketDesk, AWriterThatIsGoneAndHoldsNothingIsReleasedAndForgotten) {
  DeskWorld w(FenceKind::kPeerExit);
  w.Reserve();
  w.Open();
  w.landing.log.clear();
  w.desk.OnWriterGone(8, false);
  EXPECT_EQ(w.landing.log, "Release ");
  w.Open(8);
  EXPECT_EQ(w.landing.why_gone, "no hello came first");
  w.landing.log.clear();
  w.desk.OnWriterGone(7, false);
  EXPECT_EQ(w.landing.log.find("Release"), std::string::npos) << "its lane is open: " << w.landing.log;
}

TEST(TicketDesk, AMisfitThatGreetsAgainAndAgainIsOneLine) {
  DeskWorld w;
  CaughtLog log;
  LaneHello hello = w.MakeHello("elsewhere");
  hello.model_digest = "another";
  for (int i = 0; i < 100; ++i) w.desk.OnHello(30, hello);
  EXPECT_EQ(log.Count("does not fit"), 1) << log.text();
}

// Whoever has the secret may come without end.
TEST(TicketDesk, MisfitsThatComeOneAfterTheOtherHaveSixteenLinesASecond) {
  DeskWorld w;
  CaughtLog log;
  LaneHello hello = w.MakeHello();
  for (WriterId id = 100; id < 300; ++id) {
    hello.incarnation = "life " + std::to_string(id);
    hello.model_digest = "another", hello.numerics_id = "other";
    w.desk.OnHello(id, hello);
  }
  EXPECT_EQ(log.Count("handoff: "), 16) << log.text();
  w.h.now += std::chrono::seconds(1);
  hello.incarnation = "a later one";
  w.desk.OnHello(400, hello);
  EXPECT_EQ(log.Count("a later one does not fit"), 1);
}

TEST(TicketDesk, WhoGuessesATicketLearnsNothingAndAttachesNothing) {
  DeskWorld w;
  w.Reserve();
  OpenLane guess = w.MakeOpen();
  guess.secret = {1, 2};
  w.desk.OnLane(7, guess);
  EXPECT_EQ(w.landing.why_gone, "unknown ticket");
  EXPECT_TRUE(w.landing.grants.empty());
  v1::Attach attach = w.MakeAttach();
  v1::Ticket ticket;
  ASSERT_TRUE(ticket.ParseFromString(attach.ticket()));
  ticket.set_secret_low(3);
  attach.set_ticket(ticket.SerializeAsString());
  w.Attach(attach);
  EXPECT_THAT(w.sink->LastOf("r").error().message(), testing::HasSubstr("is gone"));
}

TEST(TicketDesk, ATicketPinsTheCachedPrefixAndOnlyTheRestTravels) {
  DeskWorld w;
  engine::Request earlier = engine::MakeRequest(77, engine::RandomTokens(DeskWorld::kPrompt, DeskWorld::kPrompt), 2);
  ASSERT_TRUE(w.h.Add(earlier).ok());
  w.RunAll();
  const decode::ReserveAnswer answer = w.Reserve();
  EXPECT_EQ(answer.cached_tokens, 32);
  EXPECT_EQ(w.desk.OwnedBlocks(0), 2) << "a pin counts as an owner";
  w.CheckOwners();
  const KvSide side = worker::SideOf(w.h.memory().layout());
  w.desk.OnLane(7, OpenLane{{1, 1, 0}, TransferPlan::Make(side, side, {32, DeskWorld::kPrompt}, 32)->digest()});
  w.desk.OnLane(7, SlotFull{{1, 1, 0}, w.landing.grants.at(0), {0}});
  ASSERT_EQ(w.landing.places.size(), 1u);
  EXPECT_EQ((*w.landing.places[0].tables)[0].size(), 3u) << "the pinned blocks and one of its own";
  w.CheckOwners();
  w.desk.Cancel({"r", 0});
  w.desk.Handle(decode::Scattered{{1, 1, 0}, w.landing.grants.at(0), true});
  EXPECT_EQ(w.desk.OwnedBlocks(0), 0);
}

TEST(TicketDesk, ARefusedReserveLeavesNothing) {
  DeskWorld w;
  decode::ReserveOrder big = w.MakeReserve("big");
  for (int i = 0; i < 24; ++i) w.Reserve("r" + std::to_string(i));  // 41 tokens each, of 1000
  EXPECT_TRUE(absl::IsResourceExhausted(w.Reserve(big).status));
  EXPECT_EQ(w.desk.reserves_refused(), 1);
  EXPECT_EQ(w.desk.Find(25), nullptr);
  EXPECT_TRUE(w.Reserve("r3").status.ok()) << "who has a ticket is answered alike";
  w.CheckOwners();
}

TEST(TicketDesk, ARouterThatLeavesTakesItsUnattachedTicketsOnly) {
  DeskWorld w;
  w.Reserve();
  decode::ReserveOrder other = w.MakeReserve("other");
  other.session = "another session";
  w.Reserve(other);
  w.Reserve("third");
  w.Open(7, 1, 1), w.desk.OnLane(7, SlotFull{{1, 1, 0}, {0, 1}, {0}});
  w.Attach(w.MakeAttach());
  w.desk.OnRouterLeft("session");
  EXPECT_EQ(w.desk.Find(1)->state, decode::TicketState::kReceiving) << "attached: its relay stream is what it lives on";
  EXPECT_EQ(w.desk.Find(2)->state, decode::TicketState::kReserved);
  EXPECT_EQ(w.desk.Find(3)->state, decode::TicketState::kGone);
}

TEST(TicketDesk, ARouterThatSaysAnothersSessionTakesNoTicketsOfIts) {
  DeskWorld w;
  w.Reserve();
  w.desk.OnRouterLeft("session", "another router");
  EXPECT_EQ(w.desk.Find(1)->state, decode::TicketState::kReserved);
  EXPECT_TRUE(w.Reserve("later").status.ok()) << "nor those that are still to come";
}

TEST(TicketDesk, ARouterWhoseSessionsEndWithoutEndHasNoneOfAnothersForgotten) {
  DeskWorld w;
  w.desk.OnRouterLeft("session");
  for (int i = 0; i < 200; ++i) w.desk.OnRouterLeft(std::to_string(i), "another router");
  EXPECT_TRUE(absl::IsCancelled(w.Reserve("that comes late").status));
  const auto of_the_other = [&w](int session) {
    decode::ReserveOrder order = w.MakeReserve("of session " + std::to_string(session));
    order.session = std::to_string(session), order.key.router = "another router";
    return w.Reserve(order).status;
  };
  EXPECT_TRUE(absl::IsCancelled(of_the_other(199)));
  EXPECT_TRUE(of_the_other(0).ok()) << "of so many the oldest are forgotten";
}

TEST(TicketDesk, AWriterThatWasFencedHasToGreetAgain) {
  DeskWorld w;
  w.Reserve();
  w.desk.OnWriterGone(7, /*fenced=*/true);
  w.Open(7);
  EXPECT_EQ(w.landing.why_gone, "no hello came first");
  w.Hello(7), w.Open(7);
  EXPECT_THAT(w.landing.log, HasSubstr("Bound"));
}

TEST(TicketDesk, AFrozenWritersMemoryIsReplacedAndDroppedAndItsWritersAreStrangersThen) {
  DeskWorld w(FenceKind::kPeerExit);
  w.Reserve();
  w.Open(7);
  w.Listen(std::chrono::milliseconds(5100));
  EXPECT_THAT(w.landing.log, HasSubstr("Replace"));
  w.desk.OnWriterGone(7, /*fenced=*/true);
  w.Listen(std::chrono::seconds(61));
  EXPECT_THAT(w.landing.log, HasSubstr("Drop"));
  w.Reserve("late");
  w.Open(8, 1, 2);
  EXPECT_EQ(w.landing.why_gone, "no hello came first");
}

TEST(TicketDesk, AWriterThatWasSilentBeforeTheAttachHasItsTimeFromThereOn) {
  DeskWorld w;
  w.Reserve(), w.Open(), w.Fill(0);
  w.Listen(std::chrono::seconds(5));
  w.Attach(w.MakeAttach());
  w.Listen(std::chrono::milliseconds(3900));
  EXPECT_EQ(w.desk.Find(1)->state, decode::TicketState::kReceiving);
  w.Listen(std::chrono::milliseconds(200));
  EXPECT_EQ(w.desk.Find(1)->state, decode::TicketState::kAttached) << "computed here";
}

TEST(TicketDesk, AStreamWithoutANameTakesNoTicketsWithIt) {
  DeskWorld w;
  decode::ReserveOrder order = w.MakeReserve();
  order.session = "";
  w.Reserve(order);
  w.desk.OnRouterLeft("");
  EXPECT_EQ(w.desk.Find(1)->state, decode::TicketState::kReserved) << "the stream of another that has no name either";
  order.key.request_id = "later";
  EXPECT_TRUE(w.Reserve(order).status.ok());
}

TEST(TicketDesk, ShortMemoryGivesUpTheYoungestPinForASeniorSequence) {
  engine::SteppedEngineOptions options = worker::RelayOptions();
  options.num_blocks = {21};
  DeskWorld w(FenceKind::kReceiverWrites, options);
  ASSERT_TRUE(w.h.Add(engine::MakeRequest(77, engine::RandomTokens(1, 160), 2)).ok());
  w.RunAll();
  decode::ReserveOrder pinned = w.MakeReserve();
  pinned.prompt = engine::RandomTokens(1, 160), pinned.prompt_len = 160;
  EXPECT_GE(w.Reserve(pinned).cached_tokens, 144);
  ASSERT_TRUE(w.h.Add(engine::Endless(78, 250, 4)).ok());
  w.RunAll();
  EXPECT_EQ(w.desk.OwnedBlocks(0), 0) << "its pinned blocks were needed";
  EXPECT_EQ(w.h.scheduler().Load().preemptions, 0);
  EXPECT_EQ(w.desk.Find(1)->state, decode::TicketState::kReserved) << "whoever attaches to it is computed here";
}

TEST(TicketDesk, AWindowGroupBindsWhatLaterStepsCanSee) {
  engine::SteppedEngineOptions options = worker::RelayOptions();
  options.layout = engine::FakeLayout(16, /*window_tokens=*/32);
  options.num_blocks = {64, 64};
  DeskWorld w(FenceKind::kReceiverWrites, options);
  decode::ReserveOrder order = w.MakeReserve();
  order.prompt = engine::RandomTokens(1, 200), order.prompt_len = 200;
  w.Reserve(order);
  const KvSide side = worker::SideOf(w.h.memory().layout());
  w.desk.OnLane(7, OpenLane{{1, 1, 0}, TransferPlan::Make(side, side, {0, 200}, 32)->digest()});
  ASSERT_THAT(w.landing.log, HasSubstr("Bound"));
  EXPECT_EQ(w.desk.OwnedBlocks(0), 13);
  EXPECT_EQ(w.desk.OwnedBlocks(1), 3) << "positions 169 to 200: two blocks of the window and the one it grows into";
  w.CheckOwners();
}

/// Tokens of the only choice, by the generation that brought them.
std::vector<int32_t> TokensOf(const worker::KeepingSink& sink, uint64_t gen) {
  std::vector<int32_t> out;
  for (const v1::RelayEntry& entry : sink.Of("r")) {
    if (entry.attach_gen() == gen) out.insert(out.end(), entry.token_ids().begin(), entry.token_ids().end());
  }
  return out;
}

/// As the router writes it that has had the first token and `more`.
v1::Attach MakeSecondAttach(const DeskWorld& w, const std::vector<int32_t>& more) {
  v1::Attach attach = w.MakeAttach(2);
  std::vector<int32_t> output = {attach.first(0).token_id()};
  output.insert(output.end(), more.begin(), more.end());
  attach.clear_first();
  attach.mutable_prompt_token_ids()->append(worker::TokenBytes(output));
  attach.set_output_len_so_far(static_cast<uint32_t>(output.size()));
  attach.set_position(DeskWorld::kPrompt + output.size());
  attach.add_choices(0);
  return attach;
}

TEST(TicketDesk, ASecondAttachTakesTheTicketOverAndContinuesAtItsPosition) {
  std::vector<int32_t> want;
  for (int steps = 0; steps < 4; ++steps) {
    DeskWorld w;
    w.Reserve(), w.Open();
    w.Fill(0), w.Fill(1), w.Done(), w.Closed();
    v1::Attach first = w.MakeAttach(1, 0);  // computed here: the fake model's KV is not in the slots
    first.mutable_sampling()->set_max_tokens(6);
    w.Attach(first);
    for (int i = 0; i < steps + 2; ++i) w.Step();
    std::vector<int32_t> had = TokensOf(*w.sink, 1);
    v1::Attach second = w.MakeAttach(2, 0);
    second.mutable_sampling()->set_max_tokens(6);
    second.mutable_prompt_token_ids()->append(worker::TokenBytes(had));
    second.set_output_len_so_far(static_cast<uint32_t>(had.size()));
    second.set_position(DeskWorld::kPrompt + had.size());
    w.Attach(second);
    w.RunAll();
    EXPECT_EQ(TokensOf(*w.sink, 1), had) << "the first is fenced";
    for (int32_t token : TokensOf(*w.sink, 2)) had.push_back(token);
    EXPECT_EQ(had.size(), 6u);
    if (want.empty()) want = had;
    EXPECT_EQ(had, want) << steps;
    w.desk.Tick();
    EXPECT_EQ(w.desk.Stats().tickets, 0) << "the ticket ends with the second";
    EXPECT_EQ(w.desk.OwnedBlocks(0), 0);
    w.CheckOwners();
  }
}

TEST(TicketDesk, ASecondAttachThatIsParkedGetsTheKvWhenItHasOneToken) {
  for (const std::vector<int32_t>& more : {std::vector<int32_t>{}, std::vector<int32_t>{9}}) {
    DeskWorld w;
    w.Reserve(), w.Open();
    w.Fill(0);
    w.Attach(w.MakeAttach());
    w.Attach(MakeSecondAttach(w, more));
    ASSERT_TRUE(w.desk.Find(1)->parked);
    EXPECT_EQ(w.desk.Find(1)->parked->attach_gen, 2u);
    w.Fill(1), w.Done();
    const engine::SchedulerLoad load = w.h.scheduler().Load();
    EXPECT_EQ(load.running_sequences, more.empty() ? 1 : 0)
        << "with the KV it decodes at once, else it waits for its prefill";
    w.RunAll();
    EXPECT_EQ(w.sink->TokensOf("r"), 3u - more.size());
    w.Closed(), w.desk.Tick();
    EXPECT_EQ(w.desk.OwnedBlocks(0), 0);
    w.CheckOwners();
  }
}

TEST(TicketDesk, ASecondAttachThatIsRefusedEndsTheTicket) {
  DeskWorld w;
  w.Reserve(), w.Open(), w.Fill(0), w.Fill(1), w.Done(), w.Closed();
  w.Attach(w.MakeAttach());
  v1::Attach wrong = w.MakeAttach(2);
  wrong.set_prompt_len(39);
  w.Attach(wrong);
  w.book.OnOutputs(w.h.scheduler().TakeOutputs(), 0);
  EXPECT_EQ(w.sink->LastOf("r").error().code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  w.desk.Tick();
  EXPECT_EQ(w.Requests(), 0);
  EXPECT_EQ(w.desk.OwnedBlocks(0), 0);
  w.CheckOwners();
}

TEST(TicketDesk, LetGoReturnsWhatTicketsHold) {
  DeskWorld w;
  w.Reserve(), w.Open();
  EXPECT_GT(w.desk.OwnedBlocks(0), 0);
  w.desk.LetGo();
  EXPECT_EQ(w.desk.OwnedBlocks(0), 0);
  EXPECT_EQ(w.h.cache().pool(0).used_blocks(), 0);
}

}  // namespace
}  // namespace baton::decode_worker
