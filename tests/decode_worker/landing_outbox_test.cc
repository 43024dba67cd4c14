// The transfer thread's half of the decode side with a device, and a prefill worker that lends its own: what is told,
// what is read from where, and that nothing is read of one who is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/decode_worker/outbox_world.h"

namespace baton::decode_worker {
namespace {

TEST(LandingOutbox, ASlotWithItsPayloadsInTheOutboxIsPlacedFromThere) {
  OutboxWorld w;
  w.Greet();
  EXPECT_TRUE(w.ReadsOutbox());
  w.Fill();
  w.Place();
  EXPECT_EQ(w.told.log, "Scattered ");
  EXPECT_EQ(w.mover.scattered[static_cast<size_t>(KvPacked::kInbox)], 1);
  EXPECT_EQ(w.landing->counters().bytes, w.plan->SegmentBytes(w.plan->lanes()[0], 0));
}

TEST(LandingOutbox, APayloadThatChangedInTheOutboxIsCalledBad) {
  OutboxWorld w;
  w.Greet();
  w.ReadsOutbox(), w.Fill();
  w.lender->mover.buffer(1)[SlotOverheadBytes(1)] ^= std::byte{1};
  w.Place();
  EXPECT_EQ(w.told.log, "Bad ");
  EXPECT_EQ(w.landing->counters().digest_mismatches, 1);
}

TEST(LandingOutbox, ABufferThatIsNotThereIsCalledBad) {
  OutboxWorld w;
  w.Greet();
  w.ReadsOutbox(), w.Fill(7);
  w.Place();
  EXPECT_EQ(w.told.log, "Bad ");
}

// Whoever names no outbox, or one that opens nothing, is told so, and what it names all the same is not read.
TEST(LandingOutbox, IsReadOfNobodyWhoLendsNone) {
  for (const bool on_device : {true, false}) {
    OutboxWorld w(on_device);
    w.Greet(/*lends=*/!on_device);
    EXPECT_FALSE(w.ReadsOutbox());
    w.Fill();
    w.Place();
    EXPECT_EQ(w.told.log, "Bad ");
    EXPECT_EQ(w.landing->counters().digest_mismatches, 0) << "nothing was damaged";
  }
}

TEST(LandingOutbox, IsOpenedOnceHoweverOftenItsOwnerGreetsAndOnACpuNeverSpokenOf) {
  for (const bool on_device : {true, false}) {
    OutboxWorld w(on_device);
    testing::internal::CaptureStdout();
    for (int greeting = 0; greeting < 2; ++greeting) {
      w.told.writer = 0;
      w.Greet();
    }
    EXPECT_EQ(w.ReadsOutbox(), on_device);
    const std::string log = testing::internal::GetCapturedStdout();
    EXPECT_EQ(log.find("KV of prefill worker p1") != std::string::npos, on_device) << log;
    EXPECT_EQ(w.mover.opened, on_device ? 1 : 0);
  }
}

// A slot that a transport has filled is copied by the device that has pinned it; by the host where it could not. The
// self-test's slot is pinned with the others, and nothing stays so.
TEST(LandingPins, SlotsAreTakenByTheDeviceThatHasPinnedThem) {
  for (const bool pins : {true, false}) {
    OutboxWorld w(true, pins);
    ASSERT_EQ(w.mover.pinned.size(), pins ? 1u : 0u);
    w.Greet(/*lends=*/false);
    w.ReadsOutbox(), w.FillByHost();
    w.Place();
    EXPECT_EQ(w.told.log, "Scattered ");
    EXPECT_EQ(w.mover.scattered[static_cast<size_t>(KvPacked::kInbox)], pins ? 1 : 0);
    EXPECT_EQ(w.mover.scattered[static_cast<size_t>(KvPacked::kStaging)] > 0, !pins);
    if (pins) {
      EXPECT_EQ(w.mover.pinned[0].size(), 5 * kOutboxSlotBytes);
    }
    w.loop.Unwatch(w.lender->transport.get());
    w.landing.reset();
    EXPECT_TRUE(w.mover.pinned.empty());
  }
}

// Of several devices each takes its part of a slot, so none could copy it whole: one line says so.
TEST(LandingPins, SlotsOfSeveralDevicesAreNotPinnedAndALineSaysWhy) {
  OutboxWorld w;
  HostMover second{kOutboxSlotBytes, 2};
  KvPoolView pool = worker::PoolOf(w.h.memory(), &w.mover);
  pool.movers.push_back(&second);
  worker::WorkerConfig config;
  config.transport = "tcp", config.landing_slots = 4, config.landing_slot_bytes = kOutboxSlotBytes;
  const auto make = [](const LandingShape& shape,
                       TransportEvents& events) -> absl::StatusOr<std::unique_ptr<Transport>> {
    return TcpTransport::Create({.landing = shape}, events);
  };
  const size_t pinned = w.mover.pinned.size();
  testing::internal::CaptureStdout();
  const auto landing = Landing::Create(config, pool, "d2", w.clock, w.loop, w.told, make);
  const std::string log = testing::internal::GetCapturedStdout();
  ASSERT_TRUE(landing.ok()) << landing.status();
  EXPECT_THAT(log, testing::HasSubstr("no slots are pinned: each of 2 GPUs takes its part of a slot"));
  EXPECT_EQ(w.mover.pinned.size(), pinned);
  EXPECT_TRUE(second.pinned.empty());
}

TEST(LandingPins, DamageInAPinnedSlotIsFound) {
  OutboxWorld w;
  w.Greet(/*lends=*/false);
  w.ReadsOutbox(), w.FillByHost();
  w.mover.pinned[0][2 * kOutboxSlotBytes + SlotOverheadBytes(1)] ^= std::byte{1};
  w.Place();
  EXPECT_EQ(w.told.log, "Bad ");
  EXPECT_EQ(w.landing->counters().digest_mismatches, 1);
}

TEST(LandingOutbox, IsClosedWhenItsOwnerIsLostOrCut) {
  for (const bool cut : {true, false}) {
    OutboxWorld w;
    w.Greet();
    w.ReadsOutbox(), w.Fill();
    if (cut)
      w.landing->Cut(w.told.writer);
    else
      w.lender->transport->Close(w.lender->peer, [] {});
    w.Until([&] { return w.told.log.find("Fenced") != std::string::npos; });
    w.Place();
    EXPECT_EQ(w.told.log, "Bad ");
    EXPECT_EQ(w.mover.scattered[static_cast<size_t>(KvPacked::kInbox)], 0) << "it was not read";
    EXPECT_EQ(w.landing->counters().digest_mismatches, 0);
  }
}

}  // namespace
}  // namespace baton::decode_worker
