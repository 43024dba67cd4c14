// ldmatrix, mma of every type, and Hopper's mbarrier + TMA + wgmma.
#include <cmath>

#include "kernels/runtime/tensor_map.h"
#include "tests/conformance/micro_kernels.h"

namespace baton::conformance {
namespace {

constexpr unsigned kWarp = 32;

struct alignas(16) MatrixShared {
  uint16_t rows[32][8];
};
/// Each lane gives the row of another: the addresses are permuted on purpose.
template <bool kTransposed>
PX_KERNEL void LdMatrixKernel(const uint32_t* in, uint32_t* out) {
  PX_SHARED(MatrixShared, smem);
  const int lane = px::Lane();
  px::StoreShared(reinterpret_cast<px::U128*>(smem.rows[lane]), px::Load(reinterpret_cast<const px::U128*>(in) + lane));
  px::SyncWarp();
  uint32_t r[4];
  if constexpr (kTransposed)
    px::LdMatrixX4Trans(r, smem.rows[(lane * 5 + 1) & 31]);
  else
    px::LdMatrixX4(r, smem.rows[(lane * 5 + 1) & 31]);
  PX_UNROLL
  for (int j = 0; j < 4; ++j) px::Store(out + j * 32 + lane, r[j]);
}
template <bool kTransposed>
MicroKernel LdMatrix() {
  const Words in = Noise(128, 21);
  MicroKernel k{kTransposed ? "LdMatrixX4Trans" : "LdMatrixX4", {}, {}, {}};
  k.run = [in](gpu::Stream& s) {
    return Launch(s, {.grid = {1}, .block = {kWarp}, .shared_bytes = sizeof(MatrixShared)}, 128, in,
                  &LdMatrixKernel<kTransposed>);
  };
  auto element = [&](uint32_t matrix, uint32_t row, uint32_t column) {
    const uint32_t given = ((8 * matrix + row) * 5 + 1) & 31;  // the lane that holds it
    return in[given * 4 + column / 2] >> (16 * (column % 2)) & 0xFFFFu;
  };
  for (uint32_t m = 0; m < 4; ++m)
    for (uint32_t lane = 0; lane < 32; ++lane) {
      const uint32_t q = lane / 4, t = lane % 4 * 2;
      k.want.push_back(kTransposed ? element(m, t, q) | element(m, t + 1, q) << 16
                                   : element(m, q, t) | element(m, q, t + 1) << 16);
    }
  return k;
}

enum class Input : uint8_t { kBf16, kF16, kE4m3 };

template <Input kInput>
PX_KERNEL void MmaKernel(const uint32_t* in, uint32_t* out) {
  const int lane = px::Lane();
  uint32_t a[4];
  float d[4];
  PX_UNROLL
  for (int i = 0; i < 4; ++i) {
    a[i] = px::Load(in + i * 32 + lane);
    d[i] = static_cast<float>(lane - i);
  }
  const uint32_t b0 = px::Load(in + 128 + lane), b1 = px::Load(in + 160 + lane);
  if constexpr (kInput == Input::kBf16)
    px::MmaBf16(d, a, b0, b1);
  else if constexpr (kInput == Input::kF16)
    px::MmaF16(d, a, b0, b1);
  else
    px::MmaE4m3(d, a, b0, b1);
  PX_UNROLL
  for (int i = 0; i < 4; ++i) px::Store(out + i * 32 + lane, px::BitCast<uint32_t>(d[i]));
}
/// Small integers: every order of adding gives the same bits, so the fragment layout alone is tested. Else values of a
/// normal size, whose sum shows the hardware's order and width of accumulation.
template <Input kInput>
MicroKernel Mma(bool integers) {
  constexpr int kPer = kInput == Input::kE4m3 ? 4 : 2, kDepth = 8 * kPer, kBits = 32 / kPer;
  static const char* const kNames[] = {"MmaBf16", "MmaF16", "MmaE4m3"};
  auto encode = [](float x) -> uint32_t {
    return kInput == Input::kBf16  ? px::FloatToBf16Bits(x)
           : kInput == Input::kF16 ? px::FloatToF16Bits(x)
                                   : px::FloatToE4m3Bits(x);
  };
  auto decode = [](uint32_t x) {
    return kInput == Input::kBf16  ? px::Bf16BitsToFloat(x)
           : kInput == Input::kF16 ? px::F16BitsToFloat(x)
                                   : px::E4m3BitsToFloat(x);
  };
  const Words noise = Noise(192 * kPer, 22);
  Words in(192);
  for (size_t i = 0; i < noise.size(); ++i) {
    const float x = integers ? static_cast<float>(noise[i] % 9) - 4.0f
                             : static_cast<float>(static_cast<int32_t>(noise[i])) * 0x1p-30f;
    in[i / kPer] |= encode(x) << (i % kPer * kBits);
  }
  MicroKernel k{std::string(kNames[static_cast<int>(kInput)]) + (integers ? "_integers" : "_fractions"), {}, {}, {}};
  if (!integers) k.tolerance = {Tolerance::Kind::kFloat, 8, kInput == Input::kE4m3 ? 4e-2 : 1e-4};
  k.run = [in](gpu::Stream& s) { return Launch(s, {.grid = {1}, .block = {kWarp}}, 128, in, &MmaKernel<kInput>); };
  // PTX ISA, "Matrix Fragments for mma": element (row, k) of A, (k, column) of B.
  auto at = [&](uint32_t word, int i) {
    return static_cast<double>(decode(in[word] >> (i * kBits) & ((1ull << kBits) - 1)));
  };
  auto a = [&](int row, int depth) {
    const int reg = (row >= 8 ? 1 : 0) + (depth >= kDepth / 2 ? 2 : 0);
    return at(static_cast<uint32_t>(reg * 32 + row % 8 * 4 + depth % (kDepth / 2) / kPer), depth % kPer);
  };
  auto b = [&](int depth, int column) {
    return at(static_cast<uint32_t>(128 + (depth >= kDepth / 2 ? 32 : 0) + column * 4 + depth % (kDepth / 2) / kPer),
              depth % kPer);
  };
  for (int i = 0; i < 4; ++i)
    for (int lane = 0; lane < 32; ++lane) {
      const int row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
      double sum = lane - i;
      for (int depth = 0; depth < kDepth; ++depth) sum += a(row, depth) * b(depth, column);
      k.want.push_back(px::BitCast<uint32_t>(static_cast<float>(sum)));
    }
  return k;
}

struct ExchangedShared {
  float d[64];
};
/// a · b, and (bᵀ · aᵀ)ᵀ of a's upper 8 rows, which take the same registers: the bits must be the same (gemv.cuh).
PX_KERNEL void MmaExchangedKernel(const uint32_t* in, uint32_t* out) {
  PX_SHARED(ExchangedShared, smem);
  const int lane = px::Lane(), row = lane / 4, column = lane % 4 * 2;
  uint32_t a[4];
  float d[4], e[4] = {};
  PX_UNROLL
  for (int i = 0; i < 4; ++i) a[i] = px::Load(in + i * 32 + lane), d[i] = 0.0f;
  const uint32_t b0 = px::Load(in + 128 + lane), b1 = px::Load(in + 160 + lane), exchanged[4] = {b0, 0, b1, 0};
  PX_UNROLL
  for (int i = 0; i < 2; ++i) {
    d[i] = static_cast<float>(row * 8 + column + i);
    e[i] = static_cast<float>((column + i) * 8 + row);
  }
  px::MmaBf16(d, a, b0, b1);
  px::MmaBf16(e, exchanged, a[0], a[2]);
  PX_UNROLL
  for (int i = 0; i < 2; ++i) px::StoreShared(&smem.d[row * 8 + column + i], d[i]);
  px::SyncWarp();
  PX_UNROLL
  for (int i = 0; i < 2; ++i)
    px::Store(out + i * 32 + lane,
              px::BitCast<uint32_t>(e[i]) ^ px::BitCast<uint32_t>(px::LoadShared(&smem.d[(column + i) * 8 + row])));
}
MicroKernel MmaExchanged() {
  Words in(192);
  const Words noise = Noise(384, 25);
  for (size_t i = 0; i < noise.size(); ++i)
    in[i / 2] |=
        static_cast<uint32_t>(px::FloatToBf16Bits(static_cast<float>(static_cast<int32_t>(noise[i])) * 0x1p-30f))
        << (i % 2 * 16);
  MicroKernel k{"MmaBf16_exchanged", {}, {}, {}};
  k.run = [in](gpu::Stream& s) {
    return Launch(s, {.grid = {1}, .block = {kWarp}, .shared_bytes = sizeof(ExchangedShared)}, 64, in,
                  &MmaExchangedKernel);
  };
  k.want.assign(64, 0);
  return k;
}

constexpr int kM = 64, kDepth = 128;
template <int kN>
struct alignas(1024) HopperShared {
  px::bf16 a[2][kM * px::kTmaBoxColumns];
  px::bf16 b[2][kN * px::kTmaBoxColumns];
  uint64_t full;
};
/// One warpgroup: thread 0 asks TMA for two boxes of each operand, then d[64, kN] = a · bᵀ over 128 columns of bf16, or
/// over the 256 e4m3 that lie in them.
template <int kN, bool kE4m3>
PX_KERNEL void HopperKernel(const uint32_t*, uint32_t* out, const PX_GRID_CONST px::TensorMap2D a,
                            const PX_GRID_CONST px::TensorMap2D b, int first_row) {
#if PX_HAS_WGMMA
  PX_SHARED(HopperShared<kN>, smem);
  const int t = px::ThreadX();
  if (t == 0) {
    px::MbarrierInit(&smem.full, 1);
    px::MbarrierFenceInit();
    px::MbarrierArriveExpect(&smem.full, static_cast<int>(sizeof(smem.a) + sizeof(smem.b)));
    for (int i = 0; i < 2; ++i) {
      px::TmaLoad2D(smem.a[i], &a, i * px::kTmaBoxColumns, first_row, &smem.full);
      px::TmaLoad2D(smem.b[i], &b, i * px::kTmaBoxColumns, 0, &smem.full);
    }
  }
  px::SyncThreads();
  px::MbarrierWait(&smem.full, 0);
  float d[kN / 2];
  px::WgmmaFence();
  PX_UNROLL
  for (int step = 0; step < kDepth / 16; ++step) {
    const uint64_t x = px::WgmmaDescriptor(smem.a[step / 4]) + step % 4 * 2,
                   w = px::WgmmaDescriptor(smem.b[step / 4]) + step % 4 * 2;
    if constexpr (kE4m3)
      px::WgmmaE4m3K32<kN>(d, x, w, step != 0);
    else if constexpr (kN == 256)
      px::WgmmaM64N256K16(d, x, w, step != 0);
    else if constexpr (kN == 128)
      px::WgmmaM64N128K16(d, x, w, step != 0);
    else if constexpr (kN == 64)
      px::WgmmaM64N64K16(d, x, w, step != 0);
    else if constexpr (kN == 32)
      px::WgmmaM64N32K16(d, x, w, step != 0);
    else
      px::WgmmaM64N16K16(d, x, w, step != 0);
  }
  px::WgmmaCommit();
  px::WgmmaWait<0>();
  px::WgmmaResult(d);
  PX_UNROLL
  for (int i = 0; i < kN / 2; ++i) px::Store(out + i * 128 + t, px::BitCast<uint32_t>(d[i]));
#else
  (void)out, (void)a, (void)b, (void)first_row;
#endif
}
/// The box of A begins `first_row` rows into the tensor: what lies beyond its end must read as zero.
template <int kN, bool kE4m3 = false>
MicroKernel Hopper(bool integers, int first_row) {
  constexpr int kRows = 80, kCodes = kE4m3 ? 2 * kDepth : kDepth, kBytes = kE4m3 ? 1 : 2;
  auto codes = [&](int rows, unsigned seed) {
    std::vector<uint8_t> bytes;
    for (uint32_t word : Noise(static_cast<size_t>(rows * kCodes), seed)) {
      const float value =
          integers ? static_cast<float>(word % 7) - 3.0f : static_cast<float>(static_cast<int32_t>(word)) * 0x1p-30f;
      const uint32_t bits = kE4m3 ? px::FloatToE4m3Bits(value) : px::FloatToBf16Bits(value);
      for (int i = 0; i < kBytes; ++i) bytes.push_back(static_cast<uint8_t>(bits >> (8 * i)));
    }
    return bytes;
  };
  auto value = [](const std::vector<uint8_t>& bytes, int at) {
    if (kE4m3) return px::E4m3BitsToFloat(bytes[static_cast<size_t>(at)]);
    return px::Bf16BitsToFloat(bytes[static_cast<size_t>(at) * 2] | bytes[static_cast<size_t>(at) * 2 + 1] << 8);
  };
  const std::vector<uint8_t> a = codes(kRows, 23), b = codes(kN, 24);
  MicroKernel k{std::string("Mbarrier_TmaLoad2D_Wgmma") + (kE4m3 ? "E4m3" : "") + "N" + std::to_string(kN) +
                    (integers ? "_integers_from_" : "_fractions_from_") + std::to_string(first_row),
                {},
                {},
                {}};
  if (!integers) k.tolerance = {Tolerance::Kind::kFloat, 8, kE4m3 ? 4e-2 : 2e-3};
  k.run = [=](gpu::Stream& s) {
    const gpu::Memory da(a.size()), db(b.size()), out(kM * kN * 4);
    s.Upload(da.data(), a.data(), a.size());
    s.Upload(db.data(), b.data(), b.size());
    const px::TensorMap2D ma = gpu::MakeTensorMap2D(static_cast<const px::bf16*>(da.data()), kDepth, kRows, kDepth, kM);
    const px::TensorMap2D mb = gpu::MakeTensorMap2D(static_cast<const px::bf16*>(db.data()), kDepth, kN, kDepth, kN);
    gpu::Launch(s, {.grid = {1}, .block = {128}, .shared_bytes = sizeof(HopperShared<kN>)}, &HopperKernel<kN, kE4m3>,
                static_cast<const uint32_t*>(nullptr), static_cast<uint32_t*>(out.data()), ma, mb, first_row);
    Words got(kM * kN);
    s.CopyAsync(got.data(), out.data(), got.size() * 4);
    CheckSynchronized(s);
    return got;
  };
  for (int i = 0; i < kN / 2; ++i)
    for (int t = 0; t < 128; ++t) {
      const int row = first_row + t / 32 * 16 + t % 32 / 4 + 8 * (i / 2 % 2), column = i / 4 * 8 + t % 4 * 2 + i % 2;
      double sum = 0;
      for (int d = 0; row < kRows && d < kCodes; ++d)
        sum += static_cast<double>(value(a, row * kCodes + d)) * value(b, column * kCodes + d);
      k.want.push_back(px::BitCast<uint32_t>(static_cast<float>(sum)));
    }
  return k;
}

constexpr int kSteps = kM / 16;  // of K
struct alignas(1024) RowsShared {
  px::bf16 b[kM * px::kTmaBoxColumns];
  uint64_t full;
};
/// d[64, 64] = 1 + a · b over 64 of K: a lies in registers as mma.sync has it, b's rows are those of K.
PX_KERNEL void AddRowsKernel(const uint32_t* in, uint32_t* out, const PX_GRID_CONST px::TensorMap2D b) {
#if PX_HAS_WGMMA
  PX_SHARED(RowsShared, smem);
  const int t = px::ThreadX();
  if (t == 0) {
    px::MbarrierInit(&smem.full, 1);
    px::MbarrierFenceInit();
  }
  px::SyncThreads();
  if (t == 0) {
    px::MbarrierArriveExpect(&smem.full, static_cast<int>(sizeof(smem.b)));
    px::TmaLoad2D(smem.b, &b, 0, 0, &smem.full);
  }
  uint32_t a[kSteps][4];
  float d[8][4];
  PX_UNROLL
  for (int i = 0; i < kSteps * 4; ++i) a[i / 4][i % 4] = px::Load(in + i * 128 + t);
  PX_UNROLL
  for (int i = 0; i < 32; ++i) d[i / 4][i % 4] = 1.0f;
  px::MbarrierWait(&smem.full, 0);
  px::WgmmaFence();
  PX_UNROLL
  for (int step = 0; step < kSteps; ++step)
    px::WgmmaAddRows(d, a[step], px::WgmmaRowsDescriptor(smem.b) + step * (16 * 128 / 16));
  px::WgmmaCommit();
  px::WgmmaWait<0>();
  px::WgmmaResult(d);
  PX_UNROLL
  for (int i = 0; i < 32; ++i) px::Store(out + i * 128 + t, px::BitCast<uint32_t>(d[i / 4][i % 4]));
#else
  (void)in, (void)out, (void)b;
#endif
}
MicroKernel AddRows(bool integers) {
  auto numbers = [&](unsigned seed) {
    std::vector<px::bf16> values;
    for (uint32_t word : Noise(kM * kM, seed))
      values.push_back(px::FromFloat<px::bf16>(integers ? static_cast<float>(word % 7) - 3.0f
                                                        : static_cast<float>(static_cast<int32_t>(word)) * 0x1p-30f));
    return values;
  };
  const std::vector<px::bf16> a = numbers(26), b = numbers(27);  // [64, 64 of K], [64 of K, 64]
  Words in(kSteps * 4 * 128);
  for (int i = 0; i < kSteps * 4; ++i)
    for (int t = 0; t < 128; ++t) {
      const int row = t / 32 * 16 + t % 32 / 4 + 8 * (i % 2), depth = i / 4 * 16 + t % 4 * 2 + 8 * (i % 4 / 2);
      const size_t at = static_cast<size_t>(row * kM + depth);
      in[static_cast<size_t>(i * 128 + t)] = a[at].bits | static_cast<uint32_t>(a[at + 1].bits) << 16;
    }
  MicroKernel k{std::string("WgmmaAddRows_") + (integers ? "integers" : "fractions"), {}, {}, {}};
  if (!integers) k.tolerance = {Tolerance::Kind::kFloat, 8, 2e-3};
  k.run = [=](gpu::Stream& s) {
    const gpu::Memory rows(b.size() * sizeof(px::bf16));
    s.Upload(rows.data(), b.data(), rows.bytes());
    return Launch(s, {.grid = {1}, .block = {128}, .shared_bytes = sizeof(RowsShared)}, 32 * 128, in, &AddRowsKernel,
                  gpu::MakeTensorMap2D(static_cast<const px::bf16*>(rows.data()), kM, kM, kM, kM));
  };
  for (int i = 0; i < 32; ++i)
    for (int t = 0; t < 128; ++t) {
      const int row = t / 32 * 16 + t % 32 / 4 + 8 * (i / 2 % 2), column = i / 4 * 8 + t % 4 * 2 + i % 2;
      double sum = 1;
      for (int depth = 0; depth < kM; ++depth)
        sum += static_cast<double>(px::ToFloat(a[static_cast<size_t>(row * kM + depth)])) *
               px::ToFloat(b[static_cast<size_t>(depth * kM + column)]);
      k.want.push_back(px::BitCast<uint32_t>(static_cast<float>(sum)));
    }
  return k;
}

}  // namespace

std::vector<MicroKernel> MatrixKernels() {
  return {LdMatrix<false>(),
          LdMatrix<true>(),
          Mma<Input::kBf16>(true),
          Mma<Input::kBf16>(false),
          Mma<Input::kF16>(true),
          Mma<Input::kF16>(false),
          Mma<Input::kE4m3>(true),
          Mma<Input::kE4m3>(false),
          MmaExchanged(),
          Hopper<64>(true, 0),
          Hopper<64>(false, 0),
          Hopper<64>(true, 32),
          Hopper<128>(true, 0),
          Hopper<256>(true, 0),
          Hopper<256>(false, 0),
          Hopper<16>(true, 0),
          Hopper<16>(false, 0),
          Hopper<32>(true, 0),
          Hopper<32>(false, 0),
          Hopper<16, true>(true, 0),
          Hopper<16, true>(false, 0),
          Hopper<32, true>(true, 0),
          Hopper<64, true>(true, 32),
          Hopper<64, true>(false, 0),
          Hopper<128, true>(true, 0),
          Hopper<128, true>(false, 0),
          AddRows(true),
          AddRows(false)};
}

}  // namespace baton::conformance
