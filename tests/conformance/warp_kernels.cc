// Geometry, barriers, exchange between lanes, memory of every width, atomics, cp.async, dependent launches.
#include "tests/conformance/micro_kernels.h"

namespace baton::conformance {
namespace {

constexpr unsigned kWarp = 32, kBlock = 128;

PX_KERNEL void GeometryKernel(const uint32_t*, uint32_t* out) {
  const int thread = ((px::BlockZ() * 3 + px::BlockY()) * px::GridX() + px::BlockX()) * px::BlockDimX() + px::ThreadX();
  px::Store(out + thread, static_cast<uint32_t>(px::Lane() + 100 * px::WarpIndex() + 1000 * px::BlockX() +
                                                10000 * px::BlockY() + 100000 * px::BlockZ()));
}
MicroKernel Geometry() {
  MicroKernel k{"Geometry", {}, {}, {}};
  k.run = [](gpu::Stream& s) {
    return Launch(s, {.grid = {2, 3, 2}, .block = {kBlock}}, 12 * kBlock, {}, &GeometryKernel);
  };
  for (uint32_t z = 0; z < 2; ++z)
    for (uint32_t y = 0; y < 3; ++y)
      for (uint32_t x = 0; x < 2; ++x)
        for (uint32_t t = 0; t < kBlock; ++t)
          k.want.push_back(t % 32 + 100 * (t / 32) + 1000 * x + 10000 * y + 100000 * z);
  return k;
}

PX_KERNEL void ShuffleKernel(const uint32_t* in, uint32_t* out) {
  const int lane = px::Lane();
  const uint32_t v = px::Load(in + lane);
  px::Store(out + lane, px::ShuffleXor(v, 5));
  px::Store(out + 32 + lane, px::Shuffle(v, (lane * 7 + 3) & 31));
  px::Store(out + 64 + lane, px::Ballot((v & 1u) != 0));
  px::Store(out + 96 + lane, v);
  if (lane >= 8) px::Store(out + 96 + lane, px::Shuffle(v, 8 + (lane & 7), 0xFFFFFF00u));
}
MicroKernel Shuffles() {
  const Words in = Noise(32, 11);
  MicroKernel k{"ShuffleXor_Shuffle_Ballot", {}, {}, {}};
  k.run = [in](gpu::Stream& s) { return Launch(s, {.grid = {1}, .block = {kWarp}}, 128, in, &ShuffleKernel); };
  uint32_t ballot = 0;
  for (uint32_t l = 0; l < 32; ++l) ballot |= (in[l] & 1u) << l;
  for (uint32_t l = 0; l < 32; ++l) k.want.push_back(in[l ^ 5]);
  for (uint32_t l = 0; l < 32; ++l) k.want.push_back(in[(l * 7 + 3) & 31]);
  for (uint32_t l = 0; l < 32; ++l) k.want.push_back(ballot);
  for (uint32_t l = 0; l < 32; ++l) k.want.push_back(l >= 8 ? in[8 + (l & 7)] : in[l]);
  return k;
}

struct BarrierShared {
  uint32_t value[kBlock];
  uint32_t flag[4];
};
/// Warp 3 produces for warps 0…2 through a named barrier, then all exchange through __syncthreads.
PX_KERNEL void BarrierKernel(const uint32_t* in, uint32_t* out) {
  PX_SHARED(BarrierShared, smem);
  const int t = px::ThreadX(), warp = px::WarpIndex();
  uint32_t sum = 0;
  if (warp == 3) {
    px::StoreShared(&smem.value[t], px::Load(in + t));
    px::BarArrive(2, 64);
    px::BarSync(1, 96);
  } else if (warp == 0) {
    px::BarSync(2, 64);
    sum = px::LoadShared(&smem.value[96 + (t + 1) % 32]);
    px::BarSync(1, 96);
  } else if (warp == 1) {
    px::BarSync(1, 96);
    sum = px::LoadShared(&smem.value[127 - t % 32]);
  }
  px::SyncThreads();
  px::StoreShared(&smem.value[t], sum);
  px::SyncThreads();
  px::Store(out + t, px::LoadShared(&smem.value[(t + 32) % static_cast<int>(kBlock)]));
  px::SyncWarp();
}
MicroKernel Barriers() {
  const Words in = Noise(kBlock, 12);
  MicroKernel k{"SyncThreads_BarSync_BarArrive", {}, {}, {}};
  k.run = [in](gpu::Stream& s) {
    return Launch(s, {.grid = {1}, .block = {kBlock}, .shared_bytes = sizeof(BarrierShared)}, kBlock, in,
                  &BarrierKernel);
  };
  auto sum = [&](uint32_t t) { return t < 32 ? in[96 + (t + 1) % 32] : t < 64 ? in[127 - t % 32] : 0u; };
  for (uint32_t t = 0; t < kBlock; ++t) k.want.push_back(sum((t + 32) % kBlock));
  return k;
}

struct alignas(16) MemoryShared {
  px::U128 wide[32];
  uint16_t narrow[32];
};
PX_KERNEL void MemoryKernel(const uint32_t* in, uint32_t* out) {
  PX_SHARED(MemoryShared, smem);
  const int lane = px::Lane();
  const auto* wide = reinterpret_cast<const px::U128*>(in) + lane;
  const px::U128 v = px::LoadStream(wide);
  px::PrefetchL2(wide);
  px::StoreShared(&smem.wide[lane], v);
  px::StoreShared(&smem.narrow[lane], static_cast<uint16_t>(v.w[0]));
  px::SyncWarp();
  const px::U128 other = px::LoadShared(&smem.wide[31 - lane]);
  px::Store(reinterpret_cast<px::U128*>(out) + lane, other);
  const px::U64 pair = px::Load(reinterpret_cast<const px::U64*>(in) + 2 * lane + 1);
  px::Store(reinterpret_cast<px::U64*>(out + 128) + lane, pair);
  const uint32_t byte = px::Load(reinterpret_cast<const uint8_t*>(in) + lane),
                 half = px::LoadShared(&smem.narrow[lane ^ 1]);
  px::Store(out + 192 + lane, byte << 16 | half);
}
MicroKernel MemoryWidths() {
  const Words in = Noise(128, 13);
  MicroKernel k{"Load_Store_LoadStream_LoadShared_StoreShared", {}, {}, {}};
  k.run = [in](gpu::Stream& s) {
    return Launch(s, {.grid = {1}, .block = {kWarp}, .shared_bytes = sizeof(MemoryShared)}, 224, in, &MemoryKernel);
  };
  for (uint32_t l = 0; l < 32; ++l)
    for (uint32_t i = 0; i < 4; ++i) k.want.push_back(in[(31 - l) * 4 + i]);
  for (uint32_t l = 0; l < 32; ++l)
    for (uint32_t i = 0; i < 2; ++i) k.want.push_back(in[4 * l + 2 + i]);
  for (uint32_t l = 0; l < 32; ++l)
    k.want.push_back((in[l / 4] >> (8 * (l % 4)) & 0xFFu) << 16 | (in[(l ^ 1) * 4] & 0xFFFFu));
  return k;
}

PX_KERNEL void AtomicKernel(const uint32_t* in, uint32_t* out) {
  const uint32_t v = px::Load(in + px::BlockX() * static_cast<int>(kBlock) + px::ThreadX());
  px::AtomicAdd(reinterpret_cast<uint64_t*>(out), static_cast<uint64_t>(v) << 8);
  px::AtomicAdd(out + 2, v);
  px::AtomicAdd(reinterpret_cast<float*>(out + 3), static_cast<float>(v >> 28));
}
PX_KERNEL void ClearKernel(const uint32_t*, uint32_t* out) {
  if (px::ThreadX() < 4) px::Store(out + px::ThreadX(), 0u);
}
MicroKernel Atomics() {
  const Words in = Noise(2 * kBlock, 14);
  MicroKernel k{"AtomicAdd", {}, {}, {}};
  k.run = [in](gpu::Stream& s) {
    const gpu::Memory input(in.size() * 4), out(16);
    auto* words = static_cast<uint32_t*>(out.data());
    s.Upload(input.data(), in.data(), in.size() * 4);
    gpu::Launch(s, {.grid = {1}, .block = {kWarp}}, &ClearKernel, static_cast<const uint32_t*>(nullptr), words);
    gpu::Launch(s, {.grid = {2}, .block = {kBlock}}, &AtomicKernel, static_cast<const uint32_t*>(input.data()), words);
    Words got(4);
    s.CopyAsync(got.data(), words, 16);
    CheckSynchronized(s);
    return got;
  };
  uint64_t sum = 0;
  uint32_t low = 0;
  float floats = 0;  // small integers: exact in any order
  for (uint32_t v : in) sum += static_cast<uint64_t>(v) << 8, low += v, floats += static_cast<float>(v >> 28);
  k.want = {static_cast<uint32_t>(sum), static_cast<uint32_t>(sum >> 32), low, px::BitCast<uint32_t>(floats)};
  return k;
}

struct alignas(16) CopyShared {
  px::U128 stage[3][32];
};
/// Three groups in flight; every third lane's copy is switched off and must write zeroes.
PX_KERNEL void CpAsyncKernel(const uint32_t* in, uint32_t* out) {
  PX_SHARED(CopyShared, smem);
  const int lane = px::Lane();
  PX_UNROLL
  for (int g = 0; g < 3; ++g) {
    px::CpAsync16(&smem.stage[g][lane], reinterpret_cast<const px::U128*>(in) + 32 * g + lane, lane % 3 != g);
    px::CpAsyncCommit();
  }
  px::CpAsyncWait<2>();
  px::SyncWarp();
  px::Store(reinterpret_cast<px::U128*>(out) + lane, px::LoadShared(&smem.stage[0][31 - lane]));
  px::CpAsyncWait<0>();
  px::SyncWarp();
  px::Store(reinterpret_cast<px::U128*>(out) + 32 + lane, px::LoadShared(&smem.stage[1][31 - lane]));
  px::Store(reinterpret_cast<px::U128*>(out) + 64 + lane, px::LoadShared(&smem.stage[2][31 - lane]));
}
MicroKernel AsyncCopies() {
  const Words in = Noise(3 * 128, 15);
  MicroKernel k{"CpAsync16_Commit_Wait", {}, {}, {}};
  k.run = [in](gpu::Stream& s) {
    return Launch(s, {.grid = {1}, .block = {kWarp}, .shared_bytes = sizeof(CopyShared)}, 384, in, &CpAsyncKernel);
  };
  for (uint32_t g = 0; g < 3; ++g)
    for (uint32_t l = 0; l < 32; ++l)
      for (uint32_t i = 0; i < 4; ++i) k.want.push_back((31 - l) % 3 != g ? in[g * 128 + (31 - l) * 4 + i] : 0u);
  return k;
}

PX_KERNEL void ProducerKernel(const uint32_t* in, uint32_t* out) {
  px::GridDependencyRelease();
  px::Store(out + px::ThreadX(), px::Load(in + px::ThreadX()) + 1);
}
PX_KERNEL void ConsumerKernel(const uint32_t* in, uint32_t* out) {
  px::GridDependencyWait();
  px::Store(out + px::ThreadX(), px::Load(in + px::ThreadX()) * 3);
}
MicroKernel DependentLaunch() {
  const Words in = Noise(kBlock, 16);
  MicroKernel k{"GridDependencyWait_Release", {}, {}, {}};
  k.run = [in](gpu::Stream& s) {
    const gpu::Memory first(in.size() * 4), second(in.size() * 4), third(in.size() * 4);
    s.Upload(first.data(), in.data(), in.size() * 4);
    auto* between = static_cast<uint32_t*>(second.data());
    gpu::Launch(s, {.grid = {1}, .block = {kBlock}}, &ProducerKernel, static_cast<const uint32_t*>(first.data()),
                between);
    gpu::Launch(s, {.grid = {1}, .block = {kBlock}, .programmatic = true}, &ConsumerKernel,
                static_cast<const uint32_t*>(between), static_cast<uint32_t*>(third.data()));
    Words got(in.size());
    s.CopyAsync(got.data(), third.data(), got.size() * 4);
    CheckSynchronized(s);
    return got;
  };
  for (uint32_t v : in) k.want.push_back((v + 1) * 3);
  return k;
}

/// Warp 1 writes as a peer does; warp 0 waits for its flag, which was −1 and becomes 7.
PX_KERNEL void PeerKernel(const uint32_t* in, uint32_t* out, const uint32_t* stop) {
  const int lane = px::Lane();
  uint32_t* const flag = out + 2 * static_cast<int>(kWarp);
  if (px::WarpIndex() == 1) {
    px::StorePeer(out + lane, px::Load(in + lane));
    px::FenceSystem();
    px::SyncWarp();
    if (lane == 0) px::StoreSystem(flag, 7);
  } else {
    px::WaitSystem(flag, 7, stop);
    px::Store(out + kWarp + lane, px::Load(out + (lane ^ 9)) + px::Load(flag));
  }
}
MicroKernel Peers() {
  const Words in = Noise(kWarp, 19);
  MicroKernel k{"StorePeer_FenceSystem_StoreSystem_WaitSystem", {}, {}, {}};
  k.run = [in](gpu::Stream& s) {
    const gpu::Memory stop(sizeof(uint32_t), gpu::MemoryKind::kShared);
    auto* word = static_cast<uint32_t*>(stop.data());
    *word = 0;
    return Launch(s, {.grid = {1}, .block = {2 * kWarp}, .awaits_peers = true}, 2 * kWarp + 1, in, &PeerKernel,
                  static_cast<const uint32_t*>(word));
  };
  k.want = in;
  for (uint32_t l = 0; l < kWarp; ++l) k.want.push_back(in[l ^ 9] + 7);
  k.want.push_back(7);
  return k;
}

}  // namespace

std::vector<MicroKernel> WarpKernels() {
  return {Geometry(), Shuffles(), Barriers(), MemoryWidths(), Atomics(), AsyncCopies(), DependentLaunch(), Peers()};
}

}  // namespace baton::conformance
