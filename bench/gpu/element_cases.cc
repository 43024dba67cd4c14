// Kernels whose outputs are told one by one: embedding, residual additions, gathers, caps, block copies, merged states,
// combined experts, and RoPE with the KV write.
#include <algorithm>
#include <memory>
#include <numeric>

#include "bench/gpu/kernel_case.h"
#include "kernels/cuda/instances/instances.h"

namespace baton::bench {
namespace {

using px::bf16;

/// A case that checks out[i] against want(i) at sampled i. `before` prepares the inputs that a launch changes.
template <typename Out>
KernelCase Elements(const char* kernel, std::string shape, double bytes, double flops,
                    std::shared_ptr<DeviceArray<Out>> out, std::function<void(gpu::Stream&)> launch,
                    std::function<double(size_t)> want, std::function<void(gpu::Stream&)> before = {}) {
  auto check = [=](gpu::Stream& stream) -> std::string {
    if (before) before(stream);
    launch(stream);
    for (size_t sample = 0; sample < 60; ++sample) {
      const size_t i = sample * 7919 * 104729 % out->size();
      const double got = px::ToFloat(out->Download(stream, i, 1)[0]);
      const double tolerance = (sizeof(Out) == 4 ? 2e-5 : sizeof(Out) == 2 ? 1e-2 : 7e-2) * (1 + std::abs(want(i)));
      if (auto wrong = CheckNear(got, want(i), tolerance, kernel); !wrong.empty()) return wrong;
    }
    return {};
  };
  return {std::move(shape), bytes, flops, std::move(launch), std::move(check)};
}
std::string Shape(int rows, int n) { return std::to_string(rows) + "x" + std::to_string(n); }
template <typename T>
std::shared_ptr<DeviceArray<T>> Shared(const std::vector<T>& values) {
  return std::make_shared<DeviceArray<T>>(values);
}
template <typename T>
std::shared_ptr<DeviceArray<T>> Shared(size_t n) {
  return std::make_shared<DeviceArray<T>>(n);
}

KernelCase EmbeddingCase(int rows, int hidden) {
  constexpr int kVocab = 1000;
  auto table = RandomValues<bf16>(static_cast<size_t>(kVocab) * hidden, 1);
  std::vector<int32_t> ids(static_cast<size_t>(rows));
  for (int r = 0; r < rows; ++r) ids[r] = r * 7919 % kVocab;
  auto dtable = Shared(table);
  auto dids = Shared(ids);
  auto out = Shared<float>(static_cast<size_t>(rows) * hidden);
  return Elements<float>(
      "embedding", Shape(rows, hidden), 6.0 * rows * hidden, 1.0 * rows * hidden, out,
      [=](gpu::Stream& stream) {
        cuda::LaunchEmbedding(stream,
                              cuda::EmbeddingParams<bf16>{dids->data(), dtable->data(), out->data(), hidden, hidden,
                                                          rows, hidden, 0, kVocab, 2.0f},
                              false);
      },
      [=](size_t i) { return 2.0 * px::ToFloat(table[static_cast<size_t>(ids[i / hidden]) * hidden + i % hidden]); });
}

KernelCase AddCase(int rows, int n) {
  auto x = RandomValues<bf16>(static_cast<size_t>(rows) * n, 2);
  auto residual = RandomValues<float>(x.size(), 3);
  auto dx = Shared(x);
  auto out = Shared(residual);
  return Elements<float>(
      "add_rows", Shape(rows, n), 10.0 * rows * n, 1.0 * rows * n, out,
      [=](gpu::Stream& stream) {
        cuda::LaunchAddRows(stream, cuda::AddRowsParams<bf16>{dx->data(), out->data(), n, n, rows, n});
      },
      [=](size_t i) { return double{residual[i]} + px::ToFloat(x[i]); },
      [=](gpu::Stream& stream) { stream.Upload(out->data(), residual.data(), residual.size() * 4); });
}

KernelCase GatherCase(int rows, int n) {
  auto x = RandomValues<bf16>(static_cast<size_t>(2 * rows) * n, 4);
  std::vector<int32_t> picked(static_cast<size_t>(rows));
  for (int r = 0; r < rows; ++r) picked[r] = static_cast<int>(r * 7919L % (2 * rows));
  auto dx = Shared(x);
  auto drows = Shared(picked);
  auto out = Shared<bf16>(static_cast<size_t>(rows) * n);
  return Elements<bf16>(
      "gather_rows", Shape(rows, n), 4.0 * rows * n, 0, out,
      [=](gpu::Stream& stream) {
        cuda::LaunchGatherRows(
            stream, {reinterpret_cast<unsigned char*>(dx->data()), reinterpret_cast<unsigned char*>(out->data()),
                     drows->data(), 2 * n, 2 * n, rows, 2 * n});
      },
      [=](size_t i) { return double{px::ToFloat(x[static_cast<size_t>(picked[i / n]) * n + i % n])}; });
}

/// x as e4m3 by each token's largest input of a group. k a multiple of 128.
KernelCase RoundInputsCase(int rows, int k, int group) {
  auto x = RandomValues<bf16>(static_cast<size_t>(rows) * k, 13);
  auto dx = Shared(x);
  auto codes = Shared<px::e4m3>(x.size());
  auto scales = Shared<float>(static_cast<size_t>(k / group) * rows);
  return Elements<px::e4m3>(
      "round_inputs", Shape(rows, k) + " g" + std::to_string(group), 3.0 * rows * k + 4.0 * rows * k / group,
      2.0 * rows * k, codes,
      [=](gpu::Stream& stream) {
        cuda::LaunchRoundInputs(stream, {dx->data(), codes->data(), scales->data(), k, rows, rows, k, group, 0.0f});
      },
      [=](size_t i) {
        const size_t first = i / static_cast<size_t>(group) * static_cast<size_t>(group);
        float largest = 0.0f;
        for (size_t j = first; j < first + static_cast<size_t>(group); ++j)
          largest = std::max(largest, std::abs(px::ToFloat(x[j])));
        return double{px::ToFloat(x[i]) / kernels::ScaleOfInputs(largest)};
      });
}

/// Inputs in the order of a quantized weight's: a permutation, filled up with zeros.
KernelCase GatherColumnsCase(int rows, int n) {
  auto x = RandomValues<bf16>(static_cast<size_t>(rows) * n, 12);
  std::vector<int32_t> columns(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) columns[i] = i % 64 == 63 ? -1 : static_cast<int32_t>(i * 7919L % n);
  auto dx = Shared(x);
  auto dcolumns = Shared(columns);
  auto out = Shared<bf16>(static_cast<size_t>(rows) * n);
  return Elements<bf16>(
      "gather_columns", Shape(rows, n), 4.0 * rows * n + 4.0 * n, 0, out,
      [=](gpu::Stream& stream) {
        cuda::LaunchGatherColumns(stream, {dx->data(), dcolumns->data(), out->data(), n, rows, n});
      },
      [=](size_t i) {
        const int32_t column = columns[i % n];
        return column < 0 ? 0.0 : double{px::ToFloat(x[i / n * n + static_cast<size_t>(column)])};
      });
}

/// A sum over two ranks, both on this GPU: four launches of which two GPUs make two each, without the way between them.
class TwoRanks {
 public:
  explicit TwoRanks(int64_t n) : n_(n), blocks_((n + cuda::kPeerBlockFloats - 1) / cuda::kPeerBlockFloats) {
    const auto words = static_cast<size_t>(blocks_);
    stop_ = std::make_unique<gpu::Memory>(4, gpu::MemoryKind::kShared);
    *static_cast<uint32_t*>(stop_->data()) = 0;
    for (int r = 0; r < kRanks; ++r) {
      parts_[r] = RandomValues<float>(static_cast<size_t>(n), 13 + static_cast<unsigned>(r));
      data_[r] = Shared(parts_[r]);
      landings_[r] = Shared<float>(static_cast<size_t>(2 * kRanks * n));
      flags_[r] = Shared(std::vector<uint32_t>(kRanks * words, 0));
      epochs_[r] = Shared(std::vector<uint32_t>(words, 0));
    }
  }
  void Launch(gpu::Stream& stream) const {
    const unsigned blocks = static_cast<unsigned>(blocks_);
    for (int r = 0; r < kRanks; ++r) {
      cuda::PeerPushParams push{.data = data_[r]->data(), .epochs = epochs_[r]->data(), .n = n_, .capacity = n_};
      for (int to = 0; to < kRanks; ++to)
        push.landings[to] = landings_[to]->data(), push.flags[to] = flags_[to]->data();
      push.rank = r;
      push.ranks = kRanks;
      gpu::Launch(stream, {.grid = {blocks, kRanks}, .block = {cuda::kRowOpThreads}}, &cuda::PeerPushKernel, push);
    }
    for (int r = 0; r < kRanks; ++r) {
      const cuda::PeerSumParams sum{landings_[r]->data(),
                                    flags_[r]->data(),
                                    epochs_[r]->data(),
                                    static_cast<const uint32_t*>(stop_->data()),
                                    data_[r]->data(),
                                    n_,
                                    n_};
      gpu::Launch(stream, {.grid = {blocks}, .block = {cuda::kRowOpThreads}, .awaits_peers = true},
                  &cuda::PeerSumKernel<kRanks>, sum);
    }
  }
  void Restore(gpu::Stream& stream) const {
    for (int r = 0; r < kRanks; ++r) stream.Upload(data_[r]->data(), parts_[r].data(), parts_[r].size() * 4);
  }
  std::shared_ptr<DeviceArray<float>> out() const { return data_[0]; }
  double Want(size_t i) const { return double{parts_[0][i]} + parts_[1][i]; }

 private:
  static constexpr int kRanks = 2;
  const int64_t n_, blocks_;
  std::vector<float> parts_[kRanks];
  std::shared_ptr<DeviceArray<float>> data_[kRanks], landings_[kRanks];
  std::shared_ptr<DeviceArray<uint32_t>> flags_[kRanks], epochs_[kRanks];
  std::unique_ptr<gpu::Memory> stop_;
};
KernelCase PeerSumCase(int rows, int n) {
  const int64_t floats = static_cast<int64_t>(rows) * n;
  const auto ranks = std::make_shared<TwoRanks>(floats);
  return Elements<float>(
      "peer_sum", "2 ranks, one GPU, " + Shape(rows, n), 2.0 * 24 * static_cast<double>(floats),
      2.0 * static_cast<double>(floats), ranks->out(), [=](gpu::Stream& stream) { ranks->Launch(stream); },
      [=](size_t i) { return ranks->Want(i); }, [=](gpu::Stream& stream) { ranks->Restore(stream); });
}

KernelCase SoftCapCase(int rows, int n) {
  auto x = RandomValues<float>(static_cast<size_t>(rows) * n, 5, 30.0f);
  auto out = Shared(x);
  return Elements<float>(
      "soft_cap", Shape(rows, n), 8.0 * rows * n, 0, out,
      [=](gpu::Stream& stream) { cuda::LaunchSoftCap(stream, {out->data(), n, rows, n, 30.0f}); },
      [=](size_t i) { return 30.0 * std::tanh(x[i] / 30.0); },
      [=](gpu::Stream& stream) { stream.Upload(out->data(), x.data(), x.size() * 4); });
}

/// Digests of `rows` tokens in a row, 16 per unit: only those of units that begin are cleared.
KernelCase BeginUnitsCase(int rows, int heads) {
  constexpr int kUnit = 16, kBlock = 64;
  const size_t entries = static_cast<size_t>((rows + kBlock - 1) / kBlock) * (kBlock / kUnit) * heads;
  std::vector<int32_t> slots(static_cast<size_t>(rows));
  std::iota(slots.begin(), slots.end(), 0);
  auto dslots = Shared(slots);
  auto k = Shared(std::vector<uint64_t>(entries, 7)), v = Shared(std::vector<uint64_t>(entries, 7));
  auto launch = [=](gpu::Stream& stream) {
    cuda::LaunchBeginUnits(
        stream, {k->data(), v->data(), int64_t{kBlock / kUnit} * heads, dslots->data(), rows, heads, kBlock, kUnit});
  };
  auto check = [=](gpu::Stream& stream) -> std::string {
    launch(stream);
    const auto got = k->Download(stream, 0, entries), got_v = v->Download(stream, 0, entries);
    for (size_t i = 0; i < entries; ++i) {
      const uint64_t want = static_cast<int>(i) / heads * kUnit < rows ? 0 : 7;
      if (got[i] != want || got_v[i] != want) return "begin_units: digest " + std::to_string(i);
    }
    return {};
  };
  return {Shape(rows, heads), 4.0 * rows + rows / 16.0 * heads * 16, 0, launch, check};
}

/// Half of the blocks onto the other half, as copy-on-write does.
KernelCase CopyCase(int blocks, int elements) {
  auto plane = RandomValues<bf16>(static_cast<size_t>(2 * blocks) * elements, 6);
  std::vector<int32_t> pairs;
  for (int b = 0; b < blocks; ++b) pairs.insert(pairs.end(), {2 * b, 2 * b + 1});
  auto dpairs = Shared(pairs);
  auto out = Shared(plane);
  return Elements<bf16>(
      "copy_blocks", std::to_string(blocks) + " of " + std::to_string(2 * elements), 4.0 * blocks * elements, 0, out,
      [=](gpu::Stream& stream) {
        cuda::LaunchCopyBlocks(stream, {reinterpret_cast<unsigned char*>(out->data()), 2 * elements, 2 * elements,
                                        nullptr, 0, dpairs->data(), blocks, 0});
      },
      [=](size_t i) { return double{px::ToFloat(plane[i / elements / 2 * 2 * elements + i % elements])}; });
}

KernelCase MergeCase(int rows, int heads, int dim) {
  const size_t n = static_cast<size_t>(rows) * heads;
  auto a = RandomValues<bf16>(n * dim, 7), b = RandomValues<bf16>(n * dim, 8);
  auto la = RandomValues<float>(n, 9), lb = RandomValues<float>(n, 10);
  auto da = Shared(a), db = Shared(b), out = Shared<bf16>(a.size());
  auto dla = Shared(la), dlb = Shared(lb);
  return Elements<bf16>(
      "merge_state", Shape(rows, heads) + "x" + std::to_string(dim), n * (6.0 * dim + 8), n * 4.0 * dim, out,
      [=](gpu::Stream& stream) {
        cuda::LaunchMergeState(
            stream, {da->data(), dla->data(), db->data(), dlb->data(), out->data(), nullptr, rows, heads, dim});
      },
      [=](size_t i) {
        const double wa = std::exp(la[i / dim]), wb = std::exp(lb[i / dim]);
        return (px::ToFloat(a[i]) * wa + px::ToFloat(b[i]) * wb) / (wa + wb);
      });
}

KernelCase CombineCase(int tokens, int k, int n) {
  const size_t pairs = static_cast<size_t>(tokens) * k;
  auto rows = RandomValues<bf16>(pairs * n, 11);
  auto weights = RandomValues<float>(pairs, 12);
  std::vector<int32_t> row_of_pair(pairs);
  std::iota(row_of_pair.begin(), row_of_pair.end(), 0);
  std::shuffle(row_of_pair.begin(), row_of_pair.end(), std::mt19937(13));
  auto drows = Shared(rows);
  auto dweights = Shared(weights);
  auto dpairs = Shared(row_of_pair);
  auto out = Shared<float>(static_cast<size_t>(tokens) * n);
  return Elements<float>(
      "moe_combine", Shape(tokens, n) + " k" + std::to_string(k), 2.0 * pairs * n + 4.0 * tokens * n, 2.0 * pairs * n,
      out,
      [=](gpu::Stream& stream) {
        cuda::LaunchMoeCombine(stream,
                               {drows->data(), dpairs->data(), dweights->data(), out->data(), n, n, tokens, k, n});
      },
      [=](size_t i) {
        double sum = 0;
        for (int c = 0; c < k; ++c) {
          const size_t pair = i / n * k + c;
          sum += double{weights[pair]} * px::ToFloat(rows[static_cast<size_t>(row_of_pair[pair]) * n + i % n]);
        }
        return sum;
      });
}

/// 32 q heads and 8 kv heads of 128: q beside its rotation.
template <typename Kv>
KernelCase RopeCase(int rows) {
  constexpr int kDim = 128, kQ = 32, kKv = 8, kHeads = kQ + 2 * kKv, kBlock = 16;
  auto qkv = RandomValues<bf16>(static_cast<size_t>(rows) * kHeads * kDim, 14);
  std::vector<float> table;
  for (int p = 0; p < rows; ++p)
    for (int part = 0; part < 2; ++part)
      for (int i = 0; i < kDim / 2; ++i) {
        const double angle = p * std::pow(10000.0, -2.0 * i / kDim);
        table.push_back(static_cast<float>(part == 0 ? std::cos(angle) : std::sin(angle)));
      }
  std::vector<int32_t> slots(static_cast<size_t>(rows)), positions(slots.size());
  std::iota(positions.begin(), positions.end(), 0);
  std::iota(slots.begin(), slots.end(), 0);
  const size_t blocks = static_cast<size_t>(rows + kBlock - 1) / kBlock;
  auto in = Shared(qkv), q = Shared<bf16>(static_cast<size_t>(rows) * kQ * kDim);
  auto dtable = Shared(table), scale = Shared(std::vector<float>(kKv, 0.02f));
  auto dslots = Shared(slots), dpositions = Shared(positions);
  auto k = Shared<Kv>(blocks * kBlock * kKv * kDim), v = Shared<Kv>(k->size());
  auto digests = Shared(std::vector<uint64_t>(blocks * kKv * 2, 0));
  return Elements<bf16>(
      sizeof(Kv) == 1 ? "rope_kv_write_fp8" : "rope_kv_write", Shape(rows, kHeads * kDim),
      rows * kDim * (2.0 * kHeads + 2.0 * kQ + 2.0 * kKv * sizeof(Kv)), 0, q,
      [=](gpu::Stream& stream) {
        constexpr int64_t kRow = kHeads * kDim;
        const cuda::RopeKvParams<Kv> p{in->data(),
                                       in->data() + kQ * kDim,
                                       in->data() + (kQ + kKv) * kDim,
                                       kRow,
                                       kRow,
                                       kRow,
                                       q->data(),
                                       kQ * kDim,
                                       nullptr,
                                       nullptr,
                                       dtable->data(),
                                       dpositions->data(),
                                       dslots->data(),
                                       k->data(),
                                       v->data(),
                                       kBlock * kKv * kDim,
                                       scale->data(),
                                       scale->data(),
                                       digests->data(),
                                       digests->data() + blocks * kKv,
                                       kKv,
                                       rows,
                                       kQ,
                                       kKv,
                                       kDim,
                                       kBlock,
                                       0,
                                       0,
                                       1e-6f,
                                       0.0f};
        cuda::LaunchRopeKv<Kv, kDim>(stream, p, false);
      },
      [=](size_t i) {
        const size_t row = i / (kQ * kDim), head = i / kDim % kQ;
        const int e = static_cast<int>(i % kDim), half = kDim / 2;
        const bf16* x = qkv.data() + (row * kHeads + head) * kDim;
        const float* angles = table.data() + row * kDim + e % half;
        const double mine = px::ToFloat(x[e]), other = px::ToFloat(x[(e + half) % kDim]);
        return mine * angles[0] + (e < half ? -other : other) * angles[half];
      });
}

}  // namespace

std::vector<CaseMaker> ElementCases(const Sizes& s) {
  const int rows = s(256, 3), tokens = s(4096, 3), hidden = s(4096, 512);
  return {{"embedding", [=] { return EmbeddingCase(rows, hidden); }},
          {"add_rows", [=] { return AddCase(s(4096, 2), s(4096, 520)); }},
          {"gather_rows", [=] { return GatherCase(rows, hidden); }},
          {"gather_columns", [=] { return GatherColumnsCase(s(2048, 3), s(4096, 520)); }},
          {"round_inputs", [=] { return RoundInputsCase(s(2048, 3), s(4096, 640), 128); }},
          {"round_inputs", [=] { return RoundInputsCase(s(2048, 3), s(4096, 1024), s(4096, 1024)); }},
          {"peer_sum", [=] { return PeerSumCase(s(8, 2), s(4096, 520)); }},
          {"soft_cap", [=] { return SoftCapCase(s(256, 2), s(128256, 300)); }},
          {"copy_blocks", [=] { return CopyCase(s(256, 2), s(16384, 1024)); }},
          {"begin_units", [=] { return BeginUnitsCase(s(16384, 40), 8); }},
          {"merge_state", [=] { return MergeCase(tokens, s(32, 2), s(128, 64)); }},
          {"moe_combine", [=] { return CombineCase(tokens, s(8, 2), s(4096, 256)); }},
          {"rope_kv_write", [=] { return RopeCase<bf16>(tokens); }},
          {"rope_kv_write_fp8", [=] { return RopeCase<px::e4m3>(tokens); }}};
}

}  // namespace baton::bench
