#include "kernels/cuda/host/nccl_group.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/device_failure.h"
#include "common/status.h"
#include "kernels/cuda/host/peer_sums.h"
#include "kernels/cuda/host/scratch.h"
#include "kernels/cuda/rows/tree_sum.cuh"

namespace baton::cuda {
namespace {

using gpu::kNcclBytes;

constexpr size_t kTokenBytes = kernels::device_sizes::kToken;  ///< of a call that moves nothing and orders the ranks

/// NCCL's word for a result, and what it says of the cause: the library or the system whose call failed, with its
/// error.
std::string TextOf(const gpu::NcclApi& api, int result) {
  const char* cause = api.last_error(nullptr);
  return StrCat(api.error_text(result), cause != nullptr && *cause != 0 ? ": " : "", cause != nullptr ? cause : "");
}

/// Aborts that go on. The process's end waits a while for them: they use a driver that goes with it.
class Endings {
 public:
  std::shared_future<void> Begin(std::function<void()> end) {
    std::packaged_task<void()> task(std::move(end));
    const std::shared_future<void> ended = task.get_future().share();
    std::lock_guard lock(mutex_);
    std::erase_if(all_, [](const auto& one) { return one.wait_for(std::chrono::seconds(0)) == kReady; });
    all_.push_back(ended);
    std::thread(std::move(task)).detach();
    return ended;
  }
  ~Endings() {
    const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(3);
    for (const std::shared_future<void>& one : all_) one.wait_until(patience);
  }

 private:
  static constexpr std::future_status kReady = std::future_status::ready;
  std::mutex mutex_;
  std::vector<std::shared_future<void>> all_;
};
std::shared_future<void> EndBeside(std::function<void()> end) {
  static Endings endings;
  return endings.Begin(std::move(end));
}

/// What a rank tells the others before they meet.
struct Card {
  gpu::NcclId id;  ///< of rank 0
  char gpu[64] = {}, kind[192] = {};
  bool short_of_memory = false;  ///< for the least that sums need
};

class NcclGroup final : public kernels::RankGroup {
 public:
  NcclGroup(const gpu::NcclApi& api, gpu::Stream& stream, int rank, int size, std::function<void()> forget_records)
      : api_(api),
        stream_(stream),
        rank_(rank),
        size_(size),
        forget_records_(std::move(forget_records)),
        gathered_(stream) {}
  ~NcclGroup() override {
    const bool whole = health().ok();
    if (whole) {  // else what is under way may never end
      stream_.Synchronize();
      peers_.reset();  // what others wrote has been waited for
      forget_records_();
    }
    Abort(absl::CancelledError("the group is over"));
    if (whole && ending_.valid()) ending_.wait();
  }

  absl::Status Init(const gpu::NcclId& id) {
    gpu::NcclConfig config;
    stream_.Bind();
    return Call([&] { return api_.init_rank(&comm_, size_, id, rank_, &config); });
  }
  absl::Status MeetPeers(const kernels::GroupSeat& seat, int64_t bytes) {
    std::string why;
    BATON_ASSIGN_OR_RETURN(std::unique_ptr<PeerSums> peers, PeerSums::Meet(stream_, seat, bytes, &why));
    about_ = peers == nullptr
                 ? StrCat("by NCCL, since those over the GPUs' own links cannot be: ", why)
                 : StrCat("of up to ", peers->floats() * 4, " bytes over the GPUs' own links, else by NCCL");
    std::lock_guard lock(mutex_);
    BATON_RETURN_IF_ERROR(broken_);
    peers_ = std::move(peers);
    return absl::OkStatus();
  }

  absl::Status Reserve(int64_t floats) override {
    return gathered_.Reserve(static_cast<size_t>(kernels::GatheredBytes(size_, floats)), "sums over ranks");
  }
  int64_t bytes() const override { return gathered_.bytes() + (peers_ != nullptr ? peers_->bytes() : 0); }
  absl::Status Send(int to, const void* data, size_t bytes) override {
    if (bytes == 0) data = Token(), bytes = kTokenBytes;
    return Call([&] { return api_.send(data, bytes, kNcclBytes, to, comm_, Handle()); });
  }
  absl::Status Recv(int from, void* data, size_t bytes) override {
    if (bytes == 0) data = Token(), bytes = kTokenBytes;
    return Call([&] { return api_.recv(data, bytes, kNcclBytes, from, comm_, Handle()); });
  }
  absl::Status Broadcast(int root, void* data, size_t bytes) override {
    return Call([&] { return api_.broadcast(data, data, bytes, kNcclBytes, root, comm_, Handle()); });
  }
  absl::Status AllGather(const void* mine, size_t bytes, void* all) override {
    return Call([&] { return api_.all_gather(mine, all, bytes, kNcclBytes, comm_, Handle()); });
  }
  absl::Status TreeAllReduce(float* data, int64_t n) override {
    BATON_CHECK(n % 4 == 0, n, " floats in a sum over ranks");
    if (n == 0) return Barrier();
    if (peers_ != nullptr && n <= peers_->floats()) return SumOverPeers(data, n);
    const int64_t share = n / size_;
    if (n <= kWholeSumFloats || n % size_ != 0 || share % 4 != 0) return SumWhole(data, n);
    float* parts = Gathered(n);  // [ranks, share]
    BATON_RETURN_IF_ERROR(Scatter(data, parts, static_cast<size_t>(share) * sizeof(float), share));
    float* mine = data + rank_ * share;
    LaunchTreeSum(stream_, {parts, mine, share, share}, size_);
    return AllGather(mine, static_cast<size_t>(share) * sizeof(float), data);
  }

  std::string about() const override { return about_; }
  absl::Status health() override {
    std::lock_guard lock(mutex_);
    if (!broken_.ok() || comm_ == nullptr) return broken_;
    int error = gpu::kNcclSuccess;
    const int result = api_.async_error(comm_, &error);
    for (const int each : {result, error}) {
      if (each != gpu::kNcclSuccess && each != gpu::kNcclInProgress) broken_.Update(ErrorOf(each));
    }
    return broken_;
  }
  // NCCL's abort ends what is under way, and then waits for recorded steps that have the communicator in them, and for
  // all that the GPU does, another group's calls included. So nobody waits for it but the end of a whole group.
  void Abort(const absl::Status& why) override {
    std::lock_guard lock(mutex_);
    broken_.Update(why);
    if (peers_ != nullptr) peers_->Stop();
    if (comm_ == nullptr || std::exchange(aborted_, true)) return;
    ending_ = EndBeside([abort = api_.abort, comm = comm_, device = stream_.device()] {
      gpu::BindTo(device);  // else NCCL would begin to use GPU 0
      abort(comm);
    });
  }

 private:
#if defined(__CUDACC__)
  void* Handle() const { return stream_.handle(); }
#else
  void* Handle() const { return &stream_; }
#endif
  // A GPU that has failed ends the process with its own error.
  absl::Status ErrorOf(int result) const {
    if (result == gpu::kNcclUnhandledCudaError) EndIfDeviceFailed(stream_.Failure());
    return absl::UnavailableError(StrCat("rank ", rank_, " of ", size_, ", NCCL: ", TextOf(api_, result)));
  }
  char* Token() { return static_cast<char*>(gathered_.Ensure(2 * kTokenBytes)); }
  float* Gathered(int64_t floats) {
    auto* at = static_cast<char*>(gathered_.Ensure(2 * kTokenBytes + static_cast<size_t>(floats) * sizeof(float)));
    return reinterpret_cast<float*>(at + 2 * kTokenBytes);
  }
  absl::Status Barrier() {
    float* all = Gathered(size_ * static_cast<int64_t>(kTokenBytes / sizeof(float)));
    return AllGather(Token(), kTokenBytes, all);
  }
  absl::Status SumOverPeers(float* data, int64_t n) {
    stream_.Bind();
    {
      std::lock_guard lock(mutex_);
      BATON_RETURN_IF_ERROR(broken_);
    }
    peers_->Sum(data, n);
    return absl::OkStatus();
  }
  absl::Status SumWhole(float* data, int64_t n) {
    for (int64_t at = 0; at < n; at += kWholeSumFloats) {
      const int64_t some = std::min(kWholeSumFloats, n - at);
      float* all = Gathered(some * size_);
      BATON_RETURN_IF_ERROR(AllGather(data + at, static_cast<size_t>(some) * sizeof(float), all));
      LaunchTreeSum(stream_, {all, data + at, some, some}, size_);
    }
    return absl::OkStatus();
  }
  // Everybody's part of this rank's share → parts [ranks, share].
  absl::Status Scatter(const float* data, float* parts, size_t bytes, int64_t share) {
    return Call([&] {
      int result = api_.group_start();
      for (int r = 0; r < size_ && result == gpu::kNcclSuccess; ++r) {
        result = api_.send(data + r * share, bytes, kNcclBytes, r, comm_, Handle());
        if (result == gpu::kNcclSuccess) result = api_.recv(parts + r * share, bytes, kNcclBytes, r, comm_, Handle());
      }
      const int ended = api_.group_end();
      return result == gpu::kNcclSuccess ? ended : result;
    });
  }
  template <class Enqueue>
  absl::Status Call(Enqueue enqueue) {
    stream_.Bind();
    int result;
    {
      std::lock_guard lock(mutex_);  // an aborted communicator is no more
      BATON_RETURN_IF_ERROR(broken_);
      result = enqueue();
    }
    return Settle(result);
  }
  // A call that does not block may be under way when it returns; Abort may be what ends it.
  absl::Status Settle(int result) {
    while (result == gpu::kNcclInProgress) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      std::lock_guard lock(mutex_);
      BATON_RETURN_IF_ERROR(broken_);
      if (const int asked = api_.async_error(comm_, &result); asked != gpu::kNcclSuccess) result = asked;
    }
    if (result == gpu::kNcclSuccess) return absl::OkStatus();
    const absl::Status error = ErrorOf(result);
    Abort(error);
    return error;
  }

  const gpu::NcclApi api_;
  gpu::Stream& stream_;
  const int rank_, size_;
  const std::function<void()> forget_records_;
  Scratch gathered_;  ///< two tokens, then the parts of a sum
  std::mutex mutex_;
  absl::Status broken_;  ///< guarded by mutex_
  bool aborted_ = false;
  std::shared_future<void> ending_;  ///< NCCL's abort; guarded by mutex_ until the destructor
  gpu::NcclComm* comm_ = nullptr;
  std::unique_ptr<PeerSums> peers_;  ///< set once, before the group is used
  std::string about_;
};

// A rank that has not come would be waited for at NCCL for ever. Two ranks of one group cannot have one GPU; GPUs of
// two kinds would wait for the slower one at every layer.
absl::Status CheckCards(const std::vector<Card>& cards) {
  for (size_t i = 0; i < cards.size(); ++i) {
    if (cards[i].short_of_memory)
      return absl::ResourceExhaustedError(StrCat("the GPU of rank ", i, " has too little memory for sums over ranks"));
    if (std::string(cards[i].kind) != cards[0].kind) {
      return absl::FailedPreconditionError(
          StrCat("GPUs of two kinds in one group: rank 0 has ", cards[0].kind, ", rank ", i, " has ", cards[i].kind));
    }
    for (size_t k = 0; k < i; ++k) {
      if (std::string(cards[i].gpu) != cards[k].gpu) continue;
      return absl::FailedPreconditionError(
          StrCat("ranks ", k, " and ", i, " of a group have the same GPU (", cards[k].gpu, ")"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<kernels::RankGroup>> JoinNcclGroup(const gpu::NcclApi& api, gpu::Stream& stream,
                                                                  const kernels::GroupSeat& seat,
                                                                  int64_t one_shot_bytes,
                                                                  std::function<void()> forget_records) {
  if (seat.size > kMostTreeRanks)
    return absl::FailedPreconditionError(StrCat("a group of ", seat.size, " GPUs: at most ", kMostTreeRanks));
  stream.Bind();
  const gpu::DeviceInfo device = gpu::CurrentDevice();
  Card card;
  int made = gpu::kNcclSuccess;
  if (seat.rank == 0) made = api.get_unique_id(&card.id);
  device.id.copy(card.gpu, sizeof(card.gpu) - 1);
  StrCat(device.name, " (", device.architecture, ", ", device.multiprocessors, " multiprocessors)")
      .copy(card.kind, sizeof(card.kind) - 1);
  auto group = std::make_shared<NcclGroup>(api, stream, seat.rank, seat.size, std::move(forget_records));
  const absl::Status reserved = group->Reserve(kWholeSumFloats);
  card.short_of_memory = !reserved.ok();
  std::vector<Card> cards(static_cast<size_t>(seat.size));
  BATON_RETURN_IF_ERROR(seat.gather(std::as_bytes(std::span(&card, 1)), std::as_writable_bytes(std::span(cards))));
  BATON_RETURN_IF_ERROR(reserved);
  BATON_RETURN_IF_ERROR(CheckCards(cards));
  if (made != gpu::kNcclSuccess) return absl::UnavailableError(StrCat("NCCL: ", TextOf(api, made)));
  BATON_RETURN_IF_ERROR(group->Init(cards[0].id));
  if (seat.sums && seat.size > 1) BATON_RETURN_IF_ERROR(group->MeetPeers(seat, one_shot_bytes));
  return std::shared_ptr<kernels::RankGroup>(std::move(group));
}

}  // namespace baton::cuda
