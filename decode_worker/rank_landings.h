// The landing memories of a decode worker whose ranks are processes: rank 0's own, and one in each other rank, which is
// told what to do by a line. To the desk they are one: numbers of writers and memories say whose they are
// (kvtransfer/rank_numbers.h).
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "decode_worker/landing.h"
#include "kvtransfer/transports/rank_addresses.h"
#include "worker/ranks/kv_carrier.h"
#include "worker/ranks/other_ranks.h"

namespace baton::decode_worker {

/// The landing of a rank other than 0.
absl::StatusOr<std::unique_ptr<worker::KvCarrier>> MakeRankLanding(const worker::CarrierContext& context);

/// Transfer thread of rank 0, but for what says otherwise.
class RankLandings final : public LandingControl {
 public:
  /// `own`: rank 0's. `side`: of the worker. `events` hears of all other ranks' writers. All must outlive it.
  RankLandings(Landing& own, const KvSide& side, worker::RankLines& lines, LandingEvents& events);

  void Send(WriterId writer, const ToPrefill& message) override;
  void Place(const ScatterOrder& order) override;
  void Cut(WriterId writer) override;
  void Release(WriterId writer) override;
  void Replace(uint32_t memory) override;
  void Drop(uint32_t memory) override;
  /// At every TransferBeat.
  void Tick() { ranks_.Tick(); }

  // ---- any thread
  FenceKind FenceOf(WriterId writer) const override;
  uint32_t MemoryOf(WriterId writer) const override { return own_.MemoryOf(writer); }
  /// Of all ranks, now: RankAddresses.
  std::string address() const;
  /// Of the ranks from 1 on, as they said last.
  std::vector<RankFigures> figures() const { return ranks_.figures(); }

 private:
  void OnNews(int rank, const RankNews& news);
  void OnOtherNews(int rank, const v1::RankNews& news);
  void OnPeerMessage(const v1::RankNews& news);

  Landing& own_;
  LandingEvents& events_;
  mutable std::mutex mutex_;              ///< guards what follows
  RankAddresses addresses_;               ///< of the ranks from 1 on; rank 0's is empty
  std::map<WriterId, FenceKind> fences_;  ///< of writers that have said hello
  worker::OtherRanks ranks_;              ///< last: it calls back
};

}  // namespace baton::decode_worker
