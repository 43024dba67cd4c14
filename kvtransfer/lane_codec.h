// Lane messages as bytes (proto/lanes.proto). What comes from a peer is checked: nothing in it makes us allocate more
// than the message's own size, and a value that no healthy peer sends is an error. Pure; any thread.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "absl/status/statusor.h"
#include "kvtransfer/kv_side.h"
#include "kvtransfer/lane_messages.h"
#include "kvtransfer/self_test.h"

namespace baton {

inline constexpr uint32_t kLaneProtocol = 2;

/// Who sends: first on every connection that passed its self-test, from the prefill side.
struct LaneHello {
  uint32_t protocol = kLaneProtocol;
  std::string incarnation, model_digest, numerics_id;
  KvSide side;
};

using LaneMessage = std::variant<LaneHello, ToDecode, ToPrefill, SelfTestMessage>;

std::string EncodeLaneMessage(const LaneMessage& message);
/// InvalidArgument says what is wrong with it.
absl::StatusOr<LaneMessage> DecodeLaneMessage(std::string_view bytes);

}  // namespace baton
