// Checkpoints' quantized formats: every one, packed here as its own project packs it, gives the values that it stands
// for, and the GEMM and GEMV over its re-laid words give the products of those values.
#include <gmock/gmock.h>

#include <cstring>

#include "kernels/cuda/linear/gemv.cuh"
#include "kernels/cuda/linear/quant_layout.h"
#include "kernels/quantized/checkpoint_formats.h"
#include "kernels/quantized/stored_codes.h"
#include "tests/kernels/cuda/shape_sweep.h"

namespace baton::cuda_test {
namespace {

using kernels::QuantizedWeight;

/// What a checkpoint means, drawn at random: codes, zeros and f16 scales.
struct Meaning {
  Meaning(int bits_in, int n_in, int k_in, int group_in, unsigned seed)
      : bits(bits_in), n(n_in), k(k_in), group(group_in), groups(k / group) {
    Data data(seed);
    for (int i = 0; i < n * k; ++i) codes.push_back(static_cast<uint8_t>(data.Int(0, (1 << bits) - 1)));
    for (int i = 0; i < n * groups; ++i) {
      scales.push_back(px::FromFloat<px::f16>(0.01f + 0.0001f * static_cast<float>(data.Int(0, 900))));
      zeros.push_back(static_cast<uint16_t>(data.Int(1, (1 << bits) - 1)));
    }
  }
  float Scale(int c, int g) const { return px::ToFloat(scales[static_cast<size_t>(c) * groups + g]); }
  int Zero(int c, int g) const { return zeros[static_cast<size_t>(c) * groups + g]; }
  int Code(int c, int i) const { return codes[static_cast<size_t>(c) * k + i]; }
  double Value(int c, int i) const {
    return (Code(c, i) - Zero(c, i / group)) * static_cast<double>(Scale(c, i / group));
  }
  /// [groups, n], as AWQ and GPTQ keep them.
  std::vector<px::f16> ScaleRows() const {
    std::vector<px::f16> rows;
    for (int g = 0; g < groups; ++g)
      for (int c = 0; c < n; ++c) rows.push_back(scales[static_cast<size_t>(c) * groups + g]);
    return rows;
  }
  int bits, n, k, group, groups;
  std::vector<uint8_t> codes;
  std::vector<px::f16> scales;
  std::vector<uint16_t> zeros;
};

std::string Difference(const QuantizedWeight& w, const Meaning& m) {
  if (w.bits != m.bits || w.n != m.n || w.k != m.k || w.group != m.group) return "another shape";
  for (int c = 0; c < m.n; ++c)
    for (int i = 0; i < m.k; ++i) {
      const size_t g = static_cast<size_t>(c) * m.groups + i / m.group;
      const double value = (w.codes[static_cast<size_t>(c) * m.k + i] - w.zeros[g]) * static_cast<double>(w.scales[g]);
      if (value != m.Value(c, i)) return "output " + std::to_string(c) + " input " + std::to_string(i);
    }
  return {};
}

const uint8_t* Bytes(const std::vector<uint32_t>& words) { return reinterpret_cast<const uint8_t*>(words.data()); }
/// What AWQ and GPTQ have in common.
kernels::StoredCodes Columns(const Meaning& m, const std::vector<px::f16>& scales) {
  return {.n = m.n,
          .k = m.k,
          .group = m.group,
          .scales = reinterpret_cast<const uint8_t*>(scales.data()),
          .scale_output_stride = 1,
          .scale_group_stride = m.n};
}
/// All of it, as the GPU keeps it.
QuantizedWeight Taken(const kernels::StoredCodes& codes) {
  return codes.Take(0, codes.n, 0, codes.k, codes.LayoutOf(0, codes.k).value());
}

/// The projects' own way of packing: AWQ's order of eight outputs in a word.
struct AwqFile {
  explicit AwqFile(const Meaning& m) : scales(m.ScaleRows()) {
    constexpr int kOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    auto pack = [&](auto&& value) {
      uint32_t word = 0;
      for (int i = 0; i < 8; ++i) word |= static_cast<uint32_t>(value(kOrder[i])) << (4 * i);
      return word;
    };
    for (int i = 0; i < m.k; ++i)
      for (int c = 0; c < m.n; c += 8) weights.push_back(pack([&](int at) { return m.Code(c + at, i); }));
    for (int g = 0; g < m.groups; ++g)
      for (int c = 0; c < m.n; c += 8) zeros.push_back(pack([&](int at) { return m.Zero(c + at, g); }));
  }
  kernels::StoredCodes View(const Meaning& m) const {
    const int words = m.n / 8;
    kernels::StoredCodes out = Columns(m, scales);
    out.codes = {Bytes(weights), 4, true, true, 1, words};
    out.zeros = {Bytes(zeros), 4, true, true, 1, words};
    return out;
  }
  std::vector<uint32_t> weights, zeros;
  std::vector<px::f16> scales;
};
struct GptqFile {
  explicit GptqFile(const Meaning& m) : scales(m.ScaleRows()) {
    const int per = 32 / m.bits;
    for (int i = 0; i < m.k; i += per)
      for (int c = 0; c < m.n; ++c) {
        uint32_t word = 0;
        for (int j = 0; j < per; ++j) word |= static_cast<uint32_t>(m.Code(c, i + j)) << (m.bits * j);
        weights.push_back(word);
      }
    for (int g = 0; g < m.groups; ++g)
      for (int c = 0; c < m.n; c += per) {
        uint32_t word = 0;
        for (int j = 0; j < per; ++j) word |= static_cast<uint32_t>(m.Zero(c + j, g) - 1) << (m.bits * j);
        zeros.push_back(word);
      }
    for (int i = 0; i < m.k; ++i) group_of_input.push_back(i / m.group);
  }
  kernels::StoredCodes View(const Meaning& m) const {
    kernels::StoredCodes out = Columns(m, scales);
    out.codes = {Bytes(weights), m.bits, false, false, 1, m.n};
    out.zeros = {Bytes(zeros), m.bits, true, false, 1, m.n * m.bits / 32};
    out.zero_offset = 1;
    out.group_of_input = reinterpret_cast<const uint8_t*>(group_of_input.data());
    return out;
  }
  std::vector<uint32_t> weights, zeros;
  std::vector<px::f16> scales;
  std::vector<int32_t> group_of_input;
};
/// ggml's blocks of 32; zeros are 8 or 128 there.
std::vector<std::byte> GgufBlocks(Meaning& m) {
  std::fill(m.zeros.begin(), m.zeros.end(), static_cast<uint16_t>(1 << (m.bits - 1)));
  std::vector<std::byte> blocks;
  auto put = [&](int byte) { blocks.push_back(static_cast<std::byte>(byte)); };
  for (int c = 0; c < m.n; ++c)
    for (int g = 0; g < m.groups; ++g) {
      const uint16_t scale = m.scales[static_cast<size_t>(c) * m.groups + g].bits;
      put(scale & 255), put(scale >> 8);
      for (int i = 0; i < (m.bits == 4 ? 16 : 32); ++i)
        put(m.bits == 4 ? m.Code(c, g * 32 + i) | m.Code(c, g * 32 + i + 16) << 4 : m.Code(c, g * 32 + i) - 128);
    }
  return blocks;
}

/// x · valueᵀ by the quantized GEMM and, for few rows, by the GEMV: the same bits, right within bf16 weights.
template <int kBits>
void CheckProducts(const QuantizedWeight& w, const Meaning& m, int rows) {
  constexpr auto kFormat = kBits == 4 ? cuda::WeightFormat::kInt4 : cuda::WeightFormat::kInt8;
  const auto layout = cuda::LayOutQuantized(w);
  Data data(7);
  const Array<px::U128> words(layout.words);
  const Array<cuda::QuantMeta> meta(layout.meta);
  const int64_t x_stride = (m.k + 7) / 8 * 8 + 8;
  const Array<px::bf16> x(static_cast<size_t>(rows) * x_stride);
  const Array<float> gemm(static_cast<size_t>(rows) * m.n), gemv(gemm.size());
  std::fill_n(x.host(), x.size(), Nan<px::bf16>());
  for (int r = 0; r < rows; ++r)
    for (int i = 0; i < m.k; ++i) x[r * x_stride + i] = data.Normal<px::bf16>(1)[0];
  UnderEveryPolicy(
      [&](gpu::Stream& stream) {
        stream.FillAsync(gemm.data(), 0xFF, gemm.size() * 4);
        stream.FillAsync(gemv.data(), 0xFF, gemv.size() * 4);
        cuda::LaunchQuantGemm<kFormat>(
            stream, cuda::QuantGemmParams<float>{x.data(), words.data(), meta.data(), nullptr, gemm.data(), x_stride,
                                                 m.n, rows, m.n, m.k, m.group});
        if (rows > cuda::kGemvMaxRows) return;
        cuda::GemvParams p{
            .x = x.data(), .x_stride = x_stride, .w = words.data(), .meta = meta.data(), .group = m.group};
        p.out = gemv.data(), p.out_stride = m.n, p.store = cuda::GemvStore::kF32;
        p.m = rows, p.n = m.n, p.k = m.k;
        cuda::LaunchGemv<kFormat, false>(stream, p, false);
      },
      [&](const std::string& policy) {
        for (int r = 0; r < rows; ++r)
          for (int c = 0; c < m.n; ++c) {
            double want = 0, size = 0;
            for (int i = 0; i < m.k; ++i) {
              const double product = px::ToFloat(x[r * x_stride + i]) * m.Value(c, i);
              want += product, size += std::abs(product);
            }
            // scale and product are rounded to bf16: 2⁻⁹ each
            ASSERT_NEAR(gemm[r * m.n + c], want, size * 0x1p-8) << policy << " row " << r << " output " << c;
            if (rows <= cuda::kGemvMaxRows) {
              ASSERT_EQ(gemv[r * m.n + c], gemm[r * m.n + c]) << policy << " row " << r << " output " << c;
            }
          }
      });
}

void CheckAwq(int n, int k, int group, int rows) {
  const Meaning m(4, n, k, group, static_cast<unsigned>(n + k));
  const AwqFile file(m);
  const QuantizedWeight w = Taken(file.View(m));
  EXPECT_EQ(Difference(w, m), "");
  CheckProducts<4>(w, m, rows);
}
TEST(QuantFormats, AwqIsWhatItStandsFor) {
  for (auto [n, k, group, rows] : {std::array{40, 256, 128, 3}, {8, 192, 64, 17}, {16, 96, 32, 2}, {24, 64, 64, 1}})
    CheckAwq(n, k, group, rows);
}

template <int kBits>
void CheckGptq(int n, int k, int group, int rows) {
  const Meaning m(kBits, n, k, group, static_cast<unsigned>(n + k));
  const GptqFile file(m);
  const QuantizedWeight w = Taken(file.View(m));
  EXPECT_EQ(Difference(w, m), "");
  CheckProducts<kBits>(w, m, rows);
}
TEST(QuantFormats, GptqIsWhatItStandsFor) {
  CheckGptq<4>(40, 256, 128, 3);
  CheckGptq<4>(16, 160, 32, 1);
  CheckGptq<4>(8, 104, 104, 9);  // one group per output
  CheckGptq<8>(20, 128, 64, 4);
  CheckGptq<8>(12, 72, 72, 2);
}

void CheckGguf(int n, int k, int rows) {
  Meaning four(4, n, k, 32, static_cast<unsigned>(n)), eight(8, n, k, 32, static_cast<unsigned>(k));
  const auto w4 = kernels::UnpackQ4_0(GgufBlocks(four), n, k), w8 = kernels::UnpackQ8_0(GgufBlocks(eight), n, k);
  ASSERT_TRUE(w4.ok() && w8.ok()) << w4.status() << w8.status();
  EXPECT_EQ(Difference(*w4, four), "");
  EXPECT_EQ(Difference(*w8, eight), "");
  CheckProducts<4>(*w4, four, rows);
  CheckProducts<8>(*w8, eight, rows);
}
TEST(QuantFormats, GgufBlocksAreWhatTheyStandFor) {
  for (auto [n, k, rows] : {std::array{33, 96, 2}, {16, 576, 1}, {5, 32, 20}}) CheckGguf(n, k, rows);
}

TEST(QuantFormats, AnyShapeOfEveryFormat) {
  Sweep(4, [](Draw& draw) {
    auto shape = [&](int outputs, auto&& check) {
      const int group = draw.Pick({32, 64, 128}), k = draw.Multiple(group, 512);
      check(draw.Multiple(outputs, 72), k, group, draw.Size(20));
    };
    shape(8, CheckAwq);
    shape(8, CheckGptq<4>);
    shape(4, CheckGptq<8>);
    shape(1, [](int n, int k, int, int rows) { CheckGguf(n, k, rows); });
  });
}

TEST(QuantFormats, WhatDoesNotFitIsNamedWithItsNumbers) {
  using testing::HasSubstr;
  const std::vector<std::byte> blocks(17);
  EXPECT_THAT(kernels::UnpackQ4_0(blocks, 1, 32).status().ToString(), HasSubstr("17 bytes of blocks"));
  EXPECT_THAT(kernels::UnpackQ8_0(blocks, 1, 40).status().ToString(),
              HasSubstr("1 × 40: rows of whole blocks of 32 are needed"));
}

}  // namespace
}  // namespace baton::cuda_test
