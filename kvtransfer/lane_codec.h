// Lane messages as bytes: a checksum of 8 bytes, then proto/lanes.proto. A message from a peer is checked: nothing in
// it makes us allocate more than the message's own size, a value that no healthy peer sends is an error, and so is
// every byte that changed on the way (a grant that names another slot would let its writer spoil it). Pure; any thread.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "absl/status/statusor.h"
#include "common/kv_digest.h"
#include "common/protocol_versions.h"
#include "kvtransfer/kv_side.h"
#include "kvtransfer/lane_messages.h"
#include "kvtransfer/self_test.h"

namespace baton {

/// The sender's name and layout: the first message of the prefill side on every connection that passed its self-test.
struct LaneHello {
  ProtocolVersions protocol = KvProtocol();
  std::string incarnation, model_digest, numerics_id;
  KvSide side;
  std::string kv_digest = kKvDigestName;
  std::string outbox = {};           ///< KvOutbox::card; empty: there is none
  uint64_t outbox_buffer_bytes = 0;  ///< of each of its buffers
};

using LaneMessage = std::variant<LaneHello, ToDecode, ToPrefill, SelfTestMessage>;

std::string EncodeLaneMessage(const LaneMessage& message);
/// InvalidArgument says what is wrong with it, DataLoss that it is not what was sent.
absl::StatusOr<LaneMessage> DecodeLaneMessage(std::string_view bytes);
/// `body` behind its checksum: what EncodeLaneMessage does last, for tests that make bodies of their own.
std::string SealLaneMessage(std::string_view body);

}  // namespace baton
