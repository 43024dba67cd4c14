// StreamWriter: the one reactor of gRPC answers: an outgoing stream with a queue. It decides nothing. Include only from
// .cc files.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace baton::router {

/// Thread-safe. Lives until gRPC is done with the call, and as long as somebody holds it.
template <class Message>
class StreamWriter final : public grpc::ServerWriteReactor<Message> {
 public:
  /// Called on gRPC's threads.
  struct Events {
    std::function<void()> cancelled;  ///< the client left or its deadline is over; Finish is still owed
    std::function<void()> drained;    ///< everything written was taken
    std::function<void()> over;       ///< last; what the others hold is dropped before
  };

  static std::shared_ptr<StreamWriter> Make(grpc::CallbackServerContext* context) {
    std::shared_ptr<StreamWriter> made(new StreamWriter(context));
    made->self_ = made;
    return made;
  }
  /// Before the reactor is handed to gRPC.
  void Listen(Events events) { events_ = std::move(events); }

  void Write(Message message) {
    std::lock_guard lock(mutex_);
    if (finish_) return;
    unsent_bytes_ += message.ByteSizeLong();
    queue_.push_back(std::move(message));
    if (queue_.size() == 1) this->StartWrite(&queue_.front());
  }

  /// After everything written. Only the first call counts. Nothing of the call's context may be used afterwards.
  void Finish(grpc::Status status) {
    std::unique_lock lock(mutex_);
    if (finish_) return;
    finish_ = std::move(status);
    if (!queue_.empty()) return;
    lock.unlock();
    grpc::ServerWriteReactor<Message>::Finish(*finish_);
  }

  /// Ends the call without an answer, if it is not over: the client takes nothing. `cancelled` follows. Gives gRPC's
  /// name of the client; empty: it is over.
  std::string Abandon() {
    std::lock_guard lock(context_mutex_);
    if (context_ == nullptr) return "";
    std::string peer = context_->peer();
    context_->TryCancel();
    return peer;
  }

  size_t unsent_bytes() const {
    std::lock_guard lock(mutex_);
    return unsent_bytes_;
  }
  uint64_t taken_bytes() const {
    std::lock_guard lock(mutex_);
    return taken_bytes_;
  }
  /// Messages that the client took.
  uint64_t taken() const {
    std::lock_guard lock(mutex_);
    return taken_;
  }

  void OnWriteDone(bool ok) override {
    std::unique_lock lock(mutex_);
    const size_t bytes = queue_.front().ByteSizeLong();
    unsent_bytes_ -= bytes;
    taken_bytes_ += bytes;
    queue_.pop_front();
    ++taken_;
    if (!ok) {
      queue_.clear();
      unsent_bytes_ = 0;
    }
    if (!queue_.empty()) return this->StartWrite(&queue_.front());
    const bool over = finish_.has_value();
    lock.unlock();
    if (over) {
      grpc::ServerWriteReactor<Message>::Finish(*finish_);
    } else if (events_.drained) {
      events_.drained();
    }
  }
  void OnCancel() override {
    if (events_.cancelled) events_.cancelled();
  }
  void OnDone() override {
    {
      std::lock_guard lock(context_mutex_);
      context_ = nullptr;
    }
    const auto over = std::exchange(events_, {}).over;
    if (over) over();
    self_.reset();  // may delete this
  }

 private:
  explicit StreamWriter(grpc::CallbackServerContext* context) : context_(context) {}

  Events events_;
  mutable std::mutex mutex_;
  std::deque<Message> queue_;  // the front one is being written
  size_t unsent_bytes_ = 0;
  uint64_t taken_ = 0, taken_bytes_ = 0;
  std::optional<grpc::Status> finish_;
  std::recursive_mutex context_mutex_;    // TryCancel may call back at once
  grpc::CallbackServerContext* context_;  // null when the call is over
  std::shared_ptr<StreamWriter> self_;
};

}  // namespace baton::router
