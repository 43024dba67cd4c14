// LegBook: what one router waits for at one worker in one session: tickets, attached legs and prefill legs, and who
// hears of each. It says who gets which answer, what is renewed (proto Renewal; the worker ends by itself what is not),
// and who must hear that the worker is lost. An answer counts for the leg of now: what an earlier attempt or epoch of
// the same leg still says is nobody's. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "router/fleet/leg_events.h"
#include "router/fleet/leg_order.h"

namespace baton::router {

class LegBook {
 public:
  /// An order goes out. A ReserveLeg, PrefillLeg or AttachLeg is waited for from now on; a CancelLeg or a
  /// CancelAttached of a whole leg ends the waiting.
  void Note(const LegOrder& order, const std::shared_ptr<LegEvents>& events);
  /// The order of a leg could not be sent: the leg is not waited for.
  void Drop(const LegOrder& order);
  /// A ticket or attached leg is over.
  void End(std::string_view leg_id);

  /// Who hears `answer`; null: nobody waits for it any more. A leg whose last answer this is, is over then, but a
  /// ticket that was given.
  std::shared_ptr<LegEvents> Answered(const LegKey& key, const LegAnswer& answer);
  /// Who hears news of this leg; null: nobody.
  const std::shared_ptr<LegEvents>* Of(std::string_view leg_id) const;

  std::vector<LegRenewal> Renewals() const;

  /// Everybody who waits for something is told, on the loop of each, that `worker` is lost. Leaves an empty book.
  void TellLost(WorkerId worker, const absl::Status& why);
  bool empty() const { return legs_.empty() && prefills_.empty(); }

 private:
  struct Leg {
    uint32_t attempt = 0;
    uint64_t attach_gen = 0;  ///< 0: a ticket
    bool reserving = false;   ///< the ticket was asked for
    std::shared_ptr<LegEvents> events;
  };
  using PrefillKey = std::tuple<std::string, uint32_t, uint32_t>;  ///< id, attempt, epoch

  absl::flat_hash_map<std::string, Leg> legs_;
  std::map<PrefillKey, std::shared_ptr<LegEvents>> prefills_;
};

}  // namespace baton::router
