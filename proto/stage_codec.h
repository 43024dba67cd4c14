// A request's stages from the wire, for the structs that hold them: both have them in the message's order. Threads:
// any.
#pragma once

#include <cmath>

#include "proto/types.pb.h"

namespace baton {

/// `Stages`: router::StageTimings or load::Stages. What is no number is 0: sums and logs are made of them.
template <class Stages>
Stages DecodeStages(const v1::StageTimings& t) {
  const auto ms = [](double said) { return std::isfinite(said) ? said : 0; };
  return {ms(t.queue_prefill_ms()), ms(t.prefill_ms()), ms(t.transfer_ms()), ms(t.queue_decode_ms()),
          ms(t.first_decode_ms()),  ms(t.decode_ms()),  ms(t.router_ms()),   ms(t.lost_ms()),
          ms(t.reserve_ms()),       ms(t.network_ms())};
}

}  // namespace baton
