// What a row may not see must not reach it, whatever it is: infinities and NaN in K and V of hidden tokens.
#include <cstring>

#include "tests/kernels/cuda/attention_case.h"
#include "tests/kernels/cuda/shape_sweep.h"

namespace baton::cuda_test {
namespace {

/// A token of one kv head that has become infinite or NaN in one column of its value or key.
struct Wound {
  size_t sequence;
  int kv_head, token, column;
  bool in_key;
  float value;
};

template <typename Kv, int kDim>
std::vector<Wound> Draw3Wounds(Draw& draw, AttentionCase<Kv, kDim>& c) {
  std::vector<Wound> wounds;
  for (int i = 0; i < 3 && !c.shape.lengths.empty(); ++i) {
    Wound w;
    w.sequence = static_cast<size_t>(draw.Int(0, static_cast<int>(c.shape.lengths.size()) - 1));
    w.kv_head = draw.Int(0, c.shape.kv_heads - 1);
    const int length = c.shape.LengthOf(w.sequence, w.kv_head);
    // Near the end are tokens that some of the new rows see and some do not.
    w.token = draw.Chance(2) ? draw.Int(0, length - 1) : length - draw.Int(1, c.shape.new_rows[w.sequence]);
    w.column = draw.Int(0, kDim - 1);
    w.in_key = draw.Chance(4);
    w.value = sizeof(Kv) == 1 ? NAN : draw.Pick({INFINITY, -INFINITY, NAN});  // e4m3 has no infinity
    (w.in_key ? c.k : c.v)[c.At(w.sequence, w.kv_head, w.token) + w.column] = px::FromFloat<Kv>(w.value);
    wounds.push_back(w);
  }
  return wounds;
}

template <typename Kv, int kDim>
struct Answer {
  std::vector<px::bf16> out;
  std::vector<float> lse;
  explicit Answer(const AttentionCase<Kv, kDim>& c) : out(Copy(c.out)), lse(Copy(c.lse)) {}
};

/// Rows that see no wound keep the bits of `healthy`; the column of a value's wound is not finite where it is seen.
template <typename Kv, int kDim>
void ExpectWoundsOnlyWhereSeen(const AttentionCase<Kv, kDim>& c, const std::vector<Wound>& wounds,
                               const Answer<Kv, kDim>& healthy, const std::string& name) {
  const int group = c.shape.q_heads / c.shape.kv_heads;
  for (size_t s = 0; s < c.shape.lengths.size(); ++s)
    for (int r = 0; r < c.shape.new_rows[s]; ++r)
      for (int h = 0; h < c.shape.q_heads; ++h) {
        const size_t out = c.OutAt(c.row_start[s] + r, h),
                     row = static_cast<size_t>(c.row_start[s] + r) * c.shape.q_heads + h;
        std::vector<Wound> seen;
        for (const Wound& w : wounds)
          if (w.sequence == s && w.kv_head == h / group && c.Visible(s, w.kv_head, r, w.token)) seen.push_back(w);
        // A logit of −∞ hides its token, whatever its value is.
        const bool hiding = std::any_of(seen.begin(), seen.end(), [](const Wound& w) { return w.in_key; });
        for (const Wound& w : seen)
          ASSERT_TRUE(hiding || !std::isfinite(px::ToFloat(c.out[out + w.column])))
              << name << ": row " << r << " of sequence " << s << " sees token " << w.token << " as if it were finite";
        if (!seen.empty()) continue;
        ASSERT_EQ(std::memcmp(&healthy.out[out], &c.out[out], kDim * 2), 0)
            << name << ": row " << r << " of sequence " << s << ", head " << h << ": another output";
        ASSERT_EQ(std::memcmp(&healthy.lse[row], &c.lse[row], 4), 0) << name << ": another log-sum-exp";
      }
}

AttentionShape DrawHiddenShape(Draw& draw) {
  AttentionShape s;
  s.kv_heads = draw.Pick({1, 2});
  s.q_heads = s.kv_heads * draw.Size(9);
  s.tokens_per_block = draw.Pick({16, 64});
  s.per_head_tables = draw.Chance(4);
  s.window = draw.Chance(2) ? draw.Size(200) : 0;
  s.softcap = draw.Chance(4) ? 20.0f : 0.0f;
  s.sinks = draw.Chance(3);
  s.tree = draw.Chance(3);
  for (int n = draw.Int(1, 3); n > 0; --n) {
    s.new_rows.push_back(draw.Size(s.tree ? 32 : 80));
    s.lengths.push_back(s.new_rows.back() + (draw.Chance(3) ? 0 : draw.Size(400)));
  }
  return s;
}

template <typename Kv, int kDim>
void CheckWounds(Draw& draw) {
  AttentionCase<Kv, kDim> c(DrawHiddenShape(draw), static_cast<unsigned>(draw.Int(1, 1 << 30)));
  gpu::Stream stream;
  c.Poison();
  c.template Decode<true>(stream, 2);
  ASSERT_EQ(stream.Synchronize(), "");
  const Answer<Kv, kDim> healthy(c);
  const std::vector<Wound> wounds = Draw3Wounds(draw, c);
  std::vector<px::bf16> decoded;
  UnderEveryPolicy(
      [&](gpu::Stream& s) {
        c.Poison();
        c.template Decode<true>(s, 2);
      },
      [&](const std::string& policy) {
        ExpectWoundsOnlyWhereSeen(c, wounds, healthy, "decode, " + policy);
        decoded = Copy(c.out);
      });
  if (c.shape.tree) return;
  PrefillUnderEveryPolicy<true>(c, [&](const std::string& name) {
    ExpectWoundsOnlyWhereSeen(c, wounds, healthy, name);
    EXPECT_EQ(std::memcmp(decoded.data(), c.out.host(), decoded.size() * 2), 0) << "not decode's bits, " << name;
  });
}

TEST(CudaAttentionAnyShape, InfinitiesAndNansReachOnlyRowsThatSeeThem) {
  Sweep(5, [](Draw& draw) {
    switch (draw.Int(0, 4)) {
      case 0: return CheckWounds<px::bf16, 64>(draw);
      case 1: return CheckWounds<px::bf16, 80>(draw);
      case 2: return CheckWounds<px::bf16, 128>(draw);
      case 3: return CheckWounds<px::bf16, 256>(draw);
      default: return CheckWounds<px::e4m3, 96>(draw);
    }
  });
}

/// The same of the forms that are not deterministic.
TEST(CudaAttention, InfinitiesReachOnlyRowsThatSeeThemInTheFastForms) {
  AttentionCase<px::bf16, 64> c({.new_rows = {40}, .lengths = {300}}, 81);
  for (int form = -1; form < static_cast<int>(c.PrefillForms().size()); ++form) {
    const bool prefill = form >= 0;
    auto run = [&] {
      gpu::Stream stream;
      c.Poison();
      if (prefill)
        c.Prefill<false>(stream, c.PrefillForms()[form]);
      else
        c.Decode<false>(stream, 2);
      ASSERT_EQ(stream.Synchronize(), "");
    };
    const size_t wounded = c.At(0, 1, 280) + 5;
    c.v[wounded] = px::bf16{0};
    run();
    const Answer<px::bf16, 64> healthy(c);
    c.v[wounded] = px::bf16{0x7F80};
    run();
    ExpectWoundsOnlyWhereSeen(c, {{0, 1, 280, 5, false, INFINITY}}, healthy, prefill ? "prefill" : "decode");
  }
}

}  // namespace
}  // namespace baton::cuda_test
