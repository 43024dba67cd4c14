#include "router/fleet/worker_link.h"

#include <gtest/gtest.h>

#include <utility>

#include "common/str_cat.h"
#include "tests/router/hand_event_loop.h"

namespace baton::router {
namespace {

/// Greets at once, and keeps what is to be answered.
class HandWire final : public WorkerWire {
 public:
  explicit HandWire(std::function<void(LegAnswer)>& answer) : answer_(answer) {}
  void Handshake(const std::string&, Duration, std::function<void(HandshakeAnswer)> done) override {
    HandshakeAnswer hello;
    hello.protocol = WorkerProtocol();
    hello.facts.incarnation = "life";
    done(hello);
  }
  void OpenRelay(uint64_t, RelayHandlers) override {}
  void OpenWatch(WatchHandlers) override {}
  bool HasUnread() const override { return false; }
  void CloseSession() override {}
  absl::Status Send(uint64_t, const TokenizedRequest&, const LegOrder&,
                    std::function<void(LegAnswer)> on_answer) override {
    answer_ = std::move(on_answer);
    return absl::OkStatus();
  }
  void Renew(uint64_t, const std::vector<LegRenewal>&) override {}
  void Meet(uint64_t, const std::string&) override {}
  void Flip(WorkerRole, Duration, std::function<void(FlipAnswer)>) override {}
  void Shutdown() override {}

 private:
  std::function<void(LegAnswer)>& answer_;
};

class TakesEverybody final : public LinkHost {
 public:
  std::string GreetingKey(bool) override { return {}; }
  absl::Status Admit(int32_t, const WorkerFacts&) override { return absl::OkStatus(); }
  void OnReady(int32_t) override {}
};

class HeardStatus final : public LegEvents {
 public:
  explicit HeardStatus(HandEventLoop& loop) : loop_(loop) {}
  EventLoop& loop() override { return loop_; }
  void OnNews(RelayNews&&) override {}
  void OnAnswer(const LegKey&, LegAnswer answer) override {
    const auto* reserved = std::get_if<ReserveResult>(&answer);
    status = reserved != nullptr ? reserved->status : std::get<PrefillResult>(answer).status;
  }
  void OnWorkerLost(WorkerId, const absl::Status&) override {}
  absl::Status status;

 private:
  HandEventLoop& loop_;
};

/// What a request hears of a leg whose call ended with `code`.
absl::Status Heard(const LegOrder& order, absl::StatusCode code) {
  HandEventLoop loop;
  const RouterConfig config{};
  TakesEverybody host;
  WorkerPrefixes index(1 << 20);
  const FakeClock clock{};
  std::function<void(LegAnswer)> answer;
  const auto link = std::make_shared<WorkerLink>(0, "worker:7000", WorkerLink::Parts{config, loop, host, index, clock},
                                                 std::make_unique<HandWire>(answer));
  link->Start();
  loop.Run();
  const auto heard = std::make_shared<HeardStatus>(loop);
  link->Send(link->View().id, {}, order, heard);
  const absl::Status status(code, "as it ended");
  if (std::holds_alternative<ReserveLeg>(order)) {
    answer(ReserveResult{status});
  } else {
    answer(PrefillResult{status});
  }
  loop.Run();
  return heard->status;
}

// A worker that was started again with a secret takes the router for a stranger until it is greeted; whose call was cut
// off hears CANCELLED, UNKNOWN or INTERNAL. Neither says anything of the request, which goes elsewhere.
TEST(WorkerLink, ALegThatSaysNothingOfItsRequestIsUnavailable) {
  const LegOrder reserve = ReserveLeg{{"a", 1, 0}}, prefill = PrefillLeg{{"a", 1, 1}};
  for (const LegOrder& order : {reserve, prefill}) {
    for (const absl::StatusCode code : {absl::StatusCode::kUnauthenticated, absl::StatusCode::kCancelled,
                                        absl::StatusCode::kUnknown, absl::StatusCode::kInternal}) {
      const absl::Status heard = Heard(order, code);
      EXPECT_EQ(heard.code(), absl::StatusCode::kUnavailable) << code;
      EXPECT_NE(heard.message().find("as it ended"), std::string::npos) << heard;
    }
    for (const absl::StatusCode code : {absl::StatusCode::kInvalidArgument, absl::StatusCode::kUnavailable,
                                        absl::StatusCode::kResourceExhausted, absl::StatusCode::kAborted})
      EXPECT_EQ(Heard(order, code), absl::Status(code, "as it ended"));
  }
}

}  // namespace
}  // namespace baton::router
