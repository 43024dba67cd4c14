// A prefill worker whose transport lends its GPU's memory: a network's device reads it into the decode worker's inbox,
// slots are placed when it has, and nothing is placed from an inbox into which something may still come.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvtransfer/lent_outbox.h"
#include "tests/decode_worker/outbox_world.h"
#include "tests/kvtransfer/lending_transport.h"

namespace baton::decode_worker {
namespace {

using testing::HasSubstr;

class LandingLent : public testing::Test {
 protected:
  LandingLent()
      : w_(true, true, [this](const LandingShape& shape, TransportEvents& events) { return Make(shape, events); }) {}

  absl::StatusOr<std::unique_ptr<Transport>> Make(const LandingShape& shape, TransportEvents& events) {
    auto made = std::make_unique<LendingTransport>(
        shape, events, [this](std::span<std::byte> to, auto bytes) { w_.mover.WriteAsNetwork(to, std::move(bytes)); });
    network_ = made.get();
    return made;
  }
  /// Until nothing moves any more; reads that are held do not.
  void Settle() {
    for (int quiet = 0; quiet < 50;) quiet = w_.loop.Turn() ? 0 : quiet + 1;
  }
  void Greet(Lender& lender) {
    const KvDeviceRooms rooms = lender.mover.rooms();
    LaneHello hello{.incarnation = "p1", .side = w_.side};
    hello.outbox = LentOutbox{rooms.outbox.size(), rooms.mark.size(), MarkDigest(rooms.mark),
                              LendingTransport::NameOf(rooms.outbox)}
                       .Pack();
    hello.outbox_buffer_bytes = kOutboxSlotBytes;
    w_.told.writer = 0;
    lender.Say(hello);
    w_.Until([&] { return w_.told.writer != 0; });
    Settle();
  }
  /// What a lane that is bound is told; it is granted the slot.
  bool Bind(Lender& lender, uint32_t slot) {
    lender.heard.clear();
    w_.landing->Send(w_.told.writer, LaneBound{kLentLane, {{slot, 1}}});
    w_.Until([&] { return !lender.heard.empty(); });
    return std::get<LaneBound>(lender.heard.back()).reads_outbox;
  }
  /// Segment 0, of payloads in buffer 1 (and a slot that names `named`), or, null, in the slot.
  void Fill(Lender& lender, uint32_t slot, const uint32_t* named) {
    std::vector<std::byte> packed(kOutboxSlotBytes);
    const OutboxRoom room{.buffer = 1, .named = named == nullptr ? 1 : *named};
    const std::vector<uint32_t> segments{0};
    const auto bytes = GatherSlot(*w_.plan, w_.plan->lanes()[0], kLentLane, 1, segments,
                                  worker::PoolOf(w_.h.memory(), named == nullptr ? nullptr : &lender.mover),
                                  worker::TablesOf(w_.from), packed, named == nullptr ? nullptr : &room);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    bool written = false;
    lender.transport->Write(lender.peer, {kLentLane, {slot, 1}}, std::span(packed).first(*bytes),
                            [&](const absl::Status& status) { written = status.ok(); });
    const int before = w_.told.lanes;
    lender.Say(ToDecode(OpenLane{kLentLane, 0}));
    w_.Until([&] { return written && w_.told.lanes > before; });
  }
  void Place(uint32_t slot) {
    w_.landing->Place(
        {kLentLane, {slot, 1}, {0}, w_.plan, std::make_shared<const KvBlockTables>(worker::TablesOf(w_.to))});
  }
  int64_t Scattered(KvPacked from) const { return w_.mover.scattered[static_cast<size_t>(from)]; }
  /// The lender's is open, and slot 2 names its buffer 1.
  void FillOne() {
    Greet(*w_.lender);
    ASSERT_TRUE(Bind(*w_.lender, 2));
    Fill(*w_.lender, 2, &kOne);
  }

  static constexpr uint32_t kOne = 1;
  LendingTransport* network_ = nullptr;
  OutboxWorld w_;
};

TEST_F(LandingLent, ASlotIsPlacedWhenTheNetworkHasReadItsPayloads) {
  FillOne();
  network_->holds = true;
  Place(2);
  Settle();
  EXPECT_EQ(w_.told.log, "") << "it is being read";
  network_->Finish();
  EXPECT_EQ(w_.told.log, "Scattered ");
  EXPECT_EQ(Scattered(KvPacked::kInbox), 1);
  EXPECT_EQ(w_.landing->counters().bytes, w_.plan->SegmentBytes(w_.plan->lanes()[0], 0));
  EXPECT_EQ(network_->reads, 2u) << "the known bytes, and these";
}

TEST_F(LandingLent, IsOpenWhenItsKnownBytesHaveArrivedAndNotBefore) {
  network_->holds = true;
  Greet(*w_.lender);
  EXPECT_FALSE(Bind(*w_.lender, 2)) << "they are being read";
  testing::internal::CaptureStdout();
  network_->Finish();
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr("p1 is read from its GPU's memory by lending"));
  EXPECT_TRUE(Bind(*w_.lender, 2));
}

TEST_F(LandingLent, IsStagedWithTheReasonWhereItCannotBeRead) {
  const auto log = [&] {
    testing::internal::CaptureStdout();
    Greet(*w_.lender);
    EXPECT_FALSE(Bind(*w_.lender, 2));
    return testing::internal::GetCapturedStdout();
  };
  network_->loses = true;
  EXPECT_THAT(log(), HasSubstr("p1, by lending, is staged through host memory: what is in its memory does not arrive"));
  network_->loses = false;
  w_.mover.sees_not = "it cannot be flushed";
  EXPECT_THAT(log(), HasSubstr("is staged through host memory: it cannot be flushed"));
  w_.mover.sees_not = "";
  Fill(*w_.lender, 2, &kOne);
  Place(2);
  EXPECT_EQ(w_.told.log, "Bad ") << "what names it all the same is not read";
  EXPECT_EQ(w_.landing->counters().digest_mismatches, 0);
}

TEST_F(LandingLent, IsStagedWithTheReasonWhereTheTransportTakesNothing) {
  network_->refuses = absl::FailedPreconditionError("UCX knows no CUDA memory here");
  testing::internal::CaptureStdout();
  Greet(*w_.lender);
  EXPECT_FALSE(Bind(*w_.lender, 2));
  EXPECT_THAT(testing::internal::GetCapturedStdout(),
              HasSubstr("is staged through host memory: UCX knows no CUDA memory here"));
  EXPECT_EQ(network_->reads, 0u);
}

// Else known bytes of a connection before would open one that brings none.
TEST_F(LandingLent, KnownBytesOfAnEarlierConnectionOpenNothing) {
  Greet(*w_.lender);
  ASSERT_TRUE(Bind(*w_.lender, 2));
  w_.landing->Cut(w_.told.writer);
  Settle();
  network_->loses = true;
  w_.lender->peer =
      w_.lender->transport->Connect(LandingAddresses::Parse(w_.landing->address()).value().addresses.at(0)).value();
  Greet(*w_.lender);
  EXPECT_FALSE(Bind(*w_.lender, 2));
}

TEST_F(LandingLent, WhatIsDamagedOrNotThereIsCalledBad) {
  FillOne();
  w_.lender->mover.buffer(1)[SlotOverheadBytes(1)] ^= std::byte{1};
  Place(2);
  Settle();
  EXPECT_EQ(w_.told.log, "Bad ");
  EXPECT_EQ(w_.landing->counters().digest_mismatches, 1);

  const uint32_t beyond = 2, reads = static_cast<uint32_t>(network_->reads);
  ASSERT_TRUE(Bind(*w_.lender, 3));
  Fill(*w_.lender, 3, &beyond);
  Place(3);
  EXPECT_EQ(w_.told.log, "Bad Bad ") << "there are buffers 0 and 1";
  EXPECT_EQ(network_->reads, reads);
}

TEST_F(LandingLent, APinnedSlotIsStagedWhileAReadHasTheInbox) {
  FillOne();
  Bind(*w_.lender, 3);
  Fill(*w_.lender, 3, nullptr);
  network_->holds = true;
  Place(2);
  Place(3);
  EXPECT_EQ(w_.told.log, "Scattered ") << "it waits for no read";
  EXPECT_GT(Scattered(KvPacked::kStaging), 0);
  EXPECT_EQ(Scattered(KvPacked::kInbox), 0);
  network_->Finish();
  EXPECT_EQ(w_.told.log, "Scattered Scattered ");
  EXPECT_EQ(Scattered(KvPacked::kInbox), 1);
  Place(3);
  EXPECT_EQ(Scattered(KvPacked::kInbox), 2) << "the inbox is free again";
}

// The bytes of a read that has failed come late, into the inbox: nobody has it until their writer is fenced.
TEST_F(LandingLent, AfterAFailedReadTheInboxWaitsForTheFence) {
  FillOne();
  network_->holds = network_->holds_fence = true;
  Place(2);
  Settle();
  w_.lender->transport->Close(w_.lender->peer, [] {});
  w_.Until([&] { return w_.told.log == "Bad Lost "; });
  w_.landing->Release(w_.told.writer);

  Lender next(w_.loop, LandingAddresses::Parse(w_.landing->address()).value().addresses.at(0));
  Greet(next);
  EXPECT_EQ(network_->reads, 2u) << "its known bytes wait";
  EXPECT_FALSE(Bind(next, 3));
  network_->ComeLate();
  Settle();
  EXPECT_EQ(network_->reads, 2u);
  network_->holds = false;
  network_->Fence();
  EXPECT_EQ(w_.told.log, "Bad Lost Fenced ");
  Settle();
  EXPECT_EQ(network_->reads, 3u);
  ASSERT_TRUE(Bind(next, 3));
  Fill(next, 3, &kOne);
  Place(3);
  Settle();
  EXPECT_EQ(w_.told.log, "Bad Lost Fenced Scattered ");
  w_.loop.Unwatch(next.transport.get());
}

TEST_F(LandingLent, AMemoryThatIsDroppedEndsItsReads) {
  FillOne();
  network_->holds = true;
  Place(2);
  w_.landing->Drop(w_.landing->MemoryOf(w_.told.writer));
  EXPECT_THAT(w_.told.log, HasSubstr("Bad "));
}

/// What the lender lends, and reads of it into the inbox, without a landing.
class LentReadsAlone : public LandingLent {
 protected:
  LentReadsAlone() { network_->holds = true; }
  void Open(WriterId writer) {
    const KvDeviceRooms rooms = w_.lender->mover.rooms();
    reads_.Open(
        writer, *network_, 1,
        {rooms.outbox.size(), rooms.mark.size(), MarkDigest(rooms.mark), LendingTransport::NameOf(rooms.outbox)},
        kOutboxSlotBytes, [this](const absl::Status& status) { log_ += status.ok() ? "open " : "closed "; });
  }
  void Read(WriterId writer) {
    reads_.Read(writer, 1, 0, 100, [] {}, [this](const absl::Status& s) { log_ += s.ok() ? "read " : "not read "; });
  }
  void Work() {
    reads_.WhenFree([this] { log_ += "work "; });
  }

  LentReads reads_{&w_.mover};
  std::string log_;
};

TEST_F(LentReadsAlone, WorkThatNeedsTheInboxWaitsItsTurn) {
  Open(5), Work();
  EXPECT_EQ(log_, "");
  EXPECT_FALSE(reads_.Free());
  network_->Finish();
  EXPECT_EQ(log_, "open work ");
  Work();
  EXPECT_EQ(log_, "open work work ") << "nobody has it";
  EXPECT_TRUE(reads_.Free());
}

TEST_F(LentReadsAlone, WhoIsOpenIsNotOpenedAgain) {
  Open(5), network_->Finish();
  Open(5);
  EXPECT_TRUE(reads_.Has(5)) << "slots that name it are read meanwhile";
  EXPECT_EQ(network_->reads, 1u);
}

TEST_F(LentReadsAlone, WithATransportThatIsGoneItsReadsEndAndTheNextHasTheInbox) {
  Open(5), network_->Finish();
  Read(5), Work();
  EXPECT_EQ(log_, "open ");
  reads_.Forget(network_, [](WriterId writer) { return writer == 5; });
  EXPECT_EQ(log_, "open not read work ");
  EXPECT_FALSE(reads_.Has(5));
}

TEST_F(LandingLent, NothingIsToldOnceTheLandingIsGone) {
  FillOne();
  network_->holds = true;
  Place(2);
  w_.loop.Unwatch(w_.lender->transport.get());
  w_.landing.reset();
  EXPECT_EQ(w_.told.log, "");
}

}  // namespace
}  // namespace baton::decode_worker
