// A prefill and a decode worker in one thread: both desks, sender and landing over a transport, two schedulers with the
// fake model, and a router that starts over when a leg fails. Everything a thread of its own would do is a turn; a seed
// decides which turn comes next.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "decode_worker/landing.h"
#include "decode_worker/ticket_desk.h"
#include "prefill_worker/prefill_desk.h"
#include "prefill_worker/sender.h"
#include "sim/stepped_engine.h"
#include "tests/kvtransfer/host_mover.h"
#include "tests/worker/hand_loop.h"
#include "tests/worker/one_rank.h"
#include "tests/worker/relay_fixture.h"
#include "worker/relay/codec.h"

namespace baton {

struct PairOptions {
  uint64_t seed = 1;
  TransportMaker prefill_transport, decode_transport;
  int prefill_block = 16, decode_block = 16, window = 0;
  int prefill_blocks = 128, decode_blocks = 128;
  int chunk = 64;      ///< rows of a step
  int chunk_each = 0;  ///< of one prompt; 0: all of them
  int landing_slots = 4;
  double cuts = 0;                ///< per turn: decode cuts the connection
  uint32_t lent_buffers = 0;      ///< of a device's outbox on each side; 0: KV is the host's
  bool decode_on_device = false;  ///< the decode side's KV alone, whose slots are pinned
};

class HandoffPair {
 public:
  explicit HandoffPair(PairOptions options);
  ~HandoffPair();

  /// Runs `attaches` (their ids are their names) to the end and compares every token with what one worker answers.
  void Answer(const std::vector<v1::Attach>& attaches);
  /// Turns until nobody holds anything.
  void ExpectNothingHeld();
  decode::HandoffStats decode_stats() const { return desk_->Stats(); }
  prefill::PushStats prefill_stats() const { return jobs_->Stats(); }
  int restarts() const { return restarts_; }
  /// Null: KV is the host's.
  const HostMover* decode_mover() const { return decode_mover_.get(); }

 private:
  class WorldClock final : public Clock {
   public:
    TimePoint Now() const override { return now; }
    TimePoint now{std::chrono::seconds(1)};
  };
  struct PrefillPolicy final : engine::RolePolicy {
    bool HoldAfterFirstToken(engine::RequestKey key) const override { return prefill_worker::PrefillDesk::IsJob(key); }
    bool HandBackPreempted(engine::RequestKey key, int32_t) const override {
      return prefill_worker::PrefillDesk::IsJob(key);
    }
  };
  struct DecodePolicy final : engine::RolePolicy {
    bool ReleasePins() override { return desk->Shed(); }
    decode_worker::TicketDesk* desk = nullptr;
  };
  struct ToPrefillDesk final : prefill_worker::SenderEvents {
    explicit ToPrefillDesk(HandoffPair& p) : pair(p) {}
    void OnPush(const prefill::Event& event) override {
      pair.prefill_inbox_.push_back([this, event] { pair.jobs_->Handle(event); });
    }
    HandoffPair& pair;
  };
  struct ToDecodeDesk final : decode_worker::LandingEvents {
    explicit ToDecodeDesk(HandoffPair& p) : pair(p) {}
    template <class Work>
    void Tell(Work work) {
      pair.decode_inbox_.push_back(std::move(work));
    }
    void OnHello(WriterId w, LaneHello hello) override {
      pair.writers_.push_back(w);
      Tell([this, w, hello] { pair.desk_->OnHello(w, hello); });
    }
    void OnLane(WriterId w, ToDecode m) override {
      Tell([this, w, m] { pair.desk_->OnLane(w, m); });
    }
    void OnScattered(const decode::Scattered& placed) override {
      Tell([this, placed] { pair.desk_->Handle(placed); });
    }
    void OnWriterLost(WriterId w) override {
      Tell([this, w] { pair.desk_->OnWriterGone(w, false); });
    }
    void OnWriterFenced(WriterId w) override {
      Tell([this, w] { pair.desk_->OnWriterGone(w, true); });
    }
    HandoffPair& pair;
  };
  struct Client;
  struct Leg;

  void Turn();
  void StepPrefill();
  void StepDecode();
  void StartOver(Client& client);
  void SendPrefill(Client& client, const decode::ReserveAnswer& ticket);
  void OnPrefilled(Client& client, int attempt, const absl::Status& status, bool no_room,
                   const std::vector<engine::SequenceOutput>& first);
  void Attach(Client& client, const v1::Attach& attach);
  void Listen(Client& client);
  std::map<uint32_t, std::vector<int32_t>> Alone(const v1::Attach& attach);
  std::string Holding();
  void CheckOwners();

  const PairOptions options_;
  std::mt19937_64 random_;
  WorldClock clock_;
  PrefillPolicy prefill_policy_;
  DecodePolicy decode_policy_;
  engine::SteppedEngine prefill_, decode_;
  worker::HandLoop prefill_loop_, decode_loop_;
  std::deque<std::function<void()>> prefill_inbox_, decode_inbox_;
  ToPrefillDesk to_prefill_{*this};
  ToDecodeDesk to_decode_{*this};
  std::unique_ptr<HostMover> prefill_mover_, decode_mover_;
  std::unique_ptr<prefill_worker::Sender> sender_;
  std::unique_ptr<prefill_worker::PrefillDesk> jobs_;
  std::unique_ptr<decode_worker::Landing> landing_;
  std::unique_ptr<decode_worker::TicketDesk> desk_;
  std::unique_ptr<worker::RelayBook> book_;
  std::vector<WriterId> writers_;
  std::vector<std::unique_ptr<Client>> clients_;
  int restarts_ = 0;
};

}  // namespace baton
