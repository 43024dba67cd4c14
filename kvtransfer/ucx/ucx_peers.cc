// Peers: connecting, closing, loss, and the transport's face.
#include "kvtransfer/ucx/ucx_peers.h"

#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/errno_text.h"
#include "common/status.h"

namespace baton {

absl::StatusOr<std::unique_ptr<Transport>> MakeUcxTransport(UcxOptions options, TransportEvents& events) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<ucx::Worker> worker, ucx::Worker::Create(options));
  auto transport = std::make_unique<ucx::UcxTransport>(std::move(options), events, std::move(worker));
  BATON_RETURN_IF_ERROR(transport->RegisterHandlers());
  return std::unique_ptr<Transport>(std::move(transport));
}

std::string UcxVersion() { return ucp_get_version_string(); }

namespace ucx {

UcxTransport::UcxTransport(UcxOptions options, TransportEvents& events, std::unique_ptr<Worker> worker)
    : options_(std::move(options)), events_(events), epoll_(epoll_create1(EPOLL_CLOEXEC)), worker_(std::move(worker)) {
  BATON_CHECK(epoll_ >= 0, ErrnoText());
  epoll_event event{};
  event.events = EPOLLIN;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, worker_->wait_fd(), &event);
}

UcxTransport::~UcxTransport() {
  fences_.clear();
  while (!peers_.empty()) Lose(peers_.begin()->first, absl::OkStatus());
  for (int i = 0; i < 1000 && !closing_.empty(); ++i) {  // forced closes end at once; bounded all the same
    ucp_worker_progress(worker_->get());
    EndClosing();
  }
  for (const auto& grave : graves_) grave->lent.clear();  // keys end before their worker
  worker_.reset();
  for (Operation* operation : in_ucx_) delete operation;  // whose end UCX never told
  close(epoll_);
}

/// Frees a request that has ended; null counts as ended.
bool UcxTransport::Closing::Ended(void*& request) {
  if (request == nullptr) return true;
  if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
  ucp_request_free(std::exchange(request, nullptr));
  return true;
}

/// A forced close may end before the lanes are gone, which UCX discards one by one. A flush of the worker waits for
/// that; where a forced close is a fence, it ends behind one.
bool UcxTransport::StillCloses(Closing& closing) {
  if (!Closing::Ended(closing.request)) return true;
  if (fence() != FenceKind::kForcedClose || std::exchange(closing.closed, true)) return false;
  const ucp_request_param_t param{};
  const ucs_status_ptr_t flush = ucp_worker_flush_nbx(worker_->get(), &param);
  if (UCS_PTR_IS_PTR(flush)) closing.request = flush;
  return closing.request != nullptr;
}

bool UcxTransport::EndClosing() {
  std::erase_if(closing_, [this](Closing& closing) { return !StillCloses(closing); });
  std::vector<std::function<void()>> fenced;
  std::erase_if(fences_, [&](auto& fence) {
    const auto same = [&](const Closing& closing) { return closing.peer == fence.first; };
    if (std::ranges::any_of(closing_, same)) return false;
    fenced.push_back(std::move(fence.second));
    return true;
  });
  for (const auto& one : fenced) one();
  return !fenced.empty();
}

absl::StatusOr<PeerNumber> UcxTransport::Connect(std::string_view address) {
  const std::string prefix = options_.name + ":";
  const std::string_view text = address.starts_with(prefix) ? address.substr(prefix.size()) : "";
  if (text.empty() || text.size() % 2 != 0 || text.find_first_not_of("0123456789abcdef") != text.npos) {
    return absl::InvalidArgumentError(StrCat("'", address, "' is no ", options_.name, " address"));
  }
  BATON_ASSIGN_OR_RETURN(PeerAddress parsed, PeerAddress::Parse(absl::HexStringToBytes(AbslView(text))));
  BATON_ASSIGN_OR_RETURN(Peer * peer, Add(std::move(parsed)));
  SendActive(*peer, kHello, {}, GreetingFor(*peer), nullptr);
  return peer->number;
}

std::string UcxTransport::GreetingFor(const Peer& peer) const {
  PeerAddress own = worker_->address();
  if (peer.registration != nullptr) own.remote_key = peer.registration->key();
  return own.Pack();
}

absl::StatusOr<UcxTransport::Peer*> UcxTransport::Add(PeerAddress address) {
  auto peer = std::make_unique<Peer>();
  peer->number = next_peer_++;
  peer->owner = this;
  peer->address = std::move(address);
  if (fence() == FenceKind::kPeerExit) {
    BATON_ASSIGN_OR_RETURN(PeerExit exit, PeerExit::Of(peer->address.pid));
    if (!worker_->landing().empty()) exits_.Know(peer->number, std::move(exit));
  }
  BATON_ASSIGN_OR_RETURN(peer->registration, worker_->RegisterForPeer());
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(peer->address.worker.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {&UcxTransport::EndpointFailed, peer.get()};
  BATON_RETURN_IF_ERROR(ToStatus(ucp_ep_create(worker_->get(), &params, &peer->endpoint), "endpoint"));
  Peer* kept = peer.get();
  peers_[kept->number] = std::move(peer);
  return kept;
}

/// The peer's landing memory is known from now on.
absl::Status UcxTransport::Greet(Peer& peer, PeerAddress address) {
  peer.address = std::move(address);
  if (!peer.address.remote_key.empty()) {
    const ucs_status_t unpacked = ucp_ep_rkey_unpack(peer.endpoint, peer.address.remote_key.data(), &peer.key);
    BATON_RETURN_IF_ERROR(ToStatus(unpacked, "remote key"));
  }
  peer.greeted = true;
  for (auto& [write, place, bytes] : std::exchange(peer.early, {})) StartWrite(peer, write, place, bytes);
  return absl::OkStatus();
}

UcxTransport::Peer* UcxTransport::Find(PeerNumber peer) {
  if (latest_ != nullptr && latest_->number == peer) return latest_;
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return nullptr;
  return latest_ = found->second.get();
}

LandingShape UcxTransport::landing_of(PeerNumber peer) const {
  const auto found = peers_.find(peer);
  return found == peers_.end() ? LandingShape{} : found->second->address.landing;
}

void UcxTransport::Flush(PeerNumber number, Done done) {
  Peer* peer = Find(number);
  if (peer == nullptr) return Later([done = std::move(done)] { done(absl::UnavailableError("no such peer")); });
  if (peer->writes.empty()) return Later([done = std::move(done)] { done(absl::OkStatus()); });
  peer->flushes.emplace_back(peer->first_write + peer->writes.size() - 1, std::move(done));
}

/// Also of a peer that was lost before, or closed: its fence is the same.
void UcxTransport::Close(PeerNumber number, std::function<void()> fenced) {
  Lose(number, absl::OkStatus());
  if (fence() == FenceKind::kPeerExit) {
    if (!exits_.Await(number, epoll_, 0, fenced)) Later(std::move(fenced));  // it wrote nothing here
  } else if (fence() == FenceKind::kForcedClose) {
    fences_.emplace_back(number, std::move(fenced));
  } else {
    fenced();
  }
}

void UcxTransport::CloseEndpoint(PeerNumber number, ucp_ep_h endpoint) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t request = ucp_ep_close_nbx(endpoint, &param);
  closing_.push_back({number, UCS_PTR_IS_PTR(request) ? request : nullptr});
}

/// `why` ok: we close it ourselves, and OnLost is not called.
void UcxTransport::Lose(PeerNumber number, const absl::Status& why) {
  auto node = peers_.extract(number);
  if (node.empty()) return;
  std::unique_ptr<Peer> peer = std::move(node.mapped());
  latest_ = latest_sender_ = nullptr;
  if (why.ok()) SendActive(*peer, kBye, {}, "", nullptr);  // if it gets through; else the keepalive tells
  if (peer->key != nullptr) ucp_rkey_destroy(peer->key);
  CloseEndpoint(number, peer->endpoint);
  peer->registration.reset();  // before anybody can hear that he is fenced
  const absl::Status error = why.ok() ? absl::CancelledError("the connection was closed") : why;
  for (Posted& posted : std::exchange(peer->writes, {})) {
    if (!posted.ended) posted.done(error);
  }
  for (auto& [write, done] : std::exchange(peer->flushes, {})) done(error);
  for (auto& [read, done] : std::exchange(peer->reads, {})) done(error);
  graves_.push_back(std::move(peer));
  if (!why.ok()) events_.OnLost(number, why);
}

void UcxTransport::EndpointFailed(void* arg, ucp_ep_h, ucs_status_t status) {
  Peer* peer = static_cast<Peer*>(arg);
  if (peer->failed.ok()) peer->failed = ToStatus(status, "endpoint");
}

bool UcxTransport::Progress() {
  bool moved = !later_.empty();
  for (auto& work : std::exchange(later_, {})) work();
  const bool more = ucp_worker_progress(worker_->get()) != 0;
  moved |= more;
  moved |= FlushPuts();
  moved |= SendMore();
  moved |= AnswerLanded(/*all=*/!more);
  std::vector<PeerNumber> failed;
  for (const auto& [number, peer] : peers_) {
    if (!peer->failed.ok()) failed.push_back(number);
  }
  for (PeerNumber number : failed) {
    if (Peer* peer = Find(number); peer != nullptr) {
      Lose(number, absl::Status(peer->failed));
      moved = true;
    }
  }
  moved |= EndClosing();
  if (closing_.empty()) graves_.clear();
  moved |= exits_.Progress();
  return moved || !later_.empty() || !to_answer_.empty() || !worker_->Arm();
}

}  // namespace ucx
}  // namespace baton
