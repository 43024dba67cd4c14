// What a P/D split and sparse models add: KV gather and scatter of a landing slot, MLA decode, MoE routing.
#include <algorithm>
#include <memory>
#include <numeric>

#include "bench/gpu/kernel_case.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/instances.h"

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
  return {gather ? "kv_gather" : "kv_scatter",
          std::to_string(tokens) + " tokens",
          4.0 * static_cast<double>(p->host.size()),
          0,
          launch,
          check};
}

KernelCase MlaCase(int sequences, int length, int q_heads) {
  struct Problem {
    std::vector<bf16> host_kv, host_q;
    std::vector<int32_t> starts, lengths, table;
    cuda::DecodePlan plan;
    DeviceArray<bf16> kv, q, out;
    DeviceArray<int32_t> row_start, device_lengths, tables, counts;
    DeviceArray<cuda::DecodeGroup> groups;
    DeviceArray<cuda::DecodeItem> items;
    DeviceArray<float> o, ml;
  };
  constexpr int kBlock = 64, kDim = cuda::kMlaDim, kLatent = cuda::kMlaLatent;
  const int per_sequence = (length + kBlock - 1) / kBlock;
  auto kv = RandomValues<bf16>(static_cast<size_t>(sequences) * per_sequence * kBlock * kDim, 1);
  auto q = RandomValues<bf16>(static_cast<size_t>(sequences) * q_heads * kDim, 2);
  std::vector<int32_t> starts, lengths(sequences, length), table(static_cast<size_t>(sequences) * per_sequence);
  for (int s = 0; s <= sequences; ++s) starts.push_back(s);
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::mt19937(3));
  const auto plan = cuda::PlanDecode({.row_start = starts,
                                      .lengths = lengths,
                                      .q_heads = q_heads,
                                      .kv_heads = 1,
                                      .tiles_per_item = 4,
                                      .fixed_tiles = false,
                                      .rows_per_group = cuda::kMlaRows});
  const std::vector<int32_t> counts = {static_cast<int32_t>(plan.groups.size()),
                                       static_cast<int32_t>(plan.items.size())};
  auto p = std::make_shared<Problem>(
      Problem{kv, q, starts, lengths, table, plan, DeviceArray<bf16>(kv), DeviceArray<bf16>(q),
              DeviceArray<bf16>(static_cast<size_t>(sequences) * q_heads * kLatent), DeviceArray<int32_t>(starts),
              DeviceArray<int32_t>(lengths), DeviceArray<int32_t>(table), DeviceArray<int32_t>(counts),
              DeviceArray<cuda::DecodeGroup>(plan.groups), DeviceArray<cuda::DecodeItem>(plan.items),
              DeviceArray<float>(static_cast<size_t>(plan.partials) * cuda::kMlaRows * kLatent),
              DeviceArray<float>(static_cast<size_t>(plan.partials) * cuda::kMlaRows * 2)});
  const float scale = 1.0f / std::sqrt(static_cast<float>(kDim));
  const int blocks = gpu::CurrentDevice().multiprocessors;
  auto launch = [=](gpu::Stream& stream) {
    const cuda::PagedKv<bf16> cache{p->kv.data(),
                                    nullptr,
                                    static_cast<int64_t>(kBlock) * kDim,
                                    p->tables.data(),
                                    per_sequence,
                                    0,
                                    p->device_lengths.data(),
                                    1,
                                    0,
                                    6,
                                    1,
                                    nullptr,
                                    nullptr};
    const cuda::DecodeParams<bf16> params{p->q.data(),
                                          p->out.data(),
                                          nullptr,
                                          q_heads * kDim,
                                          q_heads * kLatent,
                                          p->row_start.data(),
                                          nullptr,
                                          {p->groups.data(), p->items.data(), p->counts.data()},
                                          p->o.data(),
                                          p->ml.data(),
                                          cache,
                                          {scale, 0, 0.0f, nullptr},
                                          q_heads};
    cuda::LaunchMlaDecode<false>(stream, params, blocks, false);
  };
  auto check = [=](gpu::Stream& stream) -> std::string {
    launch(stream);
    const int head = q_heads - 1, sequence = sequences - 1;
    const size_t row = static_cast<size_t>(sequence) * q_heads + head;
    const auto got = p->out.Download(stream, row * kLatent, kLatent);
    std::vector<double> want(kLatent, 0.0);
    double sum = 0;
    for (int t = 0; t < length; ++t) {
      const bf16* vector =
          p->host_kv.data() +
          (static_cast<size_t>(p->table[sequence * per_sequence + t / kBlock]) * kBlock + t % kBlock) * kDim;
      double dot = 0;
      for (int i = 0; i < kDim; ++i)
        dot += static_cast<double>(px::ToFloat(p->host_q[row * kDim + i])) * px::ToFloat(vector[i]);
      const double weight = std::exp(dot * static_cast<double>(scale));
      sum += weight;
      for (int i = 0; i < kLatent; ++i) want[i] += weight * px::ToFloat(vector[i]);
    }
    for (int i = 0; i < kLatent; ++i)
      if (auto wrong = CheckNear(px::ToFloat(got[i]), want[i] / sum, 8e-3 + 1.6e-2 * std::abs(want[i] / sum), "mla");
          !wrong.empty())
        return wrong;
    return {};
  };
  const double tokens = static_cast<double>(length) * sequences;
  return {"mla_decode",
          std::to_string(sequences) + "x" + std::to_string(length) + " h" + std::to_string(q_heads),
          tokens * kDim * 2,
          tokens * q_heads * 2.0 * (kDim + kLatent),
          launch,
          check};
}

KernelCase MoeCase(int tokens, int experts, int k) {
  struct Problem {
    std::vector<float> host;
    DeviceArray<float> logits, weights;
    DeviceArray<int32_t> chosen, offsets, row_of_pair, token_of_row;
  };
  auto logits = RandomValues<float>(static_cast<size_t>(tokens) * experts, 1);
  const size_t pairs = static_cast<size_t>(tokens) * k;
  auto p = std::make_shared<Problem>(Problem{logits, DeviceArray<float>(logits), DeviceArray<float>(pairs),
                                             DeviceArray<int32_t>(pairs),
                                             DeviceArray<int32_t>(static_cast<size_t>(experts) + 1),
                                             DeviceArray<int32_t>(pairs), DeviceArray<int32_t>(pairs)});
  auto launch = [=](gpu::Stream& stream) {
    cuda::LaunchMoeRoute(stream,
                         {p->logits.data(), experts, p->chosen.data(), p->weights.data(), tokens, experts, k, true});
    cuda::LaunchMoeLists(stream, {p->chosen.data(), p->offsets.data(), p->row_of_pair.data(), p->token_of_row.data(),
                                  static_cast<int>(pairs), experts, k});
  };
  auto check = [=](gpu::Stream& stream) -> std::string {
    launch(stream);
    const auto chosen = p->chosen.Download(stream, 0, pairs), rows = p->row_of_pair.Download(stream, 0, pairs);
    std::vector<int> order(pairs);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return chosen[a] < chosen[b]; });
    for (size_t row = 0; row < pairs; ++row)
      if (rows[order[row]] != static_cast<int32_t>(row))
        return "pair " + std::to_string(order[row]) + " lies in another row";
    for (int t = 0; t < tokens; t += 1 + tokens / 16)
      for (int e = 0, best = chosen[static_cast<size_t>(t) * k]; e < experts; ++e)
        if (p->host[static_cast<size_t>(t) * experts + e] > p->host[static_cast<size_t>(t) * experts + best])
          return "not the best expert";
    return {};
  };
  return {"moe_route_lists",
          std::to_string(tokens) + "x" + std::to_string(experts) + " k" + std::to_string(k),
          4.0 * tokens * experts + 20.0 * static_cast<double>(pairs),
          0,
          launch,
          check};
}

}  // namespace

std::vector<KernelCase> HandoffCases(const Sizes& s) {
  if (s.tiny) return {SlotCase(true, 48), SlotCase(false, 48), MlaCase(1, 70, 16), MoeCase(40, 64, 4)};
  return {SlotCase(true, 512),    SlotCase(false, 512),  SlotCase(false, 16384), MlaCase(1, 8192, 128),
          MlaCase(64, 4096, 128), MlaCase(64, 4096, 16), MoeCase(256, 256, 8),   MoeCase(16384, 256, 8)};
}

}  // namespace baton::bench
