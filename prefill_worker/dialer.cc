#include "prefill_worker/dialer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/foreign_text.h"
#include "common/log.h"
#include "common/status.h"
#include "kvtransfer/faulty_transport.h"
#include "kvtransfer/lane_codec.h"

namespace baton::prefill_worker {

class Dialer::Link final : public TransportEvents {
 public:
  explicit Link(Dialer& dialer) : dialer_(dialer) {}
  void OnConnected(PeerNumber) override {}
  void OnMessage(PeerNumber peer, std::string_view message) override { dialer_.OnMessage(*this, peer, message); }
  void OnLost(PeerNumber peer, const absl::Status& why) override { dialer_.OnLost(*this, peer, why); }
  bool MayLand(PeerNumber, const LandingPlace&) override { return false; }  // nobody writes here

  std::map<PeerNumber, prefill::PeerId> ids;
  std::unique_ptr<Transport> transport;

 private:
  Dialer& dialer_;
};

Dialer::Dialer(DialOptions options, const Clock& clock, worker::TransferLoop& thread, DialEvents& events)
    : options_(std::move(options)), machine_(ThisMachine()), clock_(clock), thread_(thread), events_(events) {}

Dialer::~Dialer() {
  for (auto& [peer, call] : calls_) {
    if (call.test != nullptr) call.test->Abandon();
  }
  for (const auto& [kind, link] : links_) {
    if (link != nullptr) thread_.Unwatch(link->transport.get());
  }
}

void Dialer::Call::NoteFailed(std::string_view kind, const absl::Status& why) {
  absl::StrAppend(&tried, tried.empty() ? "" : "; ", AbslView(kind), ": ", why.message());
}

absl::StatusOr<Dialer::Link*> Dialer::LinkFor(const std::string& kind) {
  std::unique_ptr<Link>& link = links_[kind];
  if (link == nullptr) {
    auto fresh = std::make_unique<Link>(*this);
    BATON_ASSIGN_OR_RETURN(fresh->transport, options_.make
                                                 ? options_.make({}, *fresh)
                                                 : MakeTransport(kind, options_.host, 0, {}, *fresh, options_.trust));
    const bool failing = options_.failing_transport == kind;
    if (options_.fault_rate > 0 || failing) {
      fresh->transport =
          std::make_unique<FaultyTransport>(std::move(fresh->transport), options_.fault_rate, failing, 1);
    }
    thread_.Watch(fresh->transport.get());
    link = std::move(fresh);
  }
  return link.get();
}

absl::Status Dialer::MayTry(const std::string& kind, const std::string& machine) const {
  if (options_.make == nullptr && std::ranges::count(options_.kinds, kind) == 0) {
    return absl::FailedPreconditionError(StrCat("not used here, which uses ", absl::StrJoin(options_.kinds, ", ")));
  }
  if (IsLocal(kind) && machine != machine_) return absl::FailedPreconditionError("it runs on another machine");
  return absl::OkStatus();
}

void Dialer::Dial(prefill::PeerId peer, const std::string& addresses) {
  absl::StatusOr<LandingAddresses> parsed = LandingAddresses::Parse(addresses);
  if (!parsed.ok()) return events_.OnPeerLost(peer, parsed.status());
  Call& call = calls_[peer];
  for (std::string& address : parsed->addresses) {
    const std::string kind = KindOf(address);
    const absl::Status may = MayTry(kind, parsed->machine);
    if (may.ok())
      call.addresses.push_back(std::move(address));
    else
      call.NoteFailed(kind, may);
  }
  TryNext(peer);
}

void Dialer::TryNext(prefill::PeerId peer) {
  Call& call = calls_.at(peer);
  while (!call.addresses.empty()) {
    const std::string address = std::move(call.addresses.front());
    call.addresses.erase(call.addresses.begin());
    if (const auto name = NameToResolve(address)) return Resolve(peer, call, *name);
    const absl::Status begun = Begin(peer, call, address);
    if (begun.ok()) return;
    call.NoteFailed(KindOf(address), begun);
  }
  const absl::Status why = absl::UnavailableError(StrCat("no way to the decode worker works: ", call.tried));
  LogWarning("sender: {}", View(why.message()));
  calls_.erase(peer);
  events_.OnPeerLost(peer, why);
}

void Dialer::Resolve(prefill::PeerId peer, Call& call, const net::HostPort& place) {
  call.question = ++questions_;
  resolver_.Resolve(place.host, place.port, [this, peer, question = call.question](auto found) {
    thread_.Post([this, peer, question, found = std::move(found)] { OnResolved(peer, question, found); });
  });
}

/// The name stands for all its addresses, in their order.
void Dialer::OnResolved(prefill::PeerId peer, uint64_t question,
                        const absl::StatusOr<std::vector<net::SocketAddress>>& found) {
  const auto call = calls_.find(peer);
  if (call == calls_.end() || call->second.question != question) return;
  if (!found.ok()) {
    call->second.NoteFailed("tcp", found.status());
  } else {
    std::vector<std::string> addresses;
    for (const net::SocketAddress& one : *found) addresses.push_back(StrCat("tcp:", one.text()));
    call->second.addresses.insert(call->second.addresses.begin(), addresses.begin(), addresses.end());
  }
  TryNext(peer);
}

absl::Status Dialer::Begin(prefill::PeerId peer, Call& call, const std::string& address) {
  const std::string kind = KindOf(address);
  BATON_ASSIGN_OR_RETURN(call.link, LinkFor(kind));
  BATON_ASSIGN_OR_RETURN(call.number, call.link->transport->Connect(address));
  call.link->ids[call.number] = peer;
  call.trying = kind == "tcp" ? address : kind;  // others' are no addresses for people
  Transport* transport = call.link->transport.get();
  if (!options_.self_test) {
    call.path.transport = kind;
    events_.OnReached(peer, {transport, call.number});
    return absl::OkStatus();
  }
  const auto send = [transport](PeerNumber number, const SelfTestMessage& message) {
    transport->Send(number, EncodeLaneMessage(message), [](const absl::Status&) {});
  };
  call.test = std::make_shared<SelfTest>(
      *transport, call.number, clock_, send,
      [this, peer, kind](absl::StatusOr<SelfTest::Result> result) { OnTested(peer, kind, std::move(result)); });
  call.test->Start();
  return absl::OkStatus();
}

void Dialer::OnTested(prefill::PeerId peer, const std::string& kind, absl::StatusOr<SelfTest::Result> result) {
  Call& call = calls_.at(peer);
  call.test = nullptr;
  if (!result.ok()) {
    ++failed_self_tests_;
    LogWarning("sender: {} is not used for this decode worker: {}", kind, View(result.status().message()));
    call.NoteFailed(kind, result.status());
    Leave(call);
    return TryNext(peer);
  }
  call.path = {result->receiver, kind, result->path, result->gigabytes_per_second};
  LogInfo("sender: decode worker {} is reached by {} ({}), {:.2f} GB/s in the self-test{}{}",
          Printable(result->receiver), kind, result->path, result->gigabytes_per_second,
          call.tried.empty() ? "" : "; not by ", call.tried);
  Publish();
  events_.OnReached(peer, {call.link->transport.get(), call.number});
}

/// Closes the connection, but not from inside a callback of its own.
void Dialer::Leave(Call& call) {
  if (call.link == nullptr) return;
  if (call.test != nullptr) call.test->Abandon();
  call.test = nullptr;
  call.link->ids.erase(call.number);
  thread_.Post(
      [link = std::exchange(call.link, nullptr), number = call.number] { link->transport->Close(number, [] {}); });
}

void Dialer::OnMessage(Link& link, PeerNumber number, std::string_view bytes) {
  const auto id = link.ids.find(number);
  if (id == link.ids.end()) return;
  const prefill::PeerId peer = id->second;
  Call& call = calls_.at(peer);
  if (call.test == nullptr) return events_.OnPeerMessage(peer, bytes);
  const absl::StatusOr<LaneMessage> message = DecodeLaneMessage(bytes);
  const std::shared_ptr<SelfTest> test = call.test;  // it may end in there
  if (message.ok() && std::holds_alternative<SelfTestMessage>(*message))
    test->OnMessage(std::get<SelfTestMessage>(*message));
}

void Dialer::OnLost(Link& link, PeerNumber number, const absl::Status& why) {
  const auto id = link.ids.find(number);
  if (id == link.ids.end()) return;
  const prefill::PeerId peer = id->second;
  Call& call = calls_.at(peer);
  if (call.test == nullptr) return Drop(peer, why);
  Leave(call);
  ++failed_self_tests_;
  call.NoteFailed(call.trying, why);
  TryNext(peer);
}

void Dialer::Drop(prefill::PeerId peer, const absl::Status& why) {
  auto call = calls_.extract(peer);
  if (call.empty()) return;
  LogInfo("sender: a decode worker is gone: {}", View(why.message()));
  Leave(call.mapped());
  Publish();
  events_.OnPeerLost(peer, why);
}

void Dialer::Tick() {
  std::vector<std::shared_ptr<SelfTest>> tests;
  for (auto& [peer, call] : calls_) {
    if (call.test != nullptr) tests.push_back(call.test);
  }
  for (const auto& test : tests) test->Tick();
}

void Dialer::AddToPath(prefill::PeerId peer, const std::string& how) {
  const auto call = calls_.find(peer);
  if (call == calls_.end()) return;
  absl::StrAppend(&call->second.path.path, " + ", how);
  LogInfo("sender: decode worker {} takes KV by {}", Printable(call->second.path.incarnation), call->second.path.path);
  Publish();
}

void Dialer::Publish() {
  std::vector<PeerPath> paths;
  for (const auto& [peer, call] : calls_) {
    if (!call.path.transport.empty()) paths.push_back(call.path);
  }
  std::lock_guard lock(mutex_);
  paths_ = std::move(paths);
}

std::vector<PeerPath> Dialer::paths() const {
  std::lock_guard lock(mutex_);
  return paths_;
}

}  // namespace baton::prefill_worker
