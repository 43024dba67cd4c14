// Prefill and decode attention over a shuffled paged cache, 32 q heads and 8 kv heads of 128: the deterministic form
// and the one without fixed tiles beside it, bf16 and e4m3 caches.
#include <algorithm>
#include <memory>
#include <numeric>

#include "bench/gpu/kernel_case.h"
#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/instances/instances.h"

namespace baton::bench {
namespace {

using px::bf16;
constexpr int kDim = 128, kBlock = 16;

constexpr float kKvScale = 0.5f;  ///< of e4m3: value = stored · scale

/// `sequences` of `length` tokens of which the last `rows` are queries.
template <typename Kv>
struct Problem {
  Problem(int sequences, int length_in, int rows_in, int q_heads_in, int kv_heads_in)
      : length(length_in),
        rows(rows_in),
        q_heads(q_heads_in),
        kv_heads(kv_heads_in),
        per_sequence((length + kBlock - 1) / kBlock),
        host_k(
            RandomValues<Kv>(static_cast<size_t>(sequences) * per_sequence * kBlock * kv_heads * kDim, 1, 1 / Scale())),
        host_v(RandomValues<Kv>(host_k.size(), 2, 1 / Scale())),
        host_q(RandomValues<bf16>(static_cast<size_t>(sequences) * rows * q_heads * kDim, 3)),
        host_tables(static_cast<size_t>(sequences) * per_sequence),
        k(host_k),
        v(host_v),
        q(host_q),
        out(host_q.size()),
        scales(std::vector<float>(static_cast<size_t>(kv_heads), Scale())) {
    std::iota(host_tables.begin(), host_tables.end(), 0);
    std::shuffle(host_tables.begin(), host_tables.end(), std::mt19937(4));
    for (int s = 0; s <= sequences; ++s) starts.push_back(s * rows);
    lengths.assign(static_cast<size_t>(sequences), length);
    tables = std::make_unique<DeviceArray<int32_t>>(host_tables);
    row_start = std::make_unique<DeviceArray<int32_t>>(starts);
    device_lengths = std::make_unique<DeviceArray<int32_t>>(lengths);
  }
  static constexpr float Scale() { return sizeof(Kv) == 1 ? kKvScale : 1.0f; }
  cuda::PagedKv<Kv> Cache() const {
    return {k.data(),
            v.data(),
            kBlock * kv_heads * kDim,
            tables->data(),
            per_sequence,
            0,
            device_lengths->data(),
            1,
            0,
            cuda::MakeBlockSize(kBlock),
            kv_heads,
            scales.data(),
            scales.data()};
  }
  cuda::AttentionOptions Options() const { return {static_cast<float>(1 / std::sqrt(double{kDim})), 0, 0.0f, nullptr}; }
  int64_t Stride() const { return static_cast<int64_t>(q_heads) * kDim; }

  /// Some rows against double precision.
  std::string Check(gpu::Stream& stream) const {
    for (int sample = 0; sample < 6; ++sample) {
      const int sequence = sample % static_cast<int>(lengths.size()), row = (sample * 131 + rows - 1) % rows,
                head = sample * 5 % q_heads;
      const size_t at = (static_cast<size_t>(sequence * rows + row) * q_heads + head) * kDim;
      const auto got = out.Download(stream, at, kDim);
      std::vector<double> want(kDim, 0.0);
      double sum = 0;
      for (int t = 0; t <= length - rows + row; ++t) {
        const int block = host_tables[static_cast<size_t>(sequence) * per_sequence + t / kBlock];
        const size_t kv =
            ((static_cast<size_t>(block) * kBlock + t % kBlock) * kv_heads + head / (q_heads / kv_heads)) * kDim;
        double dot = 0;
        for (int i = 0; i < kDim; ++i)
          dot += static_cast<double>(px::ToFloat(host_q[at + i])) * px::ToFloat(host_k[kv + i]) * Scale();
        const double p = std::exp(dot / std::sqrt(double{kDim}));
        sum += p;
        for (int i = 0; i < kDim; ++i) want[i] += p * px::ToFloat(host_v[kv + i]) * Scale();
      }
      for (int i = 0; i < kDim; ++i)
        if (auto wrong =
                CheckNear(px::ToFloat(got[i]), want[i] / sum, 8e-3 + 1.6e-2 * std::abs(want[i] / sum), "attention");
            !wrong.empty())
          return wrong;
    }
    return {};
  }

  int length, rows, q_heads, kv_heads, per_sequence;
  std::vector<Kv> host_k, host_v;
  std::vector<bf16> host_q;
  std::vector<int32_t> host_tables, starts, lengths;
  DeviceArray<Kv> k, v;
  DeviceArray<bf16> q, out;
  DeviceArray<float> scales;
  std::unique_ptr<DeviceArray<int32_t>> tables, row_start, device_lengths;
};

template <typename Kv, bool kFixedTiles, bool kWgmma = false>
KernelCase PrefillCase(int sequences, int length, int q_heads, int kv_heads) {
  auto p = std::make_shared<Problem<Kv>>(sequences, length, length, q_heads, kv_heads);
  auto tiles = std::make_shared<DeviceArray<cuda::PrefillTile>>(cuda::PlanPrefill(p->starts, p->lengths));
  auto launch = [=](gpu::Stream& stream) {
    const cuda::PrefillParams<Kv> params{p->q.data(),   p->out.data(),        nullptr,    p->Stride(),  p->Stride(),
                                         tiles->data(), p->row_start->data(), p->Cache(), p->Options(), q_heads};
    if constexpr (kWgmma)
      cuda::LaunchWgmmaPrefill<kDim, kFixedTiles>(stream, params, static_cast<int>(tiles->size()), false);
    else
      cuda::LaunchPrefillAttention<Kv, kDim, kFixedTiles>(stream, params, static_cast<int>(tiles->size()), false);
  };
  auto check = [=](gpu::Stream& stream) {
    launch(stream);
    return p->Check(stream);
  };
  const double n = length, tokens = n * sequences;
  return {std::to_string(sequences) + "x" + std::to_string(length),
          tokens * kDim * (4.0 * q_heads + 2.0 * sizeof(Kv) * kv_heads), sequences * q_heads * 4.0 * kDim * n * n / 2,
          launch, check};
}

template <typename Kv, bool kFixedTiles>
KernelCase DecodeCase(int sequences, int length, int q_heads, int kv_heads) {
  struct Work {
    DeviceArray<cuda::DecodeGroup> groups;
    DeviceArray<cuda::DecodeItem> items;
    DeviceArray<int32_t> counts;
    DeviceArray<float> o, ml;
  };
  auto p = std::make_shared<Problem<Kv>>(sequences, length, 1, q_heads, kv_heads);
  // Without fixed tiles an item has one partial however many tiles it walks: fewer, where there are enough for every
  // warp.
  const int blocks = gpu::CurrentDevice().multiprocessors * cuda::kDecodeBlocksPerSm<Kv>;
  const int tiles = sequences * kv_heads * ((length + cuda::kTileTokens - 1) / cuda::kTileTokens);
  const cuda::DecodeShape shape{.row_start = p->starts,
                                .lengths = p->lengths,
                                .q_heads = q_heads,
                                .kv_heads = kv_heads,
                                .tiles_per_item = kFixedTiles ? 1 : std::max(1, tiles / (4 * blocks)),
                                .fixed_tiles = kFixedTiles};
  const auto plan = cuda::PlanDecode(shape);
  auto w = std::make_shared<Work>(
      Work{DeviceArray<cuda::DecodeGroup>(plan.groups), DeviceArray<cuda::DecodeItem>(plan.items),
           DeviceArray<int32_t>(
               std::vector<int32_t>{static_cast<int32_t>(plan.groups.size()), static_cast<int32_t>(plan.items.size())}),
           DeviceArray<float>(static_cast<size_t>(plan.partials) * 16 * kDim),
           DeviceArray<float>(static_cast<size_t>(plan.partials) * 32)});
  auto launch = [=](gpu::Stream& stream) {
    const cuda::DecodeParams<Kv> params{
        p->q.data(), p->out.data(),        nullptr,    p->Stride(),
        p->Stride(), p->row_start->data(), nullptr,    {w->groups.data(), w->items.data(), w->counts.data()},
        w->o.data(), w->ml.data(),         p->Cache(), p->Options(),
        q_heads};
    cuda::LaunchDecodeAttention<Kv, kDim, kFixedTiles>(stream, params, blocks, false);
  };
  auto check = [=](gpu::Stream& stream) {
    launch(stream);
    return p->Check(stream);
  };
  const double tokens = static_cast<double>(length) * sequences;
  return {std::to_string(sequences) + "x" + std::to_string(length), tokens * kv_heads * kDim * 2 * sizeof(Kv),
          tokens * q_heads * kDim * 4, launch, check};
}

}  // namespace

std::vector<CaseMaker> AttentionCases(const Sizes& s) {
  std::vector<CaseMaker> cases;
  auto prefill = [&](int sequences, int length) {
    const int q = s(32, 2), kv = s(8, 1);
    cases.push_back({"attention_prefill", [=] { return PrefillCase<bf16, true>(sequences, length, q, kv); }});
    cases.push_back({"attention_prefill_fast", [=] { return PrefillCase<bf16, false>(sequences, length, q, kv); }});
    cases.push_back(
        {"attention_prefill_wgmma", [=] { return PrefillCase<bf16, true, true>(sequences, length, q, kv); }});
    cases.push_back(
        {"attention_prefill_wgmma_fast", [=] { return PrefillCase<bf16, false, true>(sequences, length, q, kv); }});
    cases.push_back({"attention_prefill_fp8", [=] { return PrefillCase<px::e4m3, true>(sequences, length, q, kv); }});
  };
  auto decode = [&](int sequences, int length) {
    const int q = s(32, 4), kv = s(8, 2);
    cases.push_back({"attention_decode", [=] { return DecodeCase<bf16, true>(sequences, length, q, kv); }});
    cases.push_back({"attention_decode_fast", [=] { return DecodeCase<bf16, false>(sequences, length, q, kv); }});
    cases.push_back({"attention_decode_fp8", [=] { return DecodeCase<px::e4m3, true>(sequences, length, q, kv); }});
  };
  if (s.tiny) {
    prefill(1, 70), decode(2, 300);
    return cases;
  }
  prefill(1, 2048), prefill(1, 8192);
  decode(1, 1024), decode(1, 32768), decode(1, 131072), decode(8, 16384), decode(256, 1200);
  return cases;
}

}  // namespace baton::bench
