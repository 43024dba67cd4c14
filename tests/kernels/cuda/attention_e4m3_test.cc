// A cache in e4m3 whose scales are 1 gives the very bits of a bf16 cache that holds the same values: in decode, which
// makes bf16 of its codes in registers, and in prefill, which does it in shared memory.
#include <cstring>

#include "tests/kernels/cuda/attention_case.h"
#include "tests/kernels/cuda/shape_sweep.h"

namespace baton::cuda_test {
namespace {

/// The same problem over two caches of the same values. A seed gives both the same queries, tables, sinks and trees.
template <int kDim>
struct TwoCaches {
  AttentionCase<px::e4m3, kDim> codes;
  AttentionCase<px::bf16, kDim> wide;

  TwoCaches(const AttentionShape& shape, unsigned seed) : codes(shape, seed), wide(shape, seed) {
    std::fill_n(codes.k_scale.host(), codes.k_scale.size(), 1.0f);
    std::fill_n(codes.v_scale.host(), codes.v_scale.size(), 1.0f);
  }
  /// Each of some tokens, most of them near the end, has a NaN in its key or its value.
  void Wound(Draw& draw) {
    for (size_t s = 0; s < codes.shape.lengths.size(); ++s) {
      const int head = draw.Int(0, codes.shape.kv_heads - 1), length = codes.shape.LengthOf(s, head);
      const int token = draw.Chance(4) ? draw.Int(0, length - 1) : length - draw.Int(1, codes.shape.new_rows[s]);
      auto& plane = draw.Chance(4) ? codes.k : codes.v;
      plane[codes.At(s, head, token) + draw.Int(0, kDim - 1)] = px::e4m3{static_cast<uint8_t>(draw.Pick({0x7F, 0xFF}))};
    }
  }
  /// Gives bf16 the values that the codes have now.
  void Widen() {
    const auto widen = [](Array<px::bf16>& to, const Array<px::e4m3>& from) {
      ASSERT_EQ(to.size(), from.size());
      for (size_t i = 0; i < from.size(); ++i) to[i] = px::FromFloat<px::bf16>(px::ToFloat(from[i]));
    };
    widen(wide.k, codes.k);
    widen(wide.v, codes.v);
  }
  /// `attend(case, stream)` of both.
  template <typename Attend>
  void ExpectSameBits(const std::string& name, Attend&& attend) {
    gpu::Stream stream;
    wide.Poison();
    attend(wide, stream);
    ASSERT_EQ(stream.Synchronize(), "") << name;
    UnderEveryPolicy(
        [&](gpu::Stream& s) {
          codes.Poison();
          attend(codes, s);
        },
        [&](const std::string& policy) {
          EXPECT_EQ(Differences(Copy(codes.out), Copy(wide.out)), 0) << name << ", " << policy;
          EXPECT_EQ(Differences(Copy(codes.lse), Copy(wide.lse)), 0) << name << ", " << policy;
        });
  }
  /// The same of decode, and of its sums in f32: an output in bf16 hides most of what another order would change.
  template <bool kFixed>
  void ExpectSameSums(const std::string& name) {
    ExpectSameBits(name, [](auto& c, gpu::Stream& s) { c.template Decode<kFixed>(s, 2); });
    EXPECT_EQ(Differences(codes.Partials(), wide.Partials()), 0) << name << ": sums";
  }
  /// One NaN is as good as another.
  template <typename T>
  static int Differences(const std::vector<T>& a, const std::vector<T>& b) {
    EXPECT_EQ(a.size(), b.size());
    int differences = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      const float x = px::ToFloat(a[i]), y = px::ToFloat(b[i]);
      if (!(std::isnan(x) && std::isnan(y)) && std::memcmp(&x, &y, sizeof(x)) != 0) ++differences;
    }
    return differences;
  }
  void ExpectSameBitsOfAll() {
    ExpectSameSums<true>("decode, fixed tiles");
    ExpectSameSums<false>("decode, fast");
    if (codes.shape.tree) return;
    ExpectSameBits("prefill, fixed tiles", [](auto& c, gpu::Stream& s) { c.template Prefill<true>(s); });
    ExpectSameBits("prefill, fast", [](auto& c, gpu::Stream& s) { c.template Prefill<false>(s); });
  }
};

template <int kDim>
void CheckBits(const AttentionShape& shape, unsigned seed) {
  TwoCaches<kDim> caches(shape, seed);
  caches.Widen();
  caches.ExpectSameBitsOfAll();
}

/// Every code but NaN's in every place of a product: 16 columns and 16 tokens.
template <int kDim>
void CheckEveryCode(unsigned seed) {
  TwoCaches<kDim> caches({.new_rows = {2}, .lengths = {270}, .q_heads = 3, .kv_heads = 1}, seed);
  for (int token = 0; token < 270; ++token)
    for (int column = 0; column < kDim; ++column) {
      const auto code = [&](int from) {
        const int bits = (from + token + column * 7) % 256;
        return px::e4m3{static_cast<uint8_t>((bits & 0x7F) == 0x7F ? 0 : bits)};
      };
      caches.codes.k[caches.codes.At(0, 0, token) + column] = code(0);
      caches.codes.v[caches.codes.At(0, 0, token) + column] = code(91);
    }
  caches.Widen();
  caches.ExpectSameBitsOfAll();
}

TEST(CudaAttentionE4m3, EveryCodeHasTheBitsOfItsValueInBf16){
#define BATON_CHECK_DIM(dim) CheckEveryCode<dim>(200 + dim);
    BATON_FOR_HEAD_DIMS(BATON_CHECK_DIM)
#undef BATON_CHECK_DIM
}

TEST(CudaAttentionE4m3, OptionsTogetherHaveTheBitsOfBf16InEveryHeadDim) {
  AttentionShape s{.new_rows = {3, 1}, .lengths = {290, 40}, .q_heads = 4, .kv_heads = 2};
  s.window = 45, s.softcap = 12.0f, s.sinks = true, s.loudness = 3.0f;
#define BATON_CHECK_DIM(dim) CheckBits<dim>(s, 230 + dim);
  BATON_FOR_HEAD_DIMS(BATON_CHECK_DIM)
  s.tree = true, s.per_head_tables = true;
  BATON_FOR_HEAD_DIMS(BATON_CHECK_DIM)
#undef BATON_CHECK_DIM
}

TEST(CudaAttentionE4m3, EveryGroupSizeHasTheBitsOfBf16) {
  for (int group = 1; group <= 17; ++group)
    CheckBits<64>({.new_rows = {1}, .lengths = {77}, .q_heads = group * 2, .kv_heads = 2}, 260 + group);
}

TEST(CudaAttentionE4m3, ContextsThatEndWhereSomethingEndsHaveTheBitsOfBf16) {
  AttentionShape s{.q_heads = 2, .kv_heads = 1, .tokens_per_block = 48};
  for (int length : {1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 257, 319, 320, 513})
    s.new_rows.push_back(1), s.lengths.push_back(length);
  CheckBits<80>(s, 280);
}

template <int kDim>
void CheckHiddenNans(Draw& draw) {
  AttentionShape s;
  s.kv_heads = draw.Pick({1, 2});
  s.q_heads = s.kv_heads * draw.Size(9);
  s.window = draw.Chance(2) ? draw.Size(200) : 0;
  s.tree = draw.Chance(3);
  for (int n = draw.Int(1, 3); n > 0; --n) {
    s.new_rows.push_back(draw.Size(s.tree ? 32 : 40));
    s.lengths.push_back(s.new_rows.back() + (draw.Chance(3) ? 0 : draw.Size(300)));
  }
  TwoCaches<kDim> caches(s, static_cast<unsigned>(draw.Int(1, 1 << 30)));
  caches.Wound(draw);
  caches.Widen();
  caches.ExpectSameBitsOfAll();
}

/// NaN's codes hidden from some of the rows, whose turns come one by one.
TEST(CudaAttentionE4m3, AnyShapeWithNanBesideHiddenTokensHasTheBitsOfBf16) {
  Sweep(4, [](Draw& draw) {
    switch (draw.Int(0, 4)) {
      case 0: return CheckHiddenNans<64>(draw);
      case 1: return CheckHiddenNans<80>(draw);
      case 2: return CheckHiddenNans<96>(draw);
      case 3: return CheckHiddenNans<128>(draw);
      default: return CheckHiddenNans<256>(draw);
    }
  });
}

}  // namespace
}  // namespace baton::cuda_test
