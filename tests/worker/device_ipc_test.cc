// KV between two (emulated) GPUs of one machine, by outbox and inbox: the same bits as staged, faults found by digest,
// refusals with their reasons. Across processes: tests/cluster.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/device_sides.h"

namespace baton::worker {
namespace {

// The bits are those of KV that was staged through the host, and of one worker alone where both are of one kind.
TEST(DeviceHandoffByIpc, EveryPairOfGpusAnswersAsWhenKvIsStaged) {
  const std::vector<int32_t> prompt = Prompt(75);
  for (const Kind& target : {kGpuBf16, kGpuFp8}) {
    Side alone(target, "both", 16), staged(target, "decode", 32), to(target, "decode", 32);
    InTwoChunks(alone, prompt);
    const std::vector<float> want = alone.Compute({99}, 75);
    for (const Kind& source : {kGpuBf16, kGpuFp8}) {
      SCOPED_TRACE(source.name + " to " + target.name);
      Side from(source, "prefill", 16);
      InTwoChunks(from, prompt);
      const absl::Status by_host = Handoff(from, staged, 75).Run(), moved = Handoff(from, to, 75).RunByIpc();
      ASSERT_TRUE(by_host.ok() && moved.ok()) << by_host << moved;
      const std::vector<float> got = to.Compute({99}, 75);
      EXPECT_EQ(got, staged.Compute({99}, 75));
      ExpectAsAlone(got, want, source, target);
    }
  }
}

TEST(DeviceHandoffByIpc, AnEarlyGatherIsFound) {
  Side from(kGpuBf16, "prefill", 16), to(kGpuBf16, "decode", 16);
  const std::vector<int32_t> prompt = Prompt(48);
  Handoff handoff(from, to, 48);
  std::vector<int> early;
  from.Compute(prompt, 0, [&](int layer) {
    if (absl::IsDataLoss(handoff.Lend(handoff.SegmentsOf(layer)))) early.push_back(layer);
  });
  EXPECT_EQ(early, (std::vector<int>{0, 1, 2})) << "gathered as soon as they were asked for";
  EXPECT_TRUE(handoff.RunByIpc().ok());
}

// What is read at the wrong time is another slot's, or what was there before.
TEST(DeviceHandoffByIpc, ABufferThatHoldsAnotherSlotIsFoundAndRepeatingTheSegmentHeals) {
  Side from(kGpuBf16, "prefill", 16), to(kGpuFp8, "decode", 16);
  from.Compute(Prompt(40), 0);
  Handoff handoff(from, to, 40), other(from, to, 40);
  const auto opened = handoff.Open();
  ASSERT_TRUE(opened.ok()) << opened.status();
  const std::vector<uint32_t> first = {0}, second = {1};
  ASSERT_TRUE(handoff.Lend(first).ok() && other.Lend(second).ok());
  const absl::Status overwritten = handoff.Fetch(first, *opened);
  EXPECT_TRUE(absl::IsDataLoss(overwritten)) << overwritten;
  EXPECT_THAT(std::string(overwritten.message()), testing::HasSubstr("damaged on the way at layer 0"));
  ASSERT_TRUE(handoff.Lend(first, {.buffer = 1, .named = 2}).ok());
  EXPECT_TRUE(absl::IsDataLoss(handoff.Fetch(first, *opened))) << "nothing was put there";
  ASSERT_TRUE(handoff.Lend(first, {.buffer = 1, .named = 1}).ok());
  EXPECT_TRUE(handoff.Fetch(first, *opened).ok());
  EXPECT_TRUE(other.Fetch(second, *opened).ok());
}

// The source may fill its buffer anew as soon as the slot is answered.
TEST(DeviceHandoffByIpc, WhatWasPlacedIsReadNoMore) {
  const std::vector<int32_t> prompt = Prompt(48);
  Side from(kGpuBf16, "prefill", 16), to(kGpuBf16, "decode", 16), alone(kGpuBf16, "both", 16);
  from.Compute(prompt, 0), alone.Compute(prompt, 0);
  Handoff handoff(from, to, 48);
  ASSERT_TRUE(handoff.RunByIpc().ok());
  from.Compute(Prompt(47), 0);
  for (uint32_t buffer = 0; buffer < from.loaded().mover->outbox().buffers; ++buffer)
    static_cast<void>(handoff.Lend({0}, {buffer, buffer}));
  EXPECT_EQ(to.Compute({99}, 48), alone.Compute({99}, 48));
}

TEST(DeviceHandoffByIpc, WhatASlotClaimsBeyondTheOutboxIsRefused) {
  Side from(kGpuBf16, "prefill", 16), to(kGpuBf16, "decode", 16), cpu(kCpuFloat32, "decode", 16);
  from.Compute(Prompt(40), 0);
  Handoff handoff(from, to, 40);
  const uint32_t buffers = from.loaded().mover->outbox().buffers;
  const PeerOutbox opened = handoff.Open().value();
  const auto refused = [&](const absl::Status& status) { return std::string(status.message()); };
  EXPECT_THAT(refused(handoff.Lend({0}, {.buffer = buffers})), testing::HasSubstr("of an outbox with 16 of 262144"));
  ASSERT_TRUE(handoff.Lend({0}, {.buffer = 0, .named = 1u << 31}).ok());
  EXPECT_THAT(refused(handoff.Fetch({0}, opened)), testing::HasSubstr("that another GPU lends"));
  ASSERT_TRUE(handoff.Lend({0}).ok());
  EXPECT_THAT(refused(handoff.Fetch({0}, {opened.memory, 100})), testing::HasSubstr("in buffers of 100"));
  EXPECT_THAT(refused(handoff.Fetch({0}, {})), testing::HasSubstr("memory that is not open here"));
  EXPECT_TRUE(handoff.Fetch({0}, opened).ok());

  Handoff to_cpu(from, cpu, 40);
  ASSERT_TRUE(to_cpu.Lend({0}).ok());
  EXPECT_THAT(refused(to_cpu.Fetch({0}, {})), testing::HasSubstr("memory that is not open here"));
}

TEST(DeviceHandoffByIpc, ACardThatOpensNothingIsRefusedWithTheReason) {
  Side from(kGpuBf16, "prefill", 16), to(kGpuBf16, "decode", 16),
      off(kGpuBf16, "decode", 16, "tests/data/tiny-llama", "dummy", false);
  const KvOutbox outbox = from.loaded().mover->outbox();
  const auto open = [&](Side& by, const std::string& card, uint64_t bytes) {
    return std::string(OpenOutbox(by.pool(), card, bytes).status().message());
  };
  const auto changed = [&](size_t at) {
    std::string card = outbox.card;
    card.at(at) ^= 1;
    return card;
  };
  EXPECT_EQ(open(to, outbox.card, outbox.buffer_bytes), "");
  EXPECT_EQ(open(to, "", 0), "it lends no memory of a GPU");
  EXPECT_EQ(open(to, outbox.card, uint64_t{1} << 40), "it lends no memory of a GPU");
  EXPECT_EQ(open(to, outbox.card.substr(1), outbox.buffer_bytes), "its card is of another version");
  EXPECT_EQ(open(to, changed(7), outbox.buffer_bytes), "its card is of another version");
  EXPECT_EQ(open(to, changed(8), outbox.buffer_bytes), "it is on another machine");
  EXPECT_EQ(open(off, outbox.card, outbox.buffer_bytes), "this GPU is not asked to");
  EXPECT_EQ(off.loaded().mover->outbox().card, "");
  EXPECT_EQ(open(to, changed(48), outbox.buffer_bytes), "what is in its memory does not arrive") << "another process's";
}

}  // namespace
}  // namespace baton::worker
