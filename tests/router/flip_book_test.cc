// A worker that changes its role: every state against every event, and what people see of it.
#include "router/fleet/flip_book.h"

#include <gtest/gtest.h>

#include <functional>

#include "common/str_cat.h"

namespace baton::router {
namespace {

constexpr int32_t kSlot = 4;
constexpr TimePoint kFlipStart{std::chrono::hours(1)};
constexpr Duration kPatience = std::chrono::seconds(5), kHeartbeatTimeout = std::chrono::seconds(20);

FlipBook::Worker Serving(const std::string& incarnation, WorkerRole role) {
  return {.connected = true, .idle = true, .takes = true, .role = role, .incarnation = incarnation};
}
const FlipBook::Worker kIdle = Serving("old", WorkerRole::kPrefill);
const FlipBook::Worker kChanged = Serving("new", WorkerRole::kDecode);
const FlipBook::Worker kOther = Serving("other", WorkerRole::kPrefill);
FlipBook::Worker BusyWorker() {
  FlipBook::Worker out = kIdle;
  out.idle = false, out.requests = 3;
  return out;
}
FlipBook::Worker Away() {
  FlipBook::Worker out;
  out.detail = "the connection broke";
  return out;
}
FlipBook::Worker LeftDraining() {
  FlipBook::Worker out = Away();
  out.left_draining = true;
  return out;
}

/// A book with one worker, and what it said, as words.
struct World {
  FlipBook book{kHeartbeatTimeout};
  FlipView shown;
  uint64_t number = 0;
  TimePoint now = kFlipStart;

  std::string Take() {
    std::string said;
    for (const FlipAction& action : book.TakeActions()) {
      if (std::holds_alternative<HoldFlipped>(action)) said += "Hold ";
      if (std::holds_alternative<ReleaseFlipped>(action)) said += "Release ";
      if (const auto* order = std::get_if<OrderFlip>(&action)) said += "Order ", number = order->number;
      if (const auto* show = std::get_if<ShowFlip>(&action)) {
        shown = show->view;
        said += StrCat("→", FlipStageName(shown.stage), " ");
      }
    }
    return said.empty() ? "=" : said.substr(0, said.size() - 1);
  }
  absl::Status Begin(const FlipBook::Worker& worker = kIdle) {
    return book.Begin(kSlot, worker, WorkerRole::kDecode, kPatience, now);
  }
  void Look(const FlipBook::Worker& worker) { book.Look(kSlot, worker, now); }
  void Answer(const absl::Status& status = absl::OkStatus()) {
    book.Answered(kSlot, number, {status, "new", 20, 30}, now);
  }
  /// Up to this stage, and takes what was said.
  explicit World(FlipStage stage) {
    EXPECT_TRUE(Begin().ok());
    Take();
    if (stage == FlipStage::kDrains) return;
    if (stage == FlipStage::kFailed) {
      EXPECT_TRUE(book.Undo(kSlot, now).ok());
      Take();
      return;
    }
    Look(kIdle);
    Take();
    if (stage == FlipStage::kChanges) return;
    Answer();
    Take();
    if (stage == FlipStage::kReturns) return;
    Look(kChanged);
    Take();
  }
  World() = default;
};

TEST(FlipBook, EveryStateAgainstEveryEvent) {
  struct Row {
    const char* event;
    std::function<void(World&)> happens;
    const char* said[5];  // in kDrains, kChanges, kReturns, kDone, kFailed
  };
  const Row rows[] = {
      {"Begin", [](World& w) { w.Begin().IgnoreError(); }, {"=", "=", "=", "Hold →drains", "Hold →drains"}},
      {"Look: requests run", [](World& w) { w.Look(BusyWorker()); }, {"=", "=", "=", "=", "="}},
      {"Look: nothing runs", [](World& w) { w.Look(kIdle); }, {"→changes Order", "=", "=", "=", "="}},
      {"Look: not connected", [](World& w) { w.Look(Away()); }, {"=", "=", "=", "=", "="}},
      {"Look: in its new role",
       [](World& w) { w.Look(kChanged); },
       {"→returns Release →done", "=", "Release →done", "=", "="}},
      {"Look: another process",
       [](World& w) { w.Look(kOther); },
       {"Release →failed", "=", "Release →failed", "=", "="}},
      {"Look: patience is over",
       [](World& w) { w.now += kPatience, w.Look(BusyWorker()); },
       {"Release →failed", "=", "=", "=", "="}},
      {"Look: away for long",
       [](World& w) { w.now += FlipBook::kReturnWithin, w.Look(Away()); },
       {"Release →failed", "=", "Release →failed", "=", "="}},
      {"Answered", [](World& w) { w.Answer(); }, {"=", "→returns", "=", "=", "="}},
      {"Answered: it says no",
       [](World& w) { w.Answer(absl::InternalError("no memory")); },
       {"=", "Release →failed", "=", "=", "="}},
      {"Answered: another order's",
       [](World& w) { w.book.Answered(kSlot, w.number + 7, {absl::OkStatus(), "new", 0, 0}, w.now); },
       {"=", "=", "=", "=", "="}},
      {"Undo", [](World& w) { w.book.Undo(kSlot, w.now).IgnoreError(); }, {"Release →failed", "=", "=", "=", "="}},
      {"Forget", [](World& w) { w.book.Forget(kSlot); }, {"=", "=", "=", "=", "="}},
  };
  for (const Row& row : rows) {
    for (const FlipStage stage :
         {FlipStage::kDrains, FlipStage::kChanges, FlipStage::kReturns, FlipStage::kDone, FlipStage::kFailed}) {
      World w(stage);
      row.happens(w);
      EXPECT_EQ(w.Take(), row.said[static_cast<size_t>(stage)]) << row.event << " in " << FlipStageName(stage);
    }
  }
}

TEST(FlipBook, TheTimesOfItsStagesAreShown) {
  World w;
  ASSERT_TRUE(w.Begin(BusyWorker()).ok());
  EXPECT_EQ(w.Take(), "Hold →drains");
  w.now += std::chrono::milliseconds(100);
  w.Look(kIdle);
  EXPECT_EQ(w.Take(), "→changes Order");
  w.now += std::chrono::milliseconds(50);
  w.Answer();
  w.now += std::chrono::milliseconds(10);
  w.Look(kChanged);
  EXPECT_EQ(w.Take(), "→returns Release →done");
  EXPECT_EQ(w.shown.drain_ms, 120) << "ours, then others'";
  EXPECT_EQ(w.shown.change_ms, 30);
  EXPECT_EQ(w.shown.took_ms, 160);
  EXPECT_FALSE(w.book.changes(kSlot));
}

TEST(FlipBook, AWorkerThatHasTheRoleIsDoneAtOnce) {
  World w;
  ASSERT_TRUE(w.Begin(Serving("old", WorkerRole::kDecode)).ok());
  EXPECT_EQ(w.Take(), "→done");
}

TEST(FlipBook, WhoCannotChangeIsRefusedWithTheReason) {
  World w;
  EXPECT_NE(w.Begin(Serving("old", WorkerRole::kBoth)).message().find("role is both"), std::string::npos);
  EXPECT_NE(w.Begin(Away()).message().find("the connection broke"), std::string::npos);
  EXPECT_EQ(w.Take(), "=");
  ASSERT_TRUE(w.Begin().ok());
  const absl::Status other = w.book.Begin(kSlot, kIdle, WorkerRole::kPrefill, kPatience, w.now);
  EXPECT_NE(other.message().find("already, to decode"), std::string::npos);
}

TEST(FlipBook, TheSameOrderAgainIsTheSameChange) {
  World w(FlipStage::kChanges);
  EXPECT_TRUE(w.Begin().ok());
  EXPECT_EQ(w.Take(), "=");
  EXPECT_TRUE(w.book.changes(kSlot));
}

TEST(FlipBook, AWorkerThatAnotherRouterHasChangedIsDoneWhereItHasTheRoleAndTakesRequests) {
  World w(FlipStage::kDrains);
  for (const auto pause : {std::chrono::seconds(1), std::chrono::seconds(3)}) {
    w.now = kFlipStart + pause;
    w.Look(LeftDraining());
    EXPECT_EQ(w.Take(), "=") << "it may come again";
  }
  FlipBook::Worker unproven = kChanged;
  unproven.takes = false;
  w.Look(unproven);
  EXPECT_EQ(w.Take(), "→returns Release") << "its canary is a request";
  w.Look(kChanged);
  EXPECT_EQ(w.Take(), "→done");
}

TEST(FlipBook, AWorkerThatChangesForAnotherRouterJustNowMayBeOrderedTo) {
  World w;
  ASSERT_TRUE(w.Begin(LeftDraining()).ok());
  EXPECT_EQ(w.Take(), "Hold →drains");
  w.Look(kOther);
  EXPECT_EQ(w.Take(), "Release →failed") << "another process, of the role of before";
}

TEST(FlipBook, AWorkerThatDrainedAndWentIsWaitedForAsLongAsOneThatReturns) {
  FlipBook book{kHeartbeatTimeout};
  ASSERT_TRUE(book.Begin(kSlot, kIdle, WorkerRole::kDecode, Duration::zero(), kFlipStart).ok());
  book.Look(kSlot, LeftDraining(), kFlipStart);
  book.Look(kSlot, LeftDraining(), kFlipStart + FlipBook::kReturnWithin - std::chrono::milliseconds(1));
  EXPECT_TRUE(book.changes(kSlot));
  book.Look(kSlot, LeftDraining(), kFlipStart + FlipBook::kReturnWithin);
  EXPECT_FALSE(book.changes(kSlot));
}

TEST(FlipBook, WhoIsDrainedByAnOperatorIsDoneWithoutACanaryAndWhoIsNoMoreWaitsForIt) {
  FlipBook::Worker drained = kChanged;
  drained.takes = false, drained.drained = true;
  World w(FlipStage::kReturns);
  w.Look(drained);
  EXPECT_EQ(w.Take(), "Release →done");
  World resumed(FlipStage::kReturns);
  FlipBook::Worker unproven = drained;
  unproven.drained = false;
  resumed.Look(unproven);
  EXPECT_EQ(resumed.Take(), "Release");
  resumed.Look(kChanged);
  EXPECT_EQ(resumed.Take(), "→done");
}

TEST(FlipBook, ItsOldConnectionMayBeSeenForAMomentAfterTheAnswer) {
  World w(FlipStage::kReturns);
  w.Look(kIdle);
  EXPECT_EQ(w.Take(), "=");
  FlipBook::Worker unproven = kChanged;
  unproven.takes = false, unproven.detail = "its canary runs";
  w.Look(unproven);
  EXPECT_EQ(w.Take(), "Release") << "its canary is a request";
  w.Look(unproven);
  EXPECT_EQ(w.Take(), "=");
  w.now += FlipBook::kReturnWithin;
  w.Look(unproven);
  EXPECT_EQ(w.Take(), "→failed");
  EXPECT_NE(w.shown.why.find("its canary runs"), std::string::npos);
}

TEST(FlipBook, AWorkerThatDiesBeforeItIsToldIsWaitedForASecondWhateverThePatience) {
  World w;
  ASSERT_TRUE(w.book.Begin(kSlot, BusyWorker(), WorkerRole::kDecode, Duration::zero(), w.now).ok());
  w.Look(Away());
  EXPECT_EQ(w.Take(), "Hold →drains");
  w.now += FlipBook::kBackWithin;
  w.Look(Away());
  EXPECT_EQ(w.Take(), "Release →failed");
  EXPECT_EQ(w.shown.why, "its connection is lost: the connection broke");
  EXPECT_TRUE(w.book.slots().empty());
}

FlipBook::Worker Decoding(bool last, bool none_decodes) {
  FlipBook::Worker out = Serving("old", WorkerRole::kDecode);
  out.last = last, out.none_decodes = none_decodes;
  return out;
}

TEST(FlipBook, WhoIsTheLastThatDecodesOnceItHasDrainedGoesOnDecoding) {
  for (const bool force : {false, true}) {
    World w;
    const FlipBook::Worker others_decode = Decoding(false, false);
    ASSERT_TRUE(w.book.Begin(kSlot, others_decode, WorkerRole::kPrefill, kPatience, w.now, force).ok());
    w.Take();
    w.Look(Decoding(true, false));
    EXPECT_EQ(w.Take(), force ? "→changes Order" : "Release →failed");
    if (!force) {
      EXPECT_NE(w.shown.why.find("the last that decodes by now"), std::string::npos);
    }
  }
}

TEST(FlipBook, WhoIsTheLastForAMomentWhileItDrainsChangesAllTheSame) {
  World w;
  ASSERT_TRUE(w.book.Begin(kSlot, Decoding(false, false), WorkerRole::kPrefill, kPatience, w.now).ok());
  w.Take();
  FlipBook::Worker busy = Decoding(true, false);
  busy.idle = false;
  w.Look(busy);
  EXPECT_EQ(w.Take(), "=");
  w.Look(Decoding(false, false));
  EXPECT_EQ(w.Take(), "→changes Order");
}

TEST(FlipBook, WhereAllThatDecodedHaveChangedAtOnceItDecodesAgain) {
  World w;
  ASSERT_TRUE(w.book.Begin(kSlot, Decoding(false, false), WorkerRole::kPrefill, kPatience, w.now).ok());
  w.Look(Decoding(false, false));
  EXPECT_EQ(w.Take(), "Hold →drains →changes Order");
  w.Answer();
  EXPECT_EQ(w.Take(), "→returns");
  FlipBook::Worker alone = Serving("new", WorkerRole::kPrefill);
  alone.takes = false, alone.none_decodes = true;
  w.Look(alone);
  EXPECT_EQ(w.Take(), "→changes Order");
  w.book.Answered(kSlot, w.number, {absl::OkStatus(), "newest", 0, 5}, w.now);
  w.Look(alone);
  EXPECT_EQ(w.Take(), "→returns") << "it was seen as it was";
  w.Look(Serving("newest", WorkerRole::kDecode));
  EXPECT_EQ(w.Take(), "Release →failed");
  EXPECT_NE(w.shown.why.find("it decodes again"), std::string::npos);
}

/// A worker that was told to prefill and has done so; what is seen of the others changes from here on.
World ChangedToPrefill(bool force = false) {
  World w;
  EXPECT_TRUE(w.book.Begin(kSlot, Decoding(false, false), WorkerRole::kPrefill, kPatience, w.now, force).ok());
  w.Look(Decoding(false, false));
  w.Take();
  w.Answer();
  w.Look(Serving("new", WorkerRole::kPrefill));
  EXPECT_EQ(w.Take(), "→returns Release →done");
  return w;
}

TEST(FlipBook, WhereNobodyIsSeenToDecodeOnlyLaterItDecodesAgain) {
  World w = ChangedToPrefill();
  FlipBook::Worker alone = Serving("new", WorkerRole::kPrefill);
  alone.none_decodes = true;
  w.Look(alone);
  EXPECT_EQ(w.Take(), "=") << "another may only be away for a moment";
  w.now += FlipBook::kBackWithin;
  w.Look(Serving("new", WorkerRole::kPrefill)), w.Look(alone);
  EXPECT_EQ(w.Take(), "=") << "it was there meanwhile";
  w.now += FlipBook::kBackWithin;
  w.Look(alone);
  EXPECT_EQ(w.Take(), "Hold →changes Order");
  EXPECT_TRUE(w.book.changes(kSlot));
  w.book.Answered(kSlot, w.number, {absl::OkStatus(), "newest", 0, 5}, w.now);
  w.Look(Serving("newest", WorkerRole::kDecode));
  EXPECT_EQ(w.Take(), "→returns Release →failed");
  EXPECT_NE(w.shown.why.find("it decodes again"), std::string::npos);
  EXPECT_TRUE(w.book.slots().empty());
}

TEST(FlipBook, WhoHasChangedIsLookedAtForAWhile) {
  FlipBook::Worker alone = Serving("new", WorkerRole::kPrefill), another = Serving("another", WorkerRole::kPrefill);
  alone.none_decodes = another.none_decodes = true;
  const auto looks = [](World w, const FlipBook::Worker& first, const FlipBook::Worker& then, Duration after) {
    w.Look(first);
    w.now += after;
    w.Look(then), w.Look(then);
    return StrCat(w.Take(), w.book.slots().empty() ? ", no more" : "");
  };
  const Duration second = FlipBook::kBackWithin;
  EXPECT_EQ(looks(ChangedToPrefill(), alone, alone, second), "Hold →changes Order");
  EXPECT_EQ(looks(ChangedToPrefill(), alone, alone, kHeartbeatTimeout + FlipBook::kWatchedBeyond), "=, no more")
      << "too late";
  EXPECT_EQ(looks(ChangedToPrefill(), alone, another, second), "=, no more") << "others have changed it";
  FlipBook::Worker away = Away();
  away.none_decodes = true;
  EXPECT_EQ(looks(ChangedToPrefill(), alone, away, second), "=") << "nobody can tell it";
  EXPECT_EQ(looks(ChangedToPrefill(/*force=*/true), alone, alone, second), "=, no more") << "it was wanted so";
}

TEST(FlipBook, AWorkerThatIsAwayAgainIsWaitedForAgain) {
  World w;
  ASSERT_TRUE(w.book.Begin(kSlot, BusyWorker(), WorkerRole::kDecode, Duration::zero(), w.now).ok());
  w.Look(Away()), w.Look(BusyWorker());
  w.now += FlipBook::kBackWithin;
  w.Look(Away());
  EXPECT_EQ(w.Take(), "Hold →drains");
  w.now += FlipBook::kBackWithin;
  w.Look(Away());
  EXPECT_EQ(w.Take(), "Release →failed");
}

TEST(FlipBook, UndoOfAWorkerThatWasToldIsRefused) {
  World w(FlipStage::kChanges);
  EXPECT_EQ(w.book.Undo(kSlot, w.now).code(), absl::StatusCode::kFailedPrecondition);
  World none;
  EXPECT_TRUE(none.book.Undo(kSlot, none.now).ok());
}

}  // namespace
}  // namespace baton::router
