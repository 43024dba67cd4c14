// Which router stream runs which request, and what each is told: attach, fence, credit, cancel, news, loss of a stream.
// Sans-IO; scheduler thread only. The scheduler is passed in by its owner.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/own_time.h"
#include "engine/step/scheduler.h"
#include "worker/relay/codec.h"
#include "worker/relay/ticket_host.h"
#include "worker/relay/wire_stream.h"

namespace baton::worker {

class RelayBook {
 public:
  /// `tickets`: who starts an Attach that names a ticket; null: such an Attach is refused.
  explicit RelayBook(const AttachLimits& limits, TicketHost* tickets = nullptr) : limits_(limits), tickets_(tickets) {}

  /// One message of a router. Refused attaches are answered with an error entry on `sink`.
  void OnMessage(const std::shared_ptr<RelayWriter>& sink, const v1::RelayUp& message, engine::Scheduler& scheduler,
                 TimePoint now);
  /// The stream ended: everything it attached is cancelled.
  void OnStreamEnd(const RelayWriter* sink, engine::Scheduler& scheduler, TimePoint now);
  /// Ends what no router has renewed (proto Renewal), in own time: every ~100 ms, behind the messages that have come. A
  /// ticket's legs end with the ticket.
  void Tick(engine::Scheduler& scheduler, TimePoint now);
  /// News of the engine, to one RelayDown per stream. News of fenced or lost requests is dropped.
  void OnOutputs(std::vector<engine::SequenceOutput> outputs, uint64_t step);

  // ---- from the ticket host
  /// The request of a ticket was given to the scheduler.
  void OnStarted(engine::RequestKey key, TicketStart how, engine::Scheduler& scheduler, TimePoint now);
  /// The Attach of a ticket failed after all.
  void EndWithError(engine::RequestKey key, const absl::Status& status);

  /// No new attaches from now on: they are refused as Unavailable.
  void Drain() { draining_ = true; }
  /// They are taken again.
  void Resume() { draining_ = false; }
  /// While nothing lives.
  void UseTickets(TicketHost* tickets) { tickets_ = tickets; }
  size_t live() const { return by_key_.size(); }

 private:
  struct Live {
    std::shared_ptr<RelayWriter> sink;
    std::string request_id;
    uint64_t attach_gen = 0;
    int32_t prompt_len = 0;
    uint32_t first_choice = 0;
    std::vector<int32_t> credit;  ///< per choice: position below which tokens may be delivered
    int choices_left = 0;
    int32_t prompt_scores_left = 0;
    bool scores_open = false;  ///< the router waits for the last piece of prompt logprobs
    bool accepted = false;     ///< the Accepted entry was sent
    bool ticket = false;       ///< it is the ticket host's as well
    bool handed_over = false;
    std::vector<bool> cancelled;        ///< per choice of a ticket: before the request was started
    int32_t choices = 0;                ///< asked for
    int32_t skip_below = 0;             ///< tokens before this position are the router's already
    Duration renewed_for{};             ///< how long it lives without a renewal; 0: for ever
    TimePoint ends = TimePoint::max();  ///< in own time
    TimePoint attached{}, started{};    ///< of a ticket: the Attach came, its sequence was started
  };
  using Outbox = std::vector<std::pair<std::shared_ptr<RelayWriter>, v1::RelayDown>>;

  void OnAttach(const std::shared_ptr<RelayWriter>& sink, const v1::Attach& attach, engine::Scheduler& scheduler,
                TimePoint now);
  using Name = std::pair<std::string, std::string>;  ///< router and request id: a router names its own requests only
  static Name NameOf(const RelayWriter& sink, const std::string& request_id);
  /// The request's key, where this stream attached it last; null: nothing of it lives, or it is another stream's.
  const engine::RequestKey* OwnedBy(const RelayWriter* sink, const std::string& request_id) const;
  void OnCredit(const RelayWriter* sink, const v1::Credit& credit, engine::Scheduler& scheduler, TimePoint now);
  void OnRenewal(const RelayWriter& sink, const v1::Renewal& renewal, TimePoint now);
  TimePoint Listened(TimePoint now) const;
  void OnCancel(const RelayWriter* sink, const v1::RelayCancel& cancel, engine::Scheduler& scheduler, TimePoint now);
  absl::Status Begin(const std::shared_ptr<RelayWriter>& sink, const v1::Attach& attach,
                     std::optional<engine::RequestKey> replaces, engine::Scheduler& scheduler, TimePoint now);
  absl::Status AttachTicket(const v1::Attach& attach, engine::Request request,
                            std::optional<engine::RequestKey> replaces, engine::Scheduler& scheduler);
  void Refuse(const std::shared_ptr<RelayWriter>& sink, const v1::Attach& attach, const absl::Status& status,
              const engine::Scheduler& scheduler);
  /// Returns whether the request has a ticket. Does not tell the ticket host.
  bool Drop(engine::RequestKey key);
  void Forget(engine::RequestKey key);
  static v1::RelayDown& MessageTo(const std::shared_ptr<RelayWriter>& sink, Outbox& outbox);
  void AddNews(Live& live, const engine::SequenceOutput& output, v1::RelayDown& down);

  const AttachLimits limits_;
  TicketHost* tickets_;
  bool draining_ = false;
  OwnTime own_;
  engine::RequestKey next_key_ = 1;
  absl::flat_hash_map<engine::RequestKey, Live> by_key_;
  absl::flat_hash_map<Name, engine::RequestKey> by_request_;
};

}  // namespace baton::worker
