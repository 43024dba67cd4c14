// Prefill and decode attention: against double precision, and bit for bit against each other.
#include <cstring>

#include "kernels/cuda/host/wgmma_bits.h"
#include "tests/kernels/cuda/attention_case.h"
#include "tests/kernels/cuda/mutants.h"

namespace baton::cuda_test {
namespace {

template <typename Kv, int kDim, bool kFixed>
void CheckPrefill(const AttentionShape& shape, unsigned seed) {
  AttentionCase<Kv, kDim> c(shape, seed);
  std::vector<double> want, want_lse;
  c.Reference(want, want_lse);
  PrefillUnderEveryPolicy<kFixed>(
      c, [&](const std::string& name) { ExpectRight(c, want, want_lse, name + (kFixed ? " fixed tiles" : " fast")); });
}
template <typename Kv, int kDim, bool kFixed>
void CheckDecode(const AttentionShape& shape, unsigned seed, int tiles_per_item = 1) {
  AttentionCase<Kv, kDim> c(shape, seed);
  std::vector<double> want, want_lse;
  c.Reference(want, want_lse);
  UnderEveryPolicy(
      [&](gpu::Stream& stream) {
        c.Poison();
        c.template Decode<kFixed>(stream, tiles_per_item);
      },
      [&](const std::string& policy) { ExpectRight(c, want, want_lse, policy + (kFixed ? " fixed tiles" : " fast")); });
}

TEST(CudaPrefillAttention, RaggedCausalOverAPagedPrefix) {
  CheckPrefill<px::bf16, 64, true>({.new_rows = {1, 70, 33}, .lengths = {1, 300, 97}}, 1);
  CheckPrefill<px::bf16, 128, true>(
      {.new_rows = {65}, .lengths = {65}, .q_heads = 2, .kv_heads = 1, .tokens_per_block = 32}, 2);
  CheckPrefill<px::bf16, 128, false>({.new_rows = {5, 64}, .lengths = {261, 64}, .q_heads = 2, .kv_heads = 2}, 3);
}
TEST(CudaPrefillAttention, EveryHeadDim) {
  CheckPrefill<px::bf16, 80, true>({.new_rows = {20}, .lengths = {280}, .q_heads = 2, .kv_heads = 1}, 4);
  CheckPrefill<px::bf16, 96, true>({.new_rows = {20}, .lengths = {90}, .q_heads = 2, .kv_heads = 1}, 5);
  CheckPrefill<px::bf16, 256, true>({.new_rows = {17}, .lengths = {275}, .q_heads = 1, .kv_heads = 1}, 6);
}
TEST(CudaPrefillAttention, WindowSoftCapAndSinks) {
  CheckPrefill<px::bf16, 64, true>({.new_rows = {70}, .lengths = {600}, .q_heads = 2, .kv_heads = 1, .window = 100}, 7);
  CheckPrefill<px::bf16, 64, true>(
      {.new_rows = {40}, .lengths = {100}, .q_heads = 2, .kv_heads = 1, .softcap = 5.0f, .sinks = true}, 8);
}
TEST(CudaPrefillAttention, Fp8Cache) {
  CheckPrefill<px::e4m3, 64, true>({.new_rows = {40}, .lengths = {300}, .q_heads = 2, .kv_heads = 1}, 9);
  CheckPrefill<px::e4m3, 128, false>({.new_rows = {9}, .lengths = {150}, .q_heads = 2, .kv_heads = 1}, 10);
}

TEST(CudaDecodeAttention, SplitOverAWorkList) {
  CheckDecode<px::bf16, 64, true>({.new_rows = {1, 1, 1}, .lengths = {1, 257, 900}}, 11);
  CheckDecode<px::bf16, 128, false>({.new_rows = {1, 1}, .lengths = {1000, 16}, .q_heads = 8, .kv_heads = 2}, 12, 2);
  CheckDecode<px::bf16, 128, true>(
      {.new_rows = {1, 1}, .lengths = {700, 31}, .q_heads = 2, .kv_heads = 1, .tokens_per_block = 64}, 13, 2);
}
TEST(CudaDecodeAttention, EveryGroupSize) {
  for (int group = 1; group <= 16; ++group)
    CheckDecode<px::bf16, 64, true>({.new_rows = {1}, .lengths = {77}, .q_heads = group * 2, .kv_heads = 2},
                                    20 + group);
  CheckDecode<px::bf16, 64, true>({.new_rows = {1}, .lengths = {300}, .q_heads = 32, .kv_heads = 1},
                                  40);  // MQA, two row blocks
}
TEST(CudaDecodeAttention, EveryHeadDim) {
  CheckDecode<px::bf16, 80, true>({.new_rows = {1}, .lengths = {280}}, 41);
  CheckDecode<px::bf16, 96, true>({.new_rows = {1}, .lengths = {90}}, 42);
  CheckDecode<px::bf16, 256, true>({.new_rows = {1}, .lengths = {275}, .q_heads = 2, .kv_heads = 1}, 43);
}
TEST(CudaDecodeAttention, WindowSoftCapSinksAndFp8) {
  CheckDecode<px::bf16, 64, true>({.new_rows = {1}, .lengths = {800}, .window = 200}, 44);
  CheckDecode<px::bf16, 64, false>({.new_rows = {1}, .lengths = {300}, .softcap = 5.0f, .sinks = true}, 45);
  CheckDecode<px::e4m3, 128, true>({.new_rows = {1}, .lengths = {300}, .q_heads = 8, .kv_heads = 2}, 46);
}
TEST(CudaDecodeAttention, DraftTokensSeeTheirAncestorsOnly) {
  CheckDecode<px::bf16, 64, true>(
      {.new_rows = {7, 1, 3}, .lengths = {300, 9, 3}, .q_heads = 6, .kv_heads = 2, .tree = true}, 47);
}
TEST(CudaDecodeAttention, EmptyBatchIsNothing) { CheckDecode<px::bf16, 64, true>({.new_rows = {}, .lengths = {}}, 48); }
TEST(CudaPrefillAttention, EmptyBatchIsNothing) {
  CheckPrefill<px::bf16, 64, true>({.new_rows = {}, .lengths = {}}, 48);
  CheckPrefill<px::bf16, 64, false>({.new_rows = {0}, .lengths = {40}}, 48);
}

/// Contexts around the ends of blocks, sub-tiles and tiles, the newest token of each.
TEST(CudaAttention, ContextsThatEndWhereSomethingEnds) {
  AttentionShape s{.q_heads = 2, .kv_heads = 1};
  for (int length : {1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 257, 319, 320, 512, 513})
    s.new_rows.push_back(1), s.lengths.push_back(length);
  CheckDecode<px::bf16, 64, true>(s, 62);
  CheckDecode<px::e4m3, 64, false>(s, 63, 2);
  CheckPrefill<px::bf16, 64, true>(s, 64);
  CheckPrefill<px::e4m3, 64, false>(s, 65);
}

/// Prefill takes one q head at a time, which has to find its kv head.
TEST(CudaPrefillAttention, EveryGroupSize) {
  for (int group = 1; group <= 16; ++group)
    CheckPrefill<px::bf16, 64, true>({.new_rows = {3}, .lengths = {70}, .q_heads = group, .kv_heads = 1}, 120 + group);
}

/// Window, soft-cap and sinks at once, of prefill and decode in both forms; then with a draft tree.
template <typename Kv, int kDim>
void CheckOptionsTogether(unsigned seed) {
  AttentionShape s{.new_rows = {3, 1}, .lengths = {290, 40}, .q_heads = 4, .kv_heads = 2};
  s.window = 45, s.softcap = 12.0f, s.sinks = true, s.loudness = 3.0f;
  CheckPrefill<Kv, kDim, true>(s, seed);
  CheckPrefill<Kv, kDim, false>(s, seed);
  CheckDecode<Kv, kDim, true>(s, seed);
  CheckDecode<Kv, kDim, false>(s, seed, 2);
  s.tree = true, s.per_head_tables = true;
  CheckDecode<Kv, kDim, true>(s, seed);
  CheckDecode<Kv, kDim, false>(s, seed, 2);
}
TEST(CudaAttention, OptionsTogetherInEveryHeadDimAndCache){
#define BATON_CHECK_DIM(dim)                      \
  CheckOptionsTogether<px::bf16, dim>(130 + dim); \
  CheckOptionsTogether<px::e4m3, dim>(131 + dim);
    BATON_FOR_HEAD_DIMS(BATON_CHECK_DIM)
#undef BATON_CHECK_DIM
}

TEST(CudaDecodeAttention, EveryHeadMayHaveBlocksAndALengthOfItsOwn) {
  CheckDecode<px::bf16, 64, true>(
      {.new_rows = {1, 2}, .lengths = {300, 90}, .q_heads = 6, .kv_heads = 3, .per_head_tables = true}, 49);
  CheckDecode<px::e4m3, 128, false>(
      {.new_rows = {1}, .lengths = {280}, .q_heads = 4, .kv_heads = 2, .per_head_tables = true}, 56);
  CheckPrefill<px::bf16, 64, true>(
      {.new_rows = {70}, .lengths = {300}, .q_heads = 4, .kv_heads = 2, .per_head_tables = true}, 57);
}

/// Rows by the prefill kernel and by the decode kernel, under every policy: always the same bits.
template <typename Kv, int kDim>
void CheckSameBits(const AttentionShape& prefill_shape, unsigned seed) {
  AttentionCase<Kv, kDim> c(prefill_shape, seed);
  std::vector<px::bf16> out;
  std::vector<float> lse;
  auto expect_same = [&](const std::string& name) {
    if (out.empty()) out = Copy(c.out), lse = Copy(c.lse);
    EXPECT_EQ(std::memcmp(out.data(), c.out.host(), out.size() * 2), 0) << "head_dim " << kDim << " " << name;
    EXPECT_EQ(std::memcmp(lse.data(), c.lse.host(), lse.size() * 4), 0) << "head_dim " << kDim << " " << name;
  };
  PrefillUnderEveryPolicy<true>(c, expect_same);
  for (int tiles_per_item : {1, 3})
    UnderEveryPolicy(
        [&](gpu::Stream& stream) {
          c.Poison();
          c.template Decode<true>(stream, tiles_per_item);
        },
        [&](const std::string& policy) { expect_same("decode " + policy); });
}

TEST(CudaAttention, DecodeGivesTheBitsOfPrefill) {
  CheckSameBits<px::bf16, 64>({.new_rows = {20, 1, 65}, .lengths = {300, 513, 65}}, 50);
  CheckSameBits<px::bf16, 128>({.new_rows = {9, 3}, .lengths = {700, 255}, .q_heads = 6, .kv_heads = 2}, 51);
  CheckSameBits<px::bf16, 80>({.new_rows = {9}, .lengths = {260}}, 52);
  CheckSameBits<px::bf16, 256>({.new_rows = {5}, .lengths = {261}, .q_heads = 2, .kv_heads = 1}, 53);
  CheckSameBits<px::e4m3, 64>({.new_rows = {9}, .lengths = {400}, .window = 90, .softcap = 20.0f, .sinks = true}, 54);
}

/// Sub-tiles that all rows see in every place: behind a window's edge, alone, in pairs, up to the last row.
TEST(CudaPrefillAttention, WgmmaTakesWhatAllRowsSee) {
  for (const int context : {0, 63, 200, 700})
    for (const int rows : {1, 100})
      CheckSameBits<px::bf16, 64>({.new_rows = {rows}, .lengths = {context + rows}, .q_heads = 3, .kv_heads = 1},
                                  70 + context);
  for (const int window : {64, 130})
    CheckSameBits<px::bf16, 64>(
        {.new_rows = {130}, .lengths = {900}, .q_heads = 2, .kv_heads = 1, .window = window, .sinks = true}, 90);
  for (const int tokens : {48, 128})
    CheckSameBits<px::bf16, 128>(
        {.new_rows = {70}, .lengths = {333}, .q_heads = 4, .kv_heads = 2, .tokens_per_block = tokens}, 91);
  CheckPrefill<px::bf16, 128, false>({.new_rows = {150}, .lengths = {900}, .q_heads = 5, .kv_heads = 1}, 92);
}

TEST(CudaPrefillAttention, WgmmaLeavesOutWhatItHasNoFormFor) {
  using Case = AttentionCase<px::bf16, 64>;
  const auto forms = [](const AttentionShape& shape) { return Case(shape, 1).PrefillForms().size(); };
  const size_t both = cuda::HasWgmma(gpu::CurrentDevice().architecture) ? 2 : 1;
  EXPECT_EQ(forms({.new_rows = {9}, .lengths = {9}}), both);
  EXPECT_EQ(forms({.new_rows = {9}, .lengths = {9}, .q_heads = 2, .kv_heads = 2}), 1u) << "one head has no pair";
  EXPECT_EQ(forms({.new_rows = {9}, .lengths = {9}, .softcap = 3.0f}), 1u);
  gpu::Stream stream;
  EXPECT_TRUE(both == 1 || cuda::WgmmaAttendsAsMmaSync(stream));
#if !defined(__CUDACC__)
  stream.SetPolicy({.odd_wgmma = 64});
  EXPECT_FALSE(cuda::WgmmaAttendsAsMmaSync(stream));
#endif
}

#if !defined(__CUDACC__)
/// Leaves out every synchronizing call of `launch(case, stream)` in turn.
template <typename Kv, int kDim, typename LaunchCase>
void ExpectAttentionMutantsFound(const AttentionShape& shape, unsigned seed, LaunchCase&& launch) {
  AttentionCase<Kv, kDim> c(shape, seed);
  std::vector<double> want, want_lse;
  c.Reference(want, want_lse);
  ExpectEveryMutantFound([&](const simt::Policy& policy) -> std::string {
    gpu::Stream stream;
    stream.SetPolicy(policy);
    c.Poison();
    launch(c, stream);
    if (std::string error = stream.Synchronize(); !error.empty()) return error;
    const bool right =
        Near(c.Packed().data(), want, kAttentionTolerance) && Near(c.lse.host(), want_lse, kernel_test::kLogSumExp);
    return right ? "" : "another output";
  });
}

TEST(CudaAttention, EveryMissingSynchronizationIsFound) {
  ExpectAttentionMutantsFound<px::bf16, 64>({.new_rows = {40}, .lengths = {330}, .q_heads = 1, .kv_heads = 1}, 58,
                                            [](auto& c, gpu::Stream& stream) { c.template Prefill<true>(stream); });
  ExpectAttentionMutantsFound<px::bf16, 64>(
      {.new_rows = {100}, .lengths = {1100}, .q_heads = 2, .kv_heads = 1, .window = 500}, 57,
      [](auto& c, gpu::Stream& stream) { c.template Prefill<true>(stream, std::decay_t<decltype(c)>::Form::kWgmma); });
  ExpectAttentionMutantsFound<px::bf16, 64>(
      {.new_rows = {1, 1}, .lengths = {330, 200}, .q_heads = 2, .kv_heads = 1}, 59,
      [](auto& c, gpu::Stream& stream) { c.template Decode<true>(stream, 2, 1); });
  ExpectAttentionMutantsFound<px::e4m3, 64>({.new_rows = {40}, .lengths = {330}, .q_heads = 1, .kv_heads = 1}, 60,
                                            [](auto& c, gpu::Stream& stream) { c.template Prefill<true>(stream); });
  ExpectAttentionMutantsFound<px::e4m3, 64>(
      {.new_rows = {1, 1}, .lengths = {330, 200}, .q_heads = 2, .kv_heads = 1}, 61,
      [](auto& c, gpu::Stream& stream) { c.template Decode<true>(stream, 2, 1); });
}
#endif

}  // namespace
}  // namespace baton::cuda_test
