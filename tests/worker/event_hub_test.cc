#include "worker/relay/event_hub.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "sim/stepped_engine.h"

namespace baton::worker {
namespace {

// A watcher that keeps what a router keeps: the set of hashes and its digest, checked with every event.
class Watcher final : public WatchSink {
 public:
  void End(const absl::Status& why) override { ended = why; }
  absl::Status ended;
  void Send(v1::WorkerEvent event) override {
    EXPECT_EQ(event.incarnation(), "worker-1");
    EXPECT_EQ(event.sequence_number(), ++events);
    EXPECT_TRUE(event.has_snapshot() || !snapshot_open_) << "a snapshot without its last part";
    switch (event.event_case()) {
      case v1::WorkerEvent::kSnapshot:
        if (!snapshot_open_) hashes.clear();
        Apply(event.snapshot().hashes(), true);
        snapshot_open_ = !event.snapshot().last();
        ++snapshots;
        break;
      case v1::WorkerEvent::kStored:
        Apply(event.stored().hashes(), true);
        EXPECT_EQ(Digest(), event.stored().digest()) << "event " << events;
        break;
      case v1::WorkerEvent::kRemoved:
        Apply(event.removed().hashes(), false);
        EXPECT_EQ(Digest(), event.removed().digest()) << "event " << events;
        break;
      case v1::WorkerEvent::kLoad: load = event.load(); break;
      case v1::WorkerEvent::kState: state = event.state(); break;
      case v1::WorkerEvent::EVENT_NOT_SET: ADD_FAILURE() << "an empty event"; break;
    }
  }
  uint64_t Digest() const {
    uint64_t sum = 0;
    for (const auto& [lo, hi] : hashes) sum += lo;
    return sum;
  }

  uint64_t events = 0;
  int snapshots = 0;
  std::set<std::pair<uint64_t, uint64_t>> hashes;
  v1::Load load;
  v1::WorkerState state;

 private:
  void Apply(const std::string& bytes, bool stored) {
    ASSERT_EQ(bytes.size() % 16, 0u);
    for (size_t i = 0; i < bytes.size(); i += 16) {
      uint64_t lo = 0, hi = 0;
      std::memcpy(&lo, bytes.data() + i, 8);
      std::memcpy(&hi, bytes.data() + i + 8, 8);
      if (stored) {
        EXPECT_TRUE(hashes.insert({lo, hi}).second) << "stored twice";
      } else {
        EXPECT_EQ(hashes.erase({lo, hi}), 1u) << "removed what was never stored";
      }
    }
  }
  bool snapshot_open_ = false;
};

engine::SteppedEngineOptions Options(int32_t blocks) {
  engine::SteppedEngineOptions o;
  o.num_blocks = {blocks};
  o.scheduler.max_model_len = 300;
  return o;
}

class EventHubTest : public ::testing::Test {
 protected:
  explicit EventHubTest(int32_t blocks = 256) : h(Options(blocks)) {}
  // Runs a prompt; its events wait to be taken.
  void Run(int32_t prompt_len) {
    const engine::RequestKey key = next_++;
    ASSERT_TRUE(h.Add(engine::MakeRequest(key, engine::RandomTokens(key, prompt_len), 2)).ok());
    h.RunAll();
  }
  void Publish() { hub.OnKvEvents(h.cache().TakeEvents(), h.scheduler()); }
  std::shared_ptr<Watcher> Watch(Duration load_every = Duration{}, Duration quiet = Duration{}) {
    auto w = std::make_shared<Watcher>();
    hub.Add(w, {load_every, quiet}, h.scheduler());
    return w;
  }
  size_t Stored() { return h.cache().Snapshot().size(); }

  engine::SteppedEngine h;
  EventHub hub{"worker-1"};

 private:
  engine::RequestKey next_ = 1;
};

TEST_F(EventHubTest, AWatcherHearsASnapshotTheStateAndThenTheNews) {
  hub.SendState(v1::WorkerState::STATE_READY, "");
  Run(100);
  Publish();
  const auto w = Watch();
  EXPECT_EQ(w->snapshots, 1);
  EXPECT_EQ(w->hashes.size(), 6u);
  EXPECT_EQ(w->state.state(), v1::WorkerState::STATE_READY);
  Run(50);
  Publish();
  EXPECT_EQ(w->hashes.size(), 9u);
  EXPECT_EQ(w->snapshots, 1);
}

TEST_F(EventHubTest, TheUnitsOfTwoPromptsAreTwoMessages) {
  const auto w = Watch();
  Run(50), Run(50);
  const uint64_t before = w->events;
  Publish();
  EXPECT_EQ(w->events - before, 2u) << "each unit of a message is the child of the one before";
}

TEST_F(EventHubTest, AnEmptyCacheIsASnapshotToo) {
  const auto w = Watch();
  EXPECT_EQ(w->snapshots, 1);
  EXPECT_EQ(w->events, 2u);
}

// What happened between two publications is in the newcomer's snapshot and must not come to it a second time.
TEST_F(EventHubTest, ANewcomerHearsNothingTwiceAndTheOthersMissNothing) {
  const auto early = Watch();
  Run(100);
  const auto late = Watch();
  EXPECT_EQ(late->hashes.size(), 6u);
  EXPECT_EQ(early->hashes, late->hashes);
  Run(40);
  Publish();
  EXPECT_EQ(late->hashes.size(), 8u);
  EXPECT_EQ(early->hashes, late->hashes);
}

class BigEventHubTest : public EventHubTest {
 protected:
  BigEventHubTest() : EventHubTest(6000) {}
};

TEST_F(BigEventHubTest, ASnapshotOfManyUnitsIsSeveralMessages) {
  for (int i = 0; i < 240; ++i) Run(290);
  ASSERT_GT(Stored(), 4096u);
  ASSERT_LE(Stored(), 8192u);
  const auto w = Watch();
  EXPECT_EQ(w->snapshots, 2);
  EXPECT_EQ(w->hashes.size(), Stored());
}

class SmallEventHubTest : public EventHubTest {
 protected:
  SmallEventHubTest() : EventHubTest(21) {}
};

TEST_F(SmallEventHubTest, AnEvictedUnitIsTakenBack) {
  const auto w = Watch();
  for (int i = 0; i < 12; ++i) {
    Run(120 + i);
    Publish();
  }
  EXPECT_EQ(w->hashes.size(), Stored());
  EXPECT_LE(w->hashes.size(), 21u);
  EXPECT_EQ(w->snapshots, 1);
}

TEST_F(EventHubTest, AfterAGapEverybodyGetsANewSnapshot) {
  const auto w = Watch();
  Run(100);
  engine::KvEvents lost = h.cache().TakeEvents();
  lost.events.resize(2);
  lost.gap = true;
  hub.OnKvEvents(lost, h.scheduler());
  EXPECT_EQ(w->snapshots, 2);
  EXPECT_EQ(w->hashes.size(), 6u);
  Run(50);
  Publish();  // the digest counts from the snapshot on
  EXPECT_EQ(w->hashes.size(), 9u);
}

TEST_F(EventHubTest, ADigestCountsFromTheSnapshotOfAGapWhateverWasStoredBefore) {
  const auto w = Watch();
  Run(100);
  Publish();
  Run(50);
  engine::KvEvents lost = h.cache().TakeEvents();
  lost.gap = true;
  hub.OnKvEvents(lost, h.scheduler());
  EXPECT_EQ(w->hashes.size(), 9u) << "what was known before is not in it twice";
  Run(40);
  Publish();
  EXPECT_EQ(w->hashes.size(), 11u);
}

TEST_F(EventHubTest, WhoWatchedTheWorkerOfBeforeHearsItsEndAndNothingOfTheNext) {
  const auto w = Watch();
  const uint64_t before = w->events;
  hub.BeginAnew("worker-2", absl::UnavailableError("another role"));
  EXPECT_EQ(w->ended, absl::UnavailableError("another role"));
  EXPECT_EQ(hub.watchers(), 0u);
  hub.SendState(v1::WorkerState::STATE_READY, "");
  EXPECT_EQ(w->events, before);
}

TEST_F(EventHubTest, AWatcherThatLeftHearsNothing) {
  const auto w = Watch(), stays = Watch();
  hub.Remove(w.get());
  EXPECT_EQ(hub.watchers(), 1u);
  const uint64_t before = w->events;
  hub.SendState(v1::WorkerState::STATE_DRAINING, "going");
  EXPECT_EQ(w->events, before);
  EXPECT_EQ(stays->state.detail(), "going");
}

TEST_F(EventHubTest, EachWatcherHearsTheLoadAsOftenAsItAsked) {
  using std::chrono::milliseconds;
  const auto often = Watch(milliseconds(100)), rarely = Watch(milliseconds(250)), never = Watch(milliseconds(60000));
  const uint64_t before = often->events;
  EXPECT_EQ(hub.ShortestInterval(milliseconds(100)), milliseconds(100));
  EXPECT_EQ(hub.ShortestInterval(milliseconds(30)), milliseconds(30));
  for (int turn = 0; turn <= 10; ++turn) {  // turns of 100 ms, each a little too early or too late
    const auto late = std::chrono::microseconds(turn % 2 == 0 ? 900 : -900);
    hub.SendLoad(EncodeLoad(h.scheduler().Load()), h.now + milliseconds(100 * turn) + late);
  }
  EXPECT_EQ(often->events - before, 11u);
  EXPECT_EQ(rarely->events - before, 6u);  // every second turn: at least as often as asked
  EXPECT_EQ(never->events - before, 1u);
  hub.Remove(often.get());
  EXPECT_EQ(hub.ShortestInterval(milliseconds(1000)), milliseconds(250));
}

TEST_F(EventHubTest, AWatcherThatAsksForNewsHearsOfWhatIsNoneAtItsQuietIntervalAndTheOthersAsBefore) {
  using std::chrono::milliseconds;
  const auto asks = Watch(milliseconds(100), milliseconds(600)), old = Watch(milliseconds(100));
  const uint64_t before = old->events;
  for (int turn = 0; turn <= 12; ++turn)
    hub.SendLoad(EncodeLoad(h.scheduler().Load()), h.now + milliseconds(100 * turn));
  EXPECT_EQ(asks->events - before, 3u);
  EXPECT_EQ(old->events - before, 13u);
  EXPECT_EQ(hub.ShortestInterval(milliseconds(1000)), milliseconds(100)) << "news is looked for as often as before";
}

TEST_F(EventHubTest, LoadSaysWhatTheSchedulerDoes) {
  const auto w = Watch();
  for (engine::RequestKey key = 101; key <= 103; ++key) {
    engine::Request r = engine::MakeRequest(key, engine::RandomTokens(key, 64), 20);
    r.sampling.ignore_eos = true;
    ASSERT_TRUE(h.Add(r).ok());
  }
  ASSERT_TRUE(h.Step());
  ASSERT_TRUE(h.Add(engine::MakeRequest(104, engine::RandomTokens(104, 30), 20)).ok());
  hub.SendLoad(EncodeLoad(h.scheduler().Load()), h.now);
  EXPECT_EQ(w->load.running(), 3);
  EXPECT_EQ(w->load.waiting(), 1);
  EXPECT_EQ(w->load.queued_tokens(), 30);
  EXPECT_EQ(w->load.kv_blocks_used(), 12);
  EXPECT_EQ(w->load.kv_blocks_total(), 256);
  EXPECT_EQ(w->load.steps(), 1u);
  EXPECT_EQ(w->load.prompt_tokens(), 3 * 64 + 30);
  EXPECT_EQ(w->load.generation_tokens(), 3);
  ASSERT_TRUE(h.Begin());
  const engine::SchedulerLoad in_step = h.scheduler().Load();
  EXPECT_GT(in_step.predicted_step, Duration::zero());
  EXPECT_EQ(EncodeLoad(in_step).predicted_step_ms(), Milliseconds(in_step.predicted_step));
  h.Finish();
  h.scheduler().CancelAll(h.now);
  h.RunAll();
}

TEST(EncodeLoad, EveryFigureOfTheSchedulerHasItsField) {
  engine::SchedulerLoad load;
  load.running_sequences = 1, load.unread_sequences = 2, load.waiting_requests = 3;
  load.waiting_tokens = 40, load.prefill_tokens_left = 5;
  load.used_blocks = {6, 60}, load.total_blocks = {7, 70};
  load.shared_blocks = 8, load.empty_tokens = 9;
  load.steps = 10, load.preemptions = 11;
  load.prompt_tokens = 12, load.cached_tokens = 13, load.generated_tokens = 14;
  load.predicted_step = std::chrono::milliseconds(15);
  load.step_sizes.steps[0] = 16, load.step_sizes.steps[1] = 17, load.step_sizes.tokens = 18;
  const v1::Load out = EncodeLoad(load);
  EXPECT_EQ(out.running(), 1);
  EXPECT_EQ(out.unread(), 2);
  EXPECT_EQ(out.waiting(), 3);
  EXPECT_EQ(out.queued_tokens(), 45) << "of those that wait, and of those whose prompt is computed now";
  EXPECT_EQ(out.kv_blocks_used(), 6) << "the first group's";
  EXPECT_EQ(out.kv_blocks_total(), 7);
  EXPECT_EQ(out.kv_blocks_shared(), 8);
  EXPECT_EQ(out.kv_empty_tokens(), 9);
  EXPECT_EQ(out.steps(), 10u);
  EXPECT_EQ(out.preemptions(), 11u);
  EXPECT_EQ(out.prompt_tokens(), 12u);
  EXPECT_EQ(out.prefix_queries_tokens(), 12u);
  EXPECT_EQ(out.prefix_hits_tokens(), 13u);
  EXPECT_EQ(out.generation_tokens(), 14u);
  EXPECT_EQ(out.predicted_step_ms(), 15);
  ASSERT_EQ(static_cast<size_t>(out.steps_by_tokens_size()), load.step_sizes.steps.size());
  EXPECT_EQ(out.steps_by_tokens(0), 16u);
  EXPECT_EQ(out.steps_by_tokens(1), 17u);
  EXPECT_EQ(out.step_tokens(), 18u);
}

TEST(EncodeGrammars, EveryFigureOfThePoolHasItsField) {
  const v1::GrammarLoad out = EncodeGrammars({.following = 1,
                                              .compiled = 2,
                                              .known = 3,
                                              .refused = 4,
                                              .compile_time = std::chrono::seconds(5),
                                              .masks = 6,
                                              .masks_late = 7,
                                              .masks_slow = 8,
                                              .mask_time = std::chrono::seconds(9),
                                              .wait_time = std::chrono::seconds(10)});
  EXPECT_EQ(out.following(), 1);
  EXPECT_EQ(out.compiled(), 2);
  EXPECT_EQ(out.known(), 3);
  EXPECT_EQ(out.refused(), 4);
  EXPECT_EQ(out.compile_seconds(), 5);
  EXPECT_EQ(out.masks(), 6);
  EXPECT_EQ(out.masks_late(), 7);
  EXPECT_EQ(out.masks_slow(), 8);
  EXPECT_EQ(out.mask_seconds(), 9);
  EXPECT_EQ(out.wait_seconds(), 10);
}

}  // namespace
}  // namespace baton::worker
