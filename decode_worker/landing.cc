#include "decode_worker/landing.h"

#include <algorithm>
#include <utility>

#include "common/foreign_text.h"
#include "common/log.h"
#include "common/net/advertise.h"
#include "common/planted_bug.h"
#include "common/status.h"
#include "kvtransfer/slot_format.h"

namespace baton::decode_worker {

namespace {

/// Of its payloads, counted from 1; 0: they are in the slot.
uint32_t OutboxOf(const SlotContent& content) {
  return content.parts.empty() ? 0 : content.parts.front().segment.outbox;
}

}  // namespace

class Landing::Way final : public TransportEvents {
 public:
  Way(Landing& landing, uint32_t memory, std::string kind)
      : kind_(std::move(kind)), landing_(landing), memory_(memory) {}

  void OnConnected(PeerNumber) override {}
  void OnMessage(PeerNumber peer, std::string_view message) override { landing_.OnMessage(Writer(peer), message); }
  void OnLost(PeerNumber peer, const absl::Status& why) override { landing_.OnLost(Writer(peer), why); }
  void OnRefused(PeerNumber peer, std::string_view host, const absl::Status& why) override {
    landing_.OnRefused(Writer(peer), host, why);
  }
  bool MayLand(PeerNumber peer, const LandingPlace& place) override {
    return place.slot.slot == test->slot() ? test->MayLand(peer, place.slot) : landing_.MayLand(Writer(peer), place);
  }
  WriterId Writer(PeerNumber peer) const { return WriterBy(peer, memory_); }
  const std::string& kind() const { return kind_; }

  bool replaced = false;  ///< nobody new is told of it
  std::unique_ptr<SelfTestSlot> test;
  std::unique_ptr<Transport> transport;
  std::unique_ptr<PinnedMemory> pinned;  ///< its landing memory, for a GPU; null: the host copies what is there

 private:
  const std::string kind_;
  Landing& landing_;
  const uint32_t memory_;
};

absl::StatusOr<std::unique_ptr<Landing>> Landing::Create(const worker::WorkerConfig& config, KvPoolView pool,
                                                         std::string incarnation, const Clock& clock,
                                                         worker::TransferLoop& thread, LandingEvents& events,
                                                         const TransportMaker& make, trust::PeerTrust trust, int rank) {
  std::vector<std::string> kinds = {""};
  if (!make) {
    BATON_ASSIGN_OR_RETURN(kinds, TransportKinds(config.transport, config.require_rdma, config.kv_by_ucx()));
  }
  BATON_ASSIGN_OR_RETURN(std::string told_host, net::AdvertisedHost(config.host, config.advertise_host));
  std::unique_ptr<Landing> landing(new Landing(config, std::move(told_host), std::move(pool), std::move(incarnation),
                                               clock, thread, events, make, std::move(trust), rank));
  absl::Status first;
  for (const std::string& kind : kinds) {
    const absl::Status opened = landing->Open(kind);
    if (opened.ok()) {
      landing->kinds_.push_back(kind);
      continue;
    }
    first.Update(opened);
    LogWarning("landing: no KV by {}: {}", kind, View(opened.message()));
  }
  if (landing->ways_.empty()) return first;
  landing->kind_ = landing->kinds_.front();
  landing->Publish();
  return landing;
}

Landing::Landing(const worker::WorkerConfig& config, std::string told_host, KvPoolView pool, std::string incarnation,
                 const Clock& clock, worker::TransferLoop& thread, LandingEvents& events, TransportMaker make,
                 trust::PeerTrust trust, int rank)
    : host_(config.host),
      told_host_(std::move(told_host)),
      incarnation_(std::move(incarnation)),
      port_(static_cast<uint16_t>(config.landing_port)),
      make_(std::move(make)),
      trust_(std::move(trust)),
      shape_{static_cast<uint32_t>(config.landing_slots), static_cast<uint64_t>(config.LandingSlotBytes())},
      pool_(std::move(pool)),
      clock_(clock),
      refusals_(clock),
      writers_words_(clock),
      thread_(thread),
      events_(events),
      grants_(shape_.slots),
      lent_reads_(pool_.movers.size() == 1 ? pool_.movers.front() : nullptr),
      next_memory_(FirstMemoryOf(rank)) {}

Landing::~Landing() {
  lent_reads_.Stop();
  for (const auto& [memory, way] : ways_) thread_.Unwatch(way->transport.get());
}

absl::Status Landing::Open(const std::string& kind) {
  if (RankOfMemory(next_memory_ + 1) != RankOfMemory(next_memory_))
    return absl::ResourceExhaustedError(StrCat(1 << kMemoryBits, " landing memories were opened, one life's worth"));
  auto way = std::make_unique<Way>(*this, next_memory_, kind);
  const uint16_t port = IsLocal(kind) ? 0 : port_;
  const LandingShape with_test{shape_.slots + 1, shape_.slot_bytes};
  BATON_ASSIGN_OR_RETURN(way->transport,
                         make_ ? make_(with_test, *way) : MakeTransport(kind, host_, port, with_test, *way, trust_));
  Transport* transport = way->transport.get();
  way->test = std::make_unique<SelfTestSlot>(
      shape_.slots, transport->landing().subspan(shape_.slots * shape_.slot_bytes, shape_.slot_bytes), incarnation_,
      [transport](PeerNumber peer, const SelfTestMessage& message) {
        transport->Send(peer, EncodeLaneMessage(message), [](const absl::Status&) {});
      });
  PinSlots(*way);
  thread_.Watch(transport);
  std::lock_guard lock(mutex_);
  ways_[next_memory_++] = std::move(way);
  return absl::OkStatus();
}

/// Once for each memory. Of several GPUs each takes its part of a slot, which the host cuts up.
void Landing::PinSlots(Way& way) {
  if (pool_.movers.empty()) return;
  if (pool_.movers.size() > 1) {
    if (std::exchange(said_why_unpinned_, true)) return;
    return LogInfo("landing: no slots are pinned: each of {} GPUs takes its part of a slot, which the host cuts up",
                   pool_.movers.size());
  }
  const std::span<std::byte> memory = way.transport->landing();
  absl::StatusOr<std::unique_ptr<PinnedMemory>> pinned = PinLanding(pool_, memory);
  if (!pinned.ok()) {
    return LogWarning("landing: slots of {} are not pinned, the host copies them for the GPU: {}", way.kind(),
                      View(pinned.status().message()));
  }
  way.pinned = *std::move(pinned);
  LogInfo("landing: {} bytes of slots of {} are pinned: the GPU copies them itself", memory.size(), way.kind());
}

// ---- memories that are replaced

/// Best first, as they were opened at the start.
void Landing::Publish() {
  LandingAddresses addresses{ThisMachine(), {}};
  for (const std::string& kind : kinds_) {
    for (const auto& [memory, way] : ways_) {
      if (way->kind() == kind && !way->replaced)
        addresses.addresses.push_back(ToldAs(way->transport->address(), told_host_));
    }
  }
  std::lock_guard lock(mutex_);
  address_ = addresses.Pack();
}

/// Unless one is in use, or too many are kept already.
void Landing::OpenFresh(const std::string& kind) {
  int kept = 0;
  for (const auto& [memory, way] : ways_) {
    if (way->kind() != kind) continue;
    if (!way->replaced) return;
    ++kept;
  }
  const absl::Status opened =
      kept < kMostMemories ? Open(kind)
                           : absl::ResourceExhaustedError(StrCat(kept, " memories are kept, at most ", kMostMemories));
  if (opened.ok()) return;
  LogWarning("landing: no fresh memory for {}, its writers get the next transport: {}", kind, View(opened.message()));
}

void Landing::Replace(uint32_t memory) {
  const auto found = ways_.find(memory);
  if (found == ways_.end() || std::exchange(found->second->replaced, true)) return;
  const std::string& kind = found->second->kind();
  LogWarning(
      "landing: a prefill worker that comes by {} shows no sign of life and may still write: others get fresh "
      "memory",
      kind);
  OpenFresh(kind);
  Publish();
}

void Landing::Drop(uint32_t memory) {
  std::unique_ptr<Way> gone;
  {
    std::lock_guard lock(mutex_);
    if (auto node = ways_.extract(memory); !node.empty()) gone = std::move(node.mapped());
  }
  if (gone == nullptr) return;
  thread_.Unwatch(gone->transport.get());
  std::erase_if(outboxes_, [&](const auto& one) { return MemoryOf(one.first) == memory; });
  LogInfo("landing: a replaced memory of {} is needed by nobody any more", gone->kind());
  const Transport* const transport = gone->transport.get();
  gone->pinned.reset();
  gone->transport.reset();  // nothing that it read comes any more
  lent_reads_.Forget(transport, [this, memory](WriterId writer) { return MemoryOf(writer) == memory; });
  OpenFresh(gone->kind());
  Publish();
}

// ---- any thread

std::string Landing::address() const {
  std::lock_guard lock(mutex_);
  return address_;
}

std::string Landing::kind() const {
  std::lock_guard lock(mutex_);
  return kind_;
}

RankFigures Landing::Figures() const {
  return {.bytes = counters_.bytes,
          .slots = counters_.slots,
          .nanoseconds = counters_.nanoseconds,
          .peers_lost = counters_.writers_lost,
          .refused = counters_.writers_refused,
          .digest_mismatches = counters_.digest_mismatches,
          .unreadable_slots = counters_.unreadable_slots,
          .self_tests_failed = counters_.self_tests_failed};
}

FenceKind Landing::FenceOf(WriterId writer) const {
  std::lock_guard lock(mutex_);
  const Way* way = WayOf(writer);
  return way == nullptr ? FenceKind::kPeerExit : way->transport->fence();
}

// ---- transfer thread

Landing::Way* Landing::WayOf(WriterId writer) const {
  const auto found = ways_.find(MemoryOf(writer));
  return found == ways_.end() ? nullptr : found->second.get();
}

std::span<const std::byte> Landing::SlotsOf(WriterId writer) const { return WayOf(writer)->transport->landing(); }

void Landing::NoteGrant(WriterId writer, const LaneKey& lane, SlotTurn grant) {
  Grant& known = grants_[grant.slot];
  if (known.writer == writer && known.lane == lane && known.turn == grant.turn) return;  // said again
  known = {writer, lane, grant.turn, true};
}

void Landing::Send(WriterId writer, const ToPrefill& message) {
  if (const auto* bound = std::get_if<LaneBound>(&message)) {
    for (SlotTurn grant : bound->grants) NoteGrant(writer, bound->lane, grant);
  }
  if (const auto* free = std::get_if<SlotFree>(&message)) NoteGrant(writer, free->lane, free->grant);
  const Way* way = WayOf(writer);
  if (way == nullptr) return;
  LaneMessage told = message;
  if (std::holds_alternative<LaneBound>(message) && (outboxes_.contains(writer) || lent_reads_.Has(writer)))
    std::get<LaneBound>(std::get<ToPrefill>(told)).reads_outbox = true;
  way->transport->Send(PeerOf(writer), EncodeLaneMessage(told),
                       [](const absl::Status&) {});  // a lost writer is told by OnLost
}

bool Landing::MayLand(WriterId writer, const LandingPlace& place) const {
  const Grant& grant = grants_[place.slot.slot];
  return grant.open && grant.writer == writer && grant.lane == place.lane && grant.turn == place.slot.turn;
}

void Landing::OnSelfTest(WriterId writer, const SelfTestMessage& message) {
  Way& way = *WayOf(writer);
  const bool over = message.step == SelfTestMessage::Step::kOver && way.test->HeldBy(PeerOf(writer));
  const bool line = over && writers_words_.May(StrCat("self-test ", writer));
  if (over && message.ok) {
    {
      std::lock_guard lock(mutex_);
      kind_ = way.kind();
    }
    if (line)
      LogInfo("landing: a prefill worker comes by {} ({}), {:.2f} GB/s in its self-test", way.kind(),
              Printable(message.text), message.gigabytes_per_second);
  } else if (over) {
    ++counters_.self_tests_failed;
    if (line) LogWarning("landing: a prefill worker's self-test by {} failed", way.kind());
  }
  way.test->OnMessage(PeerOf(writer), message, clock_.Now());
}

void Landing::OnMessage(WriterId peer, std::string_view bytes) {
  absl::StatusOr<LaneMessage> message = DecodeLaneMessage(bytes);
  if (message.ok() && std::holds_alternative<ToPrefill>(*message))
    message = absl::InvalidArgumentError("a message for the other side");
  if (!message.ok()) {
    if (writers_words_.May(StrCat("cut off ", peer)))
      LogWarning("landing: peer {} is cut off: {}", peer, View(message.status().message()));
    return thread_.Post([this, peer] {  // nothing of it is told once it was lost
      events_.OnWriterLost(peer);
      Cut(peer);
    });
  }
  if (const auto* test = std::get_if<SelfTestMessage>(&*message)) return OnSelfTest(peer, *test);
  if (auto* hello = std::get_if<LaneHello>(&*message)) {
    OpenOutboxOf(peer, *hello);
    return events_.OnHello(peer, std::move(*hello));
  }
  ToDecode& lane = std::get<ToDecode>(*message);
  if (const auto* full = std::get_if<SlotFull>(&lane); full != nullptr && full->slot.slot < grants_.size()) {
    Grant& grant = grants_[full->slot.slot];
    if (grant.writer == peer && grant.lane == full->lane && grant.turn == full->slot.turn) grant.open = false;
  }
  events_.OnLane(peer, std::move(lane));
}

/// A worker on a CPU takes KV from nobody's GPU, and says nothing.
void Landing::OpenOutboxOf(WriterId writer, const LaneHello& hello) {
  if (pool_.movers.empty() || outboxes_.contains(writer)) return;
  const std::string& kind = WayOf(writer)->kind();
  if (std::optional<LentOutbox> lent = LentOutbox::Parse(hello.outbox))
    return OpenLent(writer, hello, *std::move(lent));
  absl::StatusOr<PeerOutbox> opened = absl::FailedPreconditionError("by CUDA IPC only what comes by shm does");
  if (kind.empty() || kind == "shm") opened = OpenOutbox(pool_, hello.outbox, hello.outbox_buffer_bytes);
  if (!opened.ok()) {
    return LogInfo("landing: KV of prefill worker {}, by {}, is staged through host memory: {}",
                   Printable(hello.incarnation), kind, View(opened.status().message()));
  }
  LogInfo("landing: KV of prefill worker {} is read from its GPU by CUDA IPC", Printable(hello.incarnation));
  outboxes_[writer] = *std::move(opened);
}

/// Until it is open the lanes that are bound have their KV staged.
void Landing::OpenLent(WriterId writer, const LaneHello& hello, LentOutbox lent) {
  const Way& way = *WayOf(writer);
  const auto opened = [kind = std::string(way.transport->name()),
                       name = hello.incarnation](const absl::Status& status) {
    if (status.ok())
      return LogInfo("landing: KV of prefill worker {} is read from its GPU's memory by {}", Printable(name), kind);
    LogInfo("landing: KV of prefill worker {}, by {}, is staged through host memory: {}", Printable(name), kind,
            View(status.message()));
  };
  lent_reads_.Open(writer, *way.transport, PeerOf(writer), std::move(lent), hello.outbox_buffer_bytes, opened);
}

/// What a dead worker's GPU had is not read: whoever is lost has its outbox closed at once.
void Landing::OnLost(WriterId peer, const absl::Status& why) {
  outboxes_.erase(peer);
  lent_reads_.Close(peer);
  if (writers_words_.May(StrCat("gone ", peer))) LogInfo("landing: peer {} is gone: {}", peer, View(why.message()));
  ++counters_.writers_lost;
  WayOf(peer)->test->OnLost(PeerOf(peer), clock_.Now());
  thread_.Post([this, peer] { Cut(peer); });  // before the desk can release it
  events_.OnWriterLost(peer);
}

/// The scheduler hears nothing of strangers, and the log one line a second of each.
void Landing::OnRefused(WriterId peer, std::string_view host, const absl::Status& why) {
  ++counters_.writers_refused;
  if (refusals_.May(host)) LogWarning("landing: {} is refused: {}", host, View(why.message()));
  thread_.Post([this, peer] {
    if (const Way* way = WayOf(peer); way != nullptr) way->transport->Close(PeerOf(peer), [] {});
  });
}

void Landing::Cut(WriterId writer) {
  if (PlantedBug("fence answered early")) events_.OnWriterFenced(writer);
  outboxes_.erase(writer);
  lent_reads_.Close(writer);
  const Way* way = WayOf(writer);
  if (way == nullptr) return events_.OnWriterFenced(writer);  // nobody writes a memory that is gone
  way->transport->Close(PeerOf(writer), [this, writer] {
    lent_reads_.OnFenced(writer);
    events_.OnWriterFenced(writer);
  });
}

void Landing::Release(WriterId writer) {
  if (lent_reads_.Awaits(writer)) return;  // its fence is ours
  if (const Way* way = WayOf(writer); way != nullptr) way->transport->Release(PeerOf(writer));
}

absl::StatusOr<SlotContent> Landing::TableOf(const ScatterOrder& order) {
  const Grant& grant = grants_[order.slot.slot];
  if (grant.lane != order.lane || grant.turn != order.slot.turn)
    return absl::AbortedError("the slot has changed hands");
  const Way* way = WayOf(grant.writer);
  if (way == nullptr) return absl::AbortedError("its memory was dropped");
  const std::span<const std::byte> slot =
      way->transport->landing().subspan(order.slot.slot * shape_.slot_bytes, shape_.slot_bytes);
  absl::StatusOr<SlotContent> content = ReadSlot(slot, order.lane, order.slot.turn);
  counters_.unreadable_slots += !content.ok();
  return content;
}

absl::Status Landing::VerifyAndScatter(const ScatterOrder& order, const SlotContent& content, bool in_inbox) {
  const WriterId writer = grants_[order.slot.slot].writer;
  const Way* way = WayOf(writer);
  if (way == nullptr) return absl::AbortedError("its memory was dropped");
  PeerOutbox from;
  if (in_inbox) {
    from = {nullptr, lent_reads_.BufferBytesOf(writer), true};
  } else if (OutboxOf(content) != 0) {
    const auto outbox = outboxes_.find(writer);
    if (outbox == outboxes_.end()) return absl::AbortedError("its writer's outbox is closed");
    from = outbox->second;
  }
  for (const SlotContent::Part& part : content.parts) counters_.bytes += static_cast<int64_t>(part.payload.size());
  // Where another has the inbox the host stages what is pinned.
  const bool by_itself = way->pinned != nullptr && lent_reads_.Free();
  const absl::Status placed = VerifyAndScatterSlot(*order.plan, order.plan->lanes()[order.lane.lane], content,
                                                   order.wanted, pool_, *order.tables, from, by_itself);
  counters_.digest_mismatches += !placed.ok();
  return placed;
}

void Landing::Place(const ScatterOrder& order) {
  const absl::StatusOr<SlotContent> content = TableOf(order);
  const uint32_t outbox = content.ok() ? OutboxOf(*content) : 0;
  if (outbox != 0 && lent_reads_.Has(grants_[order.slot.slot].writer)) return ReadAndPlace(order, *content);
  if (outbox != 0 && !lent_reads_.Free()) {
    return lent_reads_.WhenFree(
        [this, order, content] { Answer(order, clock_.Now(), VerifyAndScatter(order, *content, false)); });
  }
  const TimePoint start = clock_.Now();
  Answer(order, start, content.ok() ? VerifyAndScatter(order, *content, false) : content.status());
}

/// The payloads come into the inbox by themselves, later.
void Landing::ReadAndPlace(const ScatterOrder& order, const SlotContent& content) {
  uint64_t begin = content.parts.front().at, end = begin;
  for (const SlotContent::Part& part : content.parts) end = std::max(end, part.at + part.segment.bytes);
  const auto start = std::make_shared<TimePoint>(clock_.Now());
  lent_reads_.Read(
      grants_[order.slot.slot].writer, OutboxOf(content) - 1, begin, end, [this, start] { *start = clock_.Now(); },
      [this, order, content, start](const absl::Status& read) {
        Answer(order, *start, read.ok() ? VerifyAndScatter(order, content, true) : read);
      });
}

/// `status`: of the slot, which is placed.
void Landing::Answer(const ScatterOrder& order, TimePoint start, const absl::Status& status) {
  counters_.nanoseconds += (clock_.Now() - start).count();
  ++counters_.slots;
  if (!status.ok() && writers_words_.May(StrCat("ticket ", order.lane.ticket))) {
    LogWarning("landing: ticket {} epoch {} lane {} slot {}: {}", order.lane.ticket, order.lane.epoch, order.lane.lane,
               order.slot.slot, View(status.message()));
  }
  if (order.tell && status.ok()) {
    const SlotTurn next{order.slot.slot, order.slot.turn + 1};
    Send(grants_[order.slot.slot].writer, SlotFree{order.lane, next, true});
  }
  events_.OnScattered({order.lane, order.slot, status.ok(), order.tell && status.ok(), order.may_wait});
}

}  // namespace baton::decode_worker
