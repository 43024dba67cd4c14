// Sums over ranks by our own kernels, over memory that the ranks' GPUs write into each other (rows/peer_sum.cuh): one
// round without NCCL, of the same bits. Where a rank's memory cannot be reached there are none, with the reason.
//
// Cut-over. One round sends 4n bytes to each of R − 1 ranks; NCCL's two rounds of shares (nccl_group.h) 2 · 4n / R.
// With about 6 µs for two launches and a store's way, about 10 µs a round of NCCL, and 300 GB/s of NVLink's 450 each
// way: 6 + (R − 1) · 4n / 300,000 < 20 + 2 · (R − 1) / R · 4n / 300,000 up to 760 kB on 8 GPUs, 2.8 MB on 4, any size
// on 2. The default, 256 KiB (16 rows of a hidden size of 4,096), is below all, and what NCCL gathers in one round.
// A model of 70B in bf16 on two GPUs: 70.6 GB each, 16.4 ms at 4.3 TB/s, and 160 sums of one row, 1.0 ms: 0.94 of twice
// one GPU's roof, of which the bar is 0.8. None of these figures has been measured by us.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/rows/peer_sum.cuh"
#include "kernels/rank_group.h"
#include "kernels/runtime/peer_memory.h"
#include "kernels/runtime/runtime.h"

namespace baton::cuda {

constexpr int64_t kOneShotBytes = 256 << 10;

/// Thread: that of the stream, but for Stop.
class PeerSums {
 public:
  /// Sums of up to `bytes`, the least that a rank asks for; waits for all ranks. Null, on all ranks alike, when there
  /// are none: `*why` says it. Each rank's writes are looked at in each other's memory: drivers say of GPUs that they
  /// reach each other where an IOMMU or a virtual machine loses what they write. An error is that of the ranks' talk
  /// over the host.
  static absl::StatusOr<std::unique_ptr<PeerSums>> Meet(gpu::Stream& stream, const kernels::GroupSeat& seat,
                                                        int64_t bytes, std::string* why);
  PeerSums(gpu::Stream& stream, int rank, int ranks);
  /// After Stop the memory that others may still write to stays for the life of the process.
  ~PeerSums();
  PeerSums(const PeerSums&) = delete;
  PeerSums& operator=(const PeerSums&) = delete;

  int64_t floats() const { return capacity_; }
  int64_t bytes() const { return static_cast<int64_t>(landing_->bytes() + epochs_->bytes()); }  ///< of the GPU's memory
  /// Enqueues data = sum; n ≤ floats(), a multiple of 4. The host waits for nothing.
  void Sum(float* data, int64_t n);
  /// What waits for other ranks ends, now and later, with sums that are undefined. Thread: any.
  void Stop();

 private:
  struct Card;
  std::string Allocate(int64_t floats);
  std::string Open(const std::vector<Card>& cards);
  std::string WriteToAll();
  std::string WhatIsMissing();
  int64_t blocks() const { return (capacity_ + kPeerBlockFloats - 1) / kPeerBlockFloats; }
  size_t LandingBytes() const { return static_cast<size_t>(2 * ranks_ * capacity_) * sizeof(float); }

  gpu::Stream& stream_;
  const int rank_, ranks_;
  int64_t capacity_ = 0;
  std::optional<gpu::Memory> landing_;                    ///< [2, ranks, capacity] floats, then the flags
  std::optional<gpu::Memory> epochs_;                     ///< [blocks]
  std::optional<gpu::Memory> stop_;                       ///< one word, pinned
  std::vector<std::unique_ptr<gpu::PeerMemory>> others_;  ///< of each rank
  PeerPushParams push_{};
  PeerSumParams sum_{};
};

}  // namespace baton::cuda
