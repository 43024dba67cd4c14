// The calls of those on a GrpcAcceptor's port whom nobody knows yet: gRPC keeps some 16 KiB for each from its headers
// on, which are 15 bytes, and waits for its message without end.
#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "common/grpc/acceptor.h"

namespace baton::net {
namespace {

/// Of an HTTP/2 frame's head: fewer begin no call.
constexpr uint64_t kLeastBytes = 9;
/// In which gRPC has made calls of what has come.
constexpr Duration kGrpcsTime = std::chrono::seconds(20);

}  // namespace

/// Tells an acceptor of the calls at its port.
class GrpcAcceptor::Watcher final : public CallWatcher {
 public:
  explicit Watcher(GrpcAcceptor& acceptor) : acceptor_(acceptor) {}
  void OnBegin(const grpc::ServerContextBase&, std::string_view peer, std::string_view) override {
    acceptor_.MayAsk(peer);
  }
  void OnEnd(std::string_view peer, End end) override { acceptor_.OnCallEnd(peer, end); }

 private:
  GrpcAcceptor& acceptor_;
};

void GrpcAcceptor::WatchCalls(grpc::ServerBuilder& builder) {
  watcher_ = std::make_unique<Watcher>(*this);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> watchers;
  watchers.push_back(std::make_unique<WatchedCalls>(*watcher_));
  builder.experimental().SetInterceptorCreators(std::move(watchers));
}

bool GrpcAcceptor::CountsCalls() const {
  return options_.stranger_calls > 0 || options_.first_message_time > Duration();
}

/// Looks at the calls of one whose bytes count. Why it must end, or null. Once.
const char* GrpcAcceptor::CountCalls(Connections::iterator one) {
  Taken& taken = one->second;
  if (taken.ended) return nullptr;
  const uint64_t bytes = BytesOf(one);
  // gRPC may be busy, and read what is here much later.
  if (bytes >= taken.calls_bytes + kLeastBytes) taken.calls_until = clock_.Now() + kGrpcsTime;
  if (clock_.Now() > taken.calls_until && taken.open_calls == 0) return nullptr;
  taken.calls_bytes = bytes;
  if (taken.socket == 0) NameSockets();
  const std::optional<int64_t> open = taken.socket == 0 ? std::nullopt : OpenCallsOf(taken.socket);
  if (!open) taken.socket = 0;
  SetOpenCalls(one, open.value_or(0));
  if (taken.open_calls <= taken.calls) {
    taken.waits_since.reset();
  } else if (!taken.waits_since) {
    taken.waits_since = clock_.Now();
    taken.waits_bytes = bytes;
  }
  if (options_.stranger_calls > 0 && taken.open_calls > options_.stranger_calls) {
    SetOpenCalls(one, 0);
    taken.ended = true;
    return kManyCalls;
  }
  if (options_.first_message_time == Duration() || !taken.waits_since) return nullptr;
  const double may = Seconds(options_.first_message_time) +
                     static_cast<double>(bytes - std::min(bytes, taken.waits_bytes)) / kSlowestBytesPerSecond;
  if (Seconds(clock_.Now() - *taken.waits_since) < may) return nullptr;
  SetOpenCalls(one, 0);
  taken.ended = true;
  return kUnfinished;
}

/// Of all that are open on such connections.
void GrpcAcceptor::SetOpenCalls(Connections::iterator one, int64_t calls) {
  stranger_calls_ += calls - std::exchange(one->second.open_calls, calls);
}

/// While all have too many, the connection with the most, of the address with the most. None: they have not.
std::optional<GrpcAcceptor::Endpoint> GrpcAcceptor::EndOneOfMany() {
  if (options_.all_stranger_calls == 0 || stranger_calls_ <= options_.all_stranger_calls) return std::nullopt;
  std::map<boost::asio::ip::address, int64_t> of_address;
  for (const auto& [number, end] : in_vain_) of_address[CountedAs(end.address())] += taken_.at(end).open_calls;
  const auto whose = std::ranges::max_element(of_address, {}, [](const auto& one) { return one.second; })->first;
  auto most = taken_.end();
  for (const auto& [number, end] : in_vain_) {
    const auto one = taken_.find(end);
    if (CountedAs(end.address()) != whose) continue;
    if (most == taken_.end() || one->second.open_calls > most->second.open_calls) most = one;
  }
  SetOpenCalls(most, 0);
  most->second.ended = true;
  return most->first;
}

/// Finds which socket of gRPC's is whose.
void GrpcAcceptor::NameSockets() {
  if (named_ == looked_) return;
  named_ = looked_;
  for (const GrpcSockets::Socket& socket : sockets_.New())
    if (const auto one = taken_.find(PeerOf(socket.peer)); one != taken_.end() && one->second.socket < socket.id)
      one->second.socket = socket.id;
}

}  // namespace baton::net
