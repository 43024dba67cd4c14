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
const char* GrpcAcceptor::CountCalls(Taken& one) {
  if (one.ended) return nullptr;
  const uint64_t bytes = one.bytes_come();
  // gRPC may be busy, and read what is here much later.
  if (bytes >= one.calls_bytes + kLeastBytes) one.calls_until = clock_.Now() + kGrpcsTime;
  if (clock_.Now() > one.calls_until && one.open_calls == 0) return nullptr;
  one.calls_bytes = bytes;
  if (one.socket == 0) NameSockets();
  const std::optional<int64_t> open = one.socket == 0 ? std::nullopt : OpenCallsOf(one.socket);
  if (!open) one.socket = 0;
  SetOpenCalls(one, open.value_or(0));
  if (one.open_calls <= one.calls) {
    one.waits_since.reset();
  } else if (!one.waits_since) {
    one.waits_since = clock_.Now();
    one.waits_bytes = bytes;
  }
  if (options_.stranger_calls > 0 && one.open_calls > options_.stranger_calls) {
    SetOpenCalls(one, 0);
    one.ended = true;
    return kManyCalls;
  }
  if (options_.first_message_time == Duration() || !one.waits_since) return nullptr;
  const double may = Seconds(options_.first_message_time) +
                     static_cast<double>(bytes - std::min(bytes, one.waits_bytes)) / kSlowestBytesPerSecond;
  if (Seconds(clock_.Now() - *one.waits_since) < may) return nullptr;
  SetOpenCalls(one, 0);
  one.ended = true;
  return kUnfinished;
}

/// Of all that are open on such connections.
void GrpcAcceptor::SetOpenCalls(Taken& one, int64_t calls) {
  stranger_calls_ += calls - std::exchange(one.open_calls, calls);
}

/// While all have too many, the connection with the most, of the address with the most. Null: they have not.
GrpcAcceptor::Taken* GrpcAcceptor::EndOneOfMany() {
  if (options_.all_stranger_calls == 0 || stranger_calls_ <= options_.all_stranger_calls) return nullptr;
  std::map<boost::asio::ip::address, int64_t> of_address;
  for (const auto& [number, one] : in_vain_) of_address[one->from()] += one->open_calls;
  const auto whose = std::ranges::max_element(of_address, {}, [](const auto& one) { return one.second; })->first;
  Taken* most = nullptr;
  for (const auto& [number, one] : in_vain_) {
    if (one->from() == whose && (most == nullptr || one->open_calls > most->open_calls)) most = one;
  }
  SetOpenCalls(*most, 0);
  most->ended = true;
  return most;
}

/// Finds which socket of gRPC's is whose.
void GrpcAcceptor::NameSockets() {
  if (named_ == looked_) return;
  named_ = looked_;
  for (const GrpcSockets::Socket& socket : sockets_.New())
    if (Taken* const one = Find(PeerOf(socket.peer)); one != nullptr && one->socket < socket.id)
      one->socket = socket.id;
}

}  // namespace baton::net
