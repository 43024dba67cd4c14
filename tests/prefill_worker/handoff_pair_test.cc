// Both halves of the handoff together: whatever the transport does, the tokens are those of one worker, and nothing is
// held afterwards.
#include "tests/prefill_worker/handoff_pair.h"

#include <gtest/gtest.h>

#include "kvtransfer/faulty_transport.h"
#include "kvtransfer/shm/shm_transport.h"
#include "kvtransfer/sim/sim_transport.h"
#include "kvtransfer/tcp/tcp_transport.h"
#include "tests/kvtransfer/lending_transport.h"

namespace baton {
namespace {

PairOptions Over(std::string kind, uint64_t seed = 1) {
  PairOptions o;
  o.seed = seed;
  if (kind.starts_with("tcp")) {
    o.decode_on_device = kind == "tcp pinned";
    o.prefill_transport = o.decode_transport = [](const LandingShape& shape, TransportEvents& events) {
      return TcpTransport::Create({.landing = shape}, events);
    };
  } else if (kind.starts_with("shm")) {
    o.decode_on_device = kind == "shm pinned";
    if (kind == "shm lent") o.lent_buffers = seed % 2 == 0 ? 4 : 16;
    o.prefill_transport = o.decode_transport = [](const LandingShape& shape, TransportEvents& events) {
      return ShmTransport::Create({.landing = shape}, events);
    };
  } else {
    const FenceKind fence = kind != "sim message" ? FenceKind::kForcedClose : FenceKind::kReceiverWrites;
    o.prefill_transport = o.decode_transport =
        [fence, network = std::make_shared<SimNetwork>(seed)](
            const LandingShape& shape, TransportEvents& events) -> absl::StatusOr<std::unique_ptr<Transport>> {
      return std::make_unique<SimTransport>(network, fence, shape, events);
    };
  }
  if (kind == "sim lent") {
    o.lent_buffers = seed % 2 == 0 ? 4 : 16;
    o.prefill_transport = o.decode_transport =
        [inner = o.decode_transport, seed](const LandingShape& shape,
                                           TransportEvents& events) -> absl::StatusOr<std::unique_ptr<Transport>> {
      const auto make = [&](TransportEvents& own) { return inner(shape, own).value(); };
      return std::make_unique<LendingTransport>(make, events, HostMover::WriteToInbox, seed);
    };
  }
  return o;
}

std::vector<v1::Attach> Requests(uint64_t seed, int count, int longest = 200, const std::string& prefix = "r") {
  std::mt19937_64 random(seed);
  std::vector<v1::Attach> out;
  for (int i = 0; i < count; ++i) {
    v1::Attach a = worker::MakeAttach(prefix + std::to_string(i), 1,
                                      static_cast<int32_t>(1 + random() % static_cast<uint64_t>(longest)),
                                      static_cast<int32_t>(1 + random() % 12));
    a.mutable_sampling()->set_n(static_cast<int32_t>(1 + random() % 3));
    a.mutable_sampling()->set_temperature(random() % 2 == 0 ? 0.9f : 0.0f);
    a.mutable_sampling()->set_seed(random());
    if (random() % 3 == 0) {  // begins as the one before
      const std::string& other = out.empty() ? a.prompt_token_ids() : out.back().prompt_token_ids();
      std::string tokens = other + a.prompt_token_ids();
      tokens.resize(std::min<size_t>(tokens.size(), static_cast<size_t>(longest) * 4));
      a.set_prompt_len(static_cast<uint32_t>(tokens.size() / 4)), a.set_prompt_token_ids(std::move(tokens));
    }
    out.push_back(std::move(a));
  }
  return out;
}

class HandoffPairOver : public ::testing::TestWithParam<const char*> {};

TEST_P(HandoffPairOver, AnswersAreThoseOfOneWorkerAndNothingStaysHeld) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    PairOptions o = Over(GetParam(), seed);
    o.prefill_block = seed % 2 == 0 ? 64 : 16, o.decode_block = seed % 3 == 0 ? 64 : 16;
    o.window = seed % 4 == 0 ? 33 : 0;
    o.chunk = seed % 2 == 0 ? 48 : 256;
    HandoffPair pair(std::move(o));
    for (const char* round : {"cold", "again"})
      pair.Answer(Requests(seed, 8, 200, round));  // the second time with prefix hits
    EXPECT_EQ(pair.decode_stats().lanes_failed, 0) << "seed " << seed;
    EXPECT_EQ(pair.decode_stats().recomputes, 0) << "seed " << seed;
    EXPECT_EQ(pair.restarts(), 0) << "seed " << seed;
    EXPECT_EQ(pair.decode_stats().digest_mismatches, 0) << "seed " << seed;
    if (const HostMover* mover = pair.decode_mover()) {
      EXPECT_GT(mover->scattered[static_cast<size_t>(KvPacked::kInbox)], 0);
      if (std::string(GetParam()) != "sim lent") {  // lanes that are bound before the outbox is open are staged
        EXPECT_EQ(mover->scattered[static_cast<size_t>(KvPacked::kStaging)], 0) << "payloads went through the host";
      }
    }
    pair.ExpectNothingHeld();
  }
}

TEST_P(HandoffPairOver, DamagedSlotsAreSentAgainOrComputedOnDecode) {
  for (double rate : {0.2, 1.0}) {
    PairOptions o = Over(GetParam(), 3);
    o.prefill_transport = [inner = o.prefill_transport, rate](
                              const LandingShape& shape,
                              TransportEvents& events) -> absl::StatusOr<std::unique_ptr<Transport>> {
      return std::make_unique<FaultyTransport>(inner(shape, events).value(), rate, /*tests=*/false, 5);
    };
    HandoffPair pair(std::move(o));
    pair.Answer(Requests(3, 8));
    EXPECT_GT(pair.decode_stats().digest_mismatches, 0);
    pair.ExpectNothingHeld();
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, HandoffPairOver,
                         ::testing::Values("sim put", "sim message", "sim lent", "tcp", "tcp pinned", "shm", "shm lent",
                                           "shm pinned"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name;
                         });

TEST(HandoffPair, CutConnectionsCostTimeAndNothingElse) {
  for (const char* kind : {"sim put", "sim message", "sim lent", "tcp"}) {
    for (uint64_t seed = 1; seed <= 8; ++seed) {
      PairOptions o = Over(kind, seed);
      o.cuts = 0.002;
      HandoffPair pair(std::move(o));
      pair.Answer(Requests(seed, 8));
      pair.ExpectNothingHeld();
    }
  }
}

TEST(HandoffPair, APrefillWorkerWithMemoryForOnePromptAnswersRight) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    PairOptions o = Over("sim put", seed);
    o.prefill_blocks = 27, o.chunk = 64, o.chunk_each = 32;
    HandoffPair pair(std::move(o));
    std::vector<v1::Attach> requests = Requests(seed, 12, 380);
    for (size_t i = 0; i < requests.size(); ++i)
      requests[i].set_priority(-static_cast<int32_t>(i));  // who comes later goes first
    pair.Answer(requests);
    pair.ExpectNothingHeld();
  }
}

TEST(HandoffPair, ADecodeWorkerShortOfMemoryMakesPromptsWait) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    PairOptions o = Over("sim message", seed);
    o.decode_blocks = 34, o.landing_slots = 2;
    HandoffPair pair(std::move(o));
    pair.Answer(Requests(seed, 10, 250));
    pair.ExpectNothingHeld();
  }
}

}  // namespace
}  // namespace baton
