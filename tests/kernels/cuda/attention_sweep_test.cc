// Attention at shapes drawn at random: contexts up to 5,000, every group size, head_dim, KV type, block size and
// option. Both kernels against double precision under every policy and, in their fixed form, bit for bit against each
// other.
#include <cstring>

#include "kernels/cuda/instances/instances.h"
#include "tests/kernels/cuda/attention_case.h"
#include "tests/kernels/cuda/shape_sweep.h"

namespace baton::cuda_test {
namespace {

constexpr int kLongest = 5000;

/// `rows` new tokens at most per sequence, `tokens` in all.
AttentionShape DrawSweptShape(Draw& draw, int rows, int tokens) {
  AttentionShape s;
  s.kv_heads = draw.Pick({1, 1, 2, 3});
  s.q_heads = s.kv_heads * (s.kv_heads == 1 && draw.Chance(6) ? draw.Int(17, 48) : draw.Int(1, 16));
  s.tokens_per_block = draw.Pick({16, 32, 48, 64, 128});
  s.per_head_tables = draw.Chance(4);
  s.window = draw.Chance(3) ? draw.Size(700) : 0;
  s.softcap = draw.Chance(4) ? 5.0f + static_cast<float>(draw.Int(0, 45)) : 0.0f;
  s.sinks = draw.Chance(3);
  if (draw.Chance(4)) s.loudness = 25.0f;  // nearly all of the weight is one token's
  for (int left = tokens, n = draw.Int(0, 4); n > 0 && left > 0; --n) {
    s.new_rows.push_back(draw.Chance(8) ? 0 : draw.Chance(2) ? 1 : draw.Size(rows));
    const int length = std::max(s.new_rows.back(), draw.Chance(8) ? 0 : std::min(left, draw.Size(kLongest)));
    s.lengths.push_back(length);
    left -= length;
  }
  return s;
}

std::string NameOf(const AttentionShape& s, int dim, bool fp8) {
  std::string name = "head_dim " + std::to_string(dim) + (fp8 ? " e4m3" : " bf16") + ", " + std::to_string(s.q_heads) +
                     "/" + std::to_string(s.kv_heads) + " heads, blocks of " + std::to_string(s.tokens_per_block) +
                     ", window " + std::to_string(s.window) + ", cap " + std::to_string(s.softcap) + ", loudness " +
                     std::to_string(s.loudness) + (s.sinks ? ", sinks" : "") + (s.tree ? ", tree" : "") +
                     (s.per_head_tables ? ", tables per head" : "");
  for (size_t i = 0; i < s.lengths.size(); ++i)
    name += "; " + std::to_string(s.new_rows[i]) + " rows of " + std::to_string(s.lengths[i]);
  return name;
}

/// body.operator()<Kv, head_dim>() for a drawn pair.
template <typename Body>
void WithDrawnType(Draw& draw, Body&& body) {
  const bool fp8 = draw.Chance(3);
  auto with_dim = [&]<int kDim>() {
    if (fp8)
      body.template operator()<px::e4m3, kDim>();
    else
      body.template operator()<px::bf16, kDim>();
  };
  switch (draw.Pick({64, 80, 96, 128, 256})) {
#define BATON_CASE(dim) \
  case dim: return with_dim.template operator()<dim>();
    BATON_FOR_HEAD_DIMS(BATON_CASE)
#undef BATON_CASE
    default: FAIL();
  }
}

TEST(CudaAttentionAnyShape, PrefillAndDecodeAreRightAndOfTheSameBits) {
  Sweep(3, [](Draw& draw) {
    WithDrawnType(draw, [&]<typename Kv, int kDim>() {
      const AttentionShape shape = DrawSweptShape(draw, draw.Chance(3) ? 90 : 6, 5200);
      SCOPED_TRACE(NameOf(shape, kDim, sizeof(Kv) == 1));
      AttentionCase<Kv, kDim> c(shape, static_cast<unsigned>(draw.Int(1, 1 << 30)));
      std::vector<double> want, want_lse;
      c.Reference(want, want_lse);
      const int tiles = draw.Size(6), blocks = draw.Chance(3) ? draw.Int(30, 90) : draw.Int(1, 9);
      std::vector<px::bf16> bits;
      std::vector<float> lse_bits;
      PrefillUnderEveryPolicy<true>(c, [&](const std::string& name) {
        ExpectRight(c, want, want_lse, name);
        if (bits.empty()) bits = Copy(c.out), lse_bits = Copy(c.lse);
        EXPECT_EQ(std::memcmp(bits.data(), c.out.host(), bits.size() * 2), 0) << "not mma.sync's bits, " << name;
        EXPECT_EQ(std::memcmp(lse_bits.data(), c.lse.host(), lse_bits.size() * 4), 0) << name;
      });
      UnderEveryPolicy(
          [&](gpu::Stream& stream) {
            c.Poison();
            c.template Decode<true>(stream, tiles, blocks);
          },
          [&](const std::string& policy) {
            ExpectRight(c, want, want_lse, "decode " + policy);
            EXPECT_EQ(std::memcmp(bits.data(), c.out.host(), bits.size() * 2), 0) << "not prefill's bits, " << policy;
            EXPECT_EQ(std::memcmp(lse_bits.data(), c.lse.host(), lse_bits.size() * 4), 0) << policy;
          });
    });
  });
}

TEST(CudaAttentionAnyShape, TheFastFormsAreRight) {
  Sweep(2, [](Draw& draw) {
    WithDrawnType(draw, [&]<typename Kv, int kDim>() {
      const AttentionShape shape = DrawSweptShape(draw, 40, 2500);
      SCOPED_TRACE(NameOf(shape, kDim, sizeof(Kv) == 1));
      AttentionCase<Kv, kDim> c(shape, static_cast<unsigned>(draw.Int(1, 1 << 30)));
      std::vector<double> want, want_lse;
      c.Reference(want, want_lse);
      const int tiles = draw.Size(20), blocks = draw.Int(1, 9);
      PrefillUnderEveryPolicy<false>(c, [&](const std::string& name) { ExpectRight(c, want, want_lse, name); });
      UnderEveryPolicy(
          [&](gpu::Stream& stream) {
            c.Poison();
            c.template Decode<false>(stream, tiles, blocks);
          },
          [&](const std::string& policy) { ExpectRight(c, want, want_lse, "decode " + policy); });
    });
  });
}

TEST(CudaAttentionAnyShape, DraftTreesAreRight) {
  Sweep(2, [](Draw& draw) {
    WithDrawnType(draw, [&]<typename Kv, int kDim>() {
      AttentionShape shape = DrawSweptShape(draw, 32, 2500);
      shape.tree = true;
      SCOPED_TRACE(NameOf(shape, kDim, sizeof(Kv) == 1));
      AttentionCase<Kv, kDim> c(shape, static_cast<unsigned>(draw.Int(1, 1 << 30)));
      std::vector<double> want, want_lse;
      c.Reference(want, want_lse);
      const bool fixed = draw.Chance(2);
      const int tiles = draw.Size(6);
      UnderEveryPolicy(
          [&](gpu::Stream& stream) {
            c.Poison();
            if (fixed)
              c.template Decode<true>(stream, tiles);
            else
              c.template Decode<false>(stream, tiles);
          },
          [&](const std::string& policy) { ExpectRight(c, want, want_lse, policy); });
    });
  });
}

/// With few groups a row is combined by several warps, with many by one; more than 32 partials come in several loads.
TEST(CudaDecodeAttention, ARowsBitsDependOnNoGrid) {
  constexpr int kDim = 96;
  AttentionCase<px::bf16, kDim> c({.new_rows = {1, 3}, .lengths = {8500, 900}, .q_heads = 8}, 72);
  std::vector<double> want, want_lse;
  c.Reference(want, want_lse);
  gpu::Stream stream;
  c.Poison();
  c.Prefill<true>(stream);
  ASSERT_EQ(stream.Synchronize(), "");
  const std::vector<px::bf16> bits = Copy(c.out);
  const std::vector<float> lse = Copy(c.lse);
  for (int blocks : {1, 5, 13, 100}) {
    c.Poison();
    c.Decode<true>(stream, 2, blocks);
    ASSERT_EQ(stream.Synchronize(), "");
    ExpectRight(c, want, want_lse, std::to_string(blocks) + " blocks");
    EXPECT_EQ(std::memcmp(bits.data(), c.out.host(), bits.size() * 2), 0) << blocks << " blocks";
    EXPECT_EQ(std::memcmp(lse.data(), c.lse.host(), lse.size() * 4), 0) << blocks << " blocks";
  }
}

/// One captured launch serves every batch: lists, lengths and tables change in place, nothing is recorded again.
TEST(CudaDecodeAttention, AGraphFollowsTheListsOnTheDevice) {
  constexpr int kDim = 64;
  AttentionCase<px::bf16, kDim> c({.new_rows = {1, 1, 1}, .lengths = {700, 300, 40}}, 71);
  gpu::Stream stream;
  c.Poison();
  c.PlanDecode<true>(1);
  stream.BeginCapture();
  c.LaunchDecode<true>(stream);
  const gpu::Graph graph = stream.EndCapture();
  for (const std::vector<int>& lengths : {std::vector<int>{700, 300, 40}, {513, 1, 40}, {2, 257, 39}}) {
    c.SetLengths<true>(lengths, 1);
    std::vector<double> want, want_lse;
    c.Reference(want, want_lse);
    c.Poison();
    stream.Replay(graph);
    ASSERT_EQ(stream.Synchronize(), "");
    ExpectRight(c, want, want_lse, "lengths " + std::to_string(lengths[0]));
  }
}

}  // namespace
}  // namespace baton::cuda_test
