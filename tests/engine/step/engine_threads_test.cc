// The engine's two threads: every message answered while a step runs, every request ended exactly once. No sleeps:
// tests wait for what they expect, and time out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <future>
#include <latch>
#include <mutex>
#include <thread>

#include "engine/step/engine.h"
#include "tests/engine/step/requests.h"

namespace baton::engine {
namespace {

using ::testing::HasSubstr;

constexpr auto kPatience = std::chrono::seconds(60);

SteppedEngineOptions Options() {
  SteppedEngineOptions o;
  o.num_blocks = {200};
  o.scheduler.vocab_size = kFakeVocab;
  o.scheduler.max_model_len = 300;
  return o;
}

// An engine over the fake model, and everything it said.
class Running {
 public:
  explicit Running(SteppedEngineOptions o = Options(), int32_t max_messages = 4096)
      : fake(o.layout), ops_(MakeFakeOps()) {
    memory_ = KvMemory::Create(o.layout, o.num_blocks, *ops_).value();
    EngineOptions options;
    options.scheduler = o.scheduler;
    options.max_messages = max_messages;
    engine = std::make_unique<Engine>(options, fake, *memory_, *ops_, hasher, clock_, nullptr,
                                      [this](EngineOutputs out, Scheduler& s) { Take(std::move(out), s); });
  }

  ~Running() { engine.reset(); }  // its threads use the rest

  absl::Status Submit(Request r) {
    auto answer = std::make_shared<std::promise<absl::Status>>();
    engine->Submit(std::move(r), [answer](absl::Status s) { answer->set_value(std::move(s)); });
    return Await(answer->get_future());
  }
  absl::Status Cancel(RequestKey key) {
    auto answer = std::make_shared<std::promise<absl::Status>>();
    engine->Cancel(key, [answer](absl::Status s) { answer->set_value(std::move(s)); });
    return Await(answer->get_future());
  }
  SchedulerLoad Stats() {
    auto answer = std::make_shared<std::promise<SchedulerLoad>>();
    engine->Stats([answer](const SchedulerLoad& l) { answer->set_value(l); });
    return Await(answer->get_future());
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
  SteadyClock clock_;
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

TEST(EngineThreads, RequestsOfManyThreadsAreAnsweredAsAlone) {
  Running run;
  std::vector<std::thread> clients;
  for (uint64_t t = 0; t < 4; ++t) {
    clients.emplace_back([&run, t] {
      for (uint64_t i = 0; i < 12; ++i) {
        const RequestKey key = 1 + t * 12 + i;
        EXPECT_TRUE(run.Submit(MixedRequest(key, key, 1 + static_cast<int32_t>(key * 7 % 150))).ok());
        if (i % 4 == 3) run.Stats();
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

TEST(EngineThreads, MessagesAreAnsweredWhileAStepRuns) {
  Running run;
  Gate gate;
  run.fake.before_forward = gate.Hook();
  ASSERT_TRUE(run.Submit(Endless(1, 20, 200)).ok());
  gate.AwaitEntered();
  EXPECT_TRUE(run.Submit(Endless(2, 20, 3)).ok());
  EXPECT_EQ(run.Stats().running_sequences, 1);
  EXPECT_TRUE(run.Cancel(1).ok());
  EXPECT_EQ(run.Ended(1).finish, FinishReason::kAbort) << "said before the step is done";
  EXPECT_TRUE(absl::IsNotFound(run.Cancel(1)));
  gate.Open();
  EXPECT_EQ(run.Ended(2).tokens.size(), 3u);
}

TEST(EngineThreads, AStepWhoseRequestsAreAllGoneStopsBetweenLayers) {
  Running run;
  Gate gate;
  run.fake.before_forward = gate.Hook();
  run.engine->Post([](Scheduler& s, TimePoint now) {  // two, so that there is a middle of the step
    EXPECT_TRUE(s.AddRequest(Endless(1, 20, 200), now).ok());
    EXPECT_TRUE(s.AddRequest(Endless(3, 20, 200), now).ok());
  });
  gate.AwaitEntered();
  EXPECT_TRUE(run.Cancel(1).ok());
  EXPECT_TRUE(run.Cancel(3).ok());
  run.Stats();  // a turn later the executor has been told
  gate.Open();
  ASSERT_TRUE(run.Submit(Endless(2, 20, 3)).ok());
  EXPECT_EQ(run.Ended(2).tokens.size(), 3u) << "the next step is not cancelled";
  EXPECT_EQ(run.Stats().cancelled_steps, 1);
}

TEST(EngineThreads, AFailedStepEndsItsRequestsWithItsError) {
  Running run;
  Gate gate;
  run.fake.before_forward = gate.Hook(absl::InternalError("device lost"));
  ASSERT_TRUE(run.Submit(Endless(1, 20, 3)).ok());
  gate.AwaitEntered();
  gate.Open();
  EXPECT_EQ(run.Ended(1).error.message(), "device lost");
  ASSERT_TRUE(run.Submit(Endless(2, 20, 3)).ok());
  EXPECT_EQ(run.Ended(2).finish, FinishReason::kLength);
}

TEST(EngineThreads, AFullInboxRefusesRequestsButNotCancels) {
  Running run(Options(), 4);
  std::latch entered{1}, open{1};
  run.engine->Post([&](Scheduler&, TimePoint) {
    entered.count_down();
    open.wait();
  });
  entered.wait();
  std::vector<absl::Status> refused;
  for (RequestKey key = 1; key <= 6; ++key) {
    run.engine->Submit(Endless(key, 10, 2), [&](absl::Status s) {
      if (!s.ok()) refused.push_back(std::move(s));  // on this thread: the inbox is full
    });
  }
  ASSERT_EQ(refused.size(), 2u);
  EXPECT_TRUE(absl::IsResourceExhausted(refused[0]));
  EXPECT_THAT(std::string(refused[0].message()), HasSubstr("4 messages"));
  run.engine->Cancel(1, nullptr);
  open.count_down();
  EXPECT_EQ(run.Ended(1).finish, FinishReason::kAbort);
  for (RequestKey key = 2; key <= 4; ++key) EXPECT_EQ(run.Ended(key).finish, FinishReason::kLength);
}

TEST(EngineThreads, CreditDeliversWithoutAStep) {
  Running run;
  Request r = Endless(1, 20, 4);
  r.credit = 21;
  ASSERT_TRUE(run.Submit(r).ok());
  while (run.Stats().running_sequences + run.Stats().waiting_requests > 0) {
  }
  EXPECT_EQ(run.Now(1).tokens.size(), 1u);
  run.engine->Credit(1, 0, kUnlimitedCredit);
  EXPECT_EQ(run.Ended(1).tokens.size(), 4u);
}

TEST(EngineThreads, ADeadlinePassesWithoutAnyMessage) {
  Running run;
  Request r = Endless(1, 20, 100);
  r.credit = 20;  // stalls: nothing happens until the deadline
  r.deadline = SteadyClock().Now() + std::chrono::milliseconds(30);
  ASSERT_TRUE(run.Submit(r).ok());
  const Answer a = run.Ended(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(a.error)) << a.error;
  EXPECT_GE(SteadyClock().Now(), r.deadline);
}

TEST(EngineThreads, DrainRefusesNewRequestsAndEndsWhenTheLastHas) {
  Running run;
  Gate gate;
  run.fake.before_forward = gate.Hook();
  ASSERT_TRUE(run.Submit(Endless(1, 20, 5)).ok());
  gate.AwaitEntered();
  std::promise<void> drained;
  std::future<void> done = drained.get_future();
  run.engine->Drain([&] { drained.set_value(); });
  EXPECT_TRUE(absl::IsUnavailable(run.Submit(Endless(2, 20, 5))));
  EXPECT_EQ(done.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  gate.Open();
  Running::Await(std::move(done));
  EXPECT_EQ(run.Now(1).finish, FinishReason::kLength);
}

TEST(EngineThreads, ShutdownAbortsEverythingAndAnswersWhoComesLate) {
  Running run;
  for (RequestKey key = 1; key <= 20; ++key) ASSERT_TRUE(run.Submit(Endless(key, 100, 150)).ok());
  run.engine->Shutdown();
  for (RequestKey key = 1; key <= 20; ++key) EXPECT_NE(run.Now(key).finish, FinishReason::kNone) << key;
  EXPECT_TRUE(absl::IsUnavailable(run.Submit(Endless(21, 10, 5))));
  EXPECT_TRUE(absl::IsUnavailable(run.Cancel(1)));
  run.engine->Shutdown();  // again
}

TEST(EngineThreads, ARequestThatSlipsInDuringShutdownDoesNotKeepItUp) {
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
  ASSERT_TRUE(run.Submit(Endless(1, 20, 100)).ok());
  gate.AwaitEntered();
  std::thread closer([&] { run.engine->Shutdown(); });
  EXPECT_EQ(run.Ended(1).finish, FinishReason::kAbort);
  gate.Open();
  closer.join();
  EXPECT_EQ(run.Now(2).finish, FinishReason::kAbort);
}

TEST(EngineThreads, WhatIsPostedBehindRunsAfterAllThatCameWhileTheThreadStoodStill) {
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

TEST(EngineThreads, EventsSayWhichUnitsBecameReadable) {
  Running run;
  const Request r = Endless(1, 70, 3);
  ASSERT_TRUE(run.Submit(r).ok());
  run.Ended(1);
  run.engine->Shutdown();
  const std::vector<PrefixHash> chain = run.hasher.Chain(run.hasher.Root({"", "", ""}), r.tokens);
  ASSERT_EQ(run.kv.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(run.kv[i].hash, chain[i]);
    EXPECT_EQ(run.kv[i].kind, KvEvent::Kind::kStored);
  }
}

}  // namespace
}  // namespace baton::engine
