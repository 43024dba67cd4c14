#include "router/fleet/worker_link.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>

#include "common/str_cat.h"
#include "tests/router/now_loop.h"

namespace baton::router {
namespace {

using std::chrono::milliseconds;

/// What a wire was given, to be called by a test.
struct Held {
  std::function<void(LegAnswer)> answer;
  WorkerWire::RelayHandlers relay;
  WorkerWire::WatchHandlers watch;
};

/// Greets at once, and keeps what is to be answered.
class HandWire final : public WorkerWire {
 public:
  explicit HandWire(Held& held) : held_(held) {}
  void Handshake(const std::string&, Duration, std::function<void(HandshakeAnswer)> done) override {
    HandshakeAnswer hello;
    hello.protocol = WorkerProtocol();
    hello.facts.incarnation = "life";
    done(hello);
  }
  void OpenRelay(uint64_t, RelayHandlers handlers) override { held_.relay = std::move(handlers); }
  void OpenWatch(WatchHandlers handlers) override { held_.watch = std::move(handlers); }
  bool HasUnread() const override { return false; }
  void CloseSession() override {}
  absl::Status Send(uint64_t, const TokenizedRequest&, const LegOrder&,
                    std::function<void(LegAnswer)> on_answer) override {
    held_.answer = std::move(on_answer);
    return absl::OkStatus();
  }
  void Renew(uint64_t, const std::vector<LegRenewal>&) override {}
  void Meet(uint64_t, const std::string&) override {}
  void Flip(WorkerRole, Duration, std::function<void(FlipAnswer)>) override {}
  void Shutdown() override {}

 private:
  Held& held_;
};

class TakesEverybody final : public LinkHost {
 public:
  std::string GreetingKey(bool) override { return {}; }
  absl::Status Admit(int32_t, const WorkerFacts&) override { return absl::OkStatus(); }
  void OnReady(int32_t) override {}
};

class HeardStatus final : public LegEvents {
 public:
  explicit HeardStatus(EventLoop& loop) : loop_(loop) {}
  EventLoop& loop() override { return loop_; }
  void OnNews(RelayNews&&) override {}
  void OnAnswer(const LegKey&, LegAnswer answer) override {
    const auto* reserved = std::get_if<ReserveResult>(&answer);
    status = reserved != nullptr ? reserved->status : std::get<PrefillResult>(answer).status;
  }
  void OnWorkerLost(WorkerId, const absl::Status&) override {}
  absl::Status status;

 private:
  EventLoop& loop_;
};

/// A link to a worker that serves.
struct World {
  FakeClock clock;
  NowLoop loop{clock};
  RouterConfig config;
  TakesEverybody host;
  WorkerPrefixes index{1 << 20};
  Held held;
  std::shared_ptr<WorkerLink> link = std::make_shared<WorkerLink>(
      0, "worker:7000", WorkerLink::Parts{config, loop, host, index, clock}, std::make_unique<HandWire>(held));
  std::shared_ptr<HeardStatus> heard = std::make_shared<HeardStatus>(loop);

  World() { link->Start(); }
  void Send(const LegOrder& order) { link->Send(link->View().id, {}, order, heard); }
  void Drains() {
    held.watch.on_event({.kind = WatchEvent::Kind::kState,
                         .incarnation = "life",
                         .sequence_number = 1,
                         .state = LinkState::kDraining,
                         .detail = "changes its role"},
                        [] {});
  }
  void StreamsEnd() {
    held.watch.on_closed(absl::UnavailableError("the worker changes its role"));
    held.relay.on_closed(absl::UnavailableError("the worker changes its role"));
  }
};

/// What a request hears of a leg whose call ended with `code`.
absl::Status Heard(const LegOrder& order, absl::StatusCode code) {
  World w;
  w.Send(order);
  const absl::Status status(code, "as it ended");
  if (std::holds_alternative<ReserveLeg>(order)) {
    w.held.answer(ReserveResult{status});
  } else {
    w.held.answer(PrefillResult{status});
  }
  return w.heard->status;
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

// Streams are read by threads of their own: the end of one may be read before the last word on another.
TEST(WorkerLink, WhatAWorkerThatDrainedSaidLastIsHeardThoughItsStreamsEndBefore) {
  World w;
  w.Send(PrefillLeg{{"a", 1, 1}});
  w.Drains();
  w.StreamsEnd();
  EXPECT_TRUE(w.heard->status.ok()) << w.heard->status;
  EXPECT_EQ(w.link->View().state, LinkState::kDraining);
  w.held.answer(PrefillResult{absl::AlreadyExistsError("its end")});
  w.loop.Advance(milliseconds(5));
  EXPECT_EQ(w.heard->status, absl::AlreadyExistsError("its end"));
  EXPECT_EQ(w.link->View().state, LinkState::kLost);
  EXPECT_TRUE(w.link->View().left_in_order);
  EXPECT_EQ(w.link->View().losses, 0);
}

TEST(WorkerLink, AWorkerThatEndsItsStreamsIsLostWithWhatItOwes) {
  for (const bool drains : {false, true}) {
    World w;
    w.Send(PrefillLeg{{"a", 1, 1}});
    if (drains) {
      w.Drains();
      w.StreamsEnd();
      w.loop.Advance(WorkerLink::kLastWordsWithin - milliseconds(1));
      EXPECT_TRUE(w.heard->status.ok()) << "it may come yet";
      w.loop.Advance(milliseconds(5));
    } else {
      w.StreamsEnd();
    }
    EXPECT_TRUE(absl::IsUnavailable(w.heard->status)) << w.heard->status;
    EXPECT_EQ(w.link->View().losses, 1);
  }
}

TEST(WorkerLink, ARouterThatStopsWaitsForNoLastWords) {
  World w;
  w.Send(PrefillLeg{{"a", 1, 1}});
  w.Drains();
  w.StreamsEnd();
  w.link->Leave(absl::CancelledError("the router stops"));
  EXPECT_TRUE(absl::IsCancelled(w.heard->status)) << w.heard->status;
  w.StreamsEnd();
  w.loop.Advance(milliseconds(5));
  EXPECT_EQ(w.link->View().losses, 1);
}

}  // namespace
}  // namespace baton::router
