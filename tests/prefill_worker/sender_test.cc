// The transfer thread's half of the prefill side over a real TCP transport: every call in every state of its peer, what
// a write reads and when its buffer is free again.
#include "prefill_worker/sender.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "common/str_cat.h"
#include "kvtransfer/lent_outbox.h"
#include "kvtransfer/slot_format.h"
#include "tests/held_port.h"
#include "tests/kvtransfer/lending_transport.h"
#include "tests/prefill_worker/sender_world.h"
#include "tests/state_table.h"

namespace baton::prefill_worker {
namespace {

using ::testing::HasSubstr;

// ---- every call in every state of the peer

constexpr std::array kStates = {"unknown", "connecting", "connected", "lost"};

void Enter(World& w, const std::string& state) {
  if (state == "unknown") return;
  if (state == "connecting") return w.sender->Connect(kPeer, w.decode.address());
  w.Connect();
  if (state == "connected") return;
  w.decode.HangUp();
  w.Until([&] { return w.told.log == "PeerLost "; });
}

using Apply = std::function<void(World&)>;
const std::vector<std::pair<std::string, Apply>>& Calls() {
  static const std::vector<std::pair<std::string, Apply>> calls = {
      {"Send", [](World& w) { w.sender->Send(kPeer, OpenLane{kLane, 1}); }},
      {"Write", [](World& w) { w.sender->Write(w.MakeWrite()); }},
      {"Write, source gone",
       [](World& w) {
         WriteOrder order = w.MakeWrite();
         order.tables = {{}};
         w.sender->Write(order);
       }},
      {"Write, no such slot", [](World& w) { w.sender->Write(w.MakeWrite(4)); }},
      {"Flush", [](World& w) { w.sender->Flush(kPeer, kLane); }},
      {"Write, Flush", [](World& w) { w.sender->Write(w.MakeWrite()), w.sender->Flush(kPeer, kLane); }},
      {"20 writes, Flush",
       [](World& w) {  // more than there are buffers: the last ones have not begun
         for (uint32_t i = 0; i < 20; ++i) w.sender->Write(w.MakeWrite(i % 4));
         w.sender->Flush(kPeer, kLane);
       }},
      {"Peer hangs up", [](World& w) { w.decode.HangUp(); }},
      {"Peer says a lane message", [](World& w) { w.decode.Say(ToPrefill(LaneBusy{kLane})); }},
      {"Peer says another side's", [](World& w) { w.decode.Say(ToDecode(OpenLane{kLane, 1})); }},
      {"Peer talks nonsense", [](World& w) { w.decode.SayBytes("\xff\xff"); }},
  };
  return calls;
}

std::string Outcome(const std::string& state, const Apply& apply) {
  World w;
  Enter(w, state);
  w.told.log.clear(), w.decode.log.clear();
  apply(w);
  w.Settle();
  std::string done = w.told.log + (w.decode.log.empty() ? "" : "| " + w.decode.log);
  for (const std::string once : {"Written(OK) ", "Written(UNAVAILABLE) "}) {  // any number of them is one
    for (const std::string many = once + once; done.find(many) != std::string::npos;)
      done.replace(done.find(many), many.size(), once);
  }
  if (!done.empty()) done.pop_back();
  std::replace(done.begin(), done.end(), '|', '/');
  return CellOf("", "", done);
}

// call | one cell per state: what the desk is told / what decode hears
constexpr const char* kTable = R"(
Send                     | = | / Hello(p1) Lane | / Lane | =
Write                    | Written(UNAVAILABLE) | Written(OK) / Hello(p1) | Written(OK) | Written(UNAVAILABLE)
Write, source gone       | Written(UNAVAILABLE) | Written(DATA_LOSS) / Hello(p1) | Written(DATA_LOSS) | Written(UNAVAILABLE)
Write, no such slot      | Written(UNAVAILABLE) | Written(INVALID_ARGUMENT) / Hello(p1) | Written(INVALID_ARGUMENT) | Written(UNAVAILABLE)
Flush                    | FlushFailed | Flushed / Hello(p1) | Flushed | FlushFailed
Write, Flush             | Written(UNAVAILABLE) FlushFailed | Written(OK) Flushed / Hello(p1) | Written(OK) Flushed | Written(UNAVAILABLE) FlushFailed
20 writes, Flush         | Written(UNAVAILABLE) FlushFailed | Written(OK) Flushed / Hello(p1) | Written(OK) Flushed | Written(UNAVAILABLE) FlushFailed
Peer hangs up            | = | / Hello(p1) | PeerLost | =
Peer says a lane message | = | / Hello(p1) | Heard | =
Peer says another side's | = | / Hello(p1) | PeerLost / Lost | =
Peer talks nonsense      | = | / Hello(p1) | PeerLost / Lost | =
)";

TEST(SenderTable, EveryCallInEveryStateOfItsPeerIsAnswered) {
  ExpectEveryCell(kTable, kStates, Calls(),
                  [](const auto&, const std::string& state, const Apply& apply) { return Outcome(state, apply); });
}

// ---- the rest

TEST(Sender, AnAddressThatIsNobodysIsAPeerLost) {
  for (const char* address : {"pigeon:loft", "tcp:nowhere", "", "tcp:127.0.0.1:0"}) {
    World w;
    w.sender->Connect(kPeer, address);
    EXPECT_EQ(w.told.log, "PeerLost ") << address;
  }
}

TEST(Sender, APortWhereNobodyListensIsAPeerLostLater) {
  World w;
  const HeldPort nobodys;
  w.sender->Connect(kPeer, LandingAddresses{ThisMachine(), {StrCat("tcp:127.0.0.1:", nobodys.number())}}.Pack());
  w.sender->Write(w.MakeWrite());
  w.Until([&] { return w.told.log.find("PeerLost") != std::string::npos; });
  EXPECT_EQ(w.told.log, "Written(UNAVAILABLE) PeerLost ") << "what was outstanding fails first";
}

TEST(Sender, TheBytesSentAreTheBlocksContentsWithTheirDigests) {
  World w;
  w.Connect();
  w.sender->Write(w.MakeWrite(3, 1));
  w.Until([&] { return w.told.log == "Written(OK) "; });
  w.Settle();
  const auto slot = ReadSlot(w.decode.Slot(3), kLane, 1);
  ASSERT_TRUE(slot.ok()) << slot.status();
  ASSERT_EQ(slot->parts.size(), 1u);
  EXPECT_EQ(slot->parts[0].segment.segment, 1u);
  EXPECT_EQ(w.sender->counters().slots, 1);
  EXPECT_EQ(w.sender->counters().bytes, static_cast<int64_t>(slot->parts[0].payload.size())) << "KV alone";
}

TEST(Sender, ABlockThatChangedAfterItWasComputedIsNotSent) {
  World w;
  w.Connect();
  const KvPoolView pool = worker::PoolOf(w.h.memory());
  pool.groups[0].planes[0][0].base[w.kv.tables[0].blocks()[0] * pool.groups[0].planes[0][0].block_stride_bytes] =
      std::byte{1};
  w.sender->Write(w.MakeWrite());
  w.Settle();
  EXPECT_EQ(w.told.log, "Written(DATA_LOSS) ");
  EXPECT_THAT(std::string(w.told.why.message()), HasSubstr("no longer holds what was computed"));
}

TEST(Sender, MoreWritesThanBuffersAllLeaveInTheEnd) {
  World w;
  w.Connect();
  for (uint32_t i = 0; i < 100; ++i) w.sender->Write(w.MakeWrite(i % 4, i % 2));
  w.Until([&] { return w.sender->counters().slots == 100; });
}

/// A decode worker that takes nothing off its connection: it does not run.
TEST(Sender, APeerThatTakesNothingLeavesTheOthersTheirBuffers) {
  World w;
  w.Connect();
  worker::HandLoop stopped;
  constexpr uint32_t kWrites = 20000;  // more than sockets hold, several with one call
  Decode slow(stopped);
  w.sender->Connect(6, slow.address());
  w.Until([&] { return stopped.Turn(), slow.log == "Hello(p1) "; });
  WriteOrder order = w.MakeWrite();
  order.peer = 6;
  for (uint32_t i = 0; i < kWrites; ++i) w.sender->Write(order);
  w.Settle();
  const int64_t waiting = w.sender->counters().waiting;
  ASSERT_GT(waiting, 0) << "sockets hold more than was written";
  for (uint32_t i = 0; i < 100; ++i) w.sender->Write(w.MakeWrite(i % 4, i % 2));
  w.sender->Flush(kPeer, kLane);
  w.Until([&] { return w.told.log.ends_with("Flushed "); });
  EXPECT_LE(w.sender->counters().waiting, waiting) << "the system's buffers may have taken more meanwhile";
  EXPECT_GT(w.sender->counters().waiting, 0);
  w.sender->Flush(6, kLane);
  EXPECT_EQ(w.sender->counters().waiting, 0);
}

TEST(Sender, TellsOfAFullSlotItselfWhereItIsToAndBehindTheBytes) {
  World w;
  w.Connect();
  WriteOrder order = w.MakeWrite(1), stale = order;
  order.tell = stale.tell = true, stale.tables = {{}};
  w.sender->Write(w.MakeWrite(0)), w.sender->Write(order), w.sender->Write(stale);
  w.Until([&] { return w.decode.log == "Hello(p1) Lane "; });
  EXPECT_TRUE(ReadSlot(w.decode.Slot(1), kLane, 1).ok()) << "told before the bytes were there";
  w.Settle();
  EXPECT_EQ(w.told.log + w.decode.log, "Written(DATA_LOSS) Written(OK) Written(OK) Told Hello(p1) Lane ");
}

TEST(Sender, TimeUnderWayEndsWithTheAnswers) {
  World w;
  w.Connect();
  w.sender->Write(w.MakeWrite(0)), w.sender->Write(w.MakeWrite(1));
  w.Until([&] { return w.sender->counters().slots == 2; });
  EXPECT_EQ(w.sender->counters().nanoseconds, 0) << "still under way: nothing was answered";
  w.decode.Say(ToPrefill(SlotFree{kLane, {0, 2}, true})), w.decode.Say(ToPrefill(SlotFree{kLane, {1, 2}, true}));
  w.Settle();
  EXPECT_GT(w.sender->counters().nanoseconds, 0);
}

// ---- a decode worker that reads the GPU's memory

/// It has said that it does.
void ConnectReader(World& w) {
  w.Connect();
  w.decode.Say(ToPrefill(LaneBound{kLane, {}, true}));
  w.Until([&] { return w.told.log == "Heard "; });
  w.told.log.clear();
}
/// The buffer that a slot says its payload is in; 0: its own.
uint32_t OutboxOf(World& w, uint32_t slot) {
  const auto content = ReadSlot(w.decode.Slot(slot), kLane, 1);
  return content.ok() ? content->parts[0].segment.outbox : 99;
}

TEST(SenderOutbox, IsNamedToPeersThatShareMemoryAndFilledForThoseWhoReadIt) {
  World apart(false, 4), without(true, 0);
  apart.Connect(), without.Connect();
  EXPECT_EQ(apart.decode.outbox + without.decode.outbox, "");

  World w(true, 4);
  w.Connect();
  EXPECT_EQ(w.decode.outbox, w.mover->outbox().card);
  EXPECT_EQ(w.decode.buffer_bytes, w.mover->outbox().buffer_bytes);
  w.sender->Write(w.MakeWrite(0));
  w.Until([&] { return w.told.log == "Written(OK) "; });
  EXPECT_EQ(OutboxOf(w, 0), 0u) << "nobody has said that it reads the outbox";
  w.decode.Say(ToPrefill(LaneBound{kLane, {}, true}));
  w.Settle();
  const std::vector<std::byte> staged(w.decode.Slot(0).begin(), w.decode.Slot(0).end());
  w.sender->Write(w.MakeWrite(1));
  w.Settle();
  ASSERT_NE(OutboxOf(w, 1), 0u);
  const SlotContent::Part part = ReadSlot(w.decode.Slot(1), kLane, 1)->parts[0];
  const std::span<std::byte> lent = w.mover->buffer(part.segment.outbox - 1).subspan(part.at, part.segment.bytes);
  EXPECT_TRUE(std::ranges::equal(lent, std::span(staged).subspan(part.at, part.segment.bytes))) << "the same bytes";
  EXPECT_FALSE(std::ranges::equal(part.payload, lent)) << "and none in the slot";
  EXPECT_EQ(w.sender->counters().bytes, static_cast<int64_t>(2 * part.segment.bytes)) << "KV alone";
}

TransportMaker Lending(const absl::Status& refuses) {
  return [refuses](const LandingShape& shape, TransportEvents& events) -> absl::StatusOr<std::unique_ptr<Transport>> {
    auto made = std::make_unique<LendingTransport>(shape, events, nullptr);
    made->refuses = refuses;
    return made;
  };
}

TEST(SenderOutbox, IsNamedAsATransportLendsItAndFilledForThoseWhoReadIt) {
  World w(false, 4, Lending(absl::OkStatus()));
  testing::internal::CaptureStdout();
  w.Connect();
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr("peers by lending read KV from this GPU's memory"));
  const KvDeviceRooms rooms = w.mover->rooms();
  const std::optional<LentOutbox> told = LentOutbox::Parse(w.decode.outbox);
  ASSERT_TRUE(told.has_value());
  EXPECT_EQ(told->bytes, rooms.outbox.size());
  EXPECT_EQ(told->lent, LendingTransport::NameOf(rooms.outbox));
  const auto end = rooms.outbox.last(told->mark_bytes);
  EXPECT_EQ(told->mark_digest, MarkDigest({reinterpret_cast<const char*>(end.data()), end.size()}));
  w.decode.Say(ToPrefill(LaneBound{kLane, {}, true}));
  w.Settle();
  w.sender->Write(w.MakeWrite(1));
  w.Settle();
  EXPECT_NE(OutboxOf(w, 1), 0u);
  EXPECT_THAT(w.sender->Figures().ways.at(0).path, HasSubstr("the GPU's memory"));
}

TEST(SenderOutbox, IsNamedToNobodyWhereTheTransportCannotLendItAndALineSaysWhy) {
  World w(false, 4, Lending(absl::FailedPreconditionError("UCX knows no CUDA memory here")));
  testing::internal::CaptureStdout();
  w.Connect();
  EXPECT_THAT(testing::internal::GetCapturedStdout(),
              HasSubstr("KV is staged through host memory for peers by lending: UCX knows no CUDA memory here"));
  EXPECT_EQ(w.decode.outbox, "");
}

// One peer has half of the buffers: of four two. `event` gives back those of both slots, or of the first.
int WrittenAfter(const std::function<void(World&)>& event) {
  World w(true, 4);
  ConnectReader(w);
  for (uint32_t slot = 0; slot < 4; ++slot) w.sender->Write(w.MakeWrite(slot));
  w.Settle();
  EXPECT_EQ(w.sender->counters().slots, 2);
  EXPECT_EQ(w.sender->counters().waiting, 2);
  event(w);
  w.Settle();
  return static_cast<int>(w.sender->counters().slots);
}

TEST(SenderOutbox, ABufferIsFilledAgainWhenItsSlotWasAnsweredOrItsLaneHasEnded) {
  const auto say = [](const ToPrefill& message) { return [message](World& w) { w.decode.Say(message); }; };
  EXPECT_EQ(WrittenAfter([](World&) {}), 2);
  EXPECT_EQ(WrittenAfter(say(SlotFree{kLane, {0, 2}, true})), 3);
  EXPECT_EQ(WrittenAfter(say(SlotFree{kLane, {0, 2}, false})), 3) << "to be sent again: gathered again";
  EXPECT_EQ(WrittenAfter(say(SlotFree{kLane, {0, 1}, true})), 2) << "of the turn before";
  EXPECT_EQ(WrittenAfter(say(SlotFree{kLane, {2, 2}, true})), 2) << "of a slot that waits";
  EXPECT_EQ(WrittenAfter(say(SlotFree{{9, 2, 0}, {0, 2}, true})), 2) << "of another lane";
  EXPECT_EQ(WrittenAfter(say(LaneGone{kLane, ""})), 2) << "it may be reading still";
  EXPECT_EQ(WrittenAfter(say(LaneVerified{kLane})), 2);
  EXPECT_EQ(WrittenAfter(say(LaneClosedAck{{9, 2, 0}})), 2) << "of another lane";
  EXPECT_EQ(WrittenAfter(say(LaneClosedAck{kLane})), 4);
}

TEST(SenderOutbox, AFlushLeavesItsBuffersToTheReaderAndALostReaderLeavesThemToOthers) {
  World w(true, 4);
  ConnectReader(w);
  for (uint32_t slot = 0; slot < 3; ++slot) w.sender->Write(w.MakeWrite(slot));
  w.sender->Flush(kPeer, kLane);
  w.Until([&] { return w.told.log.ends_with("Flushed "); });
  w.sender->Write(w.MakeWrite(3));
  w.Settle();
  EXPECT_EQ(w.sender->counters().slots, 2) << "both buffers are being read";
  w.decode.HangUp();
  w.Until([&] { return w.told.log.ends_with("PeerLost "); });
  EXPECT_EQ(w.sender->counters().waiting, 0);

  Decode next(w.loop, true);
  w.sender->Connect(6, next.address());
  w.Until([&] { return next.log == "Hello(p1) "; });
  next.Say(ToPrefill(LaneBound{kLane, {}, true}));
  w.Settle();
  for (uint32_t slot = 0; slot < 4; ++slot) {
    WriteOrder order = w.MakeWrite(slot);
    order.peer = 6;
    w.sender->Write(std::move(order));
  }
  w.Settle();
  EXPECT_EQ(w.sender->counters().slots, 4) << "its two";
}

// Decode workers that answer nothing, on shared memory, where they are not cut off.
TEST(SenderOutbox, WhereOthersHaveAllBuffersKvIsStaged) {
  World w(true, 4);
  std::vector<std::unique_ptr<Decode>> all;
  for (prefill::PeerId id = 10; id < 15; ++id) {
    Decode& one = *all.emplace_back(std::make_unique<Decode>(w.loop, true));
    w.sender->Connect(id, one.address());
    w.Until([&] { return one.log == "Hello(p1) "; });
    one.Say(ToPrefill(LaneBound{kLane, {}, true}));
    w.Settle();
    for (uint32_t slot = 0; slot < 4; ++slot) {
      WriteOrder order = w.MakeWrite(slot);
      order.peer = id;
      w.sender->Write(std::move(order));
    }
    w.Settle();
  }
  EXPECT_EQ(w.sender->counters().slots, 2 + 1 + 1 + 4 + 4) << "the first three wait for their own answers";
  EXPECT_EQ(w.sender->counters().waiting, 2 + 3 + 3);
  EXPECT_EQ(ReadSlot(all[3]->Slot(0), kLane, 1)->parts[0].segment.outbox, 0u);
  EXPECT_NE(ReadSlot(all[2]->Slot(0), kLane, 1)->parts[0].segment.outbox, 0u);
}

TEST(SenderOutbox, ASourceThatChangedNeedsNoBuffer) {
  World w(true, 4);
  ConnectReader(w);
  WriteOrder order = w.MakeWrite(0);
  order.tables = {{}};
  for (int i = 0; i < 9; ++i) w.sender->Write(order);
  w.Settle();
  for (uint32_t slot = 0; slot < 2; ++slot) w.sender->Write(w.MakeWrite(slot));
  w.Settle();
  EXPECT_EQ(w.sender->counters().slots, 2);
}

TEST(Sender, APeerThatIsCutIsLostWhereItsMemoryIsSafeFromUs) {
  World w;
  w.Connect();
  w.sender->Cut(6);  // nobody
  w.sender->Cut(kPeer);
  w.Until([&] { return w.decode.log == "Hello(p1) Lost "; });
  EXPECT_EQ(w.told.log, "PeerLost ");

  World shared(true, 0);
  shared.Connect();
  shared.sender->Cut(kPeer);
  shared.Settle();
  EXPECT_EQ(shared.told.log, "") << "a process that maps the memory is not cut off before it has left";
}

TEST(Sender, TwoPeersAreTwo) {
  World w;
  w.Connect();
  Decode second(w.loop);
  w.sender->Connect(6, second.address());
  w.sender->Send(6, OpenLane{kLane, 1});
  w.Until([&] { return second.log == "Hello(p1) Lane "; });
  second.HangUp();
  w.Until([&] { return w.told.log == "PeerLost "; });
  w.sender->Write(w.MakeWrite());
  w.Until([&] { return w.told.log == "PeerLost Written(OK) "; });
}

}  // namespace
}  // namespace baton::prefill_worker
