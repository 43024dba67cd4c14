// What a P/D split adds: KV gather into a landing slot and scatter from it.
#include <algorithm>
#include <memory>
#include <numeric>

#include "bench/gpu/kernel_case.h"
#include "kernels/cuda/instances/instances.h"

namespace baton::bench {
namespace {

using px::bf16;

/// One layer's K of `tokens` tokens × 8 heads of 128 in blocks of 16, gathered to a slot or scattered from it.
struct SlotProblem {
  static constexpr int kHeads = 8, kVector = 256, kBlock = 16;
  explicit SlotProblem(int tokens)
      : blocks(tokens / kBlock),
        host(RandomValues<bf16>(static_cast<size_t>(tokens) * kHeads * kVector / 2, 1)),
        cache(host),
        slot(host.size()),
        sums(1),
        kept(static_cast<size_t>(blocks) * kHeads),
        bad(1) {
    std::vector<int32_t> order(blocks);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(2));
    const int64_t block_bytes = static_cast<int64_t>(kBlock) * kHeads * kVector;
    std::vector<cuda::KvRun> list;
    for (int b = 0; b < blocks; ++b)
      list.push_back({reinterpret_cast<unsigned char*>(cache.data()) + order[b] * block_bytes, kHeads * kVector,
                      b * block_bytes, kept.data() + static_cast<int64_t>(order[b]) * kHeads, kHeads, 3, 0, 0,
                      static_cast<uint32_t>(b * kBlock), kBlock, kHeads, 0, 1.0f});
    runs = std::make_unique<DeviceArray<cuda::KvRun>>(list);
    for (int b = 0; b < blocks; ++b)
      for (int t = 0; t < kBlock; ++t)
        for (int h = 0; h < kHeads; ++h)
          digest += KvDigestVector(
              {3, 0, static_cast<uint32_t>(h), static_cast<uint32_t>(b * kBlock + t)},
              host.data() + (static_cast<size_t>(order[b]) * kBlock * kHeads + t * kHeads + h) * kVector / 2, kVector);
  }
  void Launch(gpu::Stream& stream, bool gather) const {
    stream.FillAsync(sums.data(), 0, 8);
    const cuda::KvRunsParams p{
        reinterpret_cast<unsigned char*>(slot.data()), runs->data(), sums.data(), bad.data(), blocks, kVector};
    if (gather)
      cuda::LaunchGatherKv(stream, p);
    else
      cuda::LaunchScatterKv<cuda::KvConversion::kNone>(stream, p);
  }
  std::string CheckSum(gpu::Stream& stream) const {
    return sums.Download(stream, 0, 1)[0] == digest ? "" : "another digest";
  }

  int blocks;
  std::vector<bf16> host;
  DeviceArray<bf16> cache, slot;
  DeviceArray<uint64_t> sums, kept;
  DeviceArray<int32_t> bad;
  std::unique_ptr<DeviceArray<cuda::KvRun>> runs;
  uint64_t digest = 0;
};

KernelCase SlotCase(bool gather, int tokens) {
  auto p = std::make_shared<SlotProblem>(tokens);
  auto launch = [=](gpu::Stream& stream) { p->Launch(stream, gather); };
  auto check = [=](gpu::Stream& stream) {
    if (!gather) p->Launch(stream, true);  // the slot to scatter from
    p->Launch(stream, gather);
    return p->CheckSum(stream);
  };
  return {std::to_string(tokens) + " tokens", 4.0 * static_cast<double>(p->host.size()), 0, launch, check};
}

}  // namespace

std::vector<CaseMaker> HandoffCases(const Sizes& s) {
  const int few = s(512, 48);
  std::vector<CaseMaker> cases = {{"kv_gather", [=] { return SlotCase(true, few); }},
                                  {"kv_scatter", [=] { return SlotCase(false, few); }}};
  if (!s.tiny) cases.push_back({"kv_scatter", [] { return SlotCase(false, 16384); }});
  return cases;
}

}  // namespace baton::bench
