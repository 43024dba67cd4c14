// libFuzzer target of what a router and rank 0 ask of a worker: Prefill orders, Reserve requests, slots' work of a
// rank. A good message with any fields merged over it gives a transfer plan within its bounds, or is refused with
// words; a ticket that is given makes a prefill leg that is taken. The first byte says which, the second what is left
// out of the good message.
#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "decode_worker/handoff/handoff.h"
#include "decode_worker/ticket_codec.h"
#include "kvtransfer/layout_codec.h"
#include "kvtransfer/rank_codec.h"
#include "kvtransfer/rank_line_codec.h"
#include "kvtransfer/slot_passes.h"
#include "prefill_worker/handoff/push.h"
#include "prefill_worker/leg_codec.h"

namespace {

using namespace baton;

constexpr int kVocabulary = 1000, kPromptLen = 200;
constexpr int kLook = 4096;  ///< segments that are looked at

void Must(bool holds) {
  if (!holds) std::abort();
}

std::string_view Message(const absl::Status& status) { return {status.message().data(), status.message().size()}; }

/// A model of four layers, one of each kind of group, on `tensor` times two ranks.
KvSide Side(int tensor) {
  const std::vector<KvPlane> planes = {{KvPlane::Name::kK, DType::kF32, 4, 8}, {KvPlane::Name::kV, DType::kF32, 4, 8}};
  KvSide side;
  side.layout.groups.push_back({{0, 2}, KvGroupKind::kPaged, 0, planes, 16});
  side.layout.groups.push_back({{1, 3}, KvGroupKind::kWindow, 33, planes, 64});
  side.tensor_parallel_size = tensor;
  side.stage_layers = {0, 2, 4};
  return side;
}

std::string Tokens(int count) {
  std::string out;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t id = i % kVocabulary;
    out.append(reinterpret_cast<const char*>(&id), sizeof(id));
  }
  return out;
}

/// Grants every ticket, with a prefix of its prompt that is here.
class Blocks final : public decode::TicketBlocks {
 public:
  int32_t Pin(TicketId, const decode::ReserveOrder& order) override {
    return (order.prompt_len - 1) / 2 / kUnitTokens * kUnitTokens;
  }
  bool Bind(TicketId, uint32_t, int32_t) override { return true; }
  void Release(TicketId, uint32_t) override {}
  void Unpin(TicketId) override {}
};

/// The decode worker's answer to a Reserve.
v1::ReserveReply Reserved(const v1::ReserveRequest& request, int tensor) {
  Blocks blocks;
  decode::HandoffOptions options;
  options.ring_slots = {4};
  decode::Handoff core(options, blocks);
  const TimePoint now{std::chrono::seconds(1)};
  const auto order = decode_worker::DecodeReserve(request);
  decode::ReserveAnswer answer{.key = decode_worker::KeyOf(request.key(), "r"), .status = order.status()};
  if (order.ok()) answer.status = decode_worker::CheckReserve(*order, 4096);
  if (answer.status.ok()) answer = core.Reserve(*order, now);
  core.CheckInvariants();
  decode_worker::DeskFacts facts{.side = Side(tensor), .piece_tokens = 32, .incarnation = "life"};
  const RankAddresses ways{tensor, facts.side.stage_layers,
                           std::vector<std::string>(static_cast<size_t>(facts.side.ranks()), "kv1|m|tcp:[::1]:1")};
  return decode_worker::EncodeReserved(answer, facts, {ways.Pack(), "tcp", 1 << 20}, {});
}

v1::ReserveRequest GoodReserve() {
  v1::ReserveRequest request;
  request.mutable_key()->set_request_id("r");
  request.set_prompt_token_ids(Tokens(kPromptLen));
  request.set_prompt_len(kPromptLen);
  request.set_choices(1);
  request.set_expiry_ms(10000);
  return request;
}

v1::PrefillRequest GoodLeg(v1::ReserveReply ticket, int prompt_len) {
  v1::PrefillRequest leg;
  leg.mutable_key()->set_request_id("r");
  leg.mutable_key()->set_epoch(1);
  leg.set_prompt_token_ids(Tokens(prompt_len));
  leg.set_prompt_len(static_cast<uint32_t>(prompt_len));
  leg.mutable_sampling()->set_max_tokens(1);
  *leg.mutable_ticket() = std::move(ticket);
  return leg;
}

/// The plan of an order that was taken: every segment has bytes, and the push core takes it or says why not.
void Push(const prefill_worker::JobOrder& order, const prefill_worker::JobPlan& way) {
  prefill::Prefill event{order.key, 1, order.ticket, order.secret, way.plan->digest(), {}, order.expiry};
  event.slot_bytes = SlotRoom(std::min<uint64_t>(order.slot_bytes, 1 << 20));
  int looked = 0;
  for (const LanePlan& lane : way.plan->lanes()) {
    Must(lane.segments > 0 && static_cast<size_t>(lane.target_rank) < way.addresses.ranks.size());
    std::vector<int64_t>& bytes = event.lanes.emplace_back();
    for (int s = 0; s < lane.segments && ++looked < kLook; ++s) {
      const int64_t payload = way.plan->SegmentBytes(lane, s);
      Must(payload > 0 && way.plan->SegmentAt(lane, s).tokens.size() > 0);
      bytes.push_back(SegmentRoom(payload));
    }
  }
  Must(!event.lanes.empty());
  prefill::Push core({});
  std::vector<prefill::Action> actions;
  core.Handle(event, TimePoint{std::chrono::seconds(1)}, actions);
  Must(!actions.empty());
}

void TakeLeg(const v1::PrefillRequest& leg, bool must) {
  const auto order = prefill_worker::DecodeOrder(leg, {.vocab_size = kVocabulary}, TimePoint{std::chrono::seconds(1)});
  if (!order.ok()) return Must(!must && !Message(order.status()).empty());
  const auto way = prefill_worker::PlanJob(Side(2), *order);
  if (!way.ok()) return Must(!must && !Message(way.status()).empty());
  Push(*order, *way);
}

void Prefill(uint8_t left_out, std::string_view bytes) {
  static const v1::PrefillRequest good = GoodLeg(Reserved(GoodReserve(), 1), kPromptLen);
  v1::PrefillRequest leg = good;
  if ((left_out & 1) != 0) leg.mutable_ticket()->clear_stage_layers();
  if ((left_out & 2) != 0) leg.mutable_ticket()->clear_kv_layout();
  if ((left_out & 4) != 0) leg.mutable_ticket()->clear_landing_address();
  if ((left_out & 8) != 0) leg.clear_sampling();
  if (leg.MergeFromString({bytes.data(), bytes.size()})) TakeLeg(leg, false);
}

void Reserve(uint8_t left_out, std::string_view bytes) {
  v1::ReserveRequest request = GoodReserve();
  if ((left_out & 1) != 0) request.clear_prompt_token_ids();
  if (!request.MergeFromString({bytes.data(), bytes.size()})) return;
  const int tensor = 1 << (left_out >> 1) % 3;
  const v1::ReserveReply reply = Reserved(request, tensor);
  if (reply.has_nack()) return Must(!reply.nack().message().empty());
  TakeLeg(GoodLeg(reply, static_cast<int>(request.prompt_len())), true);
}

const SlotWork& GoodWork() {
  static const SlotWork good = [] {
    SlotWork work{.peer = 7, .lane = {9, 1, 0}, .slot = {1, 2}, .segments = {0, 1}};
    work.plan = std::make_shared<const TransferPlan>(TransferPlan::Make(Side(2), Side(1), {0, 200}, 32).value());
    work.tables = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}, {1, 2, 3, 4}};
    return work;
  }();
  return good;
}

/// A plan that is told makes slots' work possible, or is refused.
void PlanOfRank(uint8_t left_out, std::string_view bytes) {
  v1::TransferTerms terms = EncodeTerms(*GoodWork().plan);
  if ((left_out & 1) != 0) terms.clear_digest();
  if (!terms.MergeFromString({bytes.data(), bytes.size()})) return;
  PlanShelf shelf;
  const absl::Status known = shelf.Add(terms);
  Must(known.ok() == (shelf.Find(terms.digest()) != nullptr) && (known.ok() || !Message(known).empty()));
}

/// Words of ranks in plain fields: `bytes` as they are, or over the good order's.
void WordOfRank(uint8_t left_out, std::string_view bytes) {
  PlanShelf shelf;
  Must(shelf.Add(EncodeTerms(*GoodWork().plan)).ok());
  std::string word = EncodeRankOrder(EncodeSlotWork(GoodWork(), TransferEnd::kSource));
  word.resize(std::min(word.size(), size_t{left_out}));
  word += bytes;
  if (const auto news = DecodeRankNews(word); news.ok() && !std::holds_alternative<v1::RankNews>(*news))
    Must(EncodeRankNews(*news) == word);
  const auto order = DecodeRankOrder(word);
  if (!order.ok()) return Must(!Message(order.status()).empty());
  const auto* slot = std::get_if<SlotOrder>(&*order);
  if (slot == nullptr) return;
  Must(EncodeRankOrder(*slot) == word);
  const auto work = DecodeSlotWork(*slot, shelf);
  if (!work.ok()) return Must(!Message(work.status()).empty());
  const auto again = DecodeSlotWork(EncodeSlotWork(*work, TransferEnd::kSource), shelf);
  Must(again.ok() && again->plan == work->plan && again->segments == work->segments);
}

}  // namespace

/// libFuzzer calls this once. Protobuf would report every string that is not UTF-8.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  google::protobuf::SetLogHandler(nullptr);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  switch (data[0] % 4) {
    case 0: Prefill(data[1], bytes); break;
    case 1: Reserve(data[1], bytes); break;
    case 2: PlanOfRank(data[1], bytes); break;
    default: WordOfRank(data[1], bytes); break;
  }
  return 0;
}
