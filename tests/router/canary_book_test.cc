// Who is asked with whom, who is proven by it, and who is named when it fails.
#include "router/fleet/canary_book.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "common/str_cat.h"

namespace baton::router {
namespace {

using CanaryMember = CanaryBook::Member;
constexpr TimePoint kCanaryStart{};

CanaryMember Worker(int32_t slot, WorkerRole role, std::string incarnation = "") {
  return {slot, role, StrCat(WorkerRoleName(role), "@", slot),
          incarnation.empty() ? StrCat("life-", slot) : incarnation, "numerics"};
}
CanaryMember Prefill(int32_t slot) { return Worker(slot, WorkerRole::kPrefill); }
CanaryMember Decode(int32_t slot) { return Worker(slot, WorkerRole::kDecode); }

/// A book, and what it said last of each worker.
struct Fixture {
  CanaryBook book;
  std::vector<RunCanary> runs;
  std::map<int32_t, ShowProof> shown;
  std::optional<TimePoint> armed;

  void Take() {
    armed.reset();
    for (const CanaryAction& action : book.TakeActions()) {
      if (const auto* run = std::get_if<RunCanary>(&action)) runs.push_back(*run);
      if (const auto* show = std::get_if<ShowProof>(&action)) shown[show->slot] = *show;
      if (const auto* arm = std::get_if<ArmCanaries>(&action)) armed = arm->at;
    }
  }
  void Serve(const std::vector<CanaryMember>& serving, TimePoint now = kCanaryStart) {
    book.Serve(serving, now);
    Take();
  }
  void Ended(const RunCanary& run, const absl::Status& status = absl::OkStatus(), TimePoint now = kCanaryStart) {
    book.Ended(run.number, status, now);
    Take();
  }
};

TEST(CanaryBook, AWorkerOfRoleBothIsAskedAloneAndIsProvenOnce) {
  Fixture f;
  const std::vector<CanaryMember> all = {Worker(3, WorkerRole::kBoth)};
  f.Serve(all);
  ASSERT_EQ(f.runs.size(), 1u);
  EXPECT_FALSE(f.runs[0].prefill);
  EXPECT_EQ(f.runs[0].decode, 3);
  EXPECT_EQ(f.shown[3].unproven, "its canary runs, through both@3 alone");
  f.Ended(f.runs[0]);
  EXPECT_EQ(f.shown[3].unproven, "");
  EXPECT_TRUE(f.book.proven(3));
  f.Serve(all);
  f.Serve({});
  f.Serve(all);
  EXPECT_EQ(f.runs.size(), 1u) << "the same process stays proven, also when its connection was away";
}

TEST(CanaryBook, APairIsProvenByOneCanary) {
  Fixture f;
  f.Serve({Prefill(0), Decode(1)});
  ASSERT_EQ(f.runs.size(), 1u);
  EXPECT_EQ(f.runs[0].prefill, 0);
  EXPECT_EQ(f.runs[0].decode, 1);
  f.Ended(f.runs[0]);
  EXPECT_TRUE(f.book.proven(0) && f.book.proven(1));
}

TEST(CanaryBook, AThousandTakeOneEachAndOnlyAFewRunAtOnce) {
  Fixture f;
  std::vector<CanaryMember> all;
  for (int32_t i = 0; i < 1024; ++i) all.push_back(i % 2 == 0 ? Prefill(i) : Decode(i));
  f.Serve(all);
  size_t ended = 0, most = 0;
  for (; ended < f.runs.size(); ++ended) {
    most = std::max(most, f.book.running());
    f.Ended(RunCanary(f.runs[ended]));
    f.Serve(all);
  }
  EXPECT_EQ(most, CanaryBook::kMostAtOnce);
  EXPECT_LE(ended, 1024u) << "never each pair";
  std::map<int32_t, int> parts;
  for (const RunCanary& run : f.runs) ++parts[*run.prefill], ++parts[run.decode];
  const auto busiest = std::ranges::max_element(parts, {}, [](const auto& part) { return part.second; });
  EXPECT_LE(busiest->second, 12) << "no worker is the other half of all others";
  EXPECT_TRUE(std::ranges::all_of(all, [&](const CanaryMember& m) { return f.book.proven(m.slot); }));
}

TEST(CanaryBook, ManyWithOnePartnerShareIt) {
  Fixture f;
  std::vector<CanaryMember> all = {Prefill(0)};
  for (int32_t i = 1; i <= 20; ++i) all.push_back(Decode(i));
  f.Serve(all);
  std::set<int32_t> decodes;
  for (size_t i = 0; i < f.runs.size(); ++i) {
    EXPECT_EQ(f.runs[i].prefill, 0);
    decodes.insert(f.runs[i].decode);
    f.Ended(RunCanary(f.runs[i]));
    f.Serve(all);
  }
  EXPECT_EQ(decodes.size(), 20u);
  EXPECT_EQ(f.runs.size(), 20u);
}

TEST(CanaryBook, WhatAWorkerWaitsForIsSaidOnce) {
  CanaryBook book;
  for (const size_t said : {1, 0, 0}) {
    book.Serve({Prefill(0)}, kCanaryStart);
    EXPECT_EQ(book.TakeActions().size(), said);
  }
}

TEST(CanaryBook, APrefillWorkerWaitsForOneThatDecodesWhichIsAskedAloneWithoutIt) {
  Fixture f;
  f.Serve({Prefill(0)});
  EXPECT_TRUE(f.runs.empty());
  EXPECT_EQ(f.shown[0].unproven, "its canary waits for a worker that decodes and speaks KV protocol 4");
  Fixture alone;
  alone.Serve({Decode(1)});
  ASSERT_EQ(alone.runs.size(), 1u);
  EXPECT_FALSE(alone.runs[0].prefill);
  alone.Ended(alone.runs[0]);
  EXPECT_TRUE(alone.book.proven(1));
  alone.Serve({Prefill(0), Decode(1)});
  ASSERT_EQ(alone.runs.size(), 2u);
  EXPECT_EQ(alone.runs[1].prefill, 0);
}

TEST(CanaryBook, HalvesThatShareNoKvProtocolAreNotAskedTogether) {
  Fixture f;
  CanaryMember newer = Prefill(0), old = Decode(1), both = Decode(2);
  newer.kv_protocol = {5, 5}, both.kv_protocol = {4, 5};
  f.Serve({newer, old});
  ASSERT_EQ(f.runs.size(), 1u);
  EXPECT_FALSE(f.runs[0].prefill) << "who decodes is asked alone";
  EXPECT_EQ(f.shown[0].unproven, "its canary waits for a worker that decodes and speaks KV protocol 5");
  f.Ended(f.runs[0]);
  f.Serve({newer, old, both});
  ASSERT_EQ(f.runs.size(), 2u);
  EXPECT_EQ(f.runs[1].prefill, 0);
  EXPECT_EQ(f.runs[1].decode, 2);
}

TEST(CanaryBook, AFailureNamesBothHalvesAndIsTriedAgainAfterGrowingPauses) {
  Fixture f;
  const std::vector<CanaryMember> all = {Prefill(0), Decode(1)};
  f.Serve(all);
  TimePoint now = kCanaryStart;
  Duration pause = CanaryBook::kPauseMin;
  for (int i = 0; i < 9; ++i) {
    ASSERT_EQ(f.runs.size(), static_cast<size_t>(i + 1));
    f.Ended(f.runs.back(), absl::UnavailableError("nobody listens at 127.0.0.1:9"), now);
    for (const int32_t slot : {0, 1}) {
      EXPECT_EQ(f.shown[slot].unproven,
                "its canary failed, through prefill@0 and decode@1: UNAVAILABLE: nobody listens at 127.0.0.1:9");
      EXPECT_EQ(f.shown[slot].next, now + pause);
    }
    f.Serve(all, now + pause - std::chrono::milliseconds(1));
    EXPECT_EQ(f.armed, now + pause);
    EXPECT_EQ(f.runs.size(), static_cast<size_t>(i + 1)) << "not before its time";
    now += pause;
    f.Serve(all, now);
    pause = std::min(2 * pause, CanaryBook::kPauseMax);
  }
  f.Ended(f.runs.back(), absl::OkStatus(), now);
  EXPECT_TRUE(f.book.proven(0) && f.book.proven(1)) << "it recovers";
  EXPECT_EQ(f.shown[1].unproven, "");
}

TEST(CanaryBook, TheHealthyHalfOfABrokenPairIsProvenWithAnother) {
  Fixture f;
  const std::vector<CanaryMember> all = {Prefill(0), Decode(1), Decode(2)};  // 1 is broken
  f.Serve(all);
  TimePoint now = kCanaryStart;
  for (size_t i = 0; i < f.runs.size() && i < 6; ++i) {
    const bool broken = f.runs[i].decode == 1;
    f.Ended(RunCanary(f.runs[i]), broken ? absl::UnavailableError("no way") : absl::OkStatus(), now);
    f.Serve(all, now);
    if (f.armed) now = *f.armed;
    f.Serve(all, now);
  }
  EXPECT_TRUE(f.book.proven(0));
  EXPECT_TRUE(f.book.proven(2));
  EXPECT_FALSE(f.book.proven(1));
  EXPECT_NE(f.shown[1].unproven.find("prefill@0 and decode@1"), std::string::npos);
}

TEST(CanaryBook, AFailureSaysNothingAgainstWhoIsProven) {
  Fixture f;
  f.Serve({Decode(1)});
  f.Ended(f.runs[0]);
  f.Serve({Prefill(0), Decode(1)});
  f.Ended(f.runs[1], absl::UnavailableError("no way"));
  EXPECT_TRUE(f.book.proven(1));
  EXPECT_EQ(f.shown[1].unproven, "");
  EXPECT_NE(f.shown[0].unproven, "");
}

TEST(CanaryBook, AnotherProcessAtTheSameAddressIsNewAndTheOldOnesCanaryProvesNobody) {
  Fixture f;
  f.Serve({Worker(0, WorkerRole::kBoth, "first")});
  f.Serve({Worker(0, WorkerRole::kBoth, "second")});
  ASSERT_EQ(f.runs.size(), 2u);
  f.Ended(f.runs[0]);
  EXPECT_FALSE(f.book.proven(0));
  f.Ended(f.runs[1]);
  EXPECT_TRUE(f.book.proven(0));
  f.Serve({Worker(0, WorkerRole::kBoth, "third")});
  EXPECT_FALSE(f.book.proven(0));
  EXPECT_EQ(f.runs.size(), 3u);
}

TEST(CanaryBook, ASlotThatWasForgottenIsNewEvenWithTheSameProcess) {
  Fixture f;
  const std::vector<CanaryMember> all = {Worker(0, WorkerRole::kBoth)};
  f.Serve(all);
  f.Ended(f.runs[0]);
  f.book.Forget(0);
  EXPECT_FALSE(f.book.proven(0));
  f.Serve(all);
  EXPECT_EQ(f.runs.size(), 2u);
}

TEST(CanaryBook, WhoLeavesWhileItsCanaryRunsIsAskedWhenItIsBack) {
  Fixture f;
  const std::vector<CanaryMember> all = {Worker(0, WorkerRole::kBoth)};
  f.Serve(all);
  f.Serve({});
  f.Ended(f.runs[0], absl::UnavailableError("the connection broke"));
  f.Serve({});
  EXPECT_EQ(f.runs.size(), 1u);
  f.Serve(all);
  EXPECT_EQ(f.runs.size(), 2u) << "at once: it has not failed, it was away";
  f.Ended(f.runs[1]);
  EXPECT_TRUE(f.book.proven(0));
}

TEST(CanaryBook, WhoHasFailedAndWasAwayIsAskedAtOnce) {
  Fixture f;
  const std::vector<CanaryMember> all = {Worker(0, WorkerRole::kBoth)};
  f.Serve(all);
  f.Ended(f.runs[0], absl::InternalError("broken"));
  f.Serve(all);
  EXPECT_EQ(f.runs.size(), 1u);
  f.Serve({});
  f.Serve(all);
  EXPECT_EQ(f.runs.size(), 2u);
}

TEST(CanaryBook, APartnerOfTheSameNumericsComesFirst) {
  Fixture f;
  CanaryMember other = Prefill(0);
  other.numerics = "others";
  f.Serve({other, Prefill(1), Decode(2)});
  const auto with_decode = std::ranges::find_if(f.runs, [](const RunCanary& r) { return r.prefill == 1; });
  ASSERT_NE(with_decode, f.runs.end());
  EXPECT_EQ(with_decode->decode, 2);
}

TEST(CanaryBook, AnAnswerThatNobodyWaitsForChangesNothing) {
  Fixture f;
  f.Ended({17, {}, 0});
  EXPECT_TRUE(f.shown.empty());
  f.Serve({Worker(0, WorkerRole::kBoth)});
  f.Ended(f.runs[0]);
  f.Ended(f.runs[0], absl::InternalError("twice"));
  EXPECT_TRUE(f.book.proven(0));
}

}  // namespace
}  // namespace baton::router
