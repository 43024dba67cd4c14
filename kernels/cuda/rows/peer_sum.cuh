// data = the sum of the ranks' data, as one binary tree in rank order (tree_sum.cuh), over memory that the ranks' GPUs
// write into each other: PeerPush puts a rank's part into every rank's landing, PeerSum waits for all and adds them.
//
// A block has kPeerBlockFloats elements, and counts its own sums (its epoch), so that a recorded step may be replayed.
// Landings are two, by the epoch's parity: a push of epoch e + 2 comes, in the order of its stream, after the sum of
// e + 1, which waited for every rank's push of e + 1, and that came after the rank's sum of e had read the landing.
// Two kernels and not one: no block waits for another of its own GPU, so they need not all be resident.
//
// Floor per element: read 4 bytes, write 4 to each rank; read 4 · ranks, write 4; ranks − 1 FLOP. 2 ranks, 8 × 4096:
// 131 kB to the peer, 0.3 µs at NVLink's 450 GB/s; two launches and a store's way, about 6 µs, are what counts.
#pragma once

#include "kernels/cuda/rows/tree_sum.cuh"

namespace baton::cuda {

constexpr int kMostPeers = 8;
constexpr int kPeerBlockFloats = 4 * kRowOpThreads;

struct PeerPushParams {
  const float* data;            ///< [n]
  float* landings[kMostPeers];  ///< of each rank: [2, ranks, capacity]
  uint32_t* flags[kMostPeers];  ///< of each rank: [blocks, ranks]; the epoch of what has landed
  const uint32_t* epochs;       ///< [blocks], own: sums so far
  int64_t n, capacity;          ///< multiples of 4
  int rank, ranks;
};
/// Block (b, r) writes elements of block b to rank r.
PX_KERNEL_INLINE void PX_BOUNDS(kRowOpThreads) PeerPushKernel(const PX_GRID_CONST PeerPushParams p) {
  const int to = px::BlockY();
  const int64_t at = RowOpIndex() * 4;
  px::GridDependencyWait();
  px::GridDependencyRelease();
  const uint32_t epoch = px::Load(p.epochs + px::BlockX()) + 1;
  if (at < p.n) {
    float* landing = p.landings[to] + (static_cast<int64_t>(epoch & 1) * p.ranks + p.rank) * p.capacity;
    px::StorePeer(reinterpret_cast<px::U128*>(landing + at), px::Load(reinterpret_cast<const px::U128*>(p.data + at)));
  }
  px::SyncThreads();
  if (px::ThreadX() == 0) {
    px::FenceSystem();
    px::StoreSystem(p.flags[to] + px::BlockX() * p.ranks + p.rank, epoch);
  }
}

struct PeerSumParams {
  const float* landing;   ///< own, as above
  const uint32_t* flags;  ///< own
  uint32_t* epochs;
  const uint32_t* stop;  ///< pinned: not 0 when nobody is to be waited for any more
  float* data;           ///< [n]
  int64_t n, capacity;
};
template <int kRanks>
PX_KERNEL void PX_BOUNDS(kRowOpThreads) PeerSumKernel(const PX_GRID_CONST PeerSumParams p) {
  const int block = px::BlockX();
  const int64_t at = RowOpIndex() * 4;
  px::GridDependencyWait();
  const uint32_t epoch = px::Load(p.epochs + block) + 1;
  if (px::ThreadX() < kRanks) px::WaitSystem(p.flags + block * kRanks + px::ThreadX(), epoch, p.stop);
  px::SyncThreads();
  if (at < p.n) {
    const float* parts = p.landing + static_cast<int64_t>(epoch & 1) * kRanks * p.capacity;
    float sum[4];
    TreeOf<kRanks>({parts, p.data, p.capacity, p.n}, 0, at, sum);
    StoreVector(p.data + at, sum);
  }
  if (px::ThreadX() == 0) px::Store(p.epochs + block, epoch);
  px::GridDependencyRelease();
}

inline void LaunchPeerPush(gpu::Stream& stream, const PeerPushParams& push, bool overlapped) {
  gpu::Launch(stream,
              {.grid = {RowOpBlocks(push.n / 4), static_cast<unsigned>(push.ranks)},
               .block = {kRowOpThreads},
               .programmatic = overlapped},
              &PeerPushKernel, push);
}
/// `ranks`: 2, 4 or kMostPeers.
inline void LaunchPeerSum(gpu::Stream& stream, const PeerPushParams& push, const PeerSumParams& sum, bool overlapped) {
  if (push.n == 0) return;
  LaunchPeerPush(stream, push, overlapped);
  const gpu::LaunchConfig config{
      .grid = {RowOpBlocks(push.n / 4)}, .block = {kRowOpThreads}, .programmatic = overlapped, .awaits_peers = true};
  switch (push.ranks) {
    case 2: return gpu::Launch(stream, config, &PeerSumKernel<2>, sum);
    case 4: return gpu::Launch(stream, config, &PeerSumKernel<4>, sum);
    default: return gpu::Launch(stream, config, &PeerSumKernel<kMostPeers>, sum);
  }
}

}  // namespace baton::cuda
