// Active messages and puts: those that are sent, and the handling of those that arrive.
#include <algorithm>
#include <cstring>
#include <utility>

#include "common/status.h"
#include "kvtransfer/ucx/ucx_peers.h"

namespace baton::ucx {
namespace {

constexpr uint64_t kPieceBytes = 60 << 10;  ///< of a write in one message: with its heads it fits a segment of TCP
constexpr uint64_t kLine = 64;              ///< pieces begin at cache lines
constexpr int kPiecesInUcx = 16;            ///< of a peer's writes; messages overtake the rest
constexpr size_t kSpareOperations = 64;
constexpr size_t kMaxArriving = 1024;        ///< of a peer, who has some sixteen pieces on the way
constexpr uint64_t kAnswerBytes = 32 << 10;  ///< stored bytes that are answered while more is coming in

}  // namespace

absl::Status UcxTransport::RegisterHandlers() {
  for (MessageKind kind : {kHello, kMessage, kWrite, kLanded, kBye}) {
    handlers_.push_back(std::make_unique<Handler>(Handler{this, kind}));
    ucp_am_handler_param_t param{};
    param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    param.id = kind;
    param.flags = UCP_AM_FLAG_WHOLE_MSG;
    param.cb = &UcxTransport::Received;
    param.arg = handlers_.back().get();
    BATON_RETURN_IF_ERROR(ToStatus(ucp_worker_set_am_recv_handler(worker_->get(), &param), "handler"));
  }
  return absl::OkStatus();
}

void UcxTransport::Send(PeerNumber number, std::string message, Done done) {
  Peer* peer = Find(number);
  if (peer == nullptr)
    return Later([done = std::move(done)] {
      if (done) done(absl::UnavailableError("no such peer"));
    });
  SendActive(*peer, kMessage, {}, std::move(message), std::move(done));
}

void UcxTransport::SendActive(Peer& peer, MessageKind kind, const Head& head, std::string payload, Done done) {
  std::unique_ptr<Operation> operation = NewOperation(peer.number);
  operation->head = head;
  operation->message = std::move(payload);
  operation->done = std::move(done);
  operation->head.incarnation = worker_->address().incarnation;
  operation->head.number = peer.number;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.cb.send = &UcxTransport::Ended;
  param.user_data = operation.get();
  param.flags = UCP_AM_SEND_FLAG_EAGER;  // keeps messages in order
  const ucs_status_ptr_t request = ucp_am_send_nbx(peer.endpoint, kind, &operation->head, sizeof(Head),
                                                   operation->message.data(), operation->message.size(), &param);
  Complete(request, std::move(operation));
}

/// Done at once, failed at once, or in UCX's hands until Ended.
void UcxTransport::Complete(ucs_status_ptr_t request, std::unique_ptr<Operation> operation) {
  if (UCS_PTR_IS_PTR(request)) return HandOver(std::move(operation));
  const absl::Status status = ToStatus(UCS_PTR_RAW_STATUS(request), "send");
  if (status.ok() && !operation->done && operation->read == 0) return Recycle(std::move(operation));
  Later([this, status, ended = std::shared_ptr<Operation>(std::move(operation))] { Finish(*ended, status); });
}

/// A write that UCX gave up has lost its connection: all that is outstanding on it ends with that.
void UcxTransport::Finish(const Operation& operation, const absl::Status& status) {
  const bool of_writes = operation.write != 0 || operation.flushed != 0;
  Peer* peer = of_writes ? Find(operation.peer) : nullptr;
  if (peer != nullptr && !status.ok()) {
    peer->failed.Update(status);
  } else if (peer != nullptr && operation.flushed != 0) {
    EndWritesTo(*peer, operation.flushed);
  }
  if (operation.read != 0) EndRead(operation.peer, operation.read, status);
  if (operation.done) operation.done(status);
}

std::unique_ptr<UcxTransport::Operation> UcxTransport::TakeBack(void* operation) {
  std::unique_ptr<Operation> ours(static_cast<Operation*>(operation));
  ours->owner->in_ucx_.erase(ours.get());
  return ours;
}

void UcxTransport::Ended(void* request, ucs_status_t code, void* user_data) {
  std::unique_ptr<Operation> operation = TakeBack(user_data);
  ucp_request_free(request);
  UcxTransport& owner = *operation->owner;
  Peer* peer = operation->piece ? owner.Find(operation->peer) : nullptr;
  if (peer != nullptr) --peer->pieces_in_ucx;
  owner.Finish(*operation, ToStatus(code, "send"));
  owner.Recycle(std::move(operation));
}

std::unique_ptr<UcxTransport::Operation> UcxTransport::NewOperation(PeerNumber peer) {
  std::unique_ptr<Operation> operation;
  if (spare_operations_.empty()) {
    operation = std::make_unique<Operation>();
  } else {
    operation = std::move(spare_operations_.back());
    spare_operations_.pop_back();
  }
  operation->owner = this;
  operation->peer = peer;
  return operation;
}

void UcxTransport::Recycle(std::unique_ptr<Operation> operation) {
  if (spare_operations_.size() == kSpareOperations) return;
  operation->write = operation->flushed = operation->read = 0;
  operation->piece = false;
  operation->message.clear();
  operation->done = nullptr;
  spare_operations_.push_back(std::move(operation));
}

void UcxTransport::Write(PeerNumber number, const LandingPlace& place, std::span<const std::byte> bytes, Done done) {
  Peer* peer = Find(number);
  if (peer == nullptr) return Later([done = std::move(done)] { done(absl::UnavailableError("no such peer")); });
  const uint64_t write = peer->first_write + peer->writes.size();
  peer->writes.push_back({std::move(done)});
  if (!peer->greeted) return peer->early.push_back({write, place, bytes});
  StartWrite(*peer, write, place, bytes);
}

void UcxTransport::StartWrite(Peer& peer, uint64_t write, const LandingPlace& place, std::span<const std::byte> bytes) {
  const LandingShape& landing = peer.address.landing;
  if (place.slot.slot >= landing.slots || bytes.size() > landing.slot_bytes) {
    const absl::Status refused =
        absl::InvalidArgumentError(StrCat(bytes.size(), " bytes for slot ", place.slot.slot, ", the peer has ",
                                          landing.slots, " of ", landing.slot_bytes));
    return Later([refused, done = TakeWrite(peer, write)] { done(refused); });
  }
  if (options_.verb == UcxVerb::kPut) return Put(peer, write, place, bytes);
  SendBytes(peer, write, place, bytes);
}

/// As messages that the receiver stores. The good end is its kLanded.
void UcxTransport::SendBytes(Peer& peer, uint64_t write, const LandingPlace& place, std::span<const std::byte> bytes) {
  const uint64_t pieces = std::max<uint64_t>(1, (bytes.size() + kPieceBytes - 1) / kPieceBytes);
  peer.sending.push_back({write, place, bytes, (bytes.size() / pieces + kLine) / kLine * kLine});
  SendPieces(peer);
}

/// Equal pieces, for a short last one costs as much as a long one. Not by UCX's rendezvous: over TCP, with error
/// handling on, that is no less copying and a round trip more, and its fetch could not be called back when the slot
/// changes hands.
void UcxTransport::SendPieces(Peer& peer) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.cb.send = &UcxTransport::Ended;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  while (!peer.sending.empty() && peer.pieces_in_ucx < kPiecesInUcx && peer.failed.ok()) {
    Sending& sending = peer.sending.front();
    const uint64_t offset = sending.sent, total = sending.bytes.size();
    const auto piece = sending.bytes.subspan(offset, std::min(total - offset, sending.piece_bytes));
    std::unique_ptr<Operation> operation = NewOperation(peer.number);
    operation->write = sending.write;
    operation->piece = true;
    const auto& [lane, slot] = sending.place;
    operation->head = {worker_->address().incarnation,
                       peer.number,
                       sending.write,
                       offset,
                       total,
                       lane.ticket,
                       lane.epoch,
                       lane.lane,
                       slot.slot,
                       slot.turn};
    sending.sent += piece.size();
    if (sending.sent == total) peer.sending.pop_front();
    param.user_data = operation.get();
    const ucs_status_ptr_t request =
        ucp_am_send_nbx(peer.endpoint, kWrite, &operation->head, sizeof(Head), piece.data(), piece.size(), &param);
    peer.pieces_in_ucx += UCS_PTR_IS_PTR(request);
    Complete(request, std::move(operation));
  }
  if (!peer.sending.empty()) to_send_.insert(peer.number);
}

/// Sends the pieces that waited until UCX was done with earlier ones.
bool UcxTransport::SendMore() {
  bool moved = false;
  for (PeerNumber number : std::exchange(to_send_, {})) {
    Peer* peer = Find(number);
    if (peer == nullptr) continue;
    moved |= peer->pieces_in_ucx < kPiecesInUcx && peer->failed.ok();
    SendPieces(*peer);
  }
  return moved;
}

/// A put ends locally; a flush behind it says that the bytes are there. Progress makes one for all puts of a turn.
void UcxTransport::Put(Peer& peer, uint64_t write, const LandingPlace& place, std::span<const std::byte> bytes) {
  const uint64_t remote = peer.address.memory + place.slot.slot * peer.address.landing.slot_bytes;
  std::unique_ptr<Operation> operation = NewOperation(peer.number);
  operation->write = write;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = &UcxTransport::Ended;
  param.user_data = operation.get();
  const ucs_status_ptr_t putting = ucp_put_nbx(peer.endpoint, bytes.data(), bytes.size(), remote, peer.key, &param);
  putting == nullptr ? Recycle(std::move(operation)) : Complete(putting, std::move(operation));
  if (std::exchange(peer.unflushed, write) == 0) to_flush_.push_back(peer.number);
}

bool UcxTransport::FlushPuts() {
  if (to_flush_.empty()) return false;
  for (PeerNumber number : std::exchange(to_flush_, {})) {
    Peer* peer = Find(number);
    if (peer == nullptr) continue;
    std::unique_ptr<Operation> flush = NewOperation(number);
    flush->flushed = std::exchange(peer->unflushed, 0);
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.cb.send = &UcxTransport::Ended;
    param.user_data = flush.get();
    const ucs_status_ptr_t request = ucp_ep_flush_nbx(peer->endpoint, &param);
    if (UCS_PTR_IS_PTR(request)) {
      HandOver(std::move(flush));
    } else {
      Finish(*flush, ToStatus(UCS_PTR_RAW_STATUS(request), "flush"));
      Recycle(std::move(flush));
    }
  }
  return true;
}

/// One message for all writes of a peer that were stored. While more comes in (not `all`) it waits for some of them.
bool UcxTransport::AnswerLanded(bool all) {
  if (to_answer_.empty()) return false;
  for (PeerNumber number : std::exchange(to_answer_, {})) {
    Peer* peer = Find(number);
    if (peer == nullptr) continue;
    if (!all && peer->landed_bytes < kAnswerBytes) {
      to_answer_.push_back(number);
      continue;
    }
    const std::vector<uint64_t> landed = std::exchange(peer->landed, {});
    peer->landed_bytes = 0;
    SendActive(*peer, kLanded, {},
               std::string(reinterpret_cast<const char*>(landed.data()), landed.size() * sizeof(uint64_t)), nullptr);
  }
  return true;
}

/// Null: it has ended.
Transport::Done UcxTransport::TakeWrite(Peer& peer, uint64_t write) {
  if (write < peer.first_write || write - peer.first_write >= peer.writes.size()) return nullptr;
  Posted& posted = peer.writes[write - peer.first_write];
  Done done = std::exchange(posted.done, nullptr);
  posted.ended = true;
  for (; !peer.writes.empty() && peer.writes.front().ended; ++peer.first_write) peer.writes.pop_front();
  return done;
}

void UcxTransport::EndWrite(PeerNumber number, uint64_t write) {
  Peer* peer = Find(number);
  if (peer == nullptr) return;
  std::erase_if(peer->sending, [write](const Sending& sending) { return sending.write == write; });  // its bytes go
  if (const Done done = TakeWrite(*peer, write)) done(absl::OkStatus());
  peer = Find(number);
  if (peer != nullptr) EndFlushes(*peer);
}

/// All of them, in order. A Done must not close the peer that it is of.
void UcxTransport::EndWritesTo(Peer& peer, uint64_t last) {
  while (!peer.writes.empty() && peer.first_write <= last) {
    const Done done = std::move(peer.writes.front().done);
    peer.writes.pop_front();
    ++peer.first_write;
    if (done) done(absl::OkStatus());
  }
  EndFlushes(peer);
}

void UcxTransport::EndFlushes(Peer& peer) {
  if (peer.flushes.empty()) return;
  const uint64_t oldest = peer.writes.empty() ? ~0ull : peer.first_write;
  std::vector<Done> flushed;
  std::erase_if(peer.flushes, [&flushed, oldest](auto& flush) {
    if (flush.first >= oldest) return false;
    flushed.push_back(std::move(flush.second));
    return true;
  });
  for (Done& done : flushed) done(absl::OkStatus());
}

ucs_status_t UcxTransport::Received(void* arg, const void* header, size_t header_bytes, void* data, size_t bytes,
                                    const ucp_am_recv_param_t* param) {
  const Handler& handler = *static_cast<Handler*>(arg);
  Head head;
  if (header_bytes != sizeof(head)) return UCS_OK;  // not ours
  std::memcpy(&head, header, sizeof(head));
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) return UCS_OK;  // nor this: ours bring their data along
  handler.owner->OnActive(handler.kind, head, {static_cast<const char*>(data), bytes});
  return UCS_OK;
}

void UcxTransport::OnActive(MessageKind kind, const Head& head, std::string_view text) {
  if (kind == kHello) return OnHello(head, text);
  Peer* peer = FindSender(head);
  if (peer == nullptr) return;  // closed meanwhile
  const PeerNumber number = peer->number;
  switch (kind) {
    case kHello: return;
    case kMessage:
      if (text.size() <= kMaxMessageBytes) return events_.OnMessage(number, text);
      peer->failed =
          absl::InvalidArgumentError(StrCat("a message of ", text.size(), " bytes, at most ", kMaxMessageBytes));
      return;
    case kWrite: return Store(*peer, head, std::as_bytes(std::span(text)));
    case kBye: peer->failed = absl::UnavailableError("the peer closed the connection"); return;
    case kLanded:
      if (text.size() % sizeof(uint64_t) != 0) {
        peer->failed = absl::InvalidArgumentError(
            StrCat("numbers of writes in ", text.size(), " bytes, not a multiple of ", sizeof(uint64_t)));
        return;
      }
      for (size_t at = 0; at + sizeof(uint64_t) <= text.size(); at += sizeof(uint64_t)) {
        uint64_t write = 0;
        std::memcpy(&write, text.data() + at, sizeof(write));
        EndWrite(number, write);
      }
  }
}

/// Into the slot, if the sender still holds it. Pieces of a write come in any order.
void UcxTransport::Store(Peer& peer, const Head& head, std::span<const std::byte> bytes) {
  if (!peer.failed.ok()) return;
  if (head.total > options_.landing.slot_bytes) {
    peer.failed = absl::InvalidArgumentError(
        StrCat("a write of ", head.total, " bytes, slots here have ", options_.landing.slot_bytes));
    return;
  }
  const LandingPlace place{{head.ticket, head.epoch, head.lane}, {head.slot, head.turn}};
  const uint64_t slot_bytes = options_.landing.slot_bytes;
  const bool fits =
      head.slot < options_.landing.slots && head.offset <= slot_bytes && bytes.size() <= slot_bytes - head.offset;
  if (fits && events_.MayLand(peer.number, place))
    std::memcpy(landing().data() + head.slot * slot_bytes + head.offset, bytes.data(), bytes.size());
  if (bytes.size() < head.total) {
    if (peer.arriving.size() >= kMaxArriving && !peer.arriving.contains(head.write)) {
      peer.failed = absl::ResourceExhaustedError(StrCat("more than ", kMaxArriving, " writes are here in part"));
      return;
    }
    uint64_t& arrived = peer.arriving[head.write];
    arrived += bytes.size();
    if (arrived < head.total) return;
    peer.arriving.erase(head.write);
  }
  if (peer.landed.empty()) to_answer_.push_back(peer.number);
  peer.landed.push_back(head.write);
  peer.landed_bytes += head.total;
}

void UcxTransport::OnHello(const Head& head, std::string_view text) {
  absl::StatusOr<PeerAddress> address = PeerAddress::Parse(text);
  if (!address.ok()) return events_.OnRefused(next_peer_++, options_.name, address.status());
  if (address->incarnation != head.incarnation || FindSender(head) != nullptr) return;
  if (head.write != 0) {  // the answer to ours, which it names
    Peer* peer = Find(head.write);
    if (peer == nullptr || peer->greeted || peer->address.incarnation != head.incarnation) return;
    peer->remote_number = head.number;
    if (absl::Status greeted = Greet(*peer, *std::move(address)); !greeted.ok()) peer->failed = greeted;
    return;
  }
  if (absl::Status welcome = Welcome(head, *std::move(address)); !welcome.ok())
    events_.OnRefused(next_peer_++, options_.name, welcome);
}

/// One that connects to us.
absl::Status UcxTransport::Welcome(const Head& head, PeerAddress address) {
  const auto there =
      static_cast<size_t>(std::ranges::count_if(peers_, [](const auto& p) { return p.second->accepted; }));
  if (there >= options_.max_peers)
    return absl::ResourceExhaustedError(StrCat(there, " peers have connected, at most ", options_.max_peers));
  const absl::StatusOr<Peer*> peer = Add(address);
  BATON_RETURN_IF_ERROR(peer.status());
  (*peer)->accepted = true;
  (*peer)->remote_number = head.number;
  SendActive(**peer, kHello, {.write = head.number}, GreetingFor(**peer), nullptr);
  (*peer)->failed = Greet(**peer, std::move(address));
  if ((*peer)->failed.ok())
    events_.OnConnected((*peer)->number);  // now: the peer's first message may be in this same burst
  return absl::OkStatus();
}

/// The connection that a message belongs to: by the sender's incarnation and its number of it.
UcxTransport::Peer* UcxTransport::FindSender(const Head& head) {
  const auto is_it = [&head](const Peer& p) {
    return p.address.incarnation == head.incarnation && p.remote_number == head.number;
  };
  if (latest_sender_ != nullptr && is_it(*latest_sender_)) return latest_sender_;
  for (const auto& [number, peer] : peers_) {
    if (is_it(*peer)) return latest_sender_ = peer.get();
  }
  return nullptr;
}

}  // namespace baton::ucx
