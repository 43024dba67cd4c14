// Gather and scatter of KV by the transfer plan that the handoff runs by: every element that travels arrives at its
// place in another cut of heads, blocks and types, digests with it; nothing else changes; damage and reuse are seen.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/cuda/kv/kv_gather.cuh"
#include "kernels/cuda/kv/kv_scatter.cuh"
#include "kvtransfer/transfer_plan.h"
#include "tests/kernels/cuda/shape_sweep.h"

namespace baton::cuda_test {
namespace {

using cuda::KvConversion;

/// One rank's pool of one group with planes K and V: layer after layer, plane after plane, blocks in random order.
struct Pool {
  Pool(const KvSide& side_in, int rank, int tokens, unsigned seed)
      : side(side_in),
        group(side.layout.groups[0]),
        heads(side.HeadsOf(rank, group.planes[0])),
        vector_bytes(group.planes[0].BytesPerTokenHead()),
        blocks((tokens + group.tokens_per_block - 1) / group.tokens_per_block + 2),
        plane_bytes(blocks * BlockBytes()),
        plane_digests(blocks * BlockDigests()),
        bytes(group.layers.size() * 2 * plane_bytes),
        digests(group.layers.size() * 2 * plane_digests) {
    table.resize(static_cast<size_t>(blocks));
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), std::mt19937(seed));
    Poison();
  }
  void Poison() {
    std::fill_n(bytes.host(), bytes.size(), 0xFF);
    std::fill_n(digests.host(), digests.size(), ~0ull);
  }
  int64_t BlockBytes() const { return group.tokens_per_block * heads.size() * vector_bytes; }
  int64_t BlockDigests() const { return group.tokens_per_block / kUnitTokens * heads.size(); }
  int64_t PlaneIndex(int layer, int plane) const {
    return (std::find(group.layers.begin(), group.layers.end(), layer) - group.layers.begin()) * 2 + plane;
  }
  /// Where in `bytes` and `digests` those of a token's head begin, both in global numbers.
  int64_t VectorAt(int layer, int plane, int token, int head) const {
    const int64_t in_block = token % group.tokens_per_block * heads.size() + head - heads.begin;
    return PlaneIndex(layer, plane) * plane_bytes + table[token / group.tokens_per_block] * BlockBytes() +
           in_block * vector_bytes;
  }
  int64_t DigestAt(int layer, int plane, int token, int head) const {
    const int64_t in_block = token % group.tokens_per_block / kUnitTokens * heads.size() + head - heads.begin;
    return PlaneIndex(layer, plane) * plane_digests + table[token / group.tokens_per_block] * BlockDigests() + in_block;
  }
  /// For the host.
  unsigned char* Vector(int layer, int plane, int token, int head) const {
    return bytes.host() + VectorAt(layer, plane, token, head);
  }
  template <typename Visit>
  void ForEachVector(IntRange tokens, Visit&& visit) const {
    for (int layer : group.layers)
      for (int plane : {0, 1})
        for (int token = tokens.begin; token < tokens.end; ++token)
          for (int head = heads.begin; head < heads.end; ++head) visit(layer, plane, token, head);
  }

  KvSide side;
  const KvGroup& group;
  IntRange heads;
  int64_t vector_bytes, blocks, plane_bytes, plane_digests;
  std::vector<int32_t> table;
  Array<unsigned char> bytes;
  Array<uint64_t> digests;
};

struct HandoffShape {
  DType source = DType::kBF16, target = DType::kBF16;
  int source_ranks = 1, target_ranks = 2, source_block = 16, target_block = 32, heads = 4, dim = 64;
  IntRange tokens = {0, 75};  ///< the last unit is partial
};

KvSide Side(DType dtype, int ranks, int block, const HandoffShape& s) {
  const KvGroup group{
      .layers = {3, 8},
      .planes = {{KvPlane::Name::kK, dtype, s.heads, s.dim}, {KvPlane::Name::kV, dtype, s.heads, s.dim}},
      .tokens_per_block = block};
  return {{{group}}, ranks, {0, 9}};
}

/// Of a plane's e4m3 values.
float ScaleOf(int layer, int plane) {
  return 0.05f + 0.02f * static_cast<float>(plane) + 0.001f * static_cast<float>(layer);
}

/// A plan's transfer, lane after lane, through one slot per lane.
struct Handoff {
  explicit Handoff(const HandoffShape& shape_in)
      : shape(shape_in),
        plan(TransferPlan::Make(Side(shape.source, shape.source_ranks, shape.source_block, shape),
                                Side(shape.target, shape.target_ranks, shape.target_block, shape), shape.tokens, 32)
                 .value()) {
    for (int r = 0; r < shape.source_ranks; ++r)
      sources.push_back(std::make_unique<Pool>(plan.source(), r, shape.tokens.end, 5 + r));
    for (int r = 0; r < shape.target_ranks; ++r)
      targets.push_back(std::make_unique<Pool>(plan.target(), r, shape.tokens.end, 9 + r));
    for (auto& pool : sources) Fill(*pool);
  }
  void Fill(Pool& pool) {
    pool.ForEachVector({0, shape.tokens.end}, [&](int layer, int plane, int token, int head) {
      unsigned char* v = pool.Vector(layer, plane, token, head);
      Data data(static_cast<unsigned>(((layer * 2 + plane) * 97 + token) * 31 +
                                      head));  // the same on every rank that keeps it
      const auto values = data.Normal<float>(shape.dim);
      for (int i = 0; i < shape.dim; ++i) {
        const uint32_t bits = shape.source == DType::kF32      ? px::BitCast<uint32_t>(values[i])
                              : shape.source == DType::kF16    ? px::FloatToF16Bits(values[i])
                              : shape.source == DType::kF8E4M3 ? px::FloatToE4m3Bits(values[i] * 20.0f)
                                                               : px::FloatToBf16Bits(values[i]);
        std::memcpy(v + i * DTypeBytes(shape.source), &bits, DTypeBytes(shape.source));
      }
      uint64_t* digest = pool.digests.host() + pool.DigestAt(layer, plane, token, head);
      if (token % kUnitTokens == 0) *digest = 0;
      *digest += KvDigestVector(At(layer, plane, token, head), v, static_cast<uint32_t>(pool.vector_bytes));
    });
  }
  static KvCoordinate At(int layer, int plane, int token, int head) {
    return {static_cast<uint32_t>(layer), static_cast<uint32_t>(plane), static_cast<uint32_t>(head),
            static_cast<uint32_t>(token)};
  }
  /// The lane's runs on one side; segment i's payload begins where segment i - 1's ended.
  std::vector<cuda::KvRun> Runs(const LanePlan& lane, TransferEnd end, const Pool& pool) const {
    std::vector<cuda::KvRun> runs;
    int64_t base = 0;
    for (int s = 0; s < lane.segments; ++s) {
      plan.ForEachRun(lane, s, end, [&](const KvRun& r) {
        const int64_t element = static_cast<int64_t>(DTypeBytes(shape.source));
        runs.push_back({pool.bytes.data() + pool.VectorAt(r.layer, r.plane, r.position, r.global_head),
                        r.local_heads * pool.vector_bytes, base + r.plane_bytes + r.payload_element * element,
                        pool.digests.data() + pool.DigestAt(r.layer, r.plane, r.position, r.global_head), r.local_heads,
                        static_cast<uint32_t>(r.layer), static_cast<uint32_t>(r.plane),
                        static_cast<uint32_t>(r.global_head), static_cast<uint32_t>(r.position), r.tokens, r.heads, s,
                        ScaleOf(r.layer, r.plane)});
      });
      base += plan.SegmentBytes(lane, s);
    }
    return runs;
  }
  void Scatter(gpu::Stream& stream, const cuda::KvRunsParams& p) const {
    if (shape.source == shape.target)
      cuda::LaunchScatterKv<KvConversion::kNone>(stream, p);
    else if (shape.source == DType::kF32 && shape.target == DType::kF8E4M3)
      cuda::LaunchScatterKv<KvConversion::kF32ToE4m3>(stream, p);
    else if (shape.source == DType::kF32)
      cuda::LaunchScatterKv<KvConversion::kF32ToBf16>(stream, p);
    else if (shape.source == DType::kF8E4M3)
      cuda::LaunchScatterKv<KvConversion::kE4m3ToBf16>(stream, p);
    else if (shape.source == DType::kF16 && shape.target == DType::kF8E4M3)
      cuda::LaunchScatterKv<KvConversion::kF16ToE4m3>(stream, p);
    else if (shape.source == DType::kF16)
      cuda::LaunchScatterKv<KvConversion::kF16ToBf16>(stream, p);
    else
      cuda::LaunchScatterKv<KvConversion::kBf16ToE4m3>(stream, p);
  }
  /// Runs a lane; `between` may spoil the slot. Segments whose digest differs or whose source was not what was kept.
  template <typename Between>
  std::vector<int> RunLane(gpu::Stream& stream, const LanePlan& lane, Between&& between) {
    const Array<cuda::KvRun> from(Runs(lane, TransferEnd::kSource, *sources[lane.source_rank])),
        to(Runs(lane, TransferEnd::kTarget, *targets[lane.target_rank]));
    int64_t total = 0;
    for (int s = 0; s < lane.segments; ++s) total += plan.SegmentBytes(lane, s);
    const Array<unsigned char> slot(static_cast<size_t>(total));
    const Array<uint64_t> sent(static_cast<size_t>(lane.segments)), arrived(static_cast<size_t>(lane.segments));
    const Array<int32_t> bad(static_cast<size_t>(lane.segments));
    stream.FillAsync(sent.data(), 0, sent.size() * 8);
    stream.FillAsync(arrived.data(), 0, arrived.size() * 8);
    stream.FillAsync(bad.data(), 0, bad.size() * 4);
    const int vector = static_cast<int>(shape.dim * DTypeBytes(shape.source));
    cuda::LaunchGatherKv(stream,
                         {slot.data(), from.data(), sent.data(), bad.data(), static_cast<int>(from.size()), vector});
    EXPECT_EQ(stream.Synchronize(), "");
    between(slot);
    Scatter(stream, {slot.data(), to.data(), arrived.data(), nullptr, static_cast<int>(to.size()), vector});
    EXPECT_EQ(stream.Synchronize(), "");
    std::vector<int> wrong;
    for (int s = 0; s < lane.segments; ++s)
      if (sent[s] != arrived[s] || bad[s] != 0) wrong.push_back(s);
    return wrong;
  }
  /// What `vector` of the source becomes in the target's type.
  std::vector<unsigned char> Converted(const unsigned char* vector, float scale) const {
    std::vector<unsigned char> out(static_cast<size_t>(shape.dim) * DTypeBytes(shape.target));
    if (shape.source == shape.target) out.assign(vector, vector + out.size());
    for (int i = 0; i < shape.dim && shape.source != shape.target; ++i) {
      uint32_t bits = 0;
      std::memcpy(&bits, vector + i * DTypeBytes(shape.source), std::min(sizeof(bits), DTypeBytes(shape.source)));
      const float x = shape.source == DType::kF32      ? px::BitCast<float>(bits)
                      : shape.source == DType::kF16    ? px::F16BitsToFloat(bits)
                      : shape.source == DType::kF8E4M3 ? px::E4m3BitsToFloat(bits) * scale
                                                       : px::Bf16BitsToFloat(bits);
      if (shape.target == DType::kF8E4M3)
        bits = px::FloatToE4m3Bits(x * (1.0f / scale));
      else if (shape.target == DType::kBF16)
        bits = px::FloatToBf16Bits(x);
      std::memcpy(out.data() + i * DTypeBytes(shape.target), &bits, std::min(sizeof(bits), DTypeBytes(shape.target)));
    }
    return out;
  }
  const Pool& Keeper(int head) const {
    for (const auto& pool : sources)
      if (head >= pool->heads.begin && head < pool->heads.end) return *pool;
    std::abort();
  }
  std::string CheckTargets() const {
    for (const auto& pool : targets) {
      std::vector<unsigned char> expected(pool->bytes.size(), 0xFF);
      std::vector<uint64_t> digests(pool->digests.size(), ~0ull);
      pool->ForEachVector(shape.tokens, [&](int layer, int plane, int token, int head) {
        const auto vector = Converted(Keeper(head).Vector(layer, plane, token, head), ScaleOf(layer, plane));
        std::copy(vector.begin(), vector.end(), expected.begin() + pool->VectorAt(layer, plane, token, head));
        uint64_t& digest = digests[pool->DigestAt(layer, plane, token, head)];
        if (token % kUnitTokens == 0) digest = 0;
        digest += KvDigestVector(At(layer, plane, token, head), vector.data(), static_cast<uint32_t>(vector.size()));
      });
      for (size_t i = 0; i < expected.size(); ++i)
        if (pool->bytes[i] != expected[i]) return "byte " + std::to_string(i) + " of the target";
      for (size_t i = 0; i < digests.size(); ++i)
        if (pool->digests[i] != digests[i]) return "digest " + std::to_string(i) + " of the target";
    }
    return {};
  }

  HandoffShape shape;
  TransferPlan plan;
  std::vector<std::unique_ptr<Pool>> sources, targets;
};

void CheckHandoff(const HandoffShape& shape) {
  Handoff h(shape);
  UnderEveryPolicy(
      [&](gpu::Stream& stream) {
        for (auto& pool : h.targets) pool->Poison();
        for (const LanePlan& lane : h.plan.lanes())
          EXPECT_EQ(h.RunLane(stream, lane, [](const auto&) {}), std::vector<int>());
      },
      [&](const std::string& policy) {
        EXPECT_EQ(h.CheckTargets(), "") << policy << " heads " << shape.heads << " dim " << shape.dim;
      });
}

TEST(CudaKvHandoff, EveryElementArrivesInAnotherCut) {
  CheckHandoff({});
  CheckHandoff({.source_ranks = 4, .target_ranks = 2, .source_block = 64, .target_block = 16, .tokens = {32, 133}});
  CheckHandoff(
      {.source_ranks = 1, .target_ranks = 2, .heads = 1, .dim = 576, .tokens = {0, 1}});  // a latent, kept twice
  CheckHandoff({.source_ranks = 1,
                .target_ranks = 1,
                .source_block = 16,
                .target_block = 16,
                .heads = 3,
                .dim = 80,
                .tokens = {16, 48}});
}

TEST(CudaKvHandoff, EveryConversionIsThatOfTheType) {
  CheckHandoff({.source = DType::kF32, .tokens = {0, 37}});
  CheckHandoff({.source = DType::kF16, .dim = 80, .tokens = {0, 37}});
  CheckHandoff({.target = DType::kF8E4M3, .dim = 128, .tokens = {0, 37}});
  CheckHandoff({.source = DType::kF32, .target = DType::kF8E4M3, .dim = 80, .tokens = {0, 37}});
  CheckHandoff({.source = DType::kF32, .target = DType::kF32, .dim = 96, .tokens = {0, 20}});
  CheckHandoff({.source = DType::kF16, .target = DType::kF8E4M3, .dim = 64, .tokens = {0, 37}});
  CheckHandoff({.source = DType::kF8E4M3, .dim = 80, .tokens = {0, 37}});
  CheckHandoff({.source = DType::kF8E4M3, .target = DType::kF8E4M3, .dim = 128, .tokens = {0, 37}});
}

TEST(CudaKvHandoff, AnyCut) {
  Sweep(8, [](Draw& draw) {
    HandoffShape s;
    s.source = draw.Pick({DType::kBF16, DType::kF32, DType::kF16, DType::kF8E4M3});
    s.target = draw.Pick({DType::kBF16, DType::kF8E4M3});
    s.heads = draw.Pick({1, 2, 4, 8});
    s.source_ranks = draw.Pick({1, 2, 4});
    s.target_ranks = draw.Pick({1, 2, 4});
    s.source_block = draw.Pick({16, 32, 48, 128});
    s.target_block = draw.Pick({16, 32, 48, 128});
    s.dim = draw.Pick({64, 80, 96, 128, 256});
    const int begin = 16 * draw.Int(0, 3);
    s.tokens = {begin, begin + draw.Size(150)};
    SCOPED_TRACE("ranks " + std::to_string(s.source_ranks) + " to " + std::to_string(s.target_ranks) + ", blocks of " +
                 std::to_string(s.source_block) + " to " + std::to_string(s.target_block) + ", tokens " +
                 std::to_string(begin) + " to " + std::to_string(s.tokens.end));
    CheckHandoff(s);
  });
}

TEST(CudaKvHandoff, ADamagedSegmentIsNamedAndRepeatingItHeals) {
  Handoff h({.target_ranks = 1});
  gpu::Stream stream;
  const LanePlan& lane = h.plan.lanes()[0];
  const int64_t second = h.plan.SegmentBytes(lane, 0);
  EXPECT_EQ(h.RunLane(stream, lane, [&](const auto& slot) { slot[second + 77] ^= 4; }), std::vector<int>({1}));
  EXPECT_NE(h.CheckTargets(), "");
  EXPECT_EQ(h.RunLane(stream, lane, [](const auto&) {}), std::vector<int>());
  EXPECT_EQ(h.CheckTargets(), "");
}

TEST(CudaKvHandoff, SwappedVectorsAreDamage) {
  Handoff h({.target_ranks = 1});
  gpu::Stream stream;
  EXPECT_EQ(h.RunLane(stream, h.plan.lanes()[0],
                      [&](const auto& slot) { std::swap_ranges(slot.host(), slot.host() + 128, slot.host() + 128); }),
            std::vector<int>({0}));
}

TEST(CudaKvHandoff, ASourceBlockThatWasReusedIsSeenByItsSender) {
  Handoff h({.target_ranks = 1});
  gpu::Stream stream;
  h.sources[0]->Vector(8, 1, 70, 2)[3] ^= 1;
  const LanePlan& lane = h.plan.lanes()[0];
  EXPECT_EQ(h.RunLane(stream, lane, [](const auto&) {}), std::vector<int>({lane.segments - 1}));
}

}  // namespace
}  // namespace baton::cuda_test
