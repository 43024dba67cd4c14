#include "kernels/cuda/host/kv_mover.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/device_failure.h"
#include "common/status.h"
#include "kernels/cuda/host/device_memory.h"
#include "kernels/cuda/instances/instances.h"
#include "kernels/device_rooms.h"

namespace baton::cuda {
namespace {

constexpr size_t kMostRuns = 4096;  ///< of a launch; a slot's further ones follow in another

std::optional<KvConversion> ConversionOf(DType packed, DType cached) {
  if (packed == cached) return KvConversion::kNone;
  if (cached == DType::kBF16) {
    if (packed == DType::kF32) return KvConversion::kF32ToBf16;
    if (packed == DType::kF16) return KvConversion::kF16ToBf16;
    if (packed == DType::kF8E4M3) return KvConversion::kE4m3ToBf16;
  }
  if (cached == DType::kF8E4M3) {
    if (packed == DType::kBF16) return KvConversion::kBf16ToE4m3;
    if (packed == DType::kF32) return KvConversion::kF32ToE4m3;
    if (packed == DType::kF16) return KvConversion::kF16ToE4m3;
  }
  return std::nullopt;
}

void LaunchScatter(gpu::Stream& stream, const KvRunsParams& p, KvConversion conversion) {
  switch (conversion) {
    case KvConversion::kNone: return LaunchScatterKv<KvConversion::kNone>(stream, p);
    case KvConversion::kF32ToBf16: return LaunchScatterKv<KvConversion::kF32ToBf16>(stream, p);
    case KvConversion::kF16ToBf16: return LaunchScatterKv<KvConversion::kF16ToBf16>(stream, p);
    case KvConversion::kBf16ToE4m3: return LaunchScatterKv<KvConversion::kBf16ToE4m3>(stream, p);
    case KvConversion::kF32ToE4m3: return LaunchScatterKv<KvConversion::kF32ToE4m3>(stream, p);
    case KvConversion::kF16ToE4m3: return LaunchScatterKv<KvConversion::kF16ToE4m3>(stream, p);
    case KvConversion::kE4m3ToBf16: return LaunchScatterKv<KvConversion::kE4m3ToBf16>(stream, p);
  }
}

/// What is the same for all runs of a launch.
std::tuple<DType, DType, int32_t> KindOf(const KvMove& m) { return {m.packed, m.cached, m.dim}; }

KvRun RunOf(const KvMove& m, int32_t segment) {
  return {static_cast<unsigned char*>(m.cache),
          m.token_stride,
          m.staged,
          m.digests,
          m.digest_stride,
          m.layer,
          m.plane,
          m.first_head,
          m.first_token,
          m.tokens,
          m.heads,
          segment,
          m.scale};
}

/// What the host and the device tell each other about a launch; one in pinned memory, one in the device's.
struct Talk {
  struct Answers {
    uint64_t sums[kMostRuns];
    int32_t bad[kMostRuns];
  };
  KvRun runs[kMostRuns];
  Answers answers;
};
static_assert(sizeof(Talk) == kernels::device_sizes::kKvLists);

class CudaKvMover final : public KvMover {
 public:
  CudaKvMover(gpu::Memory staging, gpu::Memory told, gpu::Memory on_device)
      : staging_(std::move(staging)), told_(std::move(told)), on_device_(std::move(on_device)) {}
  /// Queued work still uses the members.
  ~CudaKvMover() override { stream_.Synchronize(); }

  std::span<std::byte> staging() override { return {static_cast<std::byte*>(staging_.data()), staging_.bytes()}; }
  bool Converts(DType packed, DType cached) const override { return ConversionOf(packed, cached).has_value(); }
  absl::Status Gather(std::span<const KvMove> moves, std::span<KvMoved> segments) override {
    Move(moves, segments, true);
    return absl::OkStatus();
  }
  absl::Status Scatter(std::span<const KvMove> moves, std::span<KvMoved> segments) override {
    Move(moves, segments, false);
    return absl::OkStatus();
  }

 private:
  void Move(std::span<const KvMove> moves, std::span<KvMoved> segments, bool gather) {
    while (!moves.empty()) {
      const size_t n = std::min(moves.size(), kMostRuns);
      MoveSome(moves.first(n), segments, gather);
      moves = moves.subspan(n);
    }
  }

  void MoveSome(std::span<const KvMove> moves, std::span<KvMoved> segments, bool gather) {
    Talk& told = *static_cast<Talk*>(told_.data());
    Talk& device = *static_cast<Talk*>(on_device_.data());
    std::vector<int32_t> numbers;  // of segments, by their number in this launch
    std::vector<std::pair<const KvMove*, int32_t>> order;
    for (const KvMove& m : moves) {
      if (numbers.empty() || numbers.back() != m.segment) numbers.push_back(m.segment);
      order.emplace_back(&m, static_cast<int32_t>(numbers.size()) - 1);
    }
    std::ranges::stable_sort(order, {}, [](const auto& one) { return KindOf(*one.first); });
    for (size_t i = 0; i < order.size(); ++i) told.runs[i] = RunOf(*order[i].first, order[i].second);
    stream_.CopyAsync(device.runs, told.runs, order.size() * sizeof(KvRun));
    stream_.FillAsync(&device.answers, 0, sizeof(Talk::Answers));
    for (size_t first = 0; first < order.size();) {
      const KvMove& kind = *order[first].first;
      size_t end = first;
      while (end < order.size() && KindOf(*order[end].first) == KindOf(kind)) ++end;
      Launch(kind, device, first, end, gather);
      first = end;
    }
    stream_.CopyAsync(&told.answers, &device.answers, sizeof(Talk::Answers));
    EndIfDeviceFailed(stream_.Synchronize());
    for (size_t i = 0; i < numbers.size(); ++i) {
      KvMoved& segment = segments[static_cast<size_t>(numbers[i])];
      segment.digest += told.answers.sums[i];
      segment.unkept += told.answers.bad[i];
    }
  }

  void Launch(const KvMove& kind, Talk& device, size_t first, size_t end, bool gather) {
    const size_t vector_bytes = static_cast<size_t>(kind.dim) * DTypeBytes(kind.packed);
    BATON_CHECK(vector_bytes % 16 == 0, "vectors of ", vector_bytes, " bytes of KV");
    const KvRunsParams p{reinterpret_cast<unsigned char*>(staging().data()),
                         device.runs + first,
                         device.answers.sums,
                         device.answers.bad,
                         static_cast<int>(end - first),
                         static_cast<int>(vector_bytes)};
    const std::optional<KvConversion> conversion = ConversionOf(kind.packed, kind.cached);
    BATON_CHECK(conversion && (!gather || conversion == KvConversion::kNone), "KV of type ", DTypeName(kind.packed),
                " for blocks of ", DTypeName(kind.cached));
    if (gather)
      LaunchGatherKv(stream_, p);
    else
      LaunchScatter(stream_, p, *conversion);
  }

  gpu::Memory staging_, told_, on_device_;
  gpu::Stream stream_;
};

absl::StatusOr<gpu::Memory> AllocatePinned(size_t bytes) {
  gpu::Memory memory(bytes, gpu::MemoryKind::kShared);
  if (memory.data() != nullptr) return memory;
  return absl::ResourceExhaustedError(
      StrCat("staging KV needs ", bytes, " bytes of pinned memory of the host, which it has not"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<KvMover>> MakeKvMover(size_t staging_bytes) {
  BATON_ASSIGN_OR_RETURN(gpu::Memory staging, AllocatePinned(staging_bytes));
  BATON_ASSIGN_OR_RETURN(gpu::Memory told, AllocatePinned(sizeof(Talk)));
  BATON_ASSIGN_OR_RETURN(gpu::Memory on_device, AllocateOnDevice(sizeof(Talk), "the list of what moves KV"));
  return std::make_unique<CudaKvMover>(std::move(staging), std::move(told), std::move(on_device));
}

}  // namespace baton::cuda
