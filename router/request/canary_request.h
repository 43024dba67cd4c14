// A canary on its way: a tiny request of the router's own (fleet/canary_book.h), through a prefill worker, the transfer
// and a decode worker, or through one worker alone. It takes the orders that every request gives (RequestFlow), but is
// tried once, is shorter than a unit of the prefix cache, goes before requests that wait, and counts in no metric,
// quota or load. Home loop of the fleet.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "router/event_loop.h"
#include "router/fleet/fleet.h"
#include "router/request/request_flow.h"

namespace baton::router {

class CanaryRequest final : public LegEvents, public std::enable_shared_from_this<CanaryRequest> {
 public:
  static constexpr Duration kMostTime = std::chrono::seconds(10);
  using Done = std::function<void(const absl::Status&)>;

  /// `workers`, `loop` and `clock` must outlive it, and it lives until `done` was called, once, or `loop` runs no more.
  static std::shared_ptr<CanaryRequest> Start(Workers& workers, EventLoop& loop, const Clock& clock,
                                              const CanaryLegs& legs, Done done);

  EventLoop& loop() override { return loop_; }
  void OnNews(RelayNews&& news) override;
  void OnAnswer(const LegKey& key, LegAnswer answer) override;
  void OnWorkerLost(WorkerId worker, const absl::Status& why) override;

 private:
  CanaryRequest(Workers& workers, EventLoop& loop, const Clock& clock, const CanaryLegs& legs, Done done);
  void Pump();
  void Do(const PickWorker& action);
  void Do(const PickPrefill& action);
  void Do(const SendTo& action);
  void Do(const Complete& action);
  void Do(const Fail& action);
  void Do(const ArmTimer& action);
  /// What a client would see.
  template <class Other>
  void Do(const Other&) {}
  void GiveUp(const absl::Status& status);
  void Finish(const absl::Status& status);

  Workers& workers_;
  EventLoop& loop_;
  const Clock& clock_;
  const CanaryLegs legs_;
  const TokenizedRequest generation_;
  RequestFlow flow_;
  const std::unique_ptr<EventLoopTimer> timer_;
  Done done_;            ///< null: called
  bool picked_ = false;  ///< its workers are in the flow
  absl::Status seen_;    ///< what went wrong though the answer went on
};

}  // namespace baton::router
