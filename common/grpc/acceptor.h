// GrpcAcceptor: takes the connections of a gRPC port in gRPC's place and hands them to gRPC, so that one address leaves
// some to others and strangers do not shut out who has greeted. gRPC tells nobody when a connection ends; its socket
// does: a descriptor that is closed, or another socket's by now, is a connection that has ended. Thread-safe; a thread
// of its own.
#pragma once

#include <grpcpp/server_builder.h>

#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/grpc/channelz.h"
#include "common/grpc/watched_calls.h"
#include "common/limited_lines.h"
#include "common/net/connection_places.h"
#include "common/net/connection_shares.h"
#include "common/net/held_socket.h"
#include "common/net/idle_times.h"
#include "common/net/socket_address.h"
#include "common/net/strangers.h"
#include "common/net/vain_tries.h"

namespace baton::net {

class GrpcAcceptor {
 public:
  struct Options {
    SocketAddress where;
    std::string port, flags;  ///< for people: "grpc", "--host, --grpc-port"
    ConnectionLimits limits;
    int32_t new_per_second = 0;  ///< connections of one address; 0: no limit. Clients on this machine as in `limits`.
    /// Of one address (VainTries); 0: no limit. A connection is one, until it is useful; so are each 8 KiB more that
    /// come on it (see `message_bytes`), whatever they are, twenty calls on it, and twenty calls that are given up
    /// before their answers. Whoever has none left gets no new connection, and one on which he goes on is ended.
    /// Clients on this machine are not counted; a connection of theirs that is not useful has a MiB, and 64 KiB more
    /// each second (own_bytes, and a sixteenth of it), and for a second 16 times as much. Where they give up more calls
    /// on such than kOwnGivenUp, of which twice as many are counted and so many forgotten in 25 s, they have
    /// kNewWhileGivenUp new connections a second.
    int32_t vain_tries = 0;
    uint64_t own_bytes = 1 << 20;
    /// Of the largest message of a call, which is here before anybody knows whether its client may ask: gRPC tells of a
    /// call's headers together with its message. So many more bytes may come before they count, on one connection of an
    /// address at a time, this machine's too, and on two in all: gRPC takes some forty times as much memory where they
    /// are many small calls.
    uint64_t message_bytes = 0;
    /// After which such a one gives way to another that wants to bring one.
    Duration large_message_time = std::chrono::seconds(10);
    /// That may come on a connection whose client may ask before it begins or ends a call; 0: no limit.
    uint64_t bytes_between_calls = 0;
    /// How long a connection may stay on which no call is known to run, beside a second for each 16 KiB that come: a
    /// call is known once its message is here, and gRPC waits for that without end. Zero: no limit.
    Duration message_time{};
    /// The same of a call on one that is no use yet, whatever else runs there, and it costs its connection. Zero: no
    /// limit.
    Duration first_message_time{};
    /// Calls that may be open on a connection that is no use yet, and on all such: more end that connection, or the one
    /// with the most calls of the address that has the most. 0: no limit.
    int64_t stranger_calls = 0, all_stranger_calls = 0;
    /// gRPC hears of a connection once its first bytes are here: one that says nothing for so long is closed. Zero: at
    /// once.
    Duration first_bytes_time{};
    /// The port speaks no TLS: one whose first bytes are not HTTP/2's, or are frames that ask nothing (FirstFlight), is
    /// closed, and counts as two tries in vain, and more with what came. With `first_bytes_time`.
    bool plain_text = false;
    /// It hears of the server's calls by itself. Else whoever has the server tells it.
    bool watches_calls = false;
    /// A connection that finds no place takes that of the oldest that has not greeted, of its own address where this is
    /// full; and an address that has greeted has no limit of new connections.
    bool greeted_stay = false;
    /// A connection that finds no place takes that of the oldest that was no use yet, of its own address where this is
    /// full; where there is none, that of the useful one on which no call has run for longest. Who has brought 16 KiB
    /// since it was last his turn counts as if he had just come.
    bool useful_stay = false;
    /// On any thread; why as ConnectionShares::Enter, or "new-connections-per-address", or "vain-tries-per-address", or
    /// as EndOf, or "bytes-between-calls", or "unfinished-call", or "open-calls", or "not-http2", or "vain-frames", or
    /// "for-another": it was taken and lost its place.
    std::function<void(const char* why)> refused;
  };
  /// See Options::vain_tries: calls of an address of this machine, and connections a second.
  static constexpr int32_t kOwnGivenUp = 1024, kNewWhileGivenUp = 10;

  /// Listens for the server that is built of `builder`, in the place of AddListeningPort. AlreadyExists,
  /// PermissionDenied: with address and flags.
  static absl::StatusOr<std::unique_ptr<GrpcAcceptor>> Listen(
      Options options, grpc::ServerBuilder& builder, const std::shared_ptr<grpc::ServerCredentials>& credentials);
  ~GrpcAcceptor();

  uint16_t port() const { return port_; }
  /// Takes connections from now on.
  void Start();
  /// Takes none any more: who dials is refused. Idempotent; before the server is shut down.
  void Stop();
  /// The connection of `peer` (grpc::ServerContext::peer) is of one who has proved himself. Cheap, for every call.
  void Greeted(std::string_view peer);
  /// The connection of `peer` carries a call of one who may call: it was no try in vain. Cheap, for every call. Since
  /// when it is there; TimePoint::max() where it has ended.
  TimePoint Useful(std::string_view peer);
  /// A call of `peer` begins. True: it is known that it may ask, or it has ended. Cheap, for every call.
  bool MayAsk(std::string_view peer);
  /// One who may call begins one: what comes from now on is counted from one call to the next.
  void SetMayAsk(std::string_view peer);
  /// A call of `peer` is over. Where it may ask and its message had come it is his right to give it up.
  void OnCallEnd(std::string_view peer, CallWatcher::End end);
  /// Of those that were taken by then, one has not ended.
  bool AnyLeft(TimePoint when) const;
  /// Ends the connection of `peer`.
  void EndOf(std::string_view peer, const char* why);

 private:
  using Endpoint = boost::asio::ip::tcp::endpoint;
  struct Taken final : ConnectionPlaces::Place {
    Taken(const Endpoint& peer, int descriptor, TimePoint now, uint64_t count, SpareDescriptor spare_slot);
    uint64_t Brought() const override;
    bool MayHaveBegun() const override { return true; }
    uint64_t bytes_come() const;

    const Endpoint end;  ///< the peer's
    const int fd;
    const uint64_t inode;  ///< of the socket
    const TimePoint since;
    const uint64_t number;  ///< in the order of coming
    const SpareDescriptor spare;
    bool greeted = false, useful = false;
    bool may_ask = false;    ///< its bytes are not counted
    bool spoke = false;      ///< a call began or ended since the latest look
    bool ended = false;      ///< by us
    bool ours = false;       ///< gRPC has not heard of it: the descriptor is ours to close
    uint64_t bytes = 0;      ///< that had come at the latest look; of one that may ask, at its latest call
    double tries = 1;        ///< in vain, that it was counted as until now
    int calls = 0;           ///< that are known to run
    TimePoint silent_since;  ///< when the latest of those ended, or it came
    std::optional<uint64_t> silent_bytes;   ///< that had come by then; none: nobody has looked
    std::optional<TimePoint> floods_since;  ///< of one of this machine: more had come than it may bring
    int64_t socket = 0;                     ///< gRPC's number for it; 0: not known yet
    int64_t open_calls = 0;                 ///< as long as its bytes count
    TimePoint calls_until{};                ///< there may be more
    uint64_t calls_bytes = 0;               ///< that had come when they were counted
    std::optional<TimePoint> waits_since;   ///< that one whose message is not here has been open at every look
    uint64_t waits_bytes = 0;               ///< that had come by then
  };
  struct LargeMessage {
    uint64_t number = 0;  ///< of the connection
    TimePoint since{};
  };
  GrpcAcceptor(Options options, std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> to, int listener);
  void Run();
  void Take(int fd, const Endpoint& peer);
  void AwaitFirst(const std::shared_ptr<Taken>& one);
  bool LookAtFirst(const std::shared_ptr<Taken>& one);
  void LookAtArrivals();
  bool GoneAtFirst(const std::shared_ptr<Taken>& one, const char* why);
  void DropSilent();
  void HandOver(Taken& one);
  static double TriesOfBytes(uint64_t bytes);
  void Hear(int fd, uint64_t number);
  void Refuse(const boost::asio::ip::address& from, const char* why);
  void EndRefused(const Endpoint& end, const char* why);
  bool Limited(const boost::asio::ip::address& from) const;
  std::optional<int> PauseMs();
  void CountBytes();
  std::vector<uint64_t> ToLookAt();
  class Watcher;
  void WatchCalls(grpc::ServerBuilder& builder);
  bool CountsCalls() const;
  static constexpr const char* kVainTries = "vain-tries-per-address";
  static constexpr const char *kUnfinished = "unfinished-call", *kManyCalls = "open-calls";
  /// At which a message is to come at least, in the mean.
  static constexpr double kSlowestBytesPerSecond = 16 << 10;
  /// Between two looks at all connections.
  static constexpr int kLookAtAllMs = 500;
  // With mutex_ held:
  const char* Enter(const std::shared_ptr<Taken>& one);
  void Sweep();
  void GaveWay(ConnectionPlaces::Place& place);
  void GiveUpSome();
  Taken* Find(const Endpoint& end) const;
  void SetUseful(Taken& one);
  void CountBetweenCalls(Taken& one);
  bool GoesOn(Taken& one);
  bool Floods(Taken& one);
  bool FloodsBetweenCalls(Taken& one);
  bool HasMessageTime() const;
  bool IsUnfinished(Taken& one);
  const char* CountCalls(Taken& one);
  void SetOpenCalls(Taken& one, int64_t calls);
  Taken* EndOneOfMany();
  void NameSockets();
  void OneLess(Taken& one);
  void Count(Taken& one, double tries);
  bool HasNoneLeft(Taken& one);
  bool MayBringALargeMessage(Taken& one);
  static bool End(const Taken& one);
  void Forget(Taken& one);
  void Remove(Taken& one);

  const Options options_;
  const std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> to_;
  const SteadyClock clock_;
  int listener_;        ///< -1: closed
  const int stop_;      ///< can be read once Stop was called
  const int arrivals_;  ///< an epoll: on which of `waiting_`, by number, something has come
  const int heard_;     ///< an epoll: on which connections, by number, something has come since it was asked
  uint16_t port_ = 0;
  std::unique_ptr<CallWatcher> watcher_;  ///< null: it is told of calls
  std::thread thread_;
  // The thread's:
  Strangers strangers_{options_.new_per_second, clock_}, own_strangers_{kNewWhileGivenUp, clock_};
  TimePoint swept_{}, looked_{}, looked_at_all_{}, named_{};
  GrpcSockets sockets_;
  uint64_t number_ = 0;
  mutable std::mutex mutex_;  // guards what follows
  const SpareDescriptor spare_;
  LimitedLines lines_{clock_};
  VainTries vain_{options_.vain_tries, clock_};
  VainTries own_given_up_{options_.vain_tries > 0 ? kOwnGivenUp : 0, clock_, kOwnGivenUp};  ///< of this machine's calls
  ConnectionPlaces places_;
  std::map<Endpoint, std::shared_ptr<Taken>> taken_;    ///< by the peer's end
  std::map<uint64_t, std::shared_ptr<Taken>> waiting_;  ///< of `taken_`, by number: gRPC has not heard of them
  std::map<uint64_t, Taken*> in_vain_;                  ///< of `taken_`, by number: whose bytes count
  int64_t stranger_calls_ = 0;                          ///< open_calls of all
  std::vector<LargeMessage> large_;                     ///< on connections of `in_vain_`
  std::map<uint64_t, Taken*> asking_;                   ///< the same: whose bytes count from one call to the next
  std::map<boost::asio::ip::address, uint64_t> known_;  ///< who has greeted, with the number of his last connection
};

/// The end that gRPC names so: "ipv4:10.0.0.7:4000", "ipv6:%5Bfd00::1%5D:4000". Port 0: none.
boost::asio::ip::tcp::endpoint PeerOf(std::string_view grpc_name);

/// And the headers of one call have 16 KiB, and nobody compresses.
void BoundConnections(grpc::ServerBuilder& builder, const IdleTimes& times);

}  // namespace baton::net
