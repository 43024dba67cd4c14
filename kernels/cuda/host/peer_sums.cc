#include "kernels/cuda/host/peer_sums.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <span>
#include <utility>

#include "common/check.h"
#include "common/device_failure.h"
#include "common/status.h"
#include "common/str_cat.h"
#include "kernels/device_rooms.h"

namespace baton::cuda {
namespace {

/// A handle of CUDA IPC shares whole pages of the device.
constexpr size_t kDevicePage = kernels::device_sizes::kDevicePage;
static_assert(kernels::device_sizes::kMostPeers == kMostPeers &&
              kernels::device_sizes::kPeerBlockFloats == kPeerBlockFloats);

uint32_t* StopWord(const gpu::Memory& memory) { return static_cast<uint32_t*>(memory.data()); }

/// What kernels of this rank or of another may still use.
template <typename T>
void KeepForEver(T kept) {
  static std::mutex mutex;
  static auto* all = new std::vector<T>;
  std::lock_guard lock(mutex);
  all->push_back(std::move(kept));
}

struct Reason {
  char text[160] = {};
};

/// What a rank writes at the start, and nobody else: whole numbers from 1 on.
float TrialOf(int rank, int64_t at) { return static_cast<float>(1 + rank * int64_t{131072} + at % 131072); }

}  // namespace

/// What a rank tells the others.
struct PeerSums::Card {
  gpu::MemoryCard memory;
  int64_t floats = 0;
};

PeerSums::PeerSums(gpu::Stream& stream, int rank, int ranks) : stream_(stream), rank_(rank), ranks_(ranks) {}

PeerSums::~PeerSums() {
  if (!stop_.has_value() || stop_->data() == nullptr || *StopWord(*stop_) == 0) return;
  KeepForEver(*std::exchange(landing_, std::nullopt));
  KeepForEver(*std::exchange(epochs_, std::nullopt));
  KeepForEver(*std::exchange(stop_, std::nullopt));
  for (auto& other : others_) KeepForEver(std::move(other));
}

// Everything is zero before another rank hears of it.
std::string PeerSums::Allocate(int64_t floats) {
  capacity_ = floats / kPeerBlockFloats * kPeerBlockFloats;
  const size_t flags = static_cast<size_t>(blocks() * ranks_) * sizeof(uint32_t), bytes = LandingBytes() + flags;
  landing_.emplace((bytes + kDevicePage - 1) / kDevicePage * kDevicePage, gpu::MemoryKind::kPeer);
  epochs_.emplace(static_cast<size_t>(blocks()) * sizeof(uint32_t));
  stop_.emplace(sizeof(uint32_t), gpu::MemoryKind::kShared);
  if (stop_->data() == nullptr) return "the system refuses pinned memory of the host";
  if (landing_->data() == nullptr || epochs_->data() == nullptr)
    return StrCat("landings need ", landing_->bytes(), " bytes of device memory, ", gpu::CurrentDevice().free_bytes,
                  " are free");
  *StopWord(*stop_) = 0;
  stream_.FillAsync(landing_->data(), 0, landing_->bytes());
  stream_.FillAsync(epochs_->data(), 0, epochs_->bytes());
  EndIfDeviceFailed(stream_.Synchronize());
  return {};
}

std::string PeerSums::Open(const std::vector<Card>& cards) {
  for (const Card& card : cards) {
    auto& other = others_.emplace_back(std::make_unique<gpu::PeerMemory>());
    const auto r = others_.size() - 1;
    if (card.memory.machine[0] == 0) return StrCat("rank ", r, ": ", card.memory.refused);
    if (const std::string why = other->Open(card.memory); !why.empty()) return StrCat("memory of rank ", r, ": ", why);
    push_.landings[r] = static_cast<float*>(other->data());
    push_.flags[r] = reinterpret_cast<uint32_t*>(static_cast<char*>(other->data()) + LandingBytes());
  }
  auto* epochs = static_cast<uint32_t*>(epochs_->data());
  push_.epochs = epochs;
  push_.capacity = sum_.capacity = capacity_;
  push_.rank = rank_;
  push_.ranks = ranks_;
  sum_.landing = push_.landings[rank_];
  sum_.flags = push_.flags[rank_];
  sum_.epochs = epochs;
  sum_.stop = StopWord(*stop_);
  return {};
}

// The first push of all: what a sum's first half does. All of what a sum may write.
std::string PeerSums::WriteToAll() {
  const gpu::Memory trial(static_cast<size_t>(capacity_) * sizeof(float));
  if (trial.data() == nullptr) return StrCat("no ", trial.bytes(), " bytes of device memory to try them out");
  std::vector<float> values(static_cast<size_t>(capacity_));
  for (int64_t i = 0; i < capacity_; ++i) values[static_cast<size_t>(i)] = TrialOf(rank_, i);
  stream_.Upload(trial.data(), values.data(), trial.bytes());
  PeerPushParams push = push_;
  push.data = static_cast<const float*>(trial.data());
  push.n = capacity_;
  LaunchPeerPush(stream_, push, false);
  EndIfDeviceFailed(stream_.Synchronize());
  return {};
}

// When all have written. Leaves everything zero.
std::string PeerSums::WhatIsMissing() {
  std::vector<float> landed(static_cast<size_t>(ranks_ * capacity_));
  std::vector<uint32_t> flags(static_cast<size_t>(blocks() * ranks_));
  const size_t bytes = landed.size() * sizeof(float);  // of a landing
  stream_.CopyAsync(landed.data(), static_cast<const char*>(landing_->data()) + bytes, bytes);
  stream_.CopyAsync(flags.data(), sum_.flags, flags.size() * sizeof(uint32_t));
  EndIfDeviceFailed(stream_.Synchronize());
  stream_.FillAsync(landing_->data(), 0, landing_->bytes());
  EndIfDeviceFailed(stream_.Synchronize());
  for (int64_t i = 0; i < ranks_ * capacity_; ++i) {
    const auto rank = static_cast<int>(i / capacity_);
    const int64_t at = i % capacity_;
    const uint32_t flag = flags[static_cast<size_t>(at / kPeerBlockFloats * ranks_ + rank)];
    if (landed[static_cast<size_t>(i)] != TrialOf(rank, at) || flag != 1)
      return StrCat("what rank ", rank, " wrote at ", at, " is not there (", landed[static_cast<size_t>(i)], ", flag ",
                    flag, "): they do not reach each other, though the driver says so");
  }
  return {};
}

absl::StatusOr<std::unique_ptr<PeerSums>> PeerSums::Meet(gpu::Stream& stream, const kernels::GroupSeat& seat,
                                                         int64_t bytes, std::string* why) {
  stream.Bind();
  const auto ranks = static_cast<size_t>(seat.size);
  std::vector<Card> cards(ranks);
  Card card{.floats = std::max<int64_t>(0, bytes) / static_cast<int64_t>(sizeof(float))};
  const auto tell = [&](const auto& mine, auto& all) {
    return seat.gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  };
  BATON_RETURN_IF_ERROR(tell(card, cards));
  const int64_t floats = std::ranges::min(cards, {}, &Card::floats).floats;
  if (floats < kPeerBlockFloats || seat.size > kMostPeers) {
    *why = seat.size > kMostPeers ? StrCat(seat.size, " GPUs, at most ", kMostPeers) : "they are switched off";
    return nullptr;
  }
  auto sums = std::make_unique<PeerSums>(stream, seat.rank, seat.size);
  std::string refused = sums->Allocate(floats);
  if (refused.empty())
    card.memory = gpu::CardOf(*sums->landing_);
  else
    refused.copy(card.memory.refused, sizeof(card.memory.refused) - 1);
  BATON_RETURN_IF_ERROR(tell(card, cards));
  if (refused.empty()) refused = sums->Open(cards);
  const auto all_can = [&]() -> absl::StatusOr<bool> {
    Reason reason;
    std::vector<Reason> reasons(ranks);
    refused.copy(reason.text, sizeof(reason.text) - 1);
    BATON_RETURN_IF_ERROR(tell(reason, reasons));
    const auto first = std::ranges::find_if(reasons, [](const Reason& each) { return each.text[0] != 0; });
    if (first == reasons.end()) return true;
    *why = StrCat("rank ", first - reasons.begin(), ": ", first->text);
    return false;
  };
  for (const auto next : {&PeerSums::WriteToAll, &PeerSums::WhatIsMissing}) {
    BATON_ASSIGN_OR_RETURN(const bool can, all_can());
    if (!can) return nullptr;
    refused = (sums.get()->*next)();
  }
  BATON_ASSIGN_OR_RETURN(const bool can, all_can());
  return can ? std::move(sums) : nullptr;
}

void PeerSums::Sum(float* data, int64_t n) {
  BATON_CHECK(n <= capacity_ && n % 4 == 0, n, " floats of ", capacity_);
  push_.data = sum_.data = data;
  push_.n = sum_.n = n;
  LaunchPeerSum(stream_, push_, sum_, true);
}

void PeerSums::Stop() { std::atomic_ref(*StopWord(*stop_)).store(1); }

}  // namespace baton::cuda
