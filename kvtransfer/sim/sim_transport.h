// A transport inside one process that is as unkind as the contract allows, so that what works over it does not lean on
// the kindness of a backend. Where the sender writes: slots land piece by piece and in any order, some of them twice;
// messages overtake writes that have not ended; after a break every write under way fails, and its bytes land later,
// some of them torn, until the receiver has fenced the writer; Close calls back from inside. Where the receiver writes,
// it asks before every piece, and what a broken connection still carried is lost. MayLand is asked where the sender
// writes, too, and then not heeded: so that a simulation sees what lands. One seed decides everything.
//
// Transports of one network are turned by one thread; a transport moves on only in its own Progress.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kvtransfer/transport.h"

namespace baton {

class SimTransport;

/// Counts of the faults that happened on a network, so that tests can see that they did.
struct SimCounters {
  int overtakes = 0;      ///< messages delivered while an earlier write was not in its slot
  int duplicates = 0;     ///< slots that landed twice
  int late_landings = 0;  ///< after Done(error)
  int torn_landings = 0;  ///< of those, not whole
};

/// The delays of messages and writes.
struct SimPace {
  uint64_t most_turns = 6;        ///< of the receiver, that a packet or a piece of a slot waits
  size_t piece_bytes = 64 << 10;  ///< of a slot, that land at once
};

/// Connects transports; shared by them.
class SimNetwork {
 public:
  explicit SimNetwork(uint64_t seed, SimPace pace = {}) : pace_(pace), random_(seed) {}
  const SimCounters& counters() const { return counters_; }

 private:
  friend class SimTransport;
  struct Packet {
    bool greeting = false;
    std::string bytes;
    uint64_t due = 0;  ///< turn of the receiving end
    uint64_t writes_before = 0;
  };
  struct Wire {
    SimTransport* ends[2] = {nullptr, nullptr};  ///< null: closed or gone
    PeerNumber numbers[2] = {0, 0};
    std::deque<Packet> queue[2];  ///< to that end
    bool broken = false;
    bool fenced[2] = {false, false};  ///< nothing lands at that end any more
    bool exited[2] = {false, false};  ///< that end's transport is gone, and its process with it
    uint64_t next_write[2] = {1, 1};  ///< by sending end
  };
  struct Flight {
    std::shared_ptr<Wire> wire;
    int to = 0;  ///< end
    uint64_t write = 0;
    LandingPlace place;
    std::span<const std::byte> source;  ///< the sender's, read as the pieces land
    std::vector<std::byte> kept;        ///< failed: what was in it then, for the sender may use it for something else
    size_t landed = 0, size = 0;        ///< size: what will land, less than all after a tear
    uint64_t wait = 0;                  ///< turns before the next piece
    bool again = false;                 ///< lands once more before it has ended
    bool failed = false;                ///< Done(error) was said
    Transport::Done done;
    const std::byte* bytes() const { return failed ? kept.data() : source.data(); }
    void Fail() {
      if (!std::exchange(failed, true)) kept.assign(source.begin(), source.end());
    }
  };
  uint64_t Below(uint64_t n) { return random_() % n; }
  void Land(SimTransport& at, Flight& flight);
  bool Outstanding(const Wire& wire, int to, uint64_t before) const;

  const SimPace pace_;
  std::mt19937_64 random_;
  std::map<std::string, SimTransport*> listeners_;
  std::vector<std::unique_ptr<Flight>> flights_;
  uint64_t next_address_ = 1;
  SimCounters counters_;
};

class SimTransport final : public Transport {
 public:
  /// `events` must outlive it. kPeerExit: a peer's process exits with its transport; until then what it was writing
  /// when the connection broke may still land.
  SimTransport(std::shared_ptr<SimNetwork> network, FenceKind fence, LandingShape landing, TransportEvents& events);
  ~SimTransport() override;

  std::string_view name() const override { return "sim"; }
  FenceKind fence() const override { return fence_; }
  std::string address() const override { return address_; }
  std::span<std::byte> landing() override { return memory_; }
  absl::StatusOr<PeerNumber> Connect(std::string_view address) override;
  LandingShape landing_of(PeerNumber peer) const override;
  void Write(PeerNumber peer, const LandingPlace& place, std::span<const std::byte> bytes, Done done) override;
  void Send(PeerNumber peer, std::string message, Done done) override;
  void Flush(PeerNumber peer, Done done) override;
  void Close(PeerNumber peer, std::function<void()> fenced) override;
  void Release(PeerNumber peer) override;
  bool Progress() override;
  int wait_fd() const override { return -1; }

 private:
  friend class SimNetwork;
  using Wire = SimNetwork::Wire;
  struct Peer {
    std::shared_ptr<Wire> wire;
    int end = 0;  ///< which of the wire's ends we are
    LandingShape landing;
    bool greeted = false, dialled = false;
    std::vector<std::pair<uint64_t, Done>> flushes;          ///< by the first write that comes after
    std::vector<std::unique_ptr<SimNetwork::Flight>> early;  ///< before the greeting
  };
  PeerNumber Add(std::shared_ptr<Wire> wire, int end);
  Peer* Find(PeerNumber peer);
  void Later(std::function<void()> work) { later_.push_back(std::move(work)); }
  void Take(PeerNumber number);
  void Fly(std::unique_ptr<SimNetwork::Flight> flight);
  void MoveFlights();
  void EndFlushes();
  void AwaitExit(PeerNumber peer, std::function<void()> fenced);
  void EndLeaving();
  void Break(Wire& wire);
  /// Every Done of a connection, with an error; what was under way may still land.
  void FailAll(Peer& peer);

  const std::shared_ptr<SimNetwork> network_;
  const FenceKind fence_;
  const LandingShape shape_;
  TransportEvents& events_;
  const std::string address_;
  std::vector<std::byte> memory_;
  std::map<PeerNumber, Peer> peers_;
  std::vector<PeerNumber> turned_;  ///< of peers_ as a turn begins, for events end some
  struct Leaving {
    std::shared_ptr<Wire> wire;
    int end = 0;
    std::vector<std::function<void()>> fenced;
  };
  std::map<PeerNumber, std::pair<std::shared_ptr<Wire>, int>> lost_;  ///< not fenced yet
  std::map<PeerNumber, Leaving> leaving_;                             ///< kPeerExit: closed, and alive
  PeerNumber next_peer_ = 1;
  uint64_t turn_ = 0;
  bool moved_ = false;
  std::vector<std::function<void()>> later_;
};

}  // namespace baton
