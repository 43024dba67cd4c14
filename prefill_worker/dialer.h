// Connects to decode workers: tries the ways in which a worker can be reached, best first, and keeps the first whose
// self-test passes. Transfer thread only, but for what says otherwise.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/net/resolver.h"
#include "kvtransfer/self_test.h"
#include "kvtransfer/transports/transports.h"
#include "prefill_worker/handoff/events.h"
#include "worker/transfer/transfer_loop.h"

namespace baton::prefill_worker {

/// A connection that has passed.
struct Way {
  Transport* transport = nullptr;
  PeerNumber number = 0;
};

/// The way to a decode worker, for people and for the router.
struct PeerPath {
  std::string incarnation;  ///< of the decode worker
  std::string transport, path;
  double gigabytes_per_second = 0;  ///< in the self-test
};

class DialEvents {
 public:
  virtual ~DialEvents() = default;
  virtual void OnReached(prefill::PeerId peer, Way way) = 0;
  /// Of a peer that was reached.
  virtual void OnPeerMessage(prefill::PeerId peer, std::string_view bytes) = 0;
  /// The last call for this peer: its connection broke, or no way to it worked. All Dones have been called.
  virtual void OnPeerLost(prefill::PeerId peer, const absl::Status& why) = 0;
};

struct DialOptions {
  std::string host;                ///< what our ends of connections bind
  std::vector<std::string> kinds;  ///< of transports that may be used
  double fault_rate = 0;           ///< for tests: share of slots that are damaged
  std::string failing_transport;   ///< for tests: its self-tests are damaged
  TransportMaker make{};           ///< for tests: makes every transport, of any kind
  bool self_test = true;           ///< for tests of what comes after it
  trust::PeerTrust trust{};        ///< what decode workers prove, and how they speak
};

class Dialer {
 public:
  /// The others must outlive it.
  Dialer(DialOptions options, const Clock& clock, worker::TransferLoop& thread, DialEvents& events);
  ~Dialer();

  /// `peer` is the caller's number for it; `addresses` as LandingAddresses. Answered by OnReached or
  /// OnPeerLost.
  void Dial(prefill::PeerId peer, const std::string& addresses);
  /// The peer breaks the protocol: OnPeerLost.
  void Drop(prefill::PeerId peer, const absl::Status& why);
  void Tick();
  /// More of the way to a peer that was reached: `how` is added to its path.
  void AddToPath(prefill::PeerId peer, const std::string& how);

  // ---- any thread
  std::vector<PeerPath> paths() const;
  int64_t failed_self_tests() const { return failed_self_tests_; }

 private:
  class Link;  // a transport and whom it calls back
  struct Call {
    std::vector<std::string> addresses;  ///< that are left to try, best first
    std::string tried;                   ///< and why each was not good
    std::string trying;                  ///< what people call the one that is tried now
    Link* link = nullptr;
    PeerNumber number = 0;
    std::shared_ptr<SelfTest> test;  ///< null once it has passed
    PeerPath path;
    uint64_t question = 0;  ///< for a name, that is not answered yet
    void NoteFailed(std::string_view kind, const absl::Status& why);
  };

  absl::StatusOr<Link*> LinkFor(const std::string& kind);
  absl::Status MayTry(const std::string& kind, const std::string& machine) const;
  void TryNext(prefill::PeerId peer);
  absl::Status Begin(prefill::PeerId peer, Call& call, const std::string& address);
  void Resolve(prefill::PeerId peer, Call& call, const net::HostPort& place);
  void OnResolved(prefill::PeerId peer, uint64_t question,
                  const absl::StatusOr<std::vector<net::SocketAddress>>& found);
  void OnTested(prefill::PeerId peer, const std::string& kind, absl::StatusOr<SelfTest::Result> result);
  void OnMessage(Link& link, PeerNumber number, std::string_view bytes);
  void OnLost(Link& link, PeerNumber number, const absl::Status& why);
  void Leave(Call& call);
  void Publish();

  const DialOptions options_;
  const std::string machine_;
  const Clock& clock_;
  worker::TransferLoop& thread_;
  DialEvents& events_;
  std::map<prefill::PeerId, Call> calls_;
  uint64_t questions_ = 0;
  std::atomic<int64_t> failed_self_tests_{0};
  mutable std::mutex mutex_;  ///< guards paths_
  std::vector<PeerPath> paths_;
  std::map<std::string, std::unique_ptr<Link>> links_;  ///< by kind; last: their transports call back
  net::Resolver resolver_;
};

}  // namespace baton::prefill_worker
