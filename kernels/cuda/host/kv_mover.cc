#include "kernels/cuda/host/kv_mover.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/device_failure.h"
#include "common/status.h"
#include "kernels/cuda/host/device_memory.h"
#include "kernels/cuda/instances/instances.h"
#include "kernels/device_rooms.h"
#include "kernels/runtime/host_pin.h"
#include "kernels/runtime/network_writes.h"
#include "kernels/runtime/peer_memory.h"

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

/// What a card is of, as bytes; another version of this program may have another.
struct OutboxCard {
  std::array<char, 8> format = {'K', 'V', 'O', 'U', 'T', 'B', 'X', '1'};
  gpu::MemoryCard memory;
};
static_assert(sizeof(OutboxCard) == 272);

/// The known bytes at an outbox's end.
using OutboxMark = std::array<uint64_t, kernels::device_sizes::kOutboxMark / sizeof(uint64_t)>;
OutboxMark OutboxMarkOf(uint64_t process) {
  OutboxMark out;
  for (uint64_t i = 0; i < out.size(); ++i) out[i] = (process + i) * 0x9e3779b97f4a7c15ull;
  return out;
}

class CudaOutbox final : public OpenedOutbox {
 public:
  explicit CudaOutbox(gpu::Stream& stream) : stream_(stream) {}
  /// Copies out of it are done before it is closed.
  ~CudaOutbox() override { stream_.Synchronize(); }

  gpu::PeerMemory memory;
  int64_t bytes = 0;

 private:
  gpu::Stream& stream_;
};

struct CudaPin final : PinnedMemory {
  CudaPin(void* memory, size_t bytes) : pin(memory, bytes) {}
  gpu::HostPin pin;
};

/// For the devices of other processes.
struct Lent {
  gpu::Memory outbox, inbox;
  std::string card, refused;
};

class CudaKvMover final : public KvMover {
 public:
  CudaKvMover(gpu::Memory staging, gpu::Memory told, gpu::Memory on_device, std::optional<Lent> lent)
      : staging_(std::move(staging)),
        told_(std::move(told)),
        on_device_(std::move(on_device)),
        lent_(std::move(lent)) {}
  /// Queued work still uses the members.
  ~CudaKvMover() override { stream_.Synchronize(); }

  std::span<std::byte> staging() override { return {static_cast<std::byte*>(staging_.data()), staging_.bytes()}; }
  bool Converts(DType packed, DType cached) const override { return ConversionOf(packed, cached).has_value(); }
  absl::Status Gather(std::span<const KvMove> moves, std::span<KvMoved> segments, KvPacked to) override {
    Move(moves, segments, to, true);
    return absl::OkStatus();
  }
  absl::Status Scatter(std::span<const KvMove> moves, std::span<KvMoved> segments, KvPacked from) override {
    Move(moves, segments, from, false);
    return absl::OkStatus();
  }

  KvOutbox outbox() const override {
    if (!lent_) return {.refused = "it is not asked to"};
    if (!lent_->refused.empty()) return {.refused = lent_->refused};
    return {.card = lent_->card, .buffers = kernels::device_sizes::kOutboxBuffers, .buffer_bytes = staging_.bytes()};
  }
  absl::StatusOr<std::shared_ptr<OpenedOutbox>> Open(std::string_view card) override;
  absl::Status Fetch(const OpenedOutbox& from, int64_t at, int64_t to, int64_t bytes) override;
  absl::StatusOr<std::unique_ptr<PinnedMemory>> Pin(std::span<std::byte> memory) override;
  void FetchPinned(std::span<const std::byte> from, int64_t to) override;

  KvDeviceRooms rooms() override;
  absl::Status made() const { return CheckMade(stream_); }
  absl::Status SeeInbox(std::span<std::byte> head) override;
  void ClearInbox(size_t bytes) override;

 private:
  std::string LookInto(CudaOutbox& opened, const gpu::MemoryCard& card);
  void* Base(KvPacked packed) {
    if (packed == KvPacked::kStaging) return staging_.data();
    BATON_CHECK(lent_.has_value(), "KV in memory that this mover was not made with");
    return packed == KvPacked::kOutbox ? lent_->outbox.data() : lent_->inbox.data();
  }

  void Move(std::span<const KvMove> moves, std::span<KvMoved> segments, KvPacked packed, bool gather) {
    while (!moves.empty()) {
      const size_t n = std::min(moves.size(), kMostRuns);
      MoveSome(moves.first(n), segments, Base(packed), gather);
      moves = moves.subspan(n);
    }
  }

  void MoveSome(std::span<const KvMove> moves, std::span<KvMoved> segments, void* packed, bool gather) {
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
      Launch(kind, device, first, end, packed, gather);
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

  void Launch(const KvMove& kind, Talk& device, size_t first, size_t end, void* packed, bool gather) {
    const size_t vector_bytes = static_cast<size_t>(kind.dim) * DTypeBytes(kind.packed);
    BATON_CHECK(vector_bytes % 16 == 0, "vectors of ", vector_bytes, " bytes of KV");
    const KvRunsParams p{
        static_cast<unsigned char*>(packed), device.runs + first,           device.answers.sums, device.answers.bad,
        static_cast<int>(end - first),       static_cast<int>(vector_bytes)};
    const std::optional<KvConversion> conversion = ConversionOf(kind.packed, kind.cached);
    BATON_CHECK(conversion && (!gather || conversion == KvConversion::kNone), "KV of type ", DTypeName(kind.packed),
                " for blocks of ", DTypeName(kind.cached));
    if (gather)
      LaunchGatherKv(stream_, p);
    else
      LaunchScatter(stream_, p, *conversion);
  }

  gpu::Memory staging_, told_, on_device_;
  std::optional<Lent> lent_;
  gpu::Stream stream_;
  std::map<std::string, std::weak_ptr<CudaOutbox>, std::less<>> opened_;  ///< by card: a handle is opened once
};

absl::StatusOr<std::shared_ptr<OpenedOutbox>> CudaKvMover::Open(std::string_view bytes) {
  OutboxCard card;
  const OutboxCard ours;
  if (!lent_) return absl::FailedPreconditionError("this GPU is not asked to");
  if (bytes.size() == sizeof(card)) std::memcpy(&card, bytes.data(), sizeof(card));
  if (bytes.size() != sizeof(card) || card.format != ours.format || card.memory.bytes < sizeof(OutboxMark))
    return absl::FailedPreconditionError("its card is of another version");
  card.memory.refused[sizeof(card.memory.refused) - 1] = card.memory.machine[sizeof(card.memory.machine) - 1] = 0;
  std::erase_if(opened_, [](const auto& one) { return one.second.expired(); });
  if (const auto known = opened_.find(bytes); known != opened_.end()) return known->second.lock();
  stream_.Bind();
  auto opened = std::make_shared<CudaOutbox>(stream_);
  std::string why = opened->memory.Open(card.memory);
  if (why.empty()) why = LookInto(*opened, card.memory);
  if (!why.empty()) return absl::FailedPreconditionError(why);
  opened->bytes = static_cast<int64_t>(card.memory.bytes);
  opened_.emplace(bytes, opened);
  return opened;
}

/// Drivers say of GPUs that they reach each other where an IOMMU or a virtual machine loses what one reads.
std::string CudaKvMover::LookInto(CudaOutbox& opened, const gpu::MemoryCard& card) {
  const auto* end = static_cast<const std::byte*>(opened.memory.data()) + card.bytes;
  stream_.CopyAsync(told_.data(), end - sizeof(OutboxMark), sizeof(OutboxMark));
  EndIfDeviceFailed(stream_.Synchronize());
  const OutboxMark want = OutboxMarkOf(card.process);
  return std::memcmp(told_.data(), want.data(), sizeof(OutboxMark)) == 0 ? "" : "what is in its memory does not arrive";
}

absl::Status CudaKvMover::Fetch(const OpenedOutbox& from, int64_t at, int64_t to, int64_t bytes) {
  const auto& opened = static_cast<const CudaOutbox&>(from);
  const auto fits = [bytes](int64_t first, int64_t room) {
    return first >= 0 && first <= room && bytes <= room - first;
  };
  const auto inbox = static_cast<int64_t>(lent_->inbox.bytes());
  if (bytes < 0 || !fits(at, opened.bytes) || !fits(to, inbox)) {
    return absl::InvalidArgumentError(StrCat(bytes, " bytes of KV from ", at, " of ", opened.bytes,
                                             " that another GPU lends, to ", to, " of ", inbox));
  }
  stream_.CopyAsync(static_cast<std::byte*>(lent_->inbox.data()) + to,
                    static_cast<const std::byte*>(opened.memory.data()) + at, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PinnedMemory>> CudaKvMover::Pin(std::span<std::byte> memory) {
  if (!lent_) return absl::FailedPreconditionError("it has no inbox (--no-kv-cuda-ipc)");
  stream_.Bind();
  auto made = std::make_unique<CudaPin>(memory.data(), memory.size());
  if (!made->pin.error().empty()) return absl::FailedPreconditionError(made->pin.error());
  return made;
}

void CudaKvMover::FetchPinned(std::span<const std::byte> from, int64_t to) {
  BATON_CHECK(lent_ && to >= 0 && static_cast<size_t>(to) <= lent_->inbox.bytes() &&
                  from.size() <= lent_->inbox.bytes() - static_cast<size_t>(to),
              from.size(), " bytes of a slot to ", to, " of an inbox");
  stream_.CopyAsync(static_cast<std::byte*>(lent_->inbox.data()) + to, from.data(), from.size());
}

std::span<std::byte> SpanOf(const gpu::Memory& memory) {
  return {static_cast<std::byte*>(memory.data()), memory.bytes()};
}

KvDeviceRooms CudaKvMover::rooms() {
  if (!lent_) return {};
  stream_.Bind();  // whoever registers them asks the driver, on this thread
  const OutboxMark mark = OutboxMarkOf(gpu::ThisProcess());
  return {SpanOf(lent_->outbox), SpanOf(lent_->inbox),
          std::string(reinterpret_cast<const char*>(mark.data()), sizeof(mark))};
}

absl::Status CudaKvMover::SeeInbox(std::span<std::byte> head) {
  if (!lent_) return absl::FailedPreconditionError("this device has no inbox");
  BATON_CHECK(head.size() <= std::min(lent_->inbox.bytes(), told_.bytes()), head.size(), " bytes of an inbox");
  stream_.Bind();
  if (const std::string why = gpu::SeeNetworkWrites(); !why.empty()) return absl::FailedPreconditionError(why);
  if (head.empty()) return absl::OkStatus();
  stream_.CopyAsync(told_.data(), lent_->inbox.data(), head.size());
  EndIfDeviceFailed(stream_.Synchronize());
  std::memcpy(head.data(), told_.data(), head.size());
  return absl::OkStatus();
}

void CudaKvMover::ClearInbox(size_t bytes) {
  if (!lent_) return;
  stream_.FillAsync(lent_->inbox.data(), 0, std::min(bytes, lent_->inbox.bytes()));
  EndIfDeviceFailed(stream_.Synchronize());
}

absl::StatusOr<gpu::Memory> AllocatePinned(size_t bytes) {
  gpu::Memory memory(bytes, gpu::MemoryKind::kShared);
  if (memory.data() != nullptr) return memory;
  return absl::ResourceExhaustedError(
      StrCat("staging KV needs ", bytes, " bytes of pinned memory of the host, which it has not"));
}

/// With its known bytes, before anybody hears of it.
absl::StatusOr<Lent> MakeLent(size_t buffer_bytes) {
  const auto bytes = static_cast<size_t>(kernels::OutboxBytes(static_cast<int64_t>(buffer_bytes)));
  BATON_ASSIGN_OR_RETURN(gpu::Memory outbox,
                         AllocateOnDevice(bytes, "KV for other GPUs to read", gpu::MemoryKind::kPeer));
  BATON_ASSIGN_OR_RETURN(gpu::Memory inbox, AllocateOnDevice(buffer_bytes, "KV read of other GPUs"));
  OutboxCard card;
  card.memory = gpu::CardOf(outbox);
  const OutboxMark trial = OutboxMarkOf(card.memory.process);
  gpu::Stream stream;
  BATON_RETURN_IF_ERROR(CheckMade(stream));
  stream.Upload(static_cast<std::byte*>(outbox.data()) + bytes - sizeof(trial), trial.data(), sizeof(trial));
  EndIfDeviceFailed(stream.Synchronize());
  return Lent{std::move(outbox), std::move(inbox), std::string(reinterpret_cast<const char*>(&card), sizeof(card)),
              card.memory.refused};
}

}  // namespace

absl::StatusOr<std::unique_ptr<KvMover>> MakeKvMover(size_t staging_bytes, bool lends) {
  BATON_ASSIGN_OR_RETURN(gpu::Memory staging, AllocatePinned(staging_bytes));
  BATON_ASSIGN_OR_RETURN(gpu::Memory told, AllocatePinned(sizeof(Talk)));
  BATON_ASSIGN_OR_RETURN(gpu::Memory on_device, AllocateOnDevice(sizeof(Talk), "the list of what moves KV"));
  std::optional<Lent> lent;
  if (lends) {
    BATON_ASSIGN_OR_RETURN(Lent made, MakeLent(staging_bytes));
    lent.emplace(std::move(made));
  }
  auto mover =
      std::make_unique<CudaKvMover>(std::move(staging), std::move(told), std::move(on_device), std::move(lent));
  BATON_RETURN_IF_ERROR(mover->made());
  return mover;
}

}  // namespace baton::cuda
