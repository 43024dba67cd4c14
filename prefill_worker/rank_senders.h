// The senders of a prefill worker whose ranks are processes: rank 0's own, and one in each other rank, which is told
// what to do by a line. To the desk they are one: a peer's number says whose it is (kvtransfer/rank_numbers.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "prefill_worker/sender.h"
#include "worker/ranks/kv_carrier.h"
#include "worker/ranks/other_ranks.h"

namespace baton::prefill_worker {

/// The sender of a rank other than 0.
absl::StatusOr<std::unique_ptr<worker::KvCarrier>> MakeRankSender(const worker::CarrierContext& context);

/// Transfer thread of rank 0, but for what says otherwise.
class RankSenders final : public SenderControl {
 public:
  /// `own`: rank 0's. `events` hears of all other ranks' peers. All must outlive it.
  RankSenders(Sender& own, worker::RankLines& lines, SenderEvents& events);

  void Connect(prefill::PeerId peer, const std::string& addresses) override;
  void Send(prefill::PeerId peer, const ToDecode& message) override;
  void Write(WriteOrder order) override;
  void Flush(prefill::PeerId peer, const LaneKey& lane) override;
  void Cut(prefill::PeerId peer) override;
  /// At every TransferBeat.
  void Tick();

  // ---- any thread
  /// Of the ranks from 1 on, as they said last.
  std::vector<RankFigures> figures() const { return ranks_.figures(); }

 private:
  void OnNews(const RankNews& news);
  void OnOtherNews(const v1::RankNews& news);

  Sender& own_;
  SenderEvents& events_;
  worker::OtherRanks ranks_;  ///< last: it calls back
};

}  // namespace baton::prefill_worker
