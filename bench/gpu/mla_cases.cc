// MLA decode: one new token of every sequence over its latent cache.
#include <algorithm>
#include <memory>
#include <numeric>

#include "bench/gpu/kernel_case.h"
#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/instances/instances.h"

namespace baton::bench {
namespace {

using px::bf16;
constexpr int kPage = 64, kHeadDim = cuda::kMlaDim, kLatent = cuda::kMlaLatent;

std::vector<int32_t> Iota(int n) {
  std::vector<int32_t> v(static_cast<size_t>(n));
  std::iota(v.begin(), v.end(), 0);
  return v;
}
std::vector<int32_t> Shuffled(int n) {
  std::vector<int32_t> v = Iota(n);
  std::shuffle(v.begin(), v.end(), std::mt19937(3));
  return v;
}

/// `sequences` of `length` tokens in shuffled blocks.
template <typename Kv>
struct MlaProblem {
  MlaProblem(int sequences_in, int length_in, int q_heads_in)
      : sequences(sequences_in),
        length(length_in),
        q_heads(q_heads_in),
        per_sequence((length + kPage - 1) / kPage),
        host_kv(RandomValues<Kv>(static_cast<size_t>(sequences) * per_sequence * kPage * kHeadDim, 1, 1 / kKvScale)),
        host_q(RandomValues<bf16>(static_cast<size_t>(sequences) * q_heads * kHeadDim, 2)),
        host_table(Shuffled(sequences * per_sequence)),
        host_starts(Iota(sequences + 1)),
        host_lengths(static_cast<size_t>(sequences), length),
        plan(cuda::PlanDecode({.row_start = host_starts,
                               .lengths = host_lengths,
                               .q_heads = q_heads,
                               .kv_heads = 1,
                               .tiles_per_item = 4,
                               .fixed_tiles = false,
                               .rows_per_group = cuda::kMlaRows})),
        kv(host_kv),
        q(host_q),
        out(static_cast<size_t>(sequences) * q_heads * kLatent),
        starts(host_starts),
        lengths(host_lengths),
        table(host_table),
        counts({static_cast<int32_t>(plan.groups.size()), static_cast<int32_t>(plan.items.size())}),
        groups(plan.groups),
        items(plan.items),
        partial_o(static_cast<size_t>(plan.partials) * cuda::kMlaRows * kLatent),
        partial_ml(static_cast<size_t>(plan.partials) * cuda::kMlaRows * 2),
        kv_scale(std::vector<float>(1, kKvScale)) {}

  void Launch(gpu::Stream& stream) const {
    const int64_t block_stride = static_cast<int64_t>(kPage) * kHeadDim;
    const cuda::PagedKv<Kv> cache{kv.data(),
                                  nullptr,
                                  block_stride,
                                  table.data(),
                                  per_sequence,
                                  0,
                                  lengths.data(),
                                  1,
                                  0,
                                  cuda::MakeBlockSize(kPage),
                                  1,
                                  kv_scale.data(),
                                  kv_scale.data()};
    const cuda::DecodeParams<Kv> params{q.data(),
                                        out.data(),
                                        nullptr,
                                        q_heads * kHeadDim,
                                        q_heads * kLatent,
                                        starts.data(),
                                        nullptr,
                                        {groups.data(), items.data(), counts.data()},
                                        partial_o.data(),
                                        partial_ml.data(),
                                        cache,
                                        {scale, 0, 0.0f, nullptr},
                                        q_heads};
    cuda::LaunchMlaDecode<false>(stream, params, multiprocessors, false);
  }
  /// One head's output in double precision.
  std::vector<double> Reference(int sequence, int head) const {
    const bf16* query = host_q.data() + (static_cast<size_t>(sequence) * q_heads + head) * kHeadDim;
    std::vector<double> sum(kLatent, 0.0);
    double weights = 0;
    for (int t = 0; t < length; ++t) {
      const size_t block = static_cast<size_t>(host_table[sequence * per_sequence + t / kPage]);
      const Kv* vector = host_kv.data() + (block * kPage + t % kPage) * kHeadDim;
      double dot = 0;
      for (int i = 0; i < kHeadDim; ++i) dot += double{px::ToFloat(query[i])} * px::ToFloat(vector[i]) * kKvScale;
      const double weight = std::exp(dot * double{scale});
      weights += weight;
      for (int i = 0; i < kLatent; ++i) sum[i] += weight * px::ToFloat(vector[i]) * kKvScale;
    }
    for (double& x : sum) x /= weights;
    return sum;
  }
  std::string Check(gpu::Stream& stream) const {
    Launch(stream);
    const int head = q_heads - 1, sequence = sequences - 1;
    const auto got = out.Download(stream, (static_cast<size_t>(sequence) * q_heads + head) * kLatent, kLatent);
    const std::vector<double> want = Reference(sequence, head);
    for (int i = 0; i < kLatent; ++i)
      if (auto wrong = CheckNear(px::ToFloat(got[i]), want[i], 8e-3 + 1.6e-2 * std::abs(want[i]), "mla");
          !wrong.empty())
        return wrong;
    return {};
  }

  static constexpr float kKvScale = sizeof(Kv) == 1 ? 0.5f : 1.0f;  ///< of e4m3: value = stored · scale
  int sequences, length, q_heads, per_sequence;
  int multiprocessors = gpu::CurrentDevice().multiprocessors;  ///< asking takes longer than a kernel
  float scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim));
  std::vector<Kv> host_kv;
  std::vector<bf16> host_q;
  std::vector<int32_t> host_table, host_starts, host_lengths;
  cuda::DecodePlan plan;
  DeviceArray<Kv> kv;
  DeviceArray<bf16> q, out;
  DeviceArray<int32_t> starts, lengths, table, counts;
  DeviceArray<cuda::DecodeGroup> groups;
  DeviceArray<cuda::DecodeItem> items;
  DeviceArray<float> partial_o, partial_ml, kv_scale;
};

template <typename Kv>
KernelCase MlaCase(int sequences, int length, int q_heads) {
  auto p = std::make_shared<MlaProblem<Kv>>(sequences, length, q_heads);
  const double tokens = static_cast<double>(length) * sequences;
  return {std::to_string(sequences) + "x" + std::to_string(length) + " h" + std::to_string(q_heads),
          tokens * kHeadDim * sizeof(Kv), tokens * q_heads * 2.0 * (kHeadDim + kLatent),
          [p](gpu::Stream& stream) { p->Launch(stream); }, [p](gpu::Stream& stream) { return p->Check(stream); }};
}

}  // namespace

std::vector<CaseMaker> MlaCases(const Sizes& s) {
  std::vector<CaseMaker> cases;
  auto decode = [&](int sequences, int length, int q_heads) {
    cases.push_back({"mla_decode", [=] { return MlaCase<bf16>(sequences, length, q_heads); }});
    cases.push_back({"mla_decode_fp8", [=] { return MlaCase<px::e4m3>(sequences, length, q_heads); }});
  };
  if (s.tiny)
    decode(1, 70, 16);
  else
    decode(1, 8192, 128), decode(64, 4096, 128), decode(64, 4096, 16);
  return cases;
}

}  // namespace baton::bench
