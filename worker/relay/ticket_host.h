// The relay book's orders to the decode side of the handoff when an Attach names a ticket. Scheduler thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/step/scheduler.h"

namespace baton::worker {

struct TicketAttach {
  std::string ticket;  ///< as Reserve gave it
  uint32_t epoch = 0;  ///< whose Prefill answered; 0: none, compute here
  uint64_t attach_gen = 0;
  uint64_t position = 0;
  engine::Request request;
  std::vector<engine::FirstToken> first;  ///< of choices that have not ended
  /// The request that this Attach fences, when that came with a ticket as well; it is cancelled already.
  std::optional<engine::RequestKey> replaces{};
};

/// The way in which the request of a ticket was started.
enum class TicketStart : uint8_t {
  kHandedOver,     ///< with the KV that came
  kComputedHere,   ///< its prompt (and what the router has of its output) is prefilled here
  kComputedAgain,  ///< the prompt is prefilled here for every choice; what the router has is not sent again
};

class TicketHost {
 public:
  virtual ~TicketHost() = default;
  /// Starts the request, now or when its KV is verified. An error is the answer to the Attach; later ones come by
  /// RelayBook::EndWithError. Either way `replaces` has ended: a second Attach of its ticket takes that over and
  /// continues at its own position.
  virtual absl::Status OnAttach(TicketAttach attach, engine::Scheduler& scheduler) = 0;
  /// The request ended, was cancelled, or its router left.
  virtual void OnEnded(engine::RequestKey key) = 0;
};

}  // namespace baton::worker
