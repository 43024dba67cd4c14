// The engine's two threads: every task runs while a step is computed, every request ends exactly once. Requests come
// in by tasks, as in a worker. No sleeps: tests wait for what they expect, and time out.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <latch>
#include <mutex>
#include <thread>

#include "engine/step/engine.h"
#include "tests/engine/step/requests.h"

namespace baton::engine {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);

/// How far ahead of the tokens that are read.
enum class Steps { kBetween, kPlannedAhead, kEnqueuedAhead };
class EngineThreads : public testing::TestWithParam<Steps> {};

SteppedEngineOptions Options() {
  SteppedEngineOptions o;
  o.ahead = EngineThreads::GetParam() != Steps::kBetween;
  o.later = EngineThreads::GetParam() == Steps::kEnqueuedAhead;
  o.num_blocks = {200};
  o.scheduler.vocab_size = kFakeVocab;
  o.scheduler.max_model_len = 300;
  return o;
}

/// The machine's, and how often it was read.
class CountedClock final : public Clock {
 public:
  TimePoint Now() const override {
    ++reads;
    return steady_.Now();
  }
  mutable std::atomic<int> reads{0};

 private:
  SteadyClock steady_;
};

// An engine over the fake model, and everything it said.
class Running {
 public:
  explicit Running(SteppedEngineOptions o = Options())
      : fake(o.layout), ops_(MakeFakeOps({}, o.later ? &fake : nullptr)) {
    memory_ = KvMemory::Create(o.layout, o.num_blocks, *ops_).value();
    EngineOptions options;
    options.scheduler = o.scheduler;
    options.plan_ahead = o.ahead;
    engine = std::make_unique<Engine>(
        options, EngineParts{.model = fake, .memory = *memory_, .ops = *ops_, .hasher = hasher, .clock = clock},
        [this](EngineOutputs out, Scheduler& s) { Take(std::move(out), s); });
  }

  ~Running() { engine.reset(); }  // its threads use the rest

  /// Runs `task` on the scheduler thread and waits for what it returns.
  template <typename T>
  T Ask(std::function<T(Scheduler&, TimePoint)> task) {
    auto answer = std::make_shared<std::promise<T>>();
    EXPECT_TRUE(engine->Post([answer, task](Scheduler& s, TimePoint now) { answer->set_value(task(s, now)); }));
    return Await(answer->get_future());
  }
  absl::Status Add(Request r) {
    return Ask<absl::Status>([r](Scheduler& s, TimePoint now) { return s.AddRequest(r, now); });
  }
  bool Cancel(RequestKey key) {
    return Ask<bool>([key](Scheduler& s, TimePoint now) { return s.Cancel(key, now); });
  }
  SchedulerLoad Load() {
    return Ask<SchedulerLoad>([](Scheduler& s, TimePoint) { return s.Load(); });
  }
  template <typename T>
  static T Await(std::future<T> f) {
    EXPECT_EQ(f.wait_for(kPatience), std::future_status::ready);
    return f.get();
  }
  /// Waits until the choice has ended.
  Answer Ended(RequestKey key, uint32_t index = 0) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(news_.wait_for(lock, kPatience, [&] { return answers_[{key, index}].finish != FinishReason::kNone; }));
    return answers_[{key, index}];
  }
  Answer Now(RequestKey key) {
    std::lock_guard lock(mutex_);
    return answers_[{key, 0}];
  }

  FakeModel fake;
  PrefixHasher hasher{HashKey{}};
  CountedClock clock;
  std::unique_ptr<Engine> engine;
  /// Called for each output, on the scheduler thread. Set before the first request.
  std::function<void(const SequenceOutput&)> on_output;
  std::vector<KvEvent> kv;  ///< read after Shutdown

 private:
  void Take(EngineOutputs out, Scheduler& scheduler) {
    if (!scheduler.Load().total_blocks.empty()) scheduler.CheckInvariants();
    kv.insert(kv.end(), out.kv.events.begin(), out.kv.events.end());
    std::lock_guard lock(mutex_);
    for (SequenceOutput& o : out.sequences) {
      if (on_output) on_output(o);
      Answer& a = answers_[{o.key, o.sequence_index}];
      EXPECT_EQ(a.finish, FinishReason::kNone) << "request " << o.key << " ended twice";
      for (auto& t : o.tokens) a.tokens.push_back(std::move(t));
      for (auto& t : o.prompt_logprobs) a.prompt_logprobs.push_back(std::move(t));
      a.finish = o.finish;
      a.stop_token = o.stop_token;
      a.error = o.error;
    }
    news_.notify_all();
  }

  std::unique_ptr<kernels::Ops> ops_;
  std::unique_ptr<KvMemory> memory_;
  std::mutex mutex_;
  std::condition_variable news_;
  std::map<AnswerKey, Answer> answers_;
};

// Holds the executor inside a step.
class Gate {
 public:
  std::function<absl::Status()> Hook(absl::Status after = absl::OkStatus()) {
    return [this, after] {
      if (!std::exchange(first_, false)) return absl::OkStatus();
      entered_.count_down();
      open_.wait();
      return after;
    };
  }
  void AwaitEntered() { entered_.wait(); }
  void Open() { open_.count_down(); }

 private:
  bool first_ = true;  // executor thread
  std::latch entered_{1}, open_{1};
};

TEST_P(EngineThreads, RequestsOfManyThreadsAreAnsweredAsAlone) {
  Running run;
  std::vector<std::thread> clients;
  for (uint64_t t = 0; t < 4; ++t) {
    clients.emplace_back([&run, t] {
      for (uint64_t i = 0; i < 12; ++i) {
        const RequestKey key = 1 + t * 12 + i;
        EXPECT_TRUE(run.Add(MixedRequest(key, key, 1 + static_cast<int32_t>(key * 7 % 150))).ok());
        if (i % 4 == 3) run.Load();
      }
    });
  }
  for (std::thread& c : clients) c.join();
  for (RequestKey key = 1; key <= 48; ++key) {
    const Request r = MixedRequest(key, key, 1 + static_cast<int32_t>(key * 7 % 150));
    SteppedEngine alone(Options());
    ASSERT_TRUE(alone.Add(r).ok());
    alone.RunAll();
    for (uint32_t i = 0; i < static_cast<uint32_t>(r.sampling.n); ++i) {
      EXPECT_EQ(run.Ended(key, i).Text(), (alone.answers[{key, i}].Text())) << "request " << key << " choice " << i;
    }
  }
}

TEST_P(EngineThreads, TasksRunWhileAStepIsComputed) {
  Running run;
  Gate gate;
  run.fake.before_forward = gate.Hook();
  ASSERT_TRUE(run.Add(Endless(1, 20, 200)).ok());
  gate.AwaitEntered();
  EXPECT_TRUE(run.Add(Endless(2, 20, 3)).ok());
  EXPECT_EQ(run.Load().running_sequences, 1);
  EXPECT_TRUE(run.Cancel(1));
  EXPECT_EQ(run.Ended(1).finish, FinishReason::kAbort) << "said before the step is done";
  EXPECT_FALSE(run.Cancel(1));
  gate.Open();
  EXPECT_EQ(run.Ended(2).tokens.size(), 3u);
}

TEST_P(EngineThreads, AStepWhoseRequestsAreAllGoneStopsBetweenLayers) {
  Running run;
  Gate gate;
  run.fake.before_forward = gate.Hook();
  run.engine->Post([](Scheduler& s, TimePoint now) {  // two, so that there is a middle of the step
    EXPECT_TRUE(s.AddRequest(Endless(1, 20, 200), now).ok());
    EXPECT_TRUE(s.AddRequest(Endless(3, 20, 200), now).ok());
  });
  gate.AwaitEntered();
  EXPECT_TRUE(run.Cancel(1));
  EXPECT_TRUE(run.Cancel(3));
  run.Load();  // a turn later the executor has been told
  gate.Open();
  run.engine->Post([](Scheduler& s, TimePoint now) {
    EXPECT_TRUE(s.AddRequest(Endless(2, 20, 3), now).ok());
    EXPECT_TRUE(s.AddRequest(Endless(4, 20, 3), now).ok());
  });
  EXPECT_EQ(run.Ended(2).tokens.size(), 3u) << "the next step is not cancelled";
  EXPECT_EQ(run.Ended(4).tokens.size(), 3u);
  EXPECT_EQ(run.Load().cancelled_steps, 1);
}

TEST_P(EngineThreads, AFailedStepEndsItsRequestsWithItsError) {
  Running run;
  Gate gate;
  run.fake.before_forward = gate.Hook(absl::InternalError("device lost"));
  ASSERT_TRUE(run.Add(Endless(1, 20, 3)).ok());
  gate.AwaitEntered();
  gate.Open();
  EXPECT_EQ(run.Ended(1).error.message(), "device lost");
  ASSERT_TRUE(run.Add(Endless(2, 20, 3)).ok());
  EXPECT_EQ(run.Ended(2).finish, FinishReason::kLength);
}

TEST_P(EngineThreads, CreditDeliversWithoutAStep) {
  Running run;
  Request r = Endless(1, 20, 4);
  r.credit = 21;
  ASSERT_TRUE(run.Add(r).ok());
  while (run.Load().running_sequences + run.Load().waiting_requests > 0) std::this_thread::yield();
  EXPECT_EQ(run.Now(1).tokens.size(), 1u);
  run.engine->Post([](Scheduler& s, TimePoint now) { s.SetCredit(1, 0, kUnlimitedCredit, now); });
  EXPECT_EQ(run.Ended(1).tokens.size(), 4u);
}

TEST_P(EngineThreads, ADeadlinePassesWithoutAnyTask) {
  Running run;
  Request r = Endless(1, 20, 100);
  r.credit = 20;  // stalls: nothing happens until the deadline
  const auto add = [&r](Scheduler& s, TimePoint now) {
    r.deadline = now + std::chrono::milliseconds(30);
    return s.AddRequest(r, now);
  };
  ASSERT_TRUE(run.Ask<absl::Status>(add).ok());
  const Answer a = run.Ended(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(a.error)) << a.error;
  EXPECT_GE(SteadyClock().Now(), r.deadline);
}

TEST_P(EngineThreads, AnEngineIsIdleWhenTheLastRequestHasEnded) {
  Running run;
  Gate gate;
  run.fake.before_forward = gate.Hook();
  ASSERT_TRUE(run.Add(Endless(1, 20, 5)).ok());
  gate.AwaitEntered();
  std::promise<void> idle, at_once;
  std::future<void> done = idle.get_future();
  run.engine->WhenIdle([&] { idle.set_value(); });
  run.Load();  // a turn later
  EXPECT_EQ(done.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  gate.Open();
  Running::Await(std::move(done));
  EXPECT_EQ(run.Now(1).finish, FinishReason::kLength);
  run.engine->WhenIdle([&] { at_once.set_value(); });
  Running::Await(at_once.get_future());
}

// It reads the clock for each task, and for the step that it then has none of.
TEST_P(EngineThreads, WithNothingToDoItsThreadStandsStillUntilItIsAsked) {
  constexpr int kTasks = 1000;
  Running run;
  run.Load();
  const int before = run.clock.reads;
  for (int i = 0; i < kTasks; ++i) run.Load();
  EXPECT_LE(run.clock.reads - before, 2 * kTasks + 1);
}

TEST_P(EngineThreads, ShutdownAbortsEverythingAndTakesNothingMore) {
  Running run;
  for (RequestKey key = 1; key <= 20; ++key) ASSERT_TRUE(run.Add(Endless(key, 100, 150)).ok());
  run.engine->Shutdown();
  for (RequestKey key = 1; key <= 20; ++key) EXPECT_NE(run.Now(key).finish, FinishReason::kNone) << key;
  bool ran = false, idle = false;
  EXPECT_FALSE(run.engine->Post([&](Scheduler&, TimePoint) { ran = true; }));
  EXPECT_FALSE(run.engine->PostBehind([&](Scheduler&, TimePoint) { ran = true; }));
  run.engine->WhenIdle([&] { idle = true; });
  EXPECT_TRUE(idle);
  run.engine->Shutdown();  // again
  EXPECT_FALSE(ran);
}

TEST_P(EngineThreads, EveryTaskThatWasTakenRuns) {
  Running run;
  std::atomic<int> taken{0}, ran{0};
  std::latch posting{4};
  std::vector<std::thread> posters;
  for (int t = 0; t < 4; ++t) {
    posters.emplace_back([&, behind = t % 2 == 1] {
      const Engine::Task task = [&](Scheduler&, TimePoint) { ++ran; };
      for (bool first = true; behind ? run.engine->PostBehind(task) : run.engine->Post(task); first = false) {
        ++taken;
        if (first) posting.count_down();
      }
    });
  }
  posting.wait();
  run.engine->Shutdown();
  for (std::thread& poster : posters) poster.join();
  EXPECT_EQ(ran, taken);
}

TEST_P(EngineThreads, ARequestThatSlipsInDuringShutdownDoesNotKeepItUp) {
  Running run;
  std::atomic<bool> slipped{false};
  run.on_output = [&](const SequenceOutput& o) {
    if (o.finish != FinishReason::kAbort || slipped.exchange(true)) return;
    run.engine->Post([](Scheduler& s, TimePoint now) {
      Request r = Endless(2, 20, 100);
      r.credit = 20;  // would never end by itself
      EXPECT_TRUE(s.AddRequest(r, now).ok());
    });
  };
  Gate gate;
  run.fake.before_forward = gate.Hook();
  ASSERT_TRUE(run.Add(Endless(1, 20, 100)).ok());
  gate.AwaitEntered();
  std::thread closer([&] { run.engine->Shutdown(); });
  EXPECT_EQ(run.Ended(1).finish, FinishReason::kAbort);
  gate.Open();
  closer.join();
  EXPECT_EQ(run.Now(2).finish, FinishReason::kAbort);
}

TEST_P(EngineThreads, ARequestThatComesWhenTheLastHasEndedIsAbortedToo) {
  Running run;
  Gate gate;
  run.fake.before_forward = gate.Hook();
  ASSERT_TRUE(run.Add(Endless(1, 20, 100)).ok());
  gate.AwaitEntered();
  run.engine->WhenIdle([&run] {  // with nothing left to wait for, the thread takes its last tasks
    run.engine->Post([](Scheduler& s, TimePoint now) { EXPECT_TRUE(s.AddRequest(Endless(2, 20, 100), now).ok()); });
  });
  std::thread closer([&run] { run.engine->Shutdown(); });
  EXPECT_EQ(run.Ended(1).finish, FinishReason::kAbort);
  gate.Open();
  closer.join();
  EXPECT_EQ(run.Now(2).finish, FinishReason::kAbort);
}

TEST_P(EngineThreads, ATaskPostedBehindRunsAfterAllThatCameWhileTheThreadStoodStill) {
  struct Stand {  // of the scheduler thread
    std::latch stands{1}, goes_on{1};
    void operator()() {
      stands.count_down();
      goes_on.wait();
    }
  };
  Stand before, beside;
  std::promise<void> over;
  std::vector<std::string> order;  // the scheduler thread's, until it is over
  Running run;
  run.engine->Post([&](Scheduler&, TimePoint) { before(); });
  before.stands.wait();
  run.engine->PostBehind([&](Scheduler&, TimePoint) {
    order.push_back("expiry");
    over.set_value();
  });
  run.engine->Post([&](Scheduler&, TimePoint) { beside(); });  // taken in the same turn
  before.goes_on.count_down();
  beside.stands.wait();
  run.engine->Post([&](Scheduler&, TimePoint) { order.push_back("renewal"); });
  beside.goes_on.count_down();
  Running::Await(over.get_future());
  EXPECT_EQ(order, (std::vector<std::string>{"renewal", "expiry"}));
}

TEST_P(EngineThreads, EventsSayWhichUnitsBecameReadable) {
  Running run;
  const Request r = Endless(1, 70, 3);
  ASSERT_TRUE(run.Add(r).ok());
  run.Ended(1);
  run.engine->Shutdown();
  const std::vector<PrefixHash> chain = run.hasher.Chain(run.hasher.Root({"", "", ""}), r.tokens);
  ASSERT_EQ(run.kv.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(run.kv[i].hash, chain[i]);
    EXPECT_EQ(run.kv[i].kind, KvEvent::Kind::kStored);
  }
}

// The step behind the running one is given before that one ends, and stops with it.
TEST_P(EngineThreads, ACancelStopsBothStepsThatRun) {
  Running run;
  Gate gate;
  int steps = 0;
  run.fake.before_forward = [&, hook = gate.Hook()] { return ++steps == 3 ? hook() : absl::OkStatus(); };
  run.engine->Post([](Scheduler& s, TimePoint now) {  // two, so that there is a middle of the step
    EXPECT_TRUE(s.AddRequest(Endless(1, 20, 200), now).ok());
    EXPECT_TRUE(s.AddRequest(Endless(3, 20, 200), now).ok());
  });
  gate.AwaitEntered();
  run.Load();  // a turn later the fourth is planned, when the second is over
  EXPECT_EQ(run.Load().steps, GetParam() == Steps::kPlannedAhead ? 4 : 3) << "the third runs";
  EXPECT_TRUE(run.Cancel(1));
  EXPECT_TRUE(run.Cancel(3));
  run.Load();  // a turn later the executor has been told
  gate.Open();
  ASSERT_TRUE(run.Add(Endless(2, 20, 3)).ok());
  EXPECT_EQ(run.Ended(2).tokens.size(), 3u);
  EXPECT_EQ(run.Load().cancelled_steps, GetParam() == Steps::kPlannedAhead ? 2 : 1);
}

// A device has the step behind the running one before that one's tokens are read: else it would stand still meanwhile.
TEST_P(EngineThreads, ADeviceIsGivenTheStepBehindBeforeTokensAreRead) {
  Running run;
  ASSERT_TRUE(run.Add(Endless(1, 20, 41)).ok());
  EXPECT_EQ(run.Ended(1).tokens.size(), 41u);
  run.engine->Shutdown();
  EXPECT_EQ(run.fake.rows_named, GetParam() == Steps::kEnqueuedAhead ? 39 : 0) << "all but the first decode";
}

std::string NameOf(const testing::TestParamInfo<Steps>& info) {
  if (info.param == Steps::kBetween) return "between";
  return info.param == Steps::kPlannedAhead ? "planned_ahead" : "enqueued_ahead";
}
INSTANTIATE_TEST_SUITE_P(StepsThatRun, EngineThreads,
                         testing::Values(Steps::kBetween, Steps::kPlannedAhead, Steps::kEnqueuedAhead), NameOf);

}  // namespace
}  // namespace baton::engine
