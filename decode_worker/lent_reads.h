// Reads of what prefill workers lend of their GPUs' memory (Transport::Lend): a network's device moves the bytes into
// this GPU's inbox by itself. One at a time, in the order they are asked for: whoever reads has the inbox until what it
// wanted them for is over. A read that fails may still come until its writer is fenced, and so long nobody has the
// inbox.
//
// An outbox is open once a read of known bytes has brought them. Transfer thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "common/kv_mover.h"
#include "kvtransfer/lane_messages.h"
#include "kvtransfer/lent_outbox.h"
#include "kvtransfer/transport.h"

namespace baton::decode_worker {

class LentReads {
 public:
  using Then = std::function<void(const absl::Status&)>;
  /// Of a device's KV; null: it is the host's, or in parts. It must outlive this.
  explicit LentReads(KvMover* mover) : mover_(mover) {}
  ~LentReads() { Stop(); }
  /// Nobody is told anything any more.
  void Stop() { *alive_ = false; }

  /// What the writer lends through `transport`, in buffers of `buffer_bytes`. `opened`: FailedPrecondition with the
  /// reason when it cannot be read; not before this returns, but for what needs no look.
  void Open(WriterId writer, Transport& transport, PeerNumber peer, LentOutbox outbox, uint64_t buffer_bytes,
            Then opened);
  /// It is open: slots may name payloads there.
  bool Has(WriterId writer) const;
  uint64_t BufferBytesOf(WriterId writer) const { return lent_.at(writer).buffer_bytes; }
  /// Bytes of a buffer, from `begin` to `end`, to the same place of the inbox. `begins`: when it is their turn. `then`:
  /// they are there, and stay until it returns; or the reason why not.
  void Read(WriterId writer, uint64_t buffer, uint64_t begin, uint64_t end, std::function<void()> begins, Then then);
  /// `work` has the inbox until it returns.
  void WhenFree(std::function<void()> work);
  /// Nobody has the inbox, and nobody waits for it.
  bool Free() const { return !current_ && dirty_by_ == 0 && jobs_.empty(); }

  /// Nothing more is read of it: it is lost, or cut.
  void Close(WriterId writer) { lent_.erase(writer); }
  /// A read of this writer that has failed may still come: its fence is needed.
  bool Awaits(WriterId writer) const { return dirty_by_ == writer; }
  void OnFenced(WriterId writer);
  /// The transport of these writers is gone, and no read of theirs comes any more.
  void Forget(const Transport* transport, const std::function<bool(WriterId)>& of);

 private:
  struct Lent {
    Transport* transport = nullptr;
    PeerNumber peer = 0;
    LentOutbox outbox;
    uint64_t buffer_bytes = 0;
    bool open = false;
  };
  /// A read, or, of writer 0, work that needs the inbox.
  struct Job {
    WriterId writer = 0;
    uint64_t at = 0, to = 0, bytes = 0;
    std::function<void()> begins;
    Then then;
  };
  absl::Status CheckTakes(Transport& transport, const LentOutbox& outbox, uint64_t buffer_bytes);
  absl::Status CheckMark(const LentOutbox& outbox);
  void Next();
  void Begin(Job job);
  void OnRead(uint64_t number, const absl::Status& status);
  void End(const absl::Status& status);

  KvMover* const mover_;
  std::map<WriterId, Lent> lent_;
  std::map<const Transport*, absl::Status> takes_;  ///< whether a transport reads into the inbox
  std::deque<Job> jobs_;
  std::optional<Job> current_;
  uint64_t number_ = 0;    ///< of the current one; an older one's end is heard too late
  WriterId dirty_by_ = 0;  ///< whose failed read may still come; 0: nobody's
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace baton::decode_worker
