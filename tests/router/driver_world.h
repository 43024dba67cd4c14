// A request's driver between its flow and scripted workers: every order is text: "reserve r0/1 w1".
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "router/request/request_driver.h"
#include "tests/router/flow_text.h"
#include "tests/router/hand_event_loop.h"
#include "tests/router/now_loop.h"
#include "text/stop_matcher.h"

namespace baton::router {

/// Chooses what the test says, and notes what is sent.
class ScriptedWorkers final : public Workers {
 public:
  struct Choice {
    WorkerId decode;
    bool pair = false;
    uint32_t local_prefill_tokens = 0;
  };
  static constexpr WorkerId kP{0, 1}, kD1{1, 2}, kD2{2, 3}, kOther{3, 4};  // the last has other numerics
  static constexpr WorkerId kP2{4, 5};
  absl::StatusOr<RoutedTo> Choose(const TokenizedRequest&, uint32_t, const std::vector<WorkerId>&, bool pair_allowed,
                                  const std::string& numerics_so_far) override {
    with_prefill = pair_allowed;
    so_far = numerics_so_far;
    if (next.empty()) return absl::UnavailableError("no worker");
    const Choice choice = next.front();
    if (next.size() > 1) next.pop_front();
    RoutedTo placement{.worker = choice.decode, .ticket = LoadShare(load, 0)};
    placement.local_prefill_tokens = choice.local_prefill_tokens;
    if (choice.pair)
      placement.prefill = std::make_unique<RoutedTo>(RoutedTo{.worker = kP, .ticket = LoadShare(load, 8)});
    return placement;
  }
  absl::StatusOr<RoutedTo> ChoosePrefill(const TokenizedRequest&, const std::vector<WorkerId>& excluded,
                                         WorkerId) override {
    not_to_prefill = excluded;
    if (!other_prefill) return absl::UnavailableError("no other prefill worker");
    return RoutedTo{.worker = *other_prefill, .ticket = LoadShare(load, 8)};
  }
  bool MayComeBack(bool) const override { return true; }
  std::string NumericsOf(WorkerId id) const override { return id == kOther ? "y" : "x"; }
  std::string NameOf(WorkerId id) const override { return StrCat("w", id.index); }
  void NoteHandoff(double) override {}
  void Send(WorkerId id, const TokenizedRequest& generation, const LegOrder& order,
            std::shared_ptr<LegEvents> to) override {
    if (const auto* attach = std::get_if<AttachLeg>(&order)) {
      gen[generation.request_id] = attach->attach_gen;
      deadline_ms = attach->deadline_ms;
      if (attach->grant != nullptr) tickets.push_back(attach->grant->ticket);
    }
    absl::StrAppend(&sent, sent.empty() ? "" : ", ", DescribeOrder(id, order));
    events[generation.request_id] = std::move(to);
  }
  void Forget(WorkerId id, const std::string& leg_id) override {
    absl::StrAppend(&forgotten, leg_id, " w", id.index, "; ");
  }

  FakeClock clock;
  std::shared_ptr<OutstandingLoad> load = std::make_shared<OutstandingLoad>(clock);
  std::deque<Choice> next{{kD1}};
  std::optional<WorkerId> other_prefill = kP;  ///< the answer of ChoosePrefill
  std::map<std::string, std::shared_ptr<LegEvents>> events;
  std::map<std::string, uint64_t> gen;
  std::vector<std::string> tickets;
  std::vector<WorkerId> not_to_prefill;
  std::string sent, forgotten, so_far;
  bool with_prefill = false;
  uint32_t deadline_ms = 0;
};

class NotedSink final : public AnswerSink {
 public:
  void OnAdmitted(const TokenizedRequest&, int64_t cached_tokens) override { ++admitted, cached = cached_tokens; }
  void OnPromptLogprobs(std::vector<PositionLogprobs>) override {}
  void OnDelta(ChoiceDelta&& delta, const RequestUsage&) override {
    ++deltas;
    text += delta.text;
    tokens.insert(tokens.end(), delta.token_ids.begin(), delta.token_ids.end());
  }
  void OnChoiceEnd(const ChoiceFinish& finish) override { stop_token = finish.stop_token_id; }
  void OnDone(const RequestSummary& summary) override {
    end = summary.mixed_numerics ? "mixed" : "done";
    timings = summary.timings;
    times = summary.times;
  }
  void OnFailed(const ApiError& error) override { end = StrCat("failed ", error.http_status); }
  size_t UnsentBytes() const override { return unsent; }
  uint64_t TakenBytes() const override { return taken; }

  int deltas = 0, admitted = 0;
  int64_t cached = 0;
  std::vector<int32_t> tokens;
  std::string text, end;
  std::optional<int32_t> stop_token;
  size_t unsent = 0;
  uint64_t taken = 0;
  StageTimings timings;
  AnswerTimes times;
};

class RequestDriverTest : public ::testing::Test {
 protected:
  static constexpr WorkerId kP = ScriptedWorkers::kP, kD1 = ScriptedWorkers::kD1, kD2 = ScriptedWorkers::kD2,
                            kOther = ScriptedWorkers::kOther, kP2 = ScriptedWorkers::kP2;
  struct Running {
    std::shared_ptr<RequestDriver> call;
    std::shared_ptr<NotedSink> sink = std::make_shared<NotedSink>();
  };

  static void SetUpTestSuite() {
    model_ = new ModelText(ModelText::Load("tests/data/tiny-llama", "", false, 0).value());
  }
  static void TearDownTestSuite() { delete model_; }

  Running Ask(const std::string& id, bool include_stop = false, const std::vector<std::string>& stop = {},
              const SamplingOptions& sampling = {}) {
    TokenizedRequest g;
    g.request_id = id;
    g.prompt = {5, 6, 7, 8, 9, 10, 11, 12};
    g.sampling = ResolveSampling(sampling, {});
    g.include_stop_str_in_output = include_stop;
    g.sampling.max_tokens = 3;
    g.sampling.seed = 1;
    g.timeout = timeout_;
    std::vector<ChoiceText> texts;
    for (int32_t choice = 0; choice < g.sampling.n; ++choice)
      texts.emplace_back(*model_->tokenizer, g, StopMatcher::Create(stop, false).value());
    Running running;
    std::vector<AdmissionHold> tickets;
    tickets.push_back(std::get<AdmissionHold>(admission_.Enter({}, {})));
    running.call = std::make_shared<RequestDriver>(services_, *calls_loop_, std::move(g), std::move(texts),
                                                   workers_.clock.Now(), std::move(tickets), running.sink);
    running.call->Start();
    return running;
  }
  /// What was sent since the last look.
  std::string Sent() { return std::exchange(workers_.sent, ""); }
  /// Token `number` of the answer, from the leg of now; the third is the last.
  void Token(const std::string& id, int32_t number) {
    RelayNews news;
    news.attach_gen = workers_.gen.at(id), news.position = 8 + static_cast<uint64_t>(number), news.accepted = true;
    news.token_ids = {100 + number};
    if (number == 2) news.finish = FinishReason::kLength;
    workers_.events.at(id)->OnNews(std::move(news));
    loop_.Run();
  }
  std::string Counted(const std::string& metric) {
    const std::string text = metrics_.Render({}, {});
    const size_t line = text.find("\n" + metric + "{") + 1, value = text.find("} ", line) + 2;
    return text.substr(value, text.find('\n', line) - value);
  }
  void Lose(const std::string& id, WorkerId worker) {
    workers_.events.at(id)->OnWorkerLost(worker, absl::UnavailableError("gone"));
    loop_.Run();
  }
  void Reserved(const std::string& id, uint32_t attempt, absl::Status status, const std::string& ticket = "t") {
    ReserveResult result{std::move(status)};
    result.grant.ticket = ticket;
    workers_.events.at(id)->OnAnswer({id, attempt, 0}, std::move(result));
    loop_.Run();
  }
  void Prefilled(const std::string& id, uint32_t attempt, uint32_t epoch, absl::Status status) {
    PrefillResult result{std::move(status)};
    if (result.status.ok()) result.first = {FirstToken{.index = 0, .token_id = 100}};
    Told(id, attempt, epoch, std::move(result));
  }
  /// The prefill worker of the attempt's first epoch says that its decode worker has no room for the KV.
  void NoRoomFor(const std::string& id, uint32_t attempt) {
    PrefillResult result{absl::ResourceExhaustedError("no room")};
    result.no_room = true;
    Told(id, attempt, 1, std::move(result));
  }
  void Told(const std::string& id, uint32_t attempt, uint32_t epoch, PrefillResult result) {
    workers_.events.at(id)->OnAnswer({id, attempt, epoch}, std::move(result));
    loop_.Run();
  }

  static inline ModelText* model_ = nullptr;
  RouterConfig config_;
  std::optional<Duration> timeout_;
  Admission admission_{8, 100000, /*several_keys=*/true};  // outlives the requests, which workers_ holds
  std::optional<NowLoop> timed_;                           ///< of requests whose timers matter
  ScriptedWorkers workers_;
  HandEventLoop loop_;
  EventLoop* calls_loop_ = &loop_;  ///< of requests that are asked from now on
  RetryBudget budget_{0, 1, admission_};
  RouterMetrics metrics_{"m"};
  const CallServices services_{config_, *model_, workers_.clock, workers_, admission_, budget_, metrics_};
};

}  // namespace baton::router
