#include "kvtransfer/lane_codec.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <utility>

#include "common/status.h"
#include "common/utf8.h"
#include "kvtransfer/layout_codec.h"
#include "proto/lanes.pb.h"

namespace baton {
namespace {

constexpr int kMaxSegmentsSent = 1 << 16, kMaxGrants = 1 << 12;
constexpr size_t kMaxReason = 4096;

/// `text` as the wire may carry it: at most kMaxReason bytes of whole characters. Its reader refuses other text, and
/// the whole message with it.
std::string WireText(std::string_view text) {
  std::string cut_character, out;
  AppendUtf8(text.substr(0, kMaxReason), Utf8Repair::kMaximalPart, cut_character, out);
  return out;
}

uint64_t ChecksumOf(std::string_view body) { return XXH3_64bits(body.data(), body.size()); }

// ---- to the wire

void Set(v1::SlotTurn& out, SlotTurn slot) {
  out.set_slot(slot.slot);
  out.set_turn(slot.turn);
}

void SetKey(v1::LaneMessage& out, const LaneKey& key) {
  out.mutable_lane()->set_ticket(key.ticket);
  out.mutable_lane()->set_epoch(key.epoch);
  out.mutable_lane()->set_lane(key.lane);
}

void Encode(const OpenLane& m, v1::LaneMessage& out) {
  out.mutable_open()->set_plan_digest(m.plan_digest);
  out.mutable_open()->set_secret_high(m.secret.high);
  out.mutable_open()->set_secret_low(m.secret.low);
}
void Encode(const SlotFull& m, v1::LaneMessage& out) {
  Set(*out.mutable_slot_full()->mutable_slot(), m.slot);
  out.mutable_slot_full()->mutable_segments()->Add(m.segments.begin(), m.segments.end());
}
void Encode(const LaneDone& m, v1::LaneMessage& out) { out.mutable_done()->set_segments(m.segments); }
void Encode(const LaneClosed& m, v1::LaneMessage& out) {
  out.mutable_closed()->set_flushed(m.flushed);
  out.mutable_closed()->set_secret_high(m.secret.high);
  out.mutable_closed()->set_secret_low(m.secret.low);
}
void Encode(const LaneBound& m, v1::LaneMessage& out) {
  out.mutable_bound();
  for (SlotTurn grant : m.grants) Set(*out.mutable_bound()->add_grants(), grant);
  out.mutable_bound()->set_reads_outbox(m.reads_outbox);
}
void Encode(const LaneBusy& m, v1::LaneMessage& out) { out.mutable_busy()->set_elsewhere(m.elsewhere); }
void Encode(const LaneGone& m, v1::LaneMessage& out) { out.mutable_gone()->set_reason(WireText(m.reason)); }
void Encode(const SlotFree& m, v1::LaneMessage& out) {
  Set(*out.mutable_slot_free()->mutable_grant(), m.grant);
  out.mutable_slot_free()->set_ok(m.ok);
}
void Encode(const LaneVerified&, v1::LaneMessage& out) { out.mutable_verified(); }
void Encode(const LaneClosedAck&, v1::LaneMessage& out) { out.mutable_closed_ack(); }

void EncodeHello(const LaneHello& hello, v1::LaneHello& out) {
  out.set_protocol(hello.protocol.max);
  if (hello.protocol.min != hello.protocol.max) out.set_protocol_min(hello.protocol.min);
  out.set_incarnation(hello.incarnation);
  out.set_model_digest(hello.model_digest);
  out.set_numerics_id(hello.numerics_id);
  out.set_kv_digest(hello.kv_digest);
  *out.mutable_layout() = EncodeLayout(hello.side.layout);
  out.set_tensor_parallel_size(static_cast<uint32_t>(hello.side.tensor_parallel_size));
  for (int layer : hello.side.stage_layers) out.add_stage_layers(static_cast<uint32_t>(layer));
  out.set_outbox(hello.outbox);
  out.set_outbox_buffer_bytes(hello.outbox_buffer_bytes);
}

void EncodeSelfTest(const SelfTestMessage& test, v1::LaneMessage::SelfTest& out) {
  out.set_step(static_cast<uint32_t>(test.step));
  Set(*out.mutable_slot(), test.slot);
  out.set_bytes(test.bytes);
  out.set_seed(test.seed);
  out.set_ok(test.ok);
  out.set_gigabytes_per_second(test.gigabytes_per_second);
  out.set_text(WireText(test.text));
}

// ---- from the wire

SlotTurn Get(const v1::SlotTurn& in) { return {in.slot(), in.turn()}; }

absl::StatusOr<LaneHello> DecodeHello(const v1::LaneHello& in) {
  const ProtocolVersions spoken{in.protocol_min() == 0 ? in.protocol() : in.protocol_min(), in.protocol()};
  LaneHello hello{spoken, in.incarnation(), in.model_digest(), in.numerics_id(), {}};
  BATON_ASSIGN_OR_RETURN(hello.side.layout, DecodeLayout(in.layout()));
  if (in.stage_layers_size() < 2 || in.stage_layers_size() > kMaxStages + 1 ||
      in.tensor_parallel_size() > kMaxTensorParallelSize) {
    return absl::InvalidArgumentError(StrCat("a hello with ", in.stage_layers_size(),
                                             " stage borders, tensor parallel size ", in.tensor_parallel_size()));
  }
  hello.side.tensor_parallel_size = static_cast<int>(in.tensor_parallel_size());
  for (uint32_t layer : in.stage_layers()) {
    if (layer > 1 << 16) return absl::InvalidArgumentError(StrCat("a hello with stage border ", layer));
    hello.side.stage_layers.push_back(static_cast<int>(layer));
  }
  hello.kv_digest = in.kv_digest().empty() ? kKvDigestUnnamed : in.kv_digest();
  hello.outbox = in.outbox();
  hello.outbox_buffer_bytes = in.outbox_buffer_bytes();
  BATON_RETURN_IF_ERROR(CheckSide(hello.side));
  return hello;
}

absl::StatusOr<LaneMessage> DecodeSlotFull(const LaneKey& key, const v1::LaneMessage::SlotFull& in) {
  if (in.segments_size() == 0 || in.segments_size() > kMaxSegmentsSent) {
    return absl::InvalidArgumentError(StrCat("a slot with ", in.segments_size(), " segments"));
  }
  return ToDecode(SlotFull{key, Get(in.slot()), {in.segments().begin(), in.segments().end()}});
}

absl::StatusOr<LaneMessage> DecodeSelfTest(const v1::LaneMessage::SelfTest& in) {
  using Step = SelfTestMessage::Step;
  if (in.step() < static_cast<uint32_t>(Step::kAsk) || in.step() > static_cast<uint32_t>(Step::kOver)) {
    return absl::InvalidArgumentError(StrCat("step ", in.step(), " of a self-test"));
  }
  return SelfTestMessage{static_cast<Step>(in.step()), Get(in.slot()),     in.bytes(), in.seed(), in.ok(),
                         in.gigabytes_per_second(),    WireText(in.text())};
}

absl::StatusOr<LaneMessage> DecodeBound(const LaneKey& key, const v1::LaneMessage::Bound& in) {
  if (in.grants_size() > kMaxGrants) return absl::InvalidArgumentError(StrCat(in.grants_size(), " grants"));
  LaneBound bound{key, {}, in.reads_outbox()};
  for (const v1::SlotTurn& grant : in.grants()) bound.grants.push_back(Get(grant));
  return ToPrefill(std::move(bound));
}

}  // namespace

std::string EncodeLaneMessage(const LaneMessage& message) {
  v1::LaneMessage out;
  if (const auto* hello = std::get_if<LaneHello>(&message)) {
    EncodeHello(*hello, *out.mutable_hello());
  } else if (const auto* test = std::get_if<SelfTestMessage>(&message)) {
    EncodeSelfTest(*test, *out.mutable_self_test());
  } else {
    const auto encode = [&out](const auto& m) {
      SetKey(out, m.lane);
      Encode(m, out);
    };
    if (const auto* to_decode = std::get_if<ToDecode>(&message)) std::visit(encode, *to_decode);
    if (const auto* to_prefill = std::get_if<ToPrefill>(&message)) std::visit(encode, *to_prefill);
  }
  return SealLaneMessage(out.SerializeAsString());
}

std::string SealLaneMessage(std::string_view body) {
  const uint64_t checksum = ChecksumOf(body);
  std::string sealed(sizeof(checksum) + body.size(), '\0');
  std::memcpy(sealed.data(), &checksum, sizeof(checksum));
  std::memcpy(sealed.data() + sizeof(checksum), body.data(), body.size());
  return sealed;
}

absl::StatusOr<LaneMessage> DecodeLaneMessage(std::string_view bytes) {
  uint64_t checksum = 0;
  if (bytes.size() < sizeof(checksum))
    return absl::InvalidArgumentError(StrCat(bytes.size(), " bytes that are no lane message"));
  std::memcpy(&checksum, bytes.data(), sizeof(checksum));
  const std::string_view body = bytes.substr(sizeof(checksum));
  if (checksum != ChecksumOf(body)) {
    return absl::DataLossError(StrCat("a lane message of ", body.size(), " bytes with checksum ", absl::Hex(checksum),
                                      ", they have ", absl::Hex(ChecksumOf(body)),
                                      ": damaged on the way, or of another version"));
  }
  v1::LaneMessage in;
  if (!in.ParseFromArray(body.data(), static_cast<int>(body.size()))) {
    return absl::InvalidArgumentError(StrCat(body.size(), " bytes that are no lane message"));
  }
  if (in.kind_case() == v1::LaneMessage::kHello) return DecodeHello(in.hello());
  if (in.kind_case() == v1::LaneMessage::kSelfTest) return DecodeSelfTest(in.self_test());
  const LaneKey key{in.lane().ticket(), in.lane().epoch(), in.lane().lane()};
  if (key.ticket == 0 || key.epoch == 0) {
    return absl::InvalidArgumentError(StrCat("a lane message for ticket ", key.ticket, " epoch ", key.epoch));
  }
  switch (in.kind_case()) {
    case v1::LaneMessage::kOpen:
      return ToDecode(OpenLane{key, in.open().plan_digest(), {in.open().secret_high(), in.open().secret_low()}});
    case v1::LaneMessage::kSlotFull: return DecodeSlotFull(key, in.slot_full());
    case v1::LaneMessage::kDone: return ToDecode(LaneDone{key, in.done().segments()});
    case v1::LaneMessage::kClosed:
      return ToDecode(LaneClosed{key, in.closed().flushed(), {in.closed().secret_high(), in.closed().secret_low()}});
    case v1::LaneMessage::kBound: return DecodeBound(key, in.bound());
    case v1::LaneMessage::kBusy: return ToPrefill(LaneBusy{key, in.busy().elsewhere()});
    case v1::LaneMessage::kGone: return ToPrefill(LaneGone{key, WireText(in.gone().reason())});
    case v1::LaneMessage::kSlotFree: return ToPrefill(SlotFree{key, Get(in.slot_free().grant()), in.slot_free().ok()});
    case v1::LaneMessage::kVerified: return ToPrefill(LaneVerified{key});
    case v1::LaneMessage::kClosedAck: return ToPrefill(LaneClosedAck{key});
    default: return absl::InvalidArgumentError("a lane message of no known kind");
  }
}

}  // namespace baton
