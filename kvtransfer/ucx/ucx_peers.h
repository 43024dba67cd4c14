// The UCX transport: endpoints by peer, what is outstanding on each, active messages. One thread.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "kvtransfer/peer_exit.h"
#include "kvtransfer/ucx/ucx_worker.h"

namespace baton::ucx {

/// kLanded names writes in its payload, 8 bytes each.
enum MessageKind : unsigned { kHello = 1, kMessage, kWrite, kLanded, kBye };

/// Header of every active message.
struct Head {
  uint64_t incarnation = 0;  ///< of the sender
  uint64_t number = 0;       ///< the sender's number of this connection
  uint64_t write = 0;        ///< kWrite
  uint64_t offset = 0;       ///< kWrite: of these bytes in it
  uint64_t total = 0;        ///< kWrite: its bytes
  uint64_t ticket = 0;       ///< kWrite: the place
  uint32_t epoch = 0, lane = 0, slot = 0, turn = 0;
};

class UcxTransport final : public Transport {
 public:
  UcxTransport(UcxOptions options, TransportEvents& events, std::unique_ptr<Worker> worker);
  ~UcxTransport() override;

  std::string_view name() const override { return options_.name; }
  std::string path(PeerNumber peer) const override;
  FenceKind fence() const override {
    return options_.verb == UcxVerb::kMessage ? FenceKind::kReceiverWrites : options_.put_fence;
  }
  /// In hexadecimal: addresses travel as text.
  std::string address() const override {
    return options_.name + ":" + absl::BytesToHexString(worker_->address().WithoutLanding().Pack());
  }
  std::span<std::byte> landing() override { return worker_->landing(); }
  absl::StatusOr<PeerNumber> Connect(std::string_view address) override;
  LandingShape landing_of(PeerNumber peer) const override;
  void Write(PeerNumber peer, const LandingPlace& place, std::span<const std::byte> bytes, Done done) override;
  void Send(PeerNumber peer, std::string message, Done done) override;
  void Flush(PeerNumber peer, Done done) override;
  void Close(PeerNumber peer, std::function<void()> fenced) override;
  void Release(PeerNumber peer) override { exits_.Release(peer); }
  absl::StatusOr<std::string> Lend(std::span<std::byte> memory) override;
  absl::Status TakeInto(std::span<std::byte> memory) override;
  void Read(PeerNumber peer, std::string_view lent, uint64_t at, std::span<std::byte> to, Done done) override;
  bool Progress() override;
  /// Of landing memory for one peer each.
  int registrations() const { return worker_->registrations(); }
  int wait_fd() const override { return epoll_; }

 private:
  struct Posted {
    Done done;
    bool ended = false;
  };
  /// Of memory that a peer lends.
  struct LentKey {
    LentKey() = default;
    ~LentKey() {
      if (key != nullptr) ucp_rkey_destroy(key);
    }
    LentKey(const LentKey&) = delete;
    LentKey& operator=(const LentKey&) = delete;
    ucp_rkey_h key = nullptr;
    uint64_t address = 0, bytes = 0;
  };
  /// Of TakeInto.
  struct Taking {
    std::span<std::byte> memory;
    ucp_mem_h handle;
  };
  /// A write that goes out in messages.
  struct Sending {
    uint64_t write = 0;
    LandingPlace place;
    std::span<const std::byte> bytes;
    uint64_t piece_bytes = 0;
    uint64_t sent = 0;  ///< given to UCX
  };
  struct Peer {
    PeerNumber number = 0;
    UcxTransport* owner = nullptr;
    PeerAddress address;
    ucp_ep_h endpoint = nullptr;
    ucp_rkey_h key = nullptr;
    std::unique_ptr<Registration> registration;  ///< of our landing memory, whose key this peer alone has
    uint64_t remote_number = 0;                  ///< the peer's number of this connection, when it connected to us
    bool accepted = false;                       ///< it connected to us
    bool greeted = false;                        ///< its landing memory is known
    std::vector<std::tuple<uint64_t, LandingPlace, std::span<const std::byte>>> early;  ///< writes before the greeting
    std::deque<Posted> writes;  ///< from first_write on, consecutive; the first has not ended
    uint64_t first_write = 1;
    std::vector<std::pair<uint64_t, Done>> flushes;    ///< (last write before it, done)
    uint64_t unflushed = 0;                            ///< latest put that no flush of UCX's covers; 0: none
    std::deque<Sending> sending;                       ///< what UCX does not have yet
    int pieces_in_ucx = 0;                             ///< given to it and not done
    absl::flat_hash_map<uint64_t, uint64_t> arriving;  ///< bytes of the peer's writes that are here in part
    std::vector<uint64_t> landed;                      ///< the peer's writes that are stored and not answered
    uint64_t landed_bytes = 0;                         ///< of them
    std::map<std::string, LentKey, std::less<>> lent;  ///< by what Lend named it; kept until the close has ended
    std::map<uint64_t, Done> reads;                    ///< that have not ended
    absl::Status failed;
  };
  /// Memory that must stay until UCX is done with an operation.
  struct Operation {
    UcxTransport* owner;
    PeerNumber peer;
    uint64_t write = 0;    ///< that it is of; 0: none
    bool piece = false;    ///< of that write
    uint64_t flushed = 0;  ///< writes up to here end with it; 0: none
    uint64_t read = 0;     ///< that it is; 0: none
    Head head;
    std::string message;
    Done done;
  };
  absl::Status RegisterHandlers();
  absl::StatusOr<Peer*> Add(PeerAddress address);
  std::string GreetingFor(const Peer& peer) const;
  Peer* Find(PeerNumber peer);
  Peer* FindSender(const Head& head);
  void SendActive(Peer& peer, MessageKind kind, const Head& head, std::string payload, Done done);
  absl::Status Greet(Peer& peer, PeerAddress address);
  void StartWrite(Peer& peer, uint64_t write, const LandingPlace& place, std::span<const std::byte> bytes);
  void SendBytes(Peer& peer, uint64_t write, const LandingPlace& place, std::span<const std::byte> bytes);
  void SendPieces(Peer& peer);
  bool SendMore();
  void Put(Peer& peer, uint64_t write, const LandingPlace& place, std::span<const std::byte> bytes);
  static Done TakeWrite(Peer& peer, uint64_t write);
  absl::StatusOr<const LentKey*> Borrow(Peer& peer, std::string_view lent);
  const Taking* TakingOf(std::span<std::byte> to) const;
  void EndRead(PeerNumber peer, uint64_t read, const absl::Status& status);
  void EndWrite(PeerNumber peer, uint64_t write);
  static void EndWritesTo(Peer& peer, uint64_t last);
  static void EndFlushes(Peer& peer);
  void Finish(const Operation& operation, const absl::Status& status);
  bool FlushPuts();
  bool AnswerLanded(bool all);
  void Complete(ucs_status_ptr_t request, std::unique_ptr<Operation> operation);
  /// UCX has it until one of the callbacks takes it back.
  void HandOver(std::unique_ptr<Operation> operation) { in_ucx_.insert(operation.release()); }
  static std::unique_ptr<Operation> TakeBack(void* operation);
  std::unique_ptr<Operation> NewOperation(PeerNumber peer);
  void Recycle(std::unique_ptr<Operation> operation);
  void Lose(PeerNumber peer, const absl::Status& why);
  /// An endpoint whose forced close is under way: first the close itself, then what the worker still does for it.
  struct Closing {
    PeerNumber peer = 0;
    void* request = nullptr;
    bool closed = false;
    static bool Ended(void*& request);
  };
  void CloseEndpoint(PeerNumber peer, ucp_ep_h endpoint);
  bool StillCloses(Closing& closing);
  bool EndClosing();
  void Store(Peer& peer, const Head& head, std::span<const std::byte> bytes);
  void Later(std::function<void()> work) { later_.push_back(std::move(work)); }
  void OnActive(MessageKind kind, const Head& head, std::string_view text);
  void OnHello(const Head& head, std::string_view address);
  absl::Status Welcome(const Head& head, PeerAddress address);
  static ucs_status_t Received(void* arg, const void* header, size_t header_bytes, void* data, size_t bytes,
                               const ucp_am_recv_param_t* param);
  static void Ended(void* request, ucs_status_t status, void* operation);
  static void EndpointFailed(void* arg, ucp_ep_h endpoint, ucs_status_t status);

  struct Handler {
    UcxTransport* owner;
    MessageKind kind;
  };
  const UcxOptions options_;
  TransportEvents& events_;
  int epoll_ = -1;  ///< UCX's descriptor, and those of processes that must exit
  std::unique_ptr<Worker> worker_;
  std::map<PeerNumber, std::unique_ptr<Peer>> peers_;
  std::vector<std::unique_ptr<Handler>> handlers_;
  std::vector<std::unique_ptr<Peer>> graves_;  ///< endpoints that are closing may still name them
  PeerExits exits_;                            ///< kPeerExit: of peers that may write memory of ours
  std::vector<Closing> closing_;
  std::vector<std::pair<PeerNumber, std::function<void()>>> fences_;  ///< kForcedClose: the waiters for the end of that
  PeerNumber next_peer_ = 1;
  std::vector<Taking> takings_;
  uint64_t next_read_ = 1;
  std::vector<std::function<void()>> later_;
  std::vector<PeerNumber> to_flush_, to_answer_;  ///< peers with puts that are not flushed, with stored writes
  absl::flat_hash_set<PeerNumber> to_send_;       ///< peers with pieces that wait for UCX
  absl::flat_hash_set<Operation*> in_ucx_;        ///< owned; UCX names them
  std::vector<std::unique_ptr<Operation>> spare_operations_;
  Peer *latest_ = nullptr, *latest_sender_ = nullptr;  ///< that were asked for: most often the next one too
  friend absl::StatusOr<std::unique_ptr<Transport>> baton::MakeUcxTransport(UcxOptions options,
                                                                            TransportEvents& events);
};

}  // namespace baton::ucx
