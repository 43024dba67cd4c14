// Adding, gathering and capping rows, copying blocks, clearing digests: every element against its definition, and
// nothing else is written.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/cuda/kv/copy_blocks.cuh"
#include "kernels/cuda/rows/add_rows.cuh"
#include "kernels/cuda/rows/begin_units.cuh"
#include "kernels/cuda/rows/gather_columns.cuh"
#include "kernels/cuda/rows/gather_rows.cuh"
#include "kernels/cuda/rows/soft_cap.cuh"
#include "tests/kernels/cuda/shape_sweep.h"

namespace baton::cuda_test {
namespace {

template <typename In>
void CheckAdd(Draw& draw, int rows, int n) {
  const int64_t x_stride = n + 8, residual_stride = n + 4;
  const std::vector<float> before = draw.Normal<float>(static_cast<size_t>(rows) * residual_stride);
  const Array<In> x(draw.Normal<In>(static_cast<size_t>(rows) * x_stride));
  const Array<float> residual(before.size());
  UnderEveryPolicy(
      [&](gpu::Stream& stream) {
        stream.Upload(residual.data(), before.data(), before.size() * 4);
        cuda::LaunchAddRows(stream,
                            cuda::AddRowsParams<In>{x.data(), residual.data(), x_stride, residual_stride, rows, n});
      },
      [&](const std::string& policy) {
        for (int r = 0; r < rows; ++r)
          for (int i = 0; i < residual_stride; ++i) {
            const float old = before[r * residual_stride + i];
            ASSERT_EQ(residual[r * residual_stride + i], i < n ? old + px::ToFloat(x[r * x_stride + i]) : old)
                << policy << " row " << r << " column " << i << " of " << n;
          }
      });
}
TEST(CudaAddRows, AddsAndTouchesNothingElse) {
  Sweep(8, [](Draw& draw) {
    CheckAdd<px::bf16>(draw, draw.Int(0, 9), draw.Multiple(8, 3000));
    CheckAdd<float>(draw, draw.Int(0, 9), draw.Multiple(8, 3000));
  });
}

TEST(CudaGatherColumns, TakesTheColumnsThatWereNamedAndZeroForNone) {
  Sweep(8, [](Draw& draw) {
    const int held = draw.Size(300), rows = draw.Int(0, 9), n = draw.Multiple(8, 600);
    const int64_t stride = held + 3;
    const Array<px::bf16> x(static_cast<size_t>(rows) * stride), out(static_cast<size_t>(rows) * n + 8);
    for (size_t i = 0; i < x.size(); ++i) x[i] = {static_cast<uint16_t>(draw.Int(1, 65535))};
    const Array<int32_t> columns(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) columns[i] = draw.Int(-1, held - 1);
    UnderEveryPolicy(
        [&](gpu::Stream& stream) {
          stream.FillAsync(out.data(), 0xEE, out.size() * sizeof(px::bf16));
          cuda::LaunchGatherColumns(stream, {x.data(), columns.data(), out.data(), stride, rows, n});
        },
        [&](const std::string& policy) {
          for (int r = 0; r < rows; ++r)
            for (int i = 0; i < n; ++i) {
              const int want = columns[i] < 0 ? 0 : x[r * stride + columns[i]].bits;
              ASSERT_EQ(out[static_cast<size_t>(r) * n + i].bits, want) << policy << " row " << r << " column " << i;
            }
          for (int i = 0; i < 8; ++i) ASSERT_EQ(out[static_cast<size_t>(rows) * n + i].bits, 0xEEEE) << policy;
        });
  });
}

TEST(CudaGatherRows, TakesTheRowsThatWereNamed) {
  Sweep(8, [](Draw& draw) {
    const int held = draw.Size(20), count = draw.Int(0, 30), bytes = draw.Multiple(4, 4000);
    const int64_t x_bytes = bytes + 8, out_bytes = bytes + 4;
    const Array<unsigned char> x(static_cast<size_t>(held) * x_bytes), out(static_cast<size_t>(count) * out_bytes);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<unsigned char>(draw.Int(0, 255));
    const Array<int32_t> rows(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) rows[i] = draw.Int(0, held - 1);
    UnderEveryPolicy(
        [&](gpu::Stream& stream) {
          stream.FillAsync(out.data(), 0xEE, out.size());
          cuda::LaunchGatherRows(stream, {x.data(), out.data(), rows.data(), x_bytes, out_bytes, count, bytes});
        },
        [&](const std::string& policy) {
          for (int r = 0; r < count; ++r) {
            ASSERT_EQ(std::memcmp(out.host() + r * out_bytes, x.host() + rows[r] * x_bytes, bytes), 0) << policy;
            for (int i = bytes; i < out_bytes; ++i) ASSERT_EQ(out[r * out_bytes + i], 0xEE) << policy;
          }
        });
  });
}

TEST(CudaSoftCap, CapsEveryElement) {
  Sweep(8, [](Draw& draw) {
    const int rows = draw.Int(0, 6), n = draw.Size(3000);
    const float cap = 1.0f + static_cast<float>(draw.Int(0, 60));
    const int64_t stride = n + draw.Int(0, 5);
    const std::vector<float> before = draw.Normal<float>(static_cast<size_t>(rows) * stride, 40.0f);
    const Array<float> x(before.size());
    UnderEveryPolicy(
        [&](gpu::Stream& stream) {
          stream.Upload(x.data(), before.data(), before.size() * 4);
          cuda::LaunchSoftCap(stream, {x.data(), stride, rows, n, cap});
        },
        [&](const std::string& policy) {
          std::vector<double> want;
          for (size_t i = 0; i < before.size(); ++i)
            want.push_back(static_cast<int64_t>(i) % stride < n ? cap * std::tanh(before[i] / double{cap}) : before[i]);
          EXPECT_TRUE(Near(x.host(), want)) << policy << " rows " << rows << " n " << n;
        });
  });
}

TEST(CudaCopyBlocks, CopiesBytesAndDigestsOfTheNamedBlocks) {
  Sweep(8, [](Draw& draw) {
    const int blocks = draw.Int(2, 20), count = draw.Int(0, blocks / 2), digests_each = draw.Size(24);
    const int64_t bytes = draw.Multiple(16, 9000), stride = bytes + 16, digest_stride = digests_each + 1;
    std::vector<unsigned char> plane(static_cast<size_t>(blocks) * stride);
    std::vector<uint64_t> digests(static_cast<size_t>(blocks) * digest_stride);
    for (auto& b : plane) b = static_cast<unsigned char>(draw.Int(0, 255));
    for (auto& d : digests) d = draw.rng()();
    std::vector<int32_t> order(static_cast<size_t>(blocks));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), draw.rng());
    const Array<int32_t> pairs(std::vector<int32_t>(order.begin(), order.begin() + 2 * count));
    std::vector<unsigned char> want = plane;
    std::vector<uint64_t> want_digests = digests;
    for (int i = 0; i < count; ++i) {
      std::copy_n(plane.begin() + pairs[2 * i] * stride, bytes, want.begin() + pairs[2 * i + 1] * stride);
      std::copy_n(digests.begin() + pairs[2 * i] * digest_stride, digests_each,
                  want_digests.begin() + pairs[2 * i + 1] * digest_stride);
    }
    const Array<unsigned char> dplane(plane.size());
    const Array<uint64_t> ddigests(digests.size());
    UnderEveryPolicy(
        [&](gpu::Stream& stream) {
          stream.Upload(dplane.data(), plane.data(), plane.size());
          stream.Upload(ddigests.data(), digests.data(), digests.size() * 8);
          cuda::LaunchCopyBlocks(stream, {dplane.data(), stride, bytes, ddigests.data(), digest_stride, pairs.data(),
                                          count, digests_each});
        },
        [&](const std::string& policy) {
          EXPECT_TRUE(Copy(dplane) == want) << policy;
          EXPECT_TRUE(Copy(ddigests) == want_digests) << policy;
        });
  });
}

TEST(CudaBeginUnits, ClearsTheUnitsWhoseFirstTokenIsWritten) {
  Sweep(8, [](Draw& draw) {
    constexpr int kUnit = 16, kBlocks = 4;
    const int block = kUnit * draw.Int(1, 4), heads = draw.Size(9), units = block / kUnit;
    const int64_t stride = units * heads + 3;
    std::vector<int32_t> slots(static_cast<size_t>(kBlocks * block));  // no token twice
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin(), slots.end(), draw.rng());
    slots.resize(static_cast<size_t>(draw.Int(0, 50)));
    std::vector<uint64_t> want(kBlocks * stride, ~0ull);
    for (int32_t& slot : slots) {
      if (draw.Chance(8)) slot = -1;
      if (slot < 0 || slot % kUnit != 0) continue;
      for (int h = 0; h < heads; ++h) want[slot / block * stride + slot % block / kUnit * heads + h] = 0;
    }
    const Array<int32_t> dslots(slots);
    const Array<uint64_t> k(want.size()), v(want.size());
    UnderEveryPolicy(
        [&](gpu::Stream& stream) {
          stream.FillAsync(k.data(), 0xFF, k.size() * 8);
          stream.FillAsync(v.data(), 0xFF, v.size() * 8);
          cuda::LaunchBeginUnits(
              stream, {k.data(), v.data(), stride, dslots.data(), static_cast<int>(slots.size()), heads, block, kUnit});
        },
        [&](const std::string& policy) {
          EXPECT_TRUE(Copy(k) == want) << policy;
          EXPECT_TRUE(Copy(v) == want) << policy;
        });
  });
}

}  // namespace
}  // namespace baton::cuda_test
