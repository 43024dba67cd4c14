#include "engine/parallel/local_communicator.h"

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <utility>

#include "common/status.h"
#include "engine/parallel/tree_sum.h"

namespace baton::engine {
namespace {

/// The buffers that a rank shows the others during a call.
struct Offer {
  void* data = nullptr;
  size_t bytes = 0;
};

/// A message on its way from one rank to another.
struct Letter {
  enum class State { kNone, kOffered, kBeingRead } state = State::kNone;
  Offer offer;
};

class LocalGroup {
 public:
  explicit LocalGroup(int size) : offers_(static_cast<size_t>(size)), letters_(static_cast<size_t>(size * size)) {}

  /// Waits until every rank has come with its offer; then all may read and write each other's memory until End.
  absl::Status Begin(int rank, Offer offer) {
    std::unique_lock lock(mutex_);
    if (!broken_.ok()) return broken_;
    offers_[static_cast<size_t>(rank)] = offer;
    const uint64_t turn = turn_;
    if (Arrive()) return absl::OkStatus();
    changed_.wait(lock, [&] { return turn_ != turn || !broken_.ok(); });
    return turn_ != turn ? absl::OkStatus() : broken_;
  }
  /// Waits until every rank is done with the others' memory. They all are between Begin and End, so they will be.
  void End() {
    std::unique_lock lock(mutex_);
    const uint64_t turn = turn_;
    if (!Arrive()) changed_.wait(lock, [&] { return turn_ != turn; });
  }
  /// Of a rank, between Begin and End.
  const Offer& offer(int rank) const { return offers_[static_cast<size_t>(rank)]; }
  int size() const { return static_cast<int>(offers_.size()); }

  absl::Status Send(int from, int to, Offer offer) {
    std::unique_lock lock(mutex_);
    if (!broken_.ok()) return broken_;
    Letter& letter = LetterOf(from, to);
    letter = {Letter::State::kOffered, offer};
    changed_.notify_all();
    changed_.wait(lock, [&] {
      return letter.state == Letter::State::kNone || (!broken_.ok() && letter.state == Letter::State::kOffered);
    });
    return std::exchange(letter.state, Letter::State::kNone) == Letter::State::kNone ? absl::OkStatus() : broken_;
  }
  absl::Status Recv(int from, int to, Offer into) {
    std::unique_lock lock(mutex_);
    Letter& letter = LetterOf(from, to);
    changed_.wait(lock, [&] { return letter.state == Letter::State::kOffered || !broken_.ok(); });
    if (!broken_.ok()) return broken_;
    if (letter.offer.bytes != into.bytes) {
      Break(absl::InternalError(
          StrCat("rank ", from, " sends ", letter.offer.bytes, " bytes, rank ", to, " expects ", into.bytes)));
      return broken_;
    }
    letter.state = Letter::State::kBeingRead;
    lock.unlock();
    if (into.bytes > 0) std::memcpy(into.data, letter.offer.data, into.bytes);
    lock.lock();
    letter.state = Letter::State::kNone;
    changed_.notify_all();
    return absl::OkStatus();
  }

  void Abort(const absl::Status& why) {
    std::lock_guard lock(mutex_);
    Break(why);
  }
  void OnBroken(std::function<void(const absl::Status&)> hook) {
    std::lock_guard lock(mutex_);
    if (!broken_.ok()) return hook(broken_);
    hooks_.push_back(std::move(hook));
  }

 private:
  // mutex_ is held. True: this was the last rank, and the others go on.
  bool Arrive() {
    if (++arrived_ < size()) return false;
    arrived_ = 0;
    ++turn_;
    changed_.notify_all();
    return true;
  }
  void Break(const absl::Status& why) {
    if (broken_.ok()) {
      broken_ = why;
      for (const auto& hook : hooks_) hook(why);
    }
    changed_.notify_all();
  }
  Letter& LetterOf(int from, int to) { return letters_[static_cast<size_t>(from * size() + to)]; }

  std::mutex mutex_;
  std::condition_variable changed_;
  absl::Status broken_;
  std::vector<std::function<void(const absl::Status&)>> hooks_;
  std::vector<Offer> offers_;    ///< [rank]
  std::vector<Letter> letters_;  ///< [from, to]
  int arrived_ = 0;
  uint64_t turn_ = 0;
};

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(int rank, std::shared_ptr<LocalGroup> group)
      : Communicator(rank, group->size()), group_(std::move(group)) {}
  ~LocalCommunicator() override { group_->Abort(absl::UnavailableError(StrCat("rank ", rank(), " is gone"))); }

  absl::Status Send(int to, std::span<const std::byte> data) override {
    return group_->Send(rank(), to, {const_cast<std::byte*>(data.data()), data.size()});
  }
  absl::Status Recv(int from, std::span<std::byte> data) override {
    return group_->Recv(from, rank(), {data.data(), data.size()});
  }

  absl::Status Broadcast(int root, std::span<std::byte> data) override {
    return Together({data.data(), data.size()}, [&] {
      if (rank() != root && !data.empty()) std::memcpy(data.data(), group_->offer(root).data, data.size());
    });
  }

  absl::Status AllGather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    return Together({const_cast<std::byte*>(mine.data()), mine.size()}, [&] {
      for (int r = 0; r < size() && !mine.empty(); ++r) {
        std::memcpy(all.data() + static_cast<size_t>(r) * mine.size(), group_->offer(r).data, mine.size());
      }
    });
  }

  // Each rank adds up its share of the elements and writes the sums to everybody: nobody else reads or writes them.
  absl::Status TreeAllReduce(std::span<float> data) override {
    return Together({data.data(), data.size_bytes()}, [&] {
      const int64_t n = static_cast<int64_t>(data.size()), first = n * rank() / size(), end = n * (rank() + 1) / size();
      std::vector<const float*> parts;
      for (int r = 0; r < size(); ++r) parts.push_back(static_cast<const float*>(group_->offer(r).data) + first);
      TreeSum(parts, end - first, data.data() + first);
      for (int r = 0; r < size(); ++r) {
        if (r != rank())
          std::copy_n(data.data() + first, end - first, static_cast<float*>(group_->offer(r).data) + first);
      }
    });
  }

  void OnBroken(std::function<void(const absl::Status&)> hook) override { group_->OnBroken(std::move(hook)); }
  void Abort(const absl::Status& why) override { group_->Abort(why); }

 private:
  // `work` runs while every rank's offer may be used. All ranks see the same lengths, so they all take the same way.
  template <class Work>
  absl::Status Together(Offer offer, Work work) {
    BATON_RETURN_IF_ERROR(group_->Begin(rank(), offer));
    absl::Status agreed;
    for (int r = 1; r < size() && agreed.ok(); ++r) {
      if (group_->offer(r).bytes == group_->offer(0).bytes) continue;
      agreed = absl::InternalError(StrCat("rank 0 has ", group_->offer(0).bytes, " bytes in a collective, rank ", r,
                                          " has ", group_->offer(r).bytes));
    }
    if (agreed.ok()) work();
    group_->End();
    if (!agreed.ok()) group_->Abort(agreed);
    return agreed;
  }

  const std::shared_ptr<LocalGroup> group_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeLocalGroup(int size) {
  const auto group = std::make_shared<LocalGroup>(size);
  std::vector<std::unique_ptr<Communicator>> out;
  for (int rank = 0; rank < size; ++rank) out.push_back(std::make_unique<LocalCommunicator>(rank, group));
  return out;
}

}  // namespace baton::engine
