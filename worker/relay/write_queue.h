// The queue that a stream's sink writes into: bounded, one write in flight, ended once. It keeps gRPC's rules: no
// StartWrite while a write is in flight or after Finish, and one Finish.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "common/str_cat.h"
#include "worker/relay/open_streams.h"

namespace baton::worker {

// A reader that takes nothing while this much is unsent is cut off: credits bound what a healthy router can let pile
// up.
inline constexpr size_t kMaxQueuedBytes = 64 << 20;

/// The write side of a reactor: a queue, at most one write in flight. The sink outlives the reactor; Detach parts them.
/// Thread-safe. The reactor has StartWrite(const Message*), Finish(grpc::Status) and Cancel(), which fails a write that
/// is in flight.
template <class Reactor, class Message>
class WriteQueue {
 public:
  explicit WriteQueue(Reactor* reactor) : reactor_(reactor) {}

  void Push(Message message) {
    std::lock_guard lock(mutex_);
    if (reactor_ == nullptr || finished_) return;
    queued_bytes_ += message.ByteSizeLong();
    queue_.push_back(std::move(message));
    if (queued_bytes_ > kMaxQueuedBytes) {
      CutOffLocked(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                                StrCat(queued_bytes_, " bytes unread: the reader is cut off")));
    } else {
      WriteNextLocked();
    }
  }

  void OnWriteDone(bool ok) {
    std::lock_guard lock(mutex_);
    writing_ = false;
    ++taken_;
    queued_bytes_ -= queue_.front().ByteSizeLong();
    queue_.pop_front();
    if (!ok) FinishLocked(grpc::Status::CANCELLED);
    if (!finished_)
      WriteNextLocked();
    else
      FinishIfIdleLocked();
  }

  /// Ends the stream once everything pushed has been written.
  void FinishAfterQueue(grpc::Status status) {
    std::lock_guard lock(mutex_);
    last_ = std::move(status);
    WriteNextLocked();
  }

  /// Ends the stream once the write in flight is done. First status counts.
  void Finish(grpc::Status status) {
    std::lock_guard lock(mutex_);
    FinishLocked(std::move(status));
  }

  /// Ends the stream now, also where its reader takes nothing; what waits is dropped.
  void CutOff(grpc::Status status) {
    std::lock_guard lock(mutex_);
    CutOffLocked(std::move(status));
  }

  OpenStream::Unread unread() const {
    std::lock_guard lock(mutex_);
    return {queued_bytes_, taken_};
  }

  /// Starts another read unless the stream has ended. `read` runs under the lock.
  template <class Read>
  void IfOpen(Read read) {
    std::lock_guard lock(mutex_);
    if (reactor_ != nullptr && !finished_) read(*reactor_);
  }

  void Detach() {
    std::lock_guard lock(mutex_);
    reactor_ = nullptr;
  }

 private:
  void CutOffLocked(grpc::Status status) {
    if (reactor_ == nullptr) return;
    while (queue_.size() > (writing_ ? 1 : 0)) {
      queued_bytes_ -= queue_.back().ByteSizeLong();
      queue_.pop_back();
    }
    FinishLocked(std::move(status));
    if (writing_) reactor_->Cancel();
  }
  void WriteNextLocked() {
    if (!writing_ && queue_.empty() && last_) FinishLocked(*std::exchange(last_, std::nullopt));
    if (writing_ || finished_ || reactor_ == nullptr || queue_.empty())
      return;  // messages that are unsent at the end stay unsent
    writing_ = true;
    reactor_->StartWrite(&queue_.front());
  }
  void FinishLocked(grpc::Status status) {
    if (finished_) return;
    finished_ = true;
    status_ = std::move(status);
    FinishIfIdleLocked();
  }
  void FinishIfIdleLocked() {
    if (writing_ || reactor_ == nullptr || !status_) return;
    reactor_->Finish(*std::exchange(status_, std::nullopt));
  }

  mutable std::mutex mutex_;
  Reactor* reactor_;
  std::deque<Message> queue_;
  size_t queued_bytes_ = 0;
  uint64_t taken_ = 0;  ///< messages
  bool writing_ = false;
  bool finished_ = false;
  std::optional<grpc::Status> status_;
  std::optional<grpc::Status> last_;  ///< of FinishAfterQueue
};

}  // namespace baton::worker
