// A fleet on one thread, between workers that a test greets and speaks for.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/kv_digest.h"
#include "router/endpoint.h"
#include "router/fleet/fleet.h"
#include "tests/router/now_loop.h"

namespace baton::router {

/// What is at an address: its facts are what it says when it is greeted next.
struct FarWorker {
  absl::Status greets;
  std::string phase;  ///< not empty: it loads
  double progress = 0;
  WorkerFacts facts;
  WorkerWire::RelayHandlers relay;
  WorkerWire::WatchHandlers watch;
  uint64_t said = 0;             ///< events
  std::vector<std::string> met;  ///< landing addresses
  std::function<void(FlipAnswer)> flips;
  bool thinks = false;            ///< a greeting is answered when the test does so
  std::function<void()> answers;  ///< the one that was thought about
};

class GreetedWire final : public WorkerWire {
 public:
  explicit GreetedWire(FarWorker& far) : far_(far) {}
  void Handshake(const std::string&, Duration, std::function<void(HandshakeAnswer)> done) override {
    HandshakeAnswer hello{far_.greets};
    hello.loading = !far_.phase.empty(), hello.phase = far_.phase, hello.progress = far_.progress;
    hello.protocol = WorkerProtocol();
    hello.facts = far_.facts;
    if (far_.thinks)
      far_.answers = [done = std::move(done), hello] { done(hello); };
    else
      done(std::move(hello));
  }
  void OpenRelay(uint64_t, RelayHandlers handlers) override { far_.relay = std::move(handlers); }
  void OpenWatch(WatchHandlers handlers) override { far_.watch = std::move(handlers), far_.said = 0; }
  bool HasUnread() const override { return false; }
  void CloseSession() override {}
  absl::Status Send(uint64_t, const TokenizedRequest&, const LegOrder&, std::function<void(LegAnswer)>) override {
    return absl::OkStatus();
  }
  void Renew(uint64_t, const std::vector<LegRenewal>&) override {}
  void Meet(uint64_t, const std::string& landing_address) override { far_.met.push_back(landing_address); }
  void Flip(WorkerRole, Duration, std::function<void(FlipAnswer)> done) override { far_.flips = std::move(done); }
  void Shutdown() override {}

 private:
  FarWorker& far_;
};

class FleetTest : public ::testing::Test {
 protected:
  ~FleetTest() override {
    if (fleet_) fleet_->Stop();
  }
  /// At this address, from the next greeting on.
  FarWorker& Worker(const std::string& address, WorkerRole role, const std::string& life) {
    FarWorker& far = far_[address];
    far.facts.role = role, far.facts.incarnation = life, far.facts.worker_id = life, far.facts.numerics_id = "x";
    far.facts.kv_digest = kKvDigestName, far.facts.model_digest = "m";
    far.facts.max_model_len = 4096, far.facts.vocab_size = 100, far.facts.max_num_seqs = 8;
    far.facts.prefill_tokens_per_s = 1000, far.facts.decode_step_ms = 10;
    far.facts.landing_address = role == WorkerRole::kDecode ? "lands at " + life : "";
    return far;
  }
  void Start() {
    fleet_ = Fleet::Create(config_, {loop_, loop_}, clock_, [this](const std::string& address) {
               return std::make_unique<GreetedWire>(far_[address]);
             }).value();
    fleet_->Start();
    List({});
  }
  /// Those, and no others.
  void List(const std::vector<std::string>& addresses) {
    std::vector<Endpoint> endpoints;
    for (const std::string& address : addresses) endpoints.push_back({address});
    fleet_->SetEndpoints(std::move(endpoints));
  }
  void Say(const std::string& address, WatchEvent event) {
    FarWorker& far = far_.at(address);
    event.incarnation = far.facts.incarnation, event.sequence_number = ++far.said;
    far.watch.on_event(std::move(event), [] {});
  }
  LinkView View(const std::string& address) const {
    for (LinkView& view : fleet_->Views()) {
      if (view.address == address) return std::move(view);
    }
    return {};
  }
  static TokenizedRequest Request(int32_t tokens) {
    TokenizedRequest g;
    g.request_id = "r";
    g.prompt = std::vector<int32_t>(static_cast<size_t>(tokens), 7);
    return g;
  }

  RouterConfig config_;
  FakeClock clock_;
  NowLoop loop_{clock_};
  std::map<std::string, FarWorker> far_;
  std::unique_ptr<Fleet> fleet_;
};

}  // namespace baton::router
