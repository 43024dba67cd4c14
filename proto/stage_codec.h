// A request's stages from the wire, for the structs that hold them: both have them in the message's order. Threads:
// any.
#pragma once

#include "proto/types.pb.h"

namespace baton {

/// `Stages`: router::StageTimings or load::Stages.
template <class Stages>
Stages DecodeStages(const v1::StageTimings& t) {
  return {t.queue_prefill_ms(), t.prefill_ms(), t.transfer_ms(), t.queue_decode_ms(), t.first_decode_ms(),
          t.decode_ms(),        t.router_ms(),  t.lost_ms(),     t.reserve_ms(),      t.network_ms()};
}

}  // namespace baton
