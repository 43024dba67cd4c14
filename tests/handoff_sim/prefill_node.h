// A prefill worker around the real Push core: computes, keeps source blocks, posts writes that end when they please.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "prefill_worker/handoff/push.h"
#include "world.h"

namespace baton::sim {

class PrefillNode final : public Node {
 public:
  PrefillNode(World& world, int index);
  // From the network.
  void OnPrefill(int request, uint64_t connection, prefill::Prefill event);
  void OnCancel(const prefill::JobKey& key);
  void OnMessage(uint64_t connection, const ToPrefill& message) { Handle(prefill::FromDecode{connection, message}); }
  void OnPeerLost(uint64_t connection);
  /// What is held; empty: nothing.
  std::string Holds() const;
  void CheckEnd();

 private:
  struct Source {
    int request = 0;
    bool released = false;
    bool stopping = false;
  };
  /// One posted write.
  struct Flight {
    uint64_t connection;
    LaneKey lane;
    SlotTurn slot;
    std::vector<std::pair<uint32_t, uint64_t>> cells;  ///< (segment, content)
    bool corrupted = false;                            ///< by an injected fault
    bool ended = false;                                ///< reported
    bool ok = true;
  };
  using FlightPtr = std::shared_ptr<Flight>;

  void Reborn() override;
  void Timer();
  void Handle(const prefill::Event& event);
  void Do(const prefill::SendToDecode& action);
  void Do(const prefill::WriteSlot& action);
  void Do(const prefill::FlushLane& action);
  void Do(const prefill::CutPeer& action);
  void Do(const prefill::Reply& action);
  void Do(const prefill::StopCompute& action);
  void Do(const prefill::ReleaseSource& action);
  void Do(const prefill::CancelAnswer& action);
  void Fly(FlightPtr flight);
  void Report(const FlightPtr& flight, absl::Status status);
  void Land(const Flight& flight);
  void EndFlush(uint64_t connection, const LaneKey& lane);
  void CheckGivenUp();
  void Compute(const prefill::JobKey& key, uint32_t layer);

  const int index_;
  std::unique_ptr<prefill::Push> core_;
  std::map<prefill::JobKey, Source> sources_;
  std::map<std::pair<uint64_t, LaneKey>, std::vector<FlightPtr>> flights_;
  std::set<std::pair<uint64_t, LaneKey>> flushing_;
  std::set<prefill::JobKey> cancelled_;
  std::map<prefill::JobKey, TimePoint> given_up_;
  TimePoint checked_at_{};
};

}  // namespace baton::sim
